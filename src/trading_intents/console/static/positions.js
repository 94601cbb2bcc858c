// Positions and money: what is held, what it is worth, what today brought; and closing one.

import { compareAmounts, isNegative, showAge, showAmount, showMoney, sum, words } from "./amounts.js";
import { path } from "./api.js";
import { LineChart, Samples } from "./chart.js";
import { el, fill, openDialog, repeat, terms } from "./dom.js";
import { Form } from "./form.js";
import { KeyedList } from "./list.js";
import { makeIdempotencyKey } from "./ticket.js";

/** @typedef {import("./main.js").Context} Context */
/** @typedef {import("./feed.js").Position} Position */

const READ_SECONDS = 2;
const STALE_SECONDS = 10;
const MAX_POSITIONS = 2_000;

/** @param {string | null | undefined} amount */
const result = (amount) => ({ text: showMoney(amount), class: ["loss", "", "gain"][compareAmounts(amount, "0") + 1] ?? "" });

/** @type {import("./list.js").Column<Position>[]} */
const COLUMNS = [
  {
    id: "symbol",
    title: "Symbol",
    cell: (position) => position.symbol,
    compare: (one, other) => (one.symbol < other.symbol ? -1 : 1),
  },
  {
    id: "quantity",
    title: "Quantity",
    isNumber: true,
    cell: (position) => showAmount(position.quantity),
    compare: (one, other) => compareAmounts(one.quantity, other.quantity),
  },
  { id: "cost", title: "Average cost", isNumber: true, cell: (position) => showMoney(position.average_cost, 4) },
  { id: "price", title: "Price", isNumber: true, cell: (position) => showMoney(position.market_price, 4) },
  { id: "priced", title: "Price age", cell: (position) => showAge(position.market_price_at) },
  {
    id: "value",
    title: "Value",
    isNumber: true,
    cell: (position) => showMoney(position.market_value),
    compare: (one, other) => compareAmounts(one.market_value, other.market_value),
  },
  {
    id: "unrealized",
    title: "Unrealized",
    isNumber: true,
    cell: (position) => result(position.unrealized_pnl),
    compare: (one, other) => compareAmounts(one.unrealized_pnl, other.unrealized_pnl),
  },
  { id: "realized", title: "Realized", isNumber: true, cell: (position) => result(position.realized_pnl) },
  {
    id: "today",
    title: "Today",
    isNumber: true,
    cell: (position) => result(position.daily_pnl),
    compare: (one, other) => compareAmounts(one.daily_pnl, other.daily_pnl),
  },
  {
    id: "broker",
    title: "At the broker",
    cell: (position) => (position.differs ? { text: `differs: ${showAmount(position.broker_quantity)}`, class: "warn" } : "agrees"),
  },
];

/**
 * @param {Context} context
 * @param {Position} position
 */
function openClosing(context, position) {
  const { api, session, account } = context;
  const { environment } = account;
  const credential = session.pick("submit_intent", environment);
  const isFlat = compareAmounts(position.quantity, "0") === 0;
  const key = makeIdempotencyKey(); // of this dialog: pressing the button again asks again
  const form = new Form({
    name: "close",
    submit: environment === "live" ? `Close LIVE position ${position.symbol}` : `Close ${position.symbol}`,
    isDangerous: true,
    note: credential ? `Uses the ${credential.label}.` : "Needs an API key with intent:edit.",
    fields: [],
    onSubmit: async () => {
      const answer = await api.json("submit_intent", "POST", path`/v1/accounts/${account.id}/positions/${position.symbol}/close`, {
        environment,
        body: {},
        headers: { "idempotency-key": key },
      });
      return `Accepted: a market order closes it, action ${answer.seq} of the account.`;
    },
  });
  form.setDisabled(!credential || isFlat);
  const what = isFlat
    ? "Nothing is held."
    : `A market order ${isNegative(position.quantity) ? "buys" : "sells"} ${showAmount(position.quantity).replace("−", "")} ${position.symbol}, less what open orders already close. It passes a halt.`;
  openDialog(`Position ${position.symbol}`, [
    terms([
      ["Quantity", showAmount(position.quantity)],
      ["Held before us", showAmount(position.opening_quantity)],
      ["Broker reports", showAmount(position.broker_quantity)],
      ["Average cost", showAmount(position.average_cost)],
      ["Price", showAmount(position.market_price)],
      ["Value", showMoney(position.market_value)],
      ["Unrealized", showMoney(position.unrealized_pnl)],
      ["Realized", showMoney(position.realized_pnl)],
    ]),
    el("p", {}, what),
    form.element,
  ]);
}

