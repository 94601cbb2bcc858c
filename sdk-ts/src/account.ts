/** One trading account: its orders, trades, positions, money, events and halt. */

import type { Amount, With } from "./amounts.js";
import { type AnswerOf, fillPath, type ItemOf, type ListPath, type RequestOf } from "./calls.js";
import type { TradingClient } from "./client.js";
import {
  type Command,
  createCommand,
  type NewOrder,
  type OrderSide,
  type Schemas,
} from "./commands.js";
import { TradingError } from "./errors.js";
import { EventStream, type StreamOptions } from "./following.js";
import {
  bindOrder,
  bindPlaced,
  type Order,
  type PlacedOrder,
  type SubmitOptions,
} from "./orders.js";
import { Pages } from "./pages.js";
import { type HttpRequest, IDEMPOTENCY_KEY, type Transport } from "./transport.js";
import { OrderWaits, type WaitOptions } from "./waiting.js";

const ORDERS = "/v1/accounts/{account_id}/orders";
const EVENTS = "/v1/accounts/{account_id}/events";
const INTENTS = "/v1/accounts/{account_id}/intents";
const CLOSE = "/v1/accounts/{account_id}/positions/{symbol}/close";
const MAX_KEY_CHARACTERS = 128;

type Filters<P extends ListPath> =
  RequestOf<"GET", P> extends { query?: infer Q } ? Omit<Q, "limit" | "next_cursor"> : object;
type AccountList = "trades" | "positions" | "intents";

export class Account<D = string> {
  readonly id: string;
  readonly #client: TradingClient<D>;
  readonly #transport: Transport;
  readonly #path: { account_id: string };
  readonly #waits: OrderWaits<D, Order<D>>;

