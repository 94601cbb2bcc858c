// The order ticket: says before sending what the controls would answer, shows the price, and sends
// each order once.

import {
  compareAmounts,
  multiply,
  roundAmount,
  showAge,
  showAmount,
  showMoney,
  subtract,
  sum,
  tailOf,
  words,
} from "./amounts.js";
import { Problem, Unreachable, messageOf, path } from "./api.js";
import { el, fill, hint, listen, makeView, repeat, setText } from "./dom.js";
import { Form } from "./form.js";
import { describeOutcome } from "./orders.js";
import { warningOf } from "./status.js";

const EVALUATE_MILLIS = 250;
const PRICE_SECONDS = 2;
const RETRIES = 3;
const RETRY_MILLIS = 700;
const AMOUNT = /^\d{1,18}(\.\d{1,18})?$/;
const PERCENT = /^(\d{1,4}(?:\.\d{1,4})?) ?%$/;
const AWAY = "a price, or a distance such as 2%";
const LINKS = ["take_profit", "stop_loss", "one_cancels_other"];
export const NEEDS_KEY = "Needs an API key with intent:edit, or a user who may trade.";

/** @type {[string, string][]} */
const KINDS = [
  ["Market", "Market"],
  ["Limit", "Limit"],
  ["Stop", "Stop"],
  ["StopLimit", "Stop limit"],
  ["TrailingStop", "Trailing stop"],
];
/** @type {[string, string][]} */
const SIDES = [
  ["BUY", "Buy"],
  ["SELL", "Sell"],
  ["SELL_SHORT", "Short"],
];
const TIMES = [
  "DAY",
  "GOOD_TILL_CANCEL",
  "IMMEDIATE_OR_CANCEL",
  "FILL_OR_KILL",
  "AT_OPEN",
  "AT_CLOSE",
  "EXT",
];
/** @type {(times: string[]) => [string, string][]} */
const timeOptions = (times) => times.map((time) => [time, words(time)]);

/** @param {string} kind */
export const hasLimit = (kind) => kind === "Limit" || kind === "StopLimit";
/** @param {string} kind */
export const hasStop = (kind) => kind === "Stop" || kind === "StopLimit";

/** @param {string} kind */
export const hasTrail = (kind) => kind === "TrailingStop";

/** @type {(text: string, base: string, isAbove: boolean) => string} A price, or one that far away from another. */
export function priceAway(text, base, isAbove) {
  const percent = PERCENT.exec(text)?.[1];
  if (!percent || !AMOUNT.test(base)) return text;
  const away = multiply(multiply(base, percent), "0.01");
  return roundAmount(isAbove ? sum([base, away]) : subtract(base, away), Math.max(2, tailOf(base)));
}

/** @param {Values} values the fields of an order's spec */
export function specOf(values) {
  const kind = String(values.kind);
  /** @type {Json} */
  const spec = { quantity: values.quantity };
  if (hasLimit(kind)) spec.limit_price = values.limit_price;
  if (hasStop(kind)) spec.stop_price = values.stop_price;
  const percent = PERCENT.exec(String(values.trail))?.[1];
  if (hasTrail(kind) && percent) spec.trail_bps = Math.round(Number(percent) * 100);
  else if (hasTrail(kind)) spec.trail_amount = values.trail;
  if (values.time_in_force) spec.time_in_force = values.time_in_force;
  return { [kind]: spec };
}

// The cost of an order, beside the buying power; null where nothing can be said.
/** @type {(values: Values, quote: Json, power: Amount, held: Amount) => Outcome | null} */
export function estimate(
  { symbol, order_side: side, kind, quantity, ...prices },
  quote,
  power,
  held,
) {
  const market = (side === "BUY" ? quote.ask : quote.bid) ?? quote.price;
  const limit = hasLimit(String(kind))
    ? prices.limit_price
    : hasStop(String(kind))
      ? prices.stop_price
      : market;
  const [count, price] = [String(quantity), String(limit)];
  if (!AMOUNT.test(count)) return null;
  if (side === "SELL" && compareAmounts(count, held) > 0) {
    const has = compareAmounts(held, "0") > 0 ? `only ${showAmount(held)}` : "no";
    return { text: `The account holds ${has} ${symbol} to sell.`, look: "unknown" };
  }
  if (!AMOUNT.test(price)) return null;
  const cost = multiply(count, price);
  if (side === "SELL") return { text: `Brings about ${showMoney(cost)}.`, look: "" };
  const about = `Costs about ${showMoney(cost)}`;
  if (!power) return { text: `${about}.`, look: "" };
  const isTooMuch = compareAmounts(cost, power) > 0;
  const text = `${about}, ${isTooMuch ? "more than" : "within"} the buying power of ${showMoney(power)}.`;
  return { text, look: isTooMuch ? "refuses" : "" };
}

