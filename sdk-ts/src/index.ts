/** The client of the Trading Intents Platform, for Node.js and browsers. */

export { Account } from "./account.js";
export { type Amount, AMOUNT_FIELDS, type DecimalLike, type With } from "./amounts.js";
export type { paths } from "./api.js";
export type { AnswerOf, ItemOf, ListPath, Method, PathOf, RequestOf } from "./calls.js";
export { type ClientOptions, TradingClient } from "./client.js";
export {
  cancelCommand,
  type Command,
  createCommand,
  type NewOrder,
  type OrderSide,
  type OrderStatus,
  replaceCommand,
  type RouteStrategy,
  type Schemas,
  type StopPrices,
  type Terms,
  type TimeInForce,
} from "./commands.js";
export { apiKey, bearer, clientCredentials, type Credentials } from "./credentials.js";
export * from "./errors.js";
export type { EventKind, Gap, TradingEvent } from "./events.js";
export { EventStream, type StreamOptions } from "./following.js";
export type { Order, OrderRecord, PlacedOrder, Replacement, SubmitOptions } from "./orders.js";
export { type Page, type PageOptions, Pages } from "./pages.js";
export { FINAL_STATUSES, type WaitOptions } from "./waiting.js";
