// One order's history: its terms, its actions with their principals, its trades; and its replace
// and cancel.

import { showAmount, showTime, words } from "./amounts.js";
import { messageOf, path } from "./api.js";
import { el, fill, hint, listen, openDialog, table, terms, throttle } from "./dom.js";
import { Form } from "./form.js";
import {
  describeAverage,
  describePrice,
  describeSide,
  describeTrail,
  entryOf,
  explainOrder,
} from "./orders.js";
import { NEEDS_KEY, hasLimit, hasStop, hasTrail, specOf } from "./ticket.js";

const MAX_ACTIONS = 500;
const MAX_TRADES = 1_000;
const REFRESH_MILLIS = 300;
/** @type {Record<string, string>} */
const SPECS = {
  MARKET: "Market",
  STOP: "Stop",
  STOP_LIMIT: "StopLimit",
  TRAILING_STOP: "TrailingStop",
}; // else Limit

/** @type {(context: Context, orderId: string) => void} */
export function openStory(context, orderId) {
  const { api, feed, account, names } = context;
  const order = feed.orders.get(orderId);
  if (!order) return;
  const family = () => [...feed.orders.values()].filter((each) => entryOf(each) === entryOf(order));
  const nameOf = (/** @type {Json} */ each) => words(each.leg || "entry");
  const facts = el("div", {});
  const history = el("div", {});
  const kind = SPECS[order.order_type] ?? "Limit";
  /** @type {(name: string, label: string) => Field} */
  const amount = (name, label) => ({
    name,
    label,
    isRequired: true,
    isNumber: true,
    value: order[name] ?? "",
  });

  const replace = new Form({
    name: "replace",
    submit: "Replace",
    isDangerous: account.environment === "live",
    fields: [
      amount("quantity", "New total quantity"),
      ...(hasLimit(kind) ? [amount("limit_price", "Limit price")] : []),
      ...(hasStop(kind) ? [amount("stop_price", "Stop price")] : []),
      ...(hasTrail(kind) ? [{ ...amount("trail", "Trail"), value: describeTrail(order) }] : []),
    ],
    onSubmit: async (values) => {
      const payload = { ref_intent_id: orderId, spec: specOf({ ...values, kind }) };
      await context.submit({ type: "REPLACE", payload });
      return "Accepted: the replace is on its way.";
    },
  });
  const cancel = new Form({
    name: "cancel",
    submit: "Cancel this order",
    isDangerous: true,
    onSubmit: async () => {
      await context.submit({ type: "CANCEL", payload: { ref_intent_id: orderId } });
      return "Accepted: the cancel is on its way.";
    },
  });
  const replacing = el("section", {}, el("h3", {}, "Replace"), replace.element);
  const cancelling = el("section", {}, el("h3", {}, "Cancel"), cancel.element);
  const doing = el("div", { class: "doing" }, replacing, cancelling);

  function showFacts() {
    const now = feed.orders.get(orderId);
    if (!now) return;
    const shown = terms([
      ["Status", [words(now.order_status), explainOrder(now)].filter(Boolean).join(": ")],
      ["Order", `${describeSide(now)} ${showAmount(now.quantity)} ${now.symbol}`],
      ["Type", `${words(String(now.order_type))}, ${words(String(now.time_in_force ?? ""))}`],
      ["Price", describePrice(now)],
      ["Filled", `${showAmount(now.filled_quantity)} at ${describeAverage(now)}`],
      ["Flags", (now.flags ?? []).join(", ")],
      ["Reference", now.client_reference_id],
      ["Broker's id", now.external_order_id],
      ["Intent", orderId],
      ["Created", showTime(now.created_at)],
      ["Last reported", showTime(now.received_at)],
    ]);
    const group = table("Linked orders", family(), {
      Order: (each) => (each.order_id === orderId ? `${nameOf(each)} (this one)` : nameOf(each)),
      Status: (each) => words(each.order_status),
      Price: (each) => describePrice(/** @type {Order} */ (each)),
      Quantity: (each) => showAmount(each.quantity),
      Filled: (each) => showAmount(each.filled_quantity),
    });
    fill(facts, shown, family().length > 1 && group);
    const isOpen = now.order_state === "OPEN";
    doing.hidden = !isOpen;
    for (const form of [replace, cancel])
      form.setCredential(api.pick("submit_intent"), NEEDS_KEY, isOpen);
  }

  async function readHistory() {
    const base = path`/v1/accounts/${account.id}`;
    const query = { created_after: feed.orders.get(orderId)?.created_at };
    try {
      const actions = await api.list(
        "read_intents",
        base + path`/intents/${orderId}/actions`,
        MAX_ACTIONS,
      );
      const all = await api.list("read_intents", `${base}/trades`, MAX_TRADES, { query });
      await names.prepare(actions);
      const trades = all.filter((trade) => trade.intent_id === orderId);
      const done = table("Actions", actions, {
        Seq: (action) => String(action.seq),
        Action: (action) => words(action.action_type),
        Quantity: (action) => showAmount(action.quantity),
        Limit: (action) => showAmount(action.limit_price),
        Stop: (action) => showAmount(action.stop_price),
        Who: (action) => names.describe(action),
        When: (action) => showTime(action.created_at),
      });
      const filled = table("Trades", trades, {
        Time: (trade) => showTime(trade.received_at),
        Quantity: (trade) => showAmount(trade.quantity),
        Price: (trade) => showAmount(trade.price),
        Fee: (trade) => showAmount(trade.fee),
        Execution: (trade) => trade.exec_id,
        Flags: (trade) => trade.flags.join(", "),
      });
      const cut = "Of the account's trades since then only the first 1,000 were looked through.";
      fill(
        history,
        done,
        trades.length ? filled : hint("No trades."),
        all.length === MAX_TRADES && hint(cut),
      );
    } catch (error) {
      fill(
        history,
        el("p", { class: "failed" }, `The history cannot be read: ${messageOf(error)}`),
      );
    }
  }

  const reading = throttle(REFRESH_MILLIS, () => void readHistory());
  const stop = listen(feed, "change", () => {
    if (!family().some(({ order_id: id }) => feed.touched.has(id))) return;
    showFacts();
    reading.run();
  });
  showFacts();
  void readHistory();
  openDialog(
    `${describeSide(order)} ${order.symbol}`,
    [el("div", { class: "figures" }, facts), doing, history],
    () => {
      reading.stop();
      stop();
    },
  );
}
