// Describes an order to people: its side and price, the reason of its status, and its outcome.

import { showAmount, showAverage, words } from "./amounts.js";

/** @type {Record<string, string>} The codes that an order can end with, as the terminal's commands say them. */
export const SENTENCES = {
  entry_ended: "the order that it belongs to ended unfilled",
  entry_rejected: "the order that it belongs to was refused",
  pair_filled: "the other order of its pair was filled",
  ended_by_broker: "the broker no longer works it",
  broker_failed: "the paper broker could not work it, by an error of its own",
  account_disabled: "the account is disabled",
  account_halted: "the account is halted",
  account_manually_disabled: "trading of the account is switched off",
  allow_short: "short selling is not allowed",
  allowed_symbols: "the symbol is not among the allowed ones",
  another_order: "the broker has another order under its id",
  before_send: "it was cancelled before it was sent",
  cancel_not_delivered: "the broker did not carry out the cancel",
  cancel_requested: "it is to be cancelled, so it was not replaced",
  day_ended: "its trading day has ended",
  fill_or_kill: "it could not be filled at once and whole",
  good_till_cancel_ended: "it was open as long as the broker keeps orders",
  halted: "a halt came before it was sent",
  immediate_or_cancel: "what could not be filled at once was cancelled",
  insufficient_buying_power: "it costs more than the buying power",
  max_order_quantity: "its quantity is above the limit for an order",
  no_position_to_sell: "the account holds less than it sells",
  not_delivered: "it never reached the broker",
  organization_halted: "trading of the organization is halted",
  organization_manually_disabled: "trading of the organization is switched off",
  outside_trading_window: "the symbol is not traded at this time",
  position_is_long: "the account holds the symbol, so it cannot be sold short",
  price_off_tick: "the price is no multiple of the symbol's tick",
  quantity_off_step: "the quantity is no multiple of the symbol's step",
  replaced_by_broker: "the broker itself changed it",
  resumed: "its halt was ended before it was sent",
  stale: "it could not be sent in time and was given up",
  symbol_manually_disabled: "trading of the symbol is switched off",
  too_late: "it had ended before",
  too_many_working_orders: "the account has as many working orders as the broker takes",
  unknown_order: "the broker does not know it",
};

/** @param {Order} order */
export const describeSide = ({ order_side: side }) =>
  side === "SELL_SHORT" ? "Short" : words(String(side));

/** @type {(order: Order) => string} As the ticket takes it. */
export const describeTrail = ({ trail_amount: amount, trail_bps: bps }) =>
  amount ?? (bps ? `${bps / 100}%` : "");

/** @type {(order: Order) => string} The entry that a leg belongs to, or the order itself. */
export const entryOf = ({ parent_intent_id: parent, order_id: id }) => parent || id;

/** @param {Order} order */
export function describePrice(order) {
  const parts = [];
  if (order.limit_price) parts.push(showAmount(order.limit_price));
  if (order.stop_price) parts.push(`stop ${showAmount(order.stop_price)}`);
  if (order.trail_amount || order.trail_bps) parts.push(`trail ${describeTrail(order)}`);
  return parts.join(" ") || "market";
}

/** @param {Order} order */
export const describeAverage = (order) =>
  showAverage(order.average_price, order.limit_price, order.stop_price);

/** @param {Order} order an entry of which more is held than all that works to close it */
export const isUnprotected = ({ flags }) => Boolean(flags?.includes("unprotected"));

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
  const filled = Number(order.filled_quantity)
    ? `; ${showAmount(order.filled_quantity)} were filled at ${price}`
    : "";
  switch (status) {
    case "PENDING_NEW": {
      const next = isConnected
        ? "It is on its way to the broker."
        : "It waits: the broker is not connected.";
      return { text: `Accepted: ${what}. ${next}`, look: isConnected ? "" : "warn" };
    }
    case "NEW":
      return { text: `Working: ${what} at ${describePrice(order)}.`, look: "" };
    case "FILLED":
      return { text: `Filled: ${what} at ${price}.`, look: "gain" };
    case "UNKNOWN":
      return {
        text: `Unknown: ${what}. The broker's answer was lost and is being looked up.`,
        look: "warn",
      };
    default:
      return {
        text: `${words(status)}: ${what}${because}${filled}.`,
        look: status === "REJECTED" ? "loss" : "warn",
      };
  }
}