export function makeIdempotencyKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
}

// Submits an account's commands. One that got no answer keeps its Idempotency-Key: sent again, it
// is not made anew.
/** @type {(api: Api, account: Account) => Submit} */
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
        const answer = await api.json(
          "submit_intent",
          "POST",
          path`/v1/accounts/${account.id}/intents`,
          call,
        );
        keys.delete(text);
        return answer;
      } catch (error) {
        const isBusy = error instanceof Problem && (error.status === 429 || error.status >= 500);
        if (!isBusy && !(error instanceof Unreachable)) {
          keys.delete(text);
          throw error;
        }
        const advice =
          "look at the blotter. The same order, sent again from here, is not made twice";
        if (attempt >= RETRIES) throw new Error(`no answer came (${error.message}); ${advice}`);
        await new Promise((resolve) => setTimeout(resolve, RETRY_MILLIS * 2 ** attempt));
      }
    }
  };
}

/** @type {(context: Context) => View} */
export function makeTicket(context) {
  const { api, session, account, feed } = context;
  const isLive = account.environment === "live";
  const verdict = el("div", { class: "verdict", role: "status" });
  const price = el("div", { class: "price" });
  const cost = el("p", { class: "cost" });
  const warning = el("p", { class: "warn", role: "status" });
  const outcome = el("p", { class: "outcome" }); // the page's notice reads it out
  /** @type {Order | null} the order as it was sent, while this ticket follows it */
  let followed = null;
  /** @type {Json} of the symbol in the form */
  let quote = {};
  /** @type {Amount} */
  let power = null;
  let timer = 0;
  let asked = 0;
  let edits = 0; // made by hand
  /** @type {Json} what the account's broker offers */
  let broker = {};

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
      {
        name: "trail",
        label: "Trail",
        isRequired: true,
        hint: "an amount, or a distance such as 2%",
      },
      {
        name: "time_in_force",
        label: "Time in force",
        kind: "select",
        options: timeOptions(TIMES),
        value: "DAY",
      },
      { name: "take_profit", label: "Take profit", hint: AWAY },
      { name: "stop_loss", label: "Stop loss", hint: AWAY },
      { name: "one_cancels_other", label: "Or stop at", hint: "one cancels the other" },
    ],
    onInput: () => {
      edits += 1;
      follow(null);
      layOut();
      showCost();
      window.clearTimeout(timer);
      timer = window.setTimeout(() => void evaluate(), EVALUATE_MILLIS);
    },
    onSubmit: async (values) => {
      const [sent, focused] = [edits, document.activeElement];
      const answer = await context.submit(commandOf(values));
      // Whoever types the next order already is not disturbed.
      if (edits === sent) {
        // So that a second Enter sends nothing, and the next order has no exits of this one.
        form.set({ quantity: "", take_profit: "", stop_loss: "", one_cancels_other: "" });
        if (document.activeElement === focused) form.focus("quantity");
        forgetVerdict();
      }
      const { symbol, order_side, quantity } = values;
      const sentOrder = {
        symbol,
        order_side,
        quantity,
        order_id: answer.intent_id,
        order_status: "PENDING_NEW",
      };
      follow(/** @type {Order} */ (/** @type {Json} */ (sentOrder)));
      context.notify({ text: outcome.textContent ?? "", look: "" });
    },
  });

  /** @param {Order | null} order */
  function follow(order) {
    followed = order;
    if (order) showOutcome();
    else setText(outcome, "");
  }

  /** Shows the outcome of the order that was sent last, until it is final or another is begun. */
  function showOutcome() {
    setText(warning, warningOf(account, feed.halts));
    if (!followed) return;
    const order = feed.orders.get(followed.order_id) ?? followed;
    const { text, look } = describeOutcome(order, account.connection === "connected");
    setText(outcome, text);
    outcome.className = `outcome ${look}`;
    if (order.order_state && order.order_state !== "OPEN") followed = null;
  }

  function showCost() {
    const { values } = form;
    const held = feed.positions.get(String(values.symbol))?.quantity ?? "0";
    const { text, look } = (values.symbol && estimate(values, quote, power, held)) || {
      text: "",
      look: "",
    };
    const { exits, one_cancels_other: pair } = linksOf(values);
    const prices = {
      "take profit": exits?.take_profit?.limit_price,
      "stop loss": exits?.stop_loss?.stop_price,
    };
    const legs = Object.entries({ ...prices, "or stop": pair?.stop_price }).filter(([, at]) => at);
    const linked = legs.map(([name, at]) => `${name} at ${at}`).join(", ");
    setText(cost, [text, linked && `With ${linked}.`].filter(Boolean).join(" "));
    cost.className = `cost ${look}`;
  }

  /** @type {(name: string, values: Values) => boolean} Whether the broker links such orders to one of these. */
  const offers = (name, { order_side: side, kind }) =>
    Boolean(broker[name]?.order_sides.includes(side) && broker[name].order_kinds.includes(kind));

  /** @type {(values: Values) => Json} The legs that the broker is to link to the order. */
  function linksOf(values) {
    const isBuy = values.order_side === "BUY";
    const base = hasLimit(String(values.kind))
      ? values.limit_price
      : ((isBuy ? quote.ask : quote.bid) ?? quote.price);
    /** @type {(name: string, isAbove: boolean) => string | undefined} */
    const at = (name, isAbove) =>
      priceAway(String(values[name] ?? ""), String(base), isAbove) || undefined;
    const [profit, loss, pair] = [
      at("take_profit", isBuy),
      at("stop_loss", !isBuy),
      at("one_cancels_other", isBuy),
    ];
    const exits = {
      take_profit: profit && { limit_price: profit },
      stop_loss: loss && { stop_price: loss },
    };
    return {
      exits: (profit || loss) && offers("exits", values) ? exits : undefined,
      one_cancels_other:
        pair && offers("one_cancels_other", values) ? { stop_price: pair } : undefined,
    };
  }

  /** @param {Values} values */
  function commandOf(values) {
    const { symbol, order_side } = values;
    return {
      type: "CREATE",
      payload: { symbol, order_side, spec: specOf(values), ...linksOf(values) },
    };
  }

  function layOut() {
    const kind = form.text("kind");
    form.show("limit_price", hasLimit(kind));
    form.show("stop_price", hasStop(kind));
    form.show("trail", hasTrail(kind));
    for (const name of ["take_profit", "stop_loss"]) form.show(name, offers("exits", form.values));
    form.show("one_cancels_other", offers("one_cancels_other", form.values));
    links.hidden = !offers("exits", form.values) && !offers("one_cancels_other", form.values);
    const times = broker.times_in_force_by_kind?.[kind];
    if (times)
      form.setOptions("time_in_force", timeOptions(TIMES.filter((time) => times.includes(time))));
    const order = `${words(form.text("order_side"))} ${form.text("symbol")}`.trim();
    const look = form.text("order_side") === "BUY" ? "buys" : "sells";
    form.setSubmit(isLive ? `Send LIVE order: ${order}` : order, `${look}${isLive ? " live" : ""}`);
    const needs =
      "Orders need an API key with intent:edit of this environment, or a user who may trade.";
    form.setCredential(
      api.pick("submit_intent"),
      session.withoutKey.get(account.environment) ?? needs,
    );
  }

  function forgetVerdict() {
    asked += 1; // an answer that is still on its way is not shown
    window.clearTimeout(timer);
    fill(verdict);
    setText(cost, "");
  }

  /** Shows what the controls and limits would answer to the order in the form. */
  async function evaluate() {
    const mine = ++asked;
    const { values } = form;
    const kind = String(values.kind);
    if (!values.symbol || !api.pick("read_controls")) return fill(verdict);
    const isPriced =
      (!hasLimit(kind) || values.limit_price) && (!hasStop(kind) || values.stop_price);
    const command =
      values.quantity && isPriced && (!hasTrail(kind) || values.trail)
        ? commandOf(values)
        : undefined;
    let shown;
    try {
      const body = { account_id: account.id, symbol: values.symbol, command };
      const answer = await api.json("read_controls", "POST", "/v1/controls/evaluate", { body });
      /** @type {Trigger[]} */
      const triggered = answer.triggered;
      const passes = command
        ? "Controls and limits let this pass."
        : "Controls let this symbol trade.";
      shown = answer.allowed
        ? [el("p", { class: "passes" }, passes)]
        : triggered.map((trigger) =>
            el("p", { class: "refuses" }, `Refused: ${trigger.detail} (${trigger.reason})`),
          );
    } catch (error) {
      const detail = (error instanceof Problem && error.errors[0]?.detail) || messageOf(error);
      shown = [el("p", { class: "unknown" }, `Cannot be judged yet: ${detail}`)];
    }
    return mine === asked ? fill(verdict, ...shown) : undefined;
  }

  /** @param {string} symbol @returns {Promise<Json>} */
  async function readQuote(symbol) {
    if (!symbol || !api.pick("read_accounts")) return {};
    power = (await api.find("read_accounts", path`/v1/accounts/${account.id}/balances`))
      ?.buying_power;
    const hasQuotes = account.broker === "paper" && api.pick("read_paper_quotes");
    const found =
      hasQuotes && (await api.find("read_paper_quotes", path`/v1/paper/quotes/${symbol}`));
    const query = { account_id: account.id };
    return (
      found ||
      ((await api.find("read_accounts", path`/v1/reference-prices/${symbol}`, { query })) ?? {})
    );
  }

  /** @type {(found: Json) => Child[]} */
  function describeQuote(found) {
    const shown = (/** @type {string} */ title, /** @type {Amount[]} */ ...amounts) =>
      el("span", {}, `${title} ${amounts.map(showAmount).join(" × ")}`);
    const prices = found.bid
      ? [shown("Bid", found.bid, found.bid_size), shown("Ask", found.ask, found.ask_size)]
      : [shown("Reference", found.price)];
    return [
      ...prices,
      el("span", { class: "hint" }, `${found.source}, ${showAge(found.as_of)} ago`),
    ];
  }

  async function showPrice() {
    const symbol = form.text("symbol");
    let text = symbol && api.pick("read_accounts") ? "No price is known." : "";
    /** @type {Json} */
    const found = await readQuote(symbol).catch(
      () => ((text = "The price cannot be read now."), {}),
    );
    if (form.text("symbol") !== symbol) return;
    quote = found;
    fill(price, ...(found.as_of ? describeQuote(found) : [el("span", { class: "hint" }, text)]));
    showCost();
  }

  async function readBroker() {
    if (!api.pick("brokers")) return;
    const brokers = await api.list("brokers", "/v1/brokers", 100);
    broker = brokers.find(({ name }) => name === account.broker) ?? {};
    const { order_kinds: kinds } = broker;
    if (kinds)
      form.setOptions(
        "kind",
        KINDS.filter(([kind]) => kinds.includes(kind)),
      );
    layOut();
  }

  form.element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    form.clear();
    follow(null);
    forgetVerdict();
    fill(price);
    layOut();
    form.focus("symbol");
  });
  const links = form.fold("Exits, or a stop beside it", LINKS);
  form.pin(cost, verdict, warning, outcome);
  form.element.querySelector(".field")?.after(price);
  layOut();
  void readBroker().catch(() => undefined);
  showOutcome();
  const onChange = () => {
    if (followed && feed.touched.has(followed.order_id)) showOutcome();
  };
  const stops = [
    listen(feed, "change", onChange),
    listen(feed, "status", showOutcome),
    forgetVerdict,
  ];
  const heading = el("h2", { id: "ticket-title" }, isLive ? "New LIVE order" : "New order");
  const attributes = { class: "panel ticket-panel", "aria-labelledby": heading.id };
  const element = el(
    "section",
    attributes,
    heading,
    form.element,
    hint("Enter sends, Esc clears."),
  );
  return makeView(
    element,
    repeat(PRICE_SECONDS, showPrice),
    listen(session, "change", layOut),
    ...stops,
  );
}
