// The order ticket: says before sending what the controls would answer, shows the price, and sends each order once.

import { showAge, showAmount, words } from "./amounts.js";
import { Problem, Unreachable, path } from "./api.js";
import { el, fill, repeat } from "./dom.js";
import { Form } from "./form.js";

/** @typedef {import("./main.js").Context} Context */
/** @typedef {import("./form.js").Values} Values */

const EVALUATE_MILLIS = 250;
const PRICE_SECONDS = 2;
const RETRIES = 3;
const RETRY_MILLIS = 700;

/** @type {[string, string][]} */
const KINDS = [
  ["Market", "Market"],
  ["Limit", "Limit"],
  ["Stop", "Stop"],
  ["StopLimit", "Stop limit"],
];
/** @type {[string, string][]} */
const TIMES = ["DAY", "GOOD_TILL_CANCEL", "IMMEDIATE_OR_CANCEL", "FILL_OR_KILL", "AT_OPEN", "AT_CLOSE", "EXT"].map((time) => [
  time,
  words(time),
]);

/** @param {string} kind */
export const hasLimit = (kind) => kind === "Limit" || kind === "StopLimit";
/** @param {string} kind */
export const hasStop = (kind) => kind === "Stop" || kind === "StopLimit";

/** @param {string} side */
export const describeSide = (side) => (side === "SELL_SHORT" ? "Short" : words(side));

/** @param {import("./feed.js").Order} order */
export function describePrice(order) {
  const parts = [];
  if (order.limit_price) parts.push(showAmount(order.limit_price));
  if (order.stop_price) parts.push(`stop ${showAmount(order.stop_price)}`);
  return parts.join(" ") || "market";
}

/** @param {Values} values the fields of an order's spec */
export function specOf(values) {
  const kind = String(values.kind);
  /** @type {Record<string, string>} */
  const spec = { quantity: String(values.quantity) };
  if (hasLimit(kind)) spec.limit_price = String(values.limit_price);
  if (hasStop(kind)) spec.stop_price = String(values.stop_price);
  if (values.time_in_force) spec.time_in_force = String(values.time_in_force);
  return { [kind]: spec };
}

export function makeIdempotencyKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Submits a command under one Idempotency-Key. An answer that is lost is asked for again, never made anew.
 * @param {Context} context
 * @param {unknown} command
 */
export async function submit(context, command) {
  const { api, account } = context;
  const key = makeIdempotencyKey();
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await api.json("submit_intent", "POST", path`/v1/accounts/${account.id}/intents`, {
        environment: account.environment,
        body: { command },
        headers: { "idempotency-key": key },
      });
    } catch (error) {
      const isUnknown = error instanceof Unreachable || (error instanceof Problem && (error.status === 503 || error.status === 429));
      if (!isUnknown) throw error;
      if (attempt >= RETRIES) throw new Error(`no answer came (${error.message}); look at the blotter before you send it again`);
      await new Promise((resolve) => setTimeout(resolve, RETRY_MILLIS * 2 ** attempt));
    }
  }
}