  /** By `client.account(id)`, which asks the platform nothing. */
  constructor(client: TradingClient<D>, transport: Transport, id: string) {
    this.id = id;
    this.#client = client;
    this.#transport = transport;
    this.#path = { account_id: id };
    this.#waits = new OrderWaits(
      () => this.events({ kinds: ["broker_order"] }),
      (intentId, signal) => this.order(intentId, signal),
    );
  }

  /** Buys: at the market, with `limit` and `stop` prices, or with a stop that trails. */
  buy(symbol: string, quantity: Amount, order?: NewOrder & SubmitOptions): Promise<PlacedOrder<D>> {
    return this.#create(symbol, "BUY", quantity, order);
  }

  /** Sells what the account holds. */
  sell(
    symbol: string,
    quantity: Amount,
    order?: NewOrder & SubmitOptions,
  ): Promise<PlacedOrder<D>> {
    return this.#create(symbol, "SELL", quantity, order);
  }

  short(
    symbol: string,
    quantity: Amount,
    order?: NewOrder & SubmitOptions,
  ): Promise<PlacedOrder<D>> {
    return this.#create(symbol, "SELL_SHORT", quantity, order);
  }

  /** Submits what `createCommand`, `replaceCommand` or `cancelCommand` made. Placed once. */
  submit(command: Command, options: SubmitOptions = {}): Promise<PlacedOrder<D>> {
    const { clientReferenceId } = options;
    const reference = clientReferenceId && { client_reference_id: clientReferenceId };
    return this.#submit(fillPath(INTENTS, this.#path), { command, ...reference }, options);
  }

  /** Closes the position by a market order for what open orders do not close already. */
  closePosition(symbol: string, options: SubmitOptions = {}): Promise<PlacedOrder<D>> {
    return this.#submit(fillPath(CLOSE, { ...this.#path, symbol }), {}, options);
  }

  /** Asks for up to 500 open orders to be cancelled, of one symbol or of all. Safe to repeat. */
  cancelAll(
    symbol?: string,
  ): Promise<With<AnswerOf<"POST", "/v1/accounts/{account_id}/intents/cancel-all">, D>> {
    const path = "/v1/accounts/{account_id}/intents/cancel-all";
    return this.#client.call("POST", path, { path: this.#path, body: symbol ? { symbol } : {} });
  }

  /** An order, by its id or its intent's, which are the same. */
  async order(orderId: string, signal?: AbortSignal): Promise<Order<D>> {
    const path = { ...this.#path, order_id: orderId };
    const record = await this.#client.call("GET", `${ORDERS}/{order_id}`, {
      path,
      ...(signal && { signal }),
    });
    return bindOrder(this, record);
  }

  /** The account's orders, oldest first unless `order` is `desc`. */
  orders(filters: Filters<typeof ORDERS> = {}): Pages<Order<D>, With<Schemas["Order"], D>> {
    const request = { method: "GET", path: fillPath(ORDERS, this.#path), query: filters };
    return new Pages(this.#transport, request, (record) => bindOrder(this, record));
  }

  /** The account's executions, in the order in which they were recorded. */
  trades(filters: Filters<"/v1/accounts/{account_id}/trades"> = {}) {
    return this.#list("trades", filters);
  }

  /** Everything that the account ever held or traded, by symbol. */
  positions(filters: Filters<"/v1/accounts/{account_id}/positions"> = {}) {
    return this.#list("positions", filters);
  }

  /** The account's log: every command that was ever accepted. */
  intents(filters: Filters<typeof INTENTS> = {}) {
    return this.#list("intents", filters);
  }

  /** The account's money, as its broker last reported it. */
  balances(): Promise<With<Schemas["Balance"], D>> {
    return this.#client.call("GET", "/v1/accounts/{account_id}/balances", { path: this.#path });
  }

  /** Stops trading in the account at once, and cancels its orders. */
  halt(
    reason: string,
    options: Omit<Partial<Schemas["StartHalt"]>, "reason"> = {},
  ): Promise<With<Schemas["HaltRecord"], D>> {
    const body = { cancel_orders: true, close_positions: false, ...options, reason };
    const path = "/v1/controls/accounts/{account_id}/halt";
    return this.#client.call("POST", path, { path: this.#path, body });
  }

  /** Ends the account's halt; NotHalted when none stands. */
  resume(): Promise<With<Schemas["HaltRecord"], D>> {
    const path = "/v1/controls/accounts/{account_id}/resume";
    return this.#client.call("POST", path, { path: this.#path });
  }

  /** What controls and limits would answer to a command now. It changes nothing. */
  evaluate(command: Command): Promise<With<Schemas["Evaluation"], D>> {
    return this.#client.call("POST", "/v1/controls/evaluate", {
      body: { account_id: this.id, command },
    });
  }

  /** The account's events, as they happen; after a lost connection it resumes. */
  events(options: StreamOptions = {}): EventStream<D> {
    const path = fillPath(EVENTS, this.#path);
    const snapshot = async () => ({
      orders: await this.orders({ state: "OPEN" }).toArray(),
      positions: await this.positions().toArray(),
    });
    return new EventStream<D>(this.#transport, path, snapshot, options);
  }

  /** Waits for an order of this account by its intent's id, as `order.wait()` does. */
  wait(intentId: string, options: WaitOptions = {}): Promise<Order<D>> {
    return this.#waits.wait(intentId, options);
  }

  #list<K extends AccountList, P extends `/v1/accounts/{account_id}/${K}`>(
    kind: K,
    query: HttpRequest["query"],
  ): Pages<With<ItemOf<P>, D>> {
    const path = fillPath(`/v1/accounts/{account_id}/${kind}`, this.#path);
    return new Pages(this.#transport, { method: "GET", path, query }, (item) => item);
  }

  #create(
    symbol: string,
    side: OrderSide,
    quantity: Amount,
    order: NewOrder & SubmitOptions = {},
  ): Promise<PlacedOrder<D>> {
    return this.submit(createCommand(symbol, side, quantity, order), order);
  }

  async #submit(path: string, body: object, options: SubmitOptions): Promise<PlacedOrder<D>> {
    const key = options.idempotencyKey === undefined ? makeKey() : checkKey(options.idempotencyKey);
    const request = { method: "POST", path, body, headers: { [IDEMPOTENCY_KEY]: key } };
    try {
      const answer = await this.#transport.send(request);
      const placed = this.#transport.read(request, answer) as Schemas["Submitted"];
      return bindPlaced(this, placed, key, answer.headers.get("idempotent-replayed") === "true");
    } catch (error) {
      if (error instanceof TradingError) error.idempotencyKey = key;
      throw error;
    }
  }
}

/** An Idempotency-Key that nobody else makes. */
function makeKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** An empty one is refused: a new key instead would place a second order. */
function checkKey(key: string): string {
  if (!/^[\x20-\x7e]+$/.test(key) || key.length > MAX_KEY_CHARACTERS) {
    throw new TypeError(`idempotencyKey must be 1 to ${MAX_KEY_CHARACTERS} printable characters`);
  }
  return key;
}
