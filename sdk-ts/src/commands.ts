/** Commands: a CREATE, REPLACE or CANCEL as the platform takes it. */

import { type Amount, textOf } from "./amounts.js";
import type { components } from "./api.js";

export type Schemas = components["schemas"];
export type Command = Schemas["Submit"]["command"];
export type OrderSide = Schemas["OrderSide"];
export type OrderStatus = Schemas["OrderStatus"];
export type TimeInForce = Schemas["TimeInForce"];
export type RouteStrategy = Schemas["RouteStrategy"];
/** A stop price, or a stop price and the limit of the order that it makes. */
export type StopPrices = Amount | readonly [stop: Amount, limit: Amount];

/** The kind of the order follows from its prices: without any it is a market order. */
export interface Terms {
  limit?: Amount | undefined;
  stop?: Amount | undefined;
  /** A stop that follows the market, by an amount. */
  trail?: Amount | undefined;
  /** The same, by basis points of the price. */
  trailBps?: number | undefined;
  timeInForce?: TimeInForce | undefined;
}

export interface NewOrder extends Terms {
  route?: RouteStrategy;
  /** Exits that the broker links to a buy or short: they close what it fills. */
  takeProfit?: Amount;
  stopLoss?: StopPrices;
  exitsTimeInForce?: "DAY" | "GOOD_TILL_CANCEL";
  /** A stop beside a limit order: one cancels the other. */
  oneCancelsOther?: StopPrices;
}

export function createCommand(
  symbol: string,
  side: OrderSide,
  quantity: Amount,
  order: NewOrder = {},
): Command {
  const payload: Schemas["CreatePayload"] = {
    symbol,
    order_side: side,
    spec: specOf(quantity, order),
  };
  const exits: Schemas["ExitsBody"] = {};
  if (order.takeProfit !== undefined) {
    exits.take_profit = { limit_price: textOf(order.takeProfit) };
  }
  if (order.stopLoss !== undefined) exits.stop_loss = stopOf(order.stopLoss);
  if (order.exitsTimeInForce) exits.time_in_force = order.exitsTimeInForce;
  if (order.route) payload.route_strategy = order.route;
  if (Object.keys(exits).length) payload.exits = exits;
  if (order.oneCancelsOther !== undefined) {
    payload.one_cancels_other = stopOf(order.oneCancelsOther);
  }
  return { type: "CREATE", payload };
}

/** Of the same kind as the order; `quantity` is the new total. */
export function replaceCommand(intentId: string, quantity: Amount, terms: Terms = {}): Command {
  const payload = { ref_intent_id: intentId, spec: specOf(quantity, terms) };
  return { type: "REPLACE", payload };
}

/** Safe to repeat while the order is open. */
export function cancelCommand(intentId: string): Command {
  return { type: "CANCEL", payload: { ref_intent_id: intentId } };
}

function specOf(amount: Amount, terms: Terms): Schemas["SpecBody"] {
  const { limit, stop, trail, trailBps, timeInForce } = terms;
  const common = { quantity: textOf(amount), ...(timeInForce && { time_in_force: timeInForce }) };
  if (trail !== undefined || trailBps !== undefined) {
    if (
      limit !== undefined ||
      stop !== undefined ||
      (trail !== undefined && trailBps !== undefined)
    )
      throw new TypeError("a trailing stop has trail or trailBps, and no other price");
    const distance =
      trail === undefined ? { trail_bps: trailBps } : { trail_amount: textOf(trail) };
    return { TrailingStop: { ...common, ...distance } };
  }
  if (limit !== undefined && stop !== undefined) {
    return { StopLimit: { ...common, stop_price: textOf(stop), limit_price: textOf(limit) } };
  }
  if (limit !== undefined) return { Limit: { ...common, limit_price: textOf(limit) } };
  if (stop !== undefined) return { Stop: { ...common, stop_price: textOf(stop) } };
  return { Market: common };
}

function stopOf(given: StopPrices): Schemas["StopBody"] {
  if (!isPair(given)) return { stop_price: textOf(given) };
  return { stop_price: textOf(given[0]), limit_price: textOf(given[1]) };
}

function isPair(given: StopPrices): given is readonly [Amount, Amount] {
  return Array.isArray(given);
}
