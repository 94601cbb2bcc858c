// How an order is described to people: its side and price, why it is as it is, and what became of it.

import { showAmount, showAverage, words } from "./amounts.js";

/** @type {Record<string, string>} The reasons that have a code, as the terminal's commands say them. */
export const SENTENCES = {
  // The platform's own ends of an order.
  stale: "it could not be sent in time and was given up",
  before_send: "it was cancelled before it was sent",
  halted: "a halt came before it was sent",
  resumed: "its halt was ended before it was sent",
  not_delivered: "it never reached the broker",
  cancel_not_delivered: "the broker did not carry out the cancel",
  cancel_requested: "it is to be cancelled, so it was not replaced",
  replaced_by_broker: "the broker itself changed it",
  account_disabled: "the account is disabled",
  // Controls and limits.
  organization_halted: "trading of the organization is halted",
  organization_manually_disabled: "trading of the organization is switched off",
  account_halted: "the account is halted",
  account_manually_disabled: "trading of the account is switched off",
  symbol_manually_disabled: "trading of the symbol is switched off",
  outside_trading_window: "the symbol is not traded at this time",
  max_order_quantity: "its quantity is above the limit for an order",
  max_order_notional: "its value is above the limit for an order",
  price_collar_bps: "its price is too far from the market's",
  max_open_orders: "there are as many open orders as the limit allows",
  max_position_quantity: "the position would exceed its limit",
  max_orders_per_minute: "there were as many orders in a minute as the limit allows",
  allow_short: "short selling is not allowed",
  allowed_symbols: "the symbol is not among the allowed ones",
  duplicate_window_millis: "an equal order was placed just before",
  max_daily_loss: "today's loss has reached its limit",
  no_reference_price: "no price is known to judge it by",
  position_unknown: "the broker has not reported the position yet",
  // The paper broker's.
  insufficient_buying_power: "it costs more than the buying power",
  no_position_to_sell: "the account holds less than it sells",
  position_is_long: "the account holds the symbol, so it cannot be sold short",
  quantity_off_step: "the quantity is no multiple of the symbol's step",
  price_off_tick: "the price is no multiple of the symbol's tick",
  immediate_or_cancel: "what could not be filled at once was cancelled",
  fill_or_kill: "it could not be filled at once and whole",
  day_ended: "its trading day has ended",
  good_till_cancel_ended: "it was open as long as the broker keeps orders",
  too_late: "it had ended before",
  unknown_order: "the broker does not know it",
  another_order: "the broker has another order under its id",
  too_many_working_orders: "the account has as many working orders as the broker takes",
};

/** @param {Order} order */
export const describeSide = ({ order_side: side }) => (side === "SELL_SHORT" ? "Short" : words(String(side)));

/** @param {Order} order */
export function describePrice(order) {
  const parts = [];
  if (order.limit_price) parts.push(showAmount(order.limit_price));
  if (order.stop_price) parts.push(`stop ${showAmount(order.stop_price)}`);
  return parts.join(" ") || "market";
}

/** @param {Order} order */
export const describeAverage = (order) => showAverage(order.average_price, order.limit_price, order.stop_price);

/** @param {Order} order the broker's words where it said some, else the code's sentence; the code behind it */
export function explainOrder({ reason, detail }) {
  const said = detail || SENTENCES[reason];
  return said && reason && said !== reason ? `${said} (${reason})` : (said ?? reason ?? "");
}

/** @type {(order: Order, isConnected?: boolean) => Outcome} */
export function describeOutcome(order, isConnected = true) {
  const { order_status: status, symbol } = order;
  const what = `${describeSide(order)} ${showAmount(order.quantity)} ${symbol}`;
  const why = explainOrder(order);
  const because = why && `, because ${why}`;
  const price = describeAverage(order);
  const filled = Number(order.filled_quantity) ? `; ${showAmount(order.filled_quantity)} were filled at ${price}` : "";
  switch (status) {
    case "PENDING_NEW": {
      const next = isConnected ? "It is on its way to the broker." : "It waits: the broker is not connected.";
      return { text: `Accepted: ${what}. ${next}`, look: isConnected ? "" : "warn" };
    }
    case "NEW":
      return { text: `Working: ${what} at ${describePrice(order)}.`, look: "" };
    case "FILLED":
      return { text: `Filled: ${what} at ${price}.`, look: "gain" };
    case "UNKNOWN":
      return { text: `Unknown: ${what}. The broker's answer was lost and is being looked up.`, look: "warn" };
    default:
      return { text: `${words(status)}: ${what}${because}${filled}.`, look: status === "REJECTED" ? "loss" : "warn" };
  }
}
