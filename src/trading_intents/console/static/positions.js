// Positions and money: quantities, values and the result of today; and closing a position.

import {
  compareAmounts,
  showAge,
  showAmount,
  showAverage,
  showMoney,
  showTime,
  subtract,
  sum,
} from "./amounts.js";
import { path } from "./api.js";
import {
  cards,
  el,
  fill,
  hint,
  listen,
  makeView,
  markAge,
  openDialog,
  repeat,
  terms,
} from "./dom.js";
import { makeEquity } from "./equity.js";
import { Form } from "./form.js";
import { KeyedList, amountColumn, byText } from "./list.js";
import { NEEDS_KEY, makeIdempotencyKey } from "./ticket.js";

const READ_SECONDS = 2;

/** @param {Amount} amount */
const result = (amount) => ({
  text: showMoney(amount),
  class: ["loss", "", "gain"][compareAmounts(amount, "0") + 1],
});
/** @param {Position} position */
const isHeld = (position) => compareAmounts(position.quantity, "0") !== 0;

/** @param {Position} position a report from before our last fill is no difference, and shown with its time */
export function describeReport({
  differs,
  quantity,
  broker_quantity: reported,
  broker_sent_at: at,
}) {
  if (!reported) return "not reported";
  if (differs) return { text: `differs: ${showAmount(reported)}`, class: "warn" };
  if (compareAmounts(reported, quantity) === 0) return "agrees";
  return {
    text: `${showAmount(reported)} ${at ? `at ${showTime(at)}` : "before our last fill"}`,
    class: "old",
  };
}

/** @type {Column<Position>[]} */
const COLUMNS = [
  { id: "symbol", title: "Symbol", cell: (position) => position.symbol, compare: byText("symbol") },
  amountColumn("quantity", "Quantity", "quantity"),
  {
    id: "cost",
    title: "Average cost",
    isNumber: true,
    cell: (row) => showAverage(row.average_cost, row.market_price),
  },
  {
    id: "price",
    title: "Price",
    isNumber: true,
    cell: (position) => showMoney(position.market_price, 4),
  },
  { id: "priced", title: "Price age", cell: (position) => showAge(position.market_price_at) },
  amountColumn("value", "Value", "market_value", showMoney),
  amountColumn("unrealized", "Unrealized", "unrealized_pnl", result),
  {
    id: "realized",
    title: "Realized",
    isNumber: true,
    cell: (position) => result(position.realized_pnl),
  },
  amountColumn("today", "Realized today, UTC", "daily_pnl", result),
  { id: "broker", title: "At the broker", cell: (position) => describeReport(position) },
];

/** @param {Day} day what "Today" counts, and what the limit makes of it */
export function explainDay({ zone, begin, limits }) {
  const since = `00:00 ${zone} (${showTime(begin)})`;
  const loss = limits?.max_daily_loss;
  const halts = loss
    ? ` A loss of ${showMoney(loss)} halts the account.`
    : " The account has no such limit.";
  const isNew = loss && Date.parse(limits.updated_at) > begin;
  const late = isNew ? " The limits were changed today: a new one counts from then." : "";
  return `Today: realized and unrealized since ${since}, fees included, as a daily-loss limit counts.${halts}${late}`;
}

