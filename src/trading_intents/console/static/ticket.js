// The order ticket: says before sending what the controls would answer, shows the price, and sends each order once.

import { showAge, showAmount, words } from "./amounts.js";
import { Problem, Unreachable, messageOf, path } from "./api.js";
import { el, fill, hint, listen, makeView, repeat } from "./dom.js";
import { Form } from "./form.js";

const EVALUATE_MILLIS = 250;
const PRICE_SECONDS = 2;
const RETRIES = 3;
const RETRY_MILLIS = 700;
export const NEEDS_KEY = "Needs an API key with intent:edit.";

/** @type {[string, string][]} */
const KINDS = [["Market", "Market"], ["Limit", "Limit"], ["Stop", "Stop"], ["StopLimit", "Stop limit"]];
/** @type {[string, string][]} */
const SIDES = [["BUY", "Buy"], ["SELL", "Sell"], ["SELL_SHORT", "Short"]];
const TIMES = ["DAY", "GOOD_TILL_CANCEL", "IMMEDIATE_OR_CANCEL", "FILL_OR_KILL", "AT_OPEN", "AT_CLOSE", "EXT"];
/** @type {(times: string[]) => [string, string][]} */
const timeOptions = (times) => times.map((time) => [time, words(time)]);

/** @param {string} kind */
export const hasLimit = (kind) => kind === "Limit" || kind === "StopLimit";
/** @param {string} kind */
export const hasStop = (kind) => kind === "Stop" || kind === "StopLimit";

/** @param {Order} order */
export const describeSide = ({ order_side: side }) => (side === "SELL_SHORT" ? "Short" : words(String(side)));

/** @param {Order} order */
export function describePrice(order) {
  const parts = [];
  if (order.limit_price) parts.push(showAmount(order.limit_price));
  if (order.stop_price) parts.push(`stop ${showAmount(order.stop_price)}`);
  return parts.join(" ") || "market";
}

/** @param {Values} values the fields of an order's spec */
export function specOf(values) {
  const kind = String(values.kind);
  /** @type {Json} */
  const spec = { quantity: values.quantity };
  if (hasLimit(kind)) spec.limit_price = values.limit_price;
  if (hasStop(kind)) spec.stop_price = values.stop_price;
  if (values.time_in_force) spec.time_in_force = values.time_in_force;
  return { [kind]: spec };
}

export function makeIdempotencyKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Submits an account's commands. One that got no answer keeps its Idempotency-Key: sent again, it is not made anew.
 * @type {(api: Api, account: Account) => Submit}
 */
export function makeSubmit(api, account) {
  /** @type {Map<string, string>} the keys of the commands that wait for their answers */
  const keys = new Map();
  return async (command) => {
    const text = JSON.stringify(command);
    const key = keys.get(text) ?? makeIdempotencyKey();
    keys.set(text, key);
    const call = { body: { command }, headers: { "idempotency-key": key } };
    for (let attempt = 0; ; attempt += 1) {
      try {
        const answer = await api.json("submit_intent", "POST", path`/v1/accounts/${account.id}/intents`, call);
        keys.delete(text);
        return answer;
      } catch (error) {
        const isBusy = error instanceof Problem && (error.status === 429 || error.status >= 500);
        if (!isBusy && !(error instanceof Unreachable)) {
          keys.delete(text);
          throw error;
        }
        const advice = "look at the blotter. The same order, sent again from here, is not made twice";
        if (attempt >= RETRIES) throw new Error(`no answer came (${error.message}); ${advice}`);
        await new Promise((resolve) => setTimeout(resolve, RETRY_MILLIS * 2 ** attempt));
      }
    }
  };
}

