// One order's story: its terms, actions and trades, who did what; and its replace and cancel.

import { showAmount, showTime, words } from "./amounts.js";
import { path } from "./api.js";
import { el, fill, openDialog, table, terms } from "./dom.js";
import { Form } from "./form.js";
import { describePrice, describeSide, hasLimit, hasStop, specOf, submit } from "./ticket.js";

/** @typedef {import("./main.js").Context} Context */
/** @typedef {import("./feed.js").Order} Order */

const MAX_TRADES = 1_000;
/** @type {Record<string, string>} */
const SPECS = { MARKET: "Market", LIMIT: "Limit", STOP: "Stop", STOP_LIMIT: "StopLimit" };

/**
 * @param {Context} context
 * @param {string} orderId
 */
export function openStory(context, orderId) {
  const { api, feed, session, account } = context;
  const { environment } = account;
  const facts = el("div", {});
  const history = el("div", {});
  const doing = el("div", { class: "doing" });
  const order = () => feed.orders.get(orderId);
  const first = order();
  if (!first) return;
  const kind = SPECS[String(first.order_type)] ?? "Limit";

  const replace = new Form({
    name: "replace",
    submit: "Replace",
    isDangerous: environment === "live",
    fields: [
      { name: "quantity", label: "New total quantity", isRequired: true, isNumber: true, value: String(first.quantity) },
      ...(hasLimit(kind)
        ? [
            {
              name: "limit_price",
              label: "Limit price",
              isRequired: true,
              isNumber: true,
              value: String(first.limit_price ?? ""),
            },
          ]
        : []),
      ...(hasStop(kind)
        ? [{ name: "stop_price", label: "Stop price", isRequired: true, isNumber: true, value: String(first.stop_price ?? "") }]
        : []),
    ],
    onSubmit: async (values) => {
      await submit(context, { type: "REPLACE", payload: { ref_intent_id: orderId, spec: specOf({ ...values, kind }) } });
      return "Accepted: the replace is on its way.";
    },
  });
  const cancel = new Form({
    name: "cancel",
    submit: "Cancel this order",
    isDangerous: true,
    fields: [],
    onSubmit: async () => {
      await submit(context, { type: "CANCEL", payload: { ref_intent_id: orderId } });
      return "Accepted: the cancel is on its way.";
    },
  });

  function showFacts() {
    const now = order();
    if (!now) return;
    fill(
      facts,
      terms([
        ["Status", `${words(now.order_status)}${now.reason ? `: ${now.reason}` : ""}`],
        ["Order", `${describeSide(String(now.order_side))} ${showAmount(now.quantity)} ${now.symbol}`],
        ["Type", `${words(String(now.order_type))}, ${words(String(now.time_in_force ?? ""))}`],
        ["Price", describePrice(now)],
        ["Filled", `${showAmount(now.filled_quantity)} at ${showAmount(now.average_price)}`],
        ["Flags", (now.flags ?? []).join(", ")],
        ["Reference", now.client_reference_id],
        ["Broker's id", now.external_order_id],
        ["Intent", orderId],
        ["Created", showTime(now.created_at)],
        ["Last heard", showTime(now.received_at)],
      ]),
    );
    const credential = session.pick("submit_intent", environment);
    const isOpen = now.order_state === "OPEN";
    doing.hidden = !isOpen;
    for (const form of [replace, cancel]) {
      form.setNote(credential ? `Uses the ${credential.label}.` : "Needs an API key with intent:edit.");
      form.setDisabled(!credential || !isOpen);
    }
  }

  async function readHistory() {
    try {
      const actions = await api.list("read_intents", path`/v1/accounts/${account.id}/intents/${orderId}/actions`, 500, {
        environment,
      });
      const since = order()?.created_at;
      const trades = [];
      for await (const page of api.pages("read_intents", path`/v1/accounts/${account.id}/trades`, MAX_TRADES, {
        environment,
        query: { created_after: since },
      }))
        trades.push(...page.filter((trade) => trade.intent_id === orderId));
      fill(
        history,
        table(
          "Actions",
          ["Seq", "Action", "Quantity", "Limit", "Stop", "Who", "When"],
          actions.map((action) => [
            String(action.seq),
            words(action.action_type),
            showAmount(action.quantity),
            showAmount(action.limit_price),
            showAmount(action.stop_price),
            `${words(action.principal_type)} ${action.principal_id}`,
            showTime(action.created_at),
          ]),
        ),
        trades.length
          ? table(
              "Trades",
              ["Time", "Quantity", "Price", "Fee", "Execution", "Flags"],
              trades.map((trade) => [
                showTime(trade.received_at),
                showAmount(trade.quantity),
                showAmount(trade.price),
                showAmount(trade.fee),
                trade.exec_id ?? "",
                (trade.flags ?? []).join(", "),
              ]),
            )
          : el("p", { class: "hint" }, "No trades."),
      );
    } catch (error) {
      fill(history, el("p", { class: "failed" }, `The history cannot be read: ${error instanceof Error ? error.message : ""}`));
    }
  }

  let timer = 0;
  const onChange = () => {
    if (!feed.touched.has(orderId)) return;
    showFacts();
    window.clearTimeout(timer);
    timer = window.setTimeout(() => void readHistory(), 300);
  };
  feed.addEventListener("change", onChange);
  doing.append(el("section", {}, el("h3", {}, "Replace"), replace.element), el("section", {}, el("h3", {}, "Cancel"), cancel.element));
  showFacts();
  void readHistory();
  openDialog(`${describeSide(String(first.order_side))} ${first.symbol}`, [el("div", { class: "figures" }, facts), doing, history], () => {
    window.clearTimeout(timer);
    feed.removeEventListener("change", onChange);
  });
}