/** @param {Context} context */
export function makeTicket(context) {
  const { api, session, account } = context;
  const { environment } = account;
  const isLive = environment === "live";
  const verdict = el("div", { class: "verdict", role: "status" });
  const price = el("div", { class: "price" });
  let timer = 0;
  let asked = 0;
  /** @type {Record<string, string[]>} */
  let timesByKind = {};

  const form = new Form({
    name: "ticket",
    submit: "Send",
    isDangerous: isLive,
    fields: [
      { name: "symbol", label: "Symbol", isRequired: true, isUpper: true, max: 32 },
      {
        name: "order_side",
        label: "Side",
        kind: "radio",
        value: "BUY",
        options: [
          ["BUY", "Buy"],
          ["SELL", "Sell"],
          ["SELL_SHORT", "Short"],
        ],
      },
      { name: "kind", label: "Order type", kind: "select", options: KINDS },
      { name: "quantity", label: "Quantity", isRequired: true, isNumber: true },
      { name: "limit_price", label: "Limit price", isRequired: true, isNumber: true },
      { name: "stop_price", label: "Stop price", isRequired: true, isNumber: true },
      { name: "time_in_force", label: "Time in force", kind: "select", options: TIMES, value: "DAY" },
    ],
    onInput: () => onInput(),
    onSubmit: async (values) => {
      const answer = await submit(context, commandOf(values));
      form.set({ quantity: "" }); // so that a second Enter sends nothing
      form.focus("quantity");
      fill(verdict);
      return `Accepted: ${String(values.order_side)} ${String(values.quantity)} ${String(values.symbol)}, action ${answer.seq} of the account.`;
    },
  });

  /** @param {Values} values */
  function commandOf(values) {
    return { type: "CREATE", payload: { symbol: values.symbol, order_side: values.order_side, spec: specOf(values) } };
  }

  function layOut() {
    const { kind, order_side: side, symbol } = form.values;
    form.show("limit_price", hasLimit(String(kind)));
    form.show("stop_price", hasStop(String(kind)));
    const times = timesByKind[String(kind)];
    if (times)
      form.setOptions(
        "time_in_force",
        TIMES.filter(([time]) => times.includes(time)),
      );
    form.setSubmit(`${isLive ? "Send LIVE order: " : ""}${words(String(side))} ${String(symbol)}`.trim());
    const credential = session.pick("submit_intent", environment);
    form.setNote(
      credential ? `Uses the ${credential.label}.` : "Orders need an API key with intent:edit of this environment. Add one above.",
    );
    form.setDisabled(!credential);
  }

  function onInput() {
    layOut();
    window.clearTimeout(timer);
    timer = window.setTimeout(() => void evaluate(), EVALUATE_MILLIS);
  }

  /** What the controls and limits would answer to what stands in the form. */
  async function evaluate() {
    const values = form.values;
    const mine = ++asked;
    if (!values.symbol || !session.pick("read_controls", environment)) return fill(verdict);
    const isWhole =
      values.quantity && (!hasLimit(String(values.kind)) || values.limit_price) && (!hasStop(String(values.kind)) || values.stop_price);
    const body = { account_id: account.id, symbol: values.symbol, ...(isWhole ? { command: commandOf(values) } : {}) };
    let shown;
    try {
      const told = await api.json("read_controls", "POST", "/v1/controls/evaluate", { environment, body });
      /** @type {import("./api.js").Trigger[]} */
      const triggered = told.triggered;
      shown = told.allowed
        ? [el("p", { class: "passes" }, isWhole ? "Controls and limits let this pass." : "Controls let this symbol trade.")]
        : triggered.map((trigger) => el("p", { class: "refuses" }, `Refused: ${trigger.detail}`));
    } catch (error) {
      const detail = error instanceof Problem && error.errors[0] ? error.errors[0].detail : error instanceof Error ? error.message : "";
      shown = [el("p", { class: "unknown" }, `Cannot be judged yet: ${detail}`)];
    }
    if (mine === asked) fill(verdict, ...shown);
    return undefined;
  }

  async function showPrice() {
    const symbol = form.text("symbol");
    if (!symbol || !session.pick("read_accounts", environment)) return fill(price);
    try {
      const quote =
        account.broker === "paper" && session.pick("read_paper_quotes", environment)
          ? await api.find("read_paper_quotes", path`/v1/paper/quotes/${symbol}`, { environment })
          : null;
      const reference = quote
        ? null
        : await api.find("read_accounts", path`/v1/reference-prices/${symbol}`, {
            environment,
            query: session.pick("read_accounts", environment)?.caller.environment ? {} : { environment },
          });
      if (form.text("symbol") !== symbol) return undefined;
      if (quote)
        fill(
          price,
          el("span", {}, `Bid ${showAmount(quote.bid)} × ${showAmount(quote.bid_size)}`),
          el("span", {}, `Ask ${showAmount(quote.ask)} × ${showAmount(quote.ask_size)}`),
          el("span", { class: "hint" }, `${quote.source}, ${showAge(quote.as_of)} ago`),
        );
      else if (reference)
        fill(
          price,
          el("span", {}, `Reference ${showAmount(reference.price)}`),
          el("span", { class: "hint" }, `${reference.source}, ${showAge(reference.as_of)} ago`),
        );
      else fill(price, el("span", { class: "hint" }, "No price is known."));
    } catch {
      fill(price, el("span", { class: "hint" }, "The price cannot be read now."));
    }
    return undefined;
  }

  async function readBroker() {
    if (!session.pick("brokers")) return;
    /** @type {Record<string, any>[]} */
    const brokers = await api.list("brokers", "/v1/brokers", 100);
    const broker = brokers.find((candidate) => candidate.name === account.broker);
    timesByKind = broker?.times_in_force_by_kind ?? {};
    layOut();
  }

  form.element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    form.clear();
    fill(verdict);
    fill(price);
    layOut();
    form.focus("symbol");
  });
  layOut();
  void readBroker().catch(() => undefined);
  const stopPrice = repeat(PRICE_SECONDS, showPrice);
  const onSession = () => layOut();
  session.addEventListener("change", onSession);
  const heading = el("h2", { id: "ticket-title" }, isLive ? "New LIVE order" : "New order");
  form.element.querySelector(".field")?.after(price);
  form.element.querySelector(".actions")?.before(verdict);
  return {
    form,
    element: el(
      "section",
      { class: "panel ticket-panel", "aria-labelledby": "ticket-title" },
      heading,
      form.element,
      el("p", { class: "hint" }, "Enter sends, Esc clears."),
    ),
    close: () => {
      stopPrice();
      window.clearTimeout(timer);
      session.removeEventListener("change", onSession);
    },
  };
}