/** @type {(context: Context) => View} */
export function makeTicket(context) {
  const { api, session, account } = context;
  const isLive = account.environment === "live";
  const verdict = el("div", { class: "verdict", role: "status" });
  const price = el("div", { class: "price" });
  let timer = 0;
  let asked = 0;
  let edits = 0; // made by hand
  /** @type {Record<string, string[]>} */
  let timesByKind = {};

  const form = new Form({
    name: "ticket",
    submit: "Send",
    isDangerous: isLive,
    fields: [
      { name: "symbol", label: "Symbol", isRequired: true, isUpper: true, max: 32 },
      { name: "order_side", label: "Side", kind: "radio", value: "BUY", options: SIDES },
      { name: "kind", label: "Order type", kind: "select", options: KINDS },
      { name: "quantity", label: "Quantity", isRequired: true, isNumber: true },
      { name: "limit_price", label: "Limit price", isRequired: true, isNumber: true },
      { name: "stop_price", label: "Stop price", isRequired: true, isNumber: true },
      { name: "time_in_force", label: "Time in force", kind: "select", options: timeOptions(TIMES), value: "DAY" },
    ],
    onInput: () => {
      edits += 1;
      layOut();
      window.clearTimeout(timer);
      timer = window.setTimeout(() => void evaluate(), EVALUATE_MILLIS);
    },
    onSubmit: async (values) => {
      const [sent, focused] = [edits, document.activeElement];
      const answer = await context.submit(commandOf(values));
      // Whoever types the next order already is not disturbed.
      if (edits === sent) {
        form.set({ quantity: "" }); // so that a second Enter sends nothing
        if (document.activeElement === focused) form.focus("quantity");
        forgetVerdict();
      }
      const order = `${values.order_side} ${values.quantity} ${values.symbol}`;
      return `Accepted: ${order}, action ${answer.seq} of the account.`;
    },
  });

  /** @param {Values} values */
  function commandOf(values) {
    return { type: "CREATE", payload: { symbol: values.symbol, order_side: values.order_side, spec: specOf(values) } };
  }

  function layOut() {
    const kind = form.text("kind");
    form.show("limit_price", hasLimit(kind));
    form.show("stop_price", hasStop(kind));
    const times = timesByKind[kind];
    if (times) form.setOptions("time_in_force", timeOptions(TIMES.filter((time) => times.includes(time))));
    const order = `${words(form.text("order_side"))} ${form.text("symbol")}`.trim();
    form.setSubmit(isLive ? `Send LIVE order: ${order}` : order);
    const needs = "Orders need an API key with intent:edit of this environment. Add one above.";
    form.setCredential(api.pick("submit_intent"), needs);
  }

  function forgetVerdict() {
    asked += 1; // an answer that is still on its way is not shown
    window.clearTimeout(timer);
    fill(verdict);
  }

  /** What the controls and limits would answer to what stands in the form. */
  async function evaluate() {
    const mine = ++asked;
    const { values } = form;
    const kind = String(values.kind);
    if (!values.symbol || !api.pick("read_controls")) return fill(verdict);
    const isPriced = (!hasLimit(kind) || values.limit_price) && (!hasStop(kind) || values.stop_price);
    const command = values.quantity && isPriced ? commandOf(values) : undefined;
    let shown;
    try {
      const body = { account_id: account.id, symbol: values.symbol, command };
      const told = await api.json("read_controls", "POST", "/v1/controls/evaluate", { body });
      /** @type {Trigger[]} */
      const triggered = told.triggered;
      const passes = command ? "Controls and limits let this pass." : "Controls let this symbol trade.";
      shown = told.allowed
        ? [el("p", { class: "passes" }, passes)]
        : triggered.map((trigger) => el("p", { class: "refuses" }, `Refused: ${trigger.detail}`));
    } catch (error) {
      const detail = (error instanceof Problem && error.errors[0]?.detail) || messageOf(error);
      shown = [el("p", { class: "unknown" }, `Cannot be judged yet: ${detail}`)];
    }
    return mine === asked ? fill(verdict, ...shown) : undefined;
  }

  /** @param {string} symbol @returns {Promise<Child[]>} */
  async function readPrice(symbol) {
    const reader = api.pick("read_accounts");
    if (!symbol || !reader) return [];
    const hasQuotes = account.broker === "paper" && api.pick("read_paper_quotes");
    const quote = hasQuotes && (await api.find("read_paper_quotes", path`/v1/paper/quotes/${symbol}`));
    const query = reader.caller.environment ? {} : { environment: account.environment };
    const told = quote || (await api.find("read_accounts", path`/v1/reference-prices/${symbol}`, { query }));
    if (!told) return [el("span", { class: "hint" }, "No price is known.")];
    const shown = (/** @type {string} */ title, /** @type {Amount[]} */ ...amounts) =>
      el("span", {}, `${title} ${amounts.map(showAmount).join(" × ")}`);
    const prices = quote
      ? [shown("Bid", told.bid, told.bid_size), shown("Ask", told.ask, told.ask_size)]
      : [shown("Reference", told.price)];
    return [...prices, el("span", { class: "hint" }, `${told.source}, ${showAge(told.as_of)} ago`)];
  }

  async function showPrice() {
    const symbol = form.text("symbol");
    const shown = await readPrice(symbol).catch(() => [el("span", { class: "hint" }, "The price cannot be read now.")]);
    if (form.text("symbol") === symbol) fill(price, ...shown);
  }

  async function readBroker() {
    if (!api.pick("brokers")) return;
    const brokers = await api.list("brokers", "/v1/brokers", 100);
    timesByKind = brokers.find((broker) => broker.name === account.broker)?.times_in_force_by_kind ?? {};
    layOut();
  }

  form.element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    form.clear();
    forgetVerdict();
    fill(price);
    layOut();
    form.focus("symbol");
  });
  layOut();
  void readBroker().catch(() => undefined);
  form.element.querySelector(".field")?.after(price);
  form.element.querySelector(".actions")?.before(verdict);
  const heading = el("h2", { id: "ticket-title" }, isLive ? "New LIVE order" : "New order");
  const attributes = { class: "panel ticket-panel", "aria-labelledby": heading.id };
  const element = el("section", attributes, heading, form.element, hint("Enter sends, Esc clears."));
  return makeView(element, repeat(PRICE_SECONDS, showPrice), listen(session, "change", layOut), forgetVerdict);
}