/** @param {Context} context */
export function openPositions(context) {
  const { api, feed, account, session } = context;
  const { environment } = account;
  const money = el("div", { class: "figures" });
  const flat = el("input", { type: "checkbox", id: "positions-flat", onchange: () => list.resort(true) });
  const age = el("span", { class: "hint", role: "status" });
  const chart = new LineChart("Result since this page was opened", (value) => value.toLocaleString([], { maximumFractionDigits: 2 }));
  const today = new Samples("Realized today");
  const unrealized = new Samples("Unrealized");
  let readAt = 0;
  /** @type {Record<string, any> | null} */
  let balance = null;
  const list = new KeyedList({
    name: "positions",
    label: "Positions",
    columns: COLUMNS,
    key: (position) => position.symbol,
    empty: "Nothing is held.",
    sortBy: "symbol",
    onOpen: (position) => openClosing(context, position),
  });
  list.setSource(() => [...feed.positions.values()].filter((position) => flat.checked || compareAmounts(position.quantity, "0") !== 0));
  const panel = el(
    "section",
    { class: "panel figures", "aria-label": "Positions" },
    el("div", { class: "tools" }, flat, el("label", { for: "positions-flat" }, "Show closed ones too"), age),
    list.element,
  );

  async function read() {
    try {
      const positions = await api.list("read_intents", path`/v1/accounts/${account.id}/positions`, MAX_POSITIONS, {
        environment,
      });
      if (session.pick("read_accounts", environment))
        balance = await api.find("read_accounts", path`/v1/accounts/${account.id}/balances`, { environment });
      for (const position of positions) feed.keepPosition(position);
      readAt = Date.now();
      today.add(readAt, Number(sum(positions.map((position) => position.daily_pnl ?? "0"))));
      unrealized.add(readAt, Number(sum(positions.map((position) => position.unrealized_pnl ?? "0"))));
      chart.draw([today, unrealized]);
    } catch {
      // The age that is shown says how old the figures are.
    }
    list.resort();
    show();
  }

  function show() {
    const isStale = Date.now() - readAt > STALE_SECONDS * 1000;
    panel.classList.toggle("stale", isStale);
    money.classList.toggle("stale", isStale);
    age.textContent = readAt ? `read ${showAge(readAt)} ago${isStale ? ": these figures are old" : ""}` : "reading …";
    const priced = [...feed.positions.values()];
    const told = balance ?? {};
    fill(
      money,
      terms(
        [
          ["Cash", showMoney(told.cash)],
          ["Buying power", showMoney(told.buying_power)],
          ["Equity", showMoney(told.equity)],
          ["Currency", told.currency ?? "–"],
          ["Balance told", told.as_of ? `${showAge(told.as_of)} ago` : "never"],
          ["Realized today", showMoney(sum(priced.map((position) => position.daily_pnl ?? "0")))],
          [
            "Unrealized",
            priced.some((position) => compareAmounts(position.quantity, "0") !== 0 && position.unrealized_pnl === null)
              ? "a price is missing"
              : showMoney(sum(priced.map((position) => position.unrealized_pnl ?? "0"))),
          ],
        ],
        "terms cards",
      ),
    );
  }

  const onChange = () => list.resort();
  feed.addEventListener("change", onChange);
  const stops = [repeat(READ_SECONDS, read), repeat(1, show)];
  return {
    element: el(
      "div",
      { class: "stack" },
      el("section", { class: "panel", "aria-label": `Money of ${words(account.name)}` }, money),
      panel,
      el("section", { class: "panel" }, chart.element),
    ),
    close: () => {
      stops.forEach((stop) => stop());
      feed.removeEventListener("change", onChange);
      list.close();
    },
  };
}