/** @type {(context: Context, position: Position) => void} */
function openClosing({ api, account }, position) {
  const { symbol, quantity } = position;
  const url = path`/v1/accounts/${account.id}/positions/${symbol}/close`;
  // Of this dialog: pressing the button again asks again.
  const headers = { "idempotency-key": makeIdempotencyKey() };
  const form = new Form({
    name: "close",
    submit: `Close ${account.environment === "live" ? "LIVE position " : ""}${symbol}`,
    isDangerous: true,
    onSubmit: async () => {
      const answer = await api.json("submit_intent", "POST", url, { body: {}, headers });
      return `Accepted: a market order closes it, action ${answer.seq} of the account.`;
    },
  });
  form.setCredential(api.pick("submit_intent"), NEEDS_KEY, isHeld(position));
  const verb = quantity.startsWith("-") ? "buys" : "sells";
  const order = `A market order ${verb} ${showAmount(quantity.replace("-", ""))} ${symbol}`;
  const what = `${order}, less what open orders already close. It passes a halt.`;
  openDialog(`Position ${symbol}`, [
    terms([
      ["Quantity", showAmount(quantity)],
      ["Held before us", showAmount(position.opening_quantity)],
      ["Broker reports", showAmount(position.broker_quantity)],
      ["Average cost", showAmount(position.average_cost)],
      ["Price", showAmount(position.market_price)],
      ["Value", showMoney(position.market_value)],
      ["Unrealized", showMoney(position.unrealized_pnl)],
      ["Realized", showMoney(position.realized_pnl)],
    ]),
    el("p", {}, isHeld(position) ? what : "Nothing is held."),
    form.element,
  ]);
}

/** @type {(context: Context) => View} */
export function openPositions(context) {
  const { api, feed, account } = context;
  const money = el("div", { class: "figures" });
  const flat = el("input", {
    type: "checkbox",
    id: "positions-flat",
    onchange: () => list.resort(true),
  });
  const age = el("span", { class: "hint", role: "status" });
  const equity = makeEquity(context, (found) => (day = found));
  /** @type {Day | null} */
  let day = null;
  let readAt = 0;
  /** @type {Json} */
  let balance = {};
  const list = new KeyedList({
    name: "positions",
    label: "Positions",
    columns: COLUMNS,
    rows: () => [...feed.positions.values()].filter((position) => flat.checked || isHeld(position)),
    key: (position) => position.symbol,
    empty: "Nothing is held.",
    sortBy: "symbol",
    onOpen: (position) => openClosing(context, position),
  });
  const tools = el(
    "div",
    { class: "tools" },
    flat,
    el("label", { for: flat.id }, "Show closed ones too"),
    age,
  );
  const held = el(
    "section",
    { class: "panel figures", "aria-label": "Positions" },
    tools,
    list.element,
  );

  async function read() {
    try {
      await feed.readPositions();
      if (api.pick("read_accounts"))
        balance =
          (await api.find("read_accounts", path`/v1/accounts/${account.id}/balances`)) ?? {};
      readAt = Date.now();
    } catch {
      // The age that is shown says how old the figures are.
    }
    list.resort();
    showMoneyFigures();
  }

  function showMoneyFigures() {
    age.textContent = markAge(readAt, held, money);
    const positions = [...feed.positions.values()];
    const isPriced = positions.every(
      (position) => !isHeld(position) || position.unrealized_pnl !== null,
    );
    const open = isPriced
      ? showMoney(sum(positions.map((position) => position.unrealized_pnl)))
      : "a price is missing";
    // A position that never had a price counts with its realized result, as for the limit.
    const made = sum(
      positions.flatMap((position) => [position.realized_pnl, position.unrealized_pnl]),
    );
    const figures = cards([
      ["Cash", showMoney(balance.cash)],
      ["Buying power", showMoney(balance.buying_power)],
      ["Equity", showMoney(balance.equity)],
      ["Currency", balance.currency],
      ["Balance reported", balance.as_of ? `${showAge(balance.as_of)} ago` : "never"],
      ["Today", day && showMoney(subtract(made, day.base))],
      ["Unrealized", open],
    ]);
    fill(money, figures, day && hint(explainDay(day)));
  }

  const balances = el(
    "section",
    { class: "panel", "aria-label": `Money of ${account.name}` },
    money,
  );
  const element = el("div", { class: "stack" }, balances, held, equity.element);
  const resort = listen(feed, "change", () => list.resort());
  const stops = [repeat(READ_SECONDS, read), repeat(1, showMoneyFigures), equity.close, list.close];
  return makeView(element, resort, ...stops);
}
