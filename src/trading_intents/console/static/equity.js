// The account's equity and result over today, a week or a month, from what the platform recorded;
// and when today began.

import { compareAmounts, sum } from "./amounts.js";
import { messageOf, path } from "./api.js";
import { LineChart, Samples } from "./chart.js";
import { el, makeView, repeat, setText } from "./dom.js";

const READ_SECONDS = 15;
const HOUR_MILLIS = 3_600_000;
const DAY_MILLIS = 24 * HOUR_MILLIS;
/** @type {Record<string, {title: string, resolution: string, days: number}>} */
const RANGES = {
  today: { title: "Today", resolution: "1m", days: 0 },
  week: { title: "Week", resolution: "1h", days: 7 },
  month: { title: "Month", resolution: "1h", days: 30 },
};
/** @type {[string, number][]} The last values before a day are searched in these spans, one after the other. */
const BEFORE = [
  ["1m", HOUR_MILLIS],
  ["1h", DAY_MILLIS],
  ["1d", 1_500 * DAY_MILLIS],
];
const LINES = { equity: "Equity", realized_pnl: "Realized", unrealized_pnl: "Unrealized" };

/** @type {(now: number, timeZone: string) => number} The start of the calendar day there; days have 23 to 25 hours. */
export function beginDay(now, timeZone) {
  const wall = (/** @type {number} */ time) =>
    // Swedes write ISO 8601.
    Date.parse(`${new Date(time).toLocaleString("sv", { timeZone }).replace(" ", "T")}Z`);
  const second = now - (now % 1000);
  const day = wall(second) - (wall(second) % DAY_MILLIS);
  const guess = second - (wall(second) - day);
  return guess - (wall(guess) - day);
}

/** @type {(name: keyof typeof LINES, spans: Json[], now: number) => Samples} The last value holds until now. */
export function lineOf(name, spans, now) {
  const line = new Samples(LINES[name]);
  for (const span of spans)
    if (span[name] !== null) line.points.push([Date.parse(span.at), Number(span[name])]);
  const last = line.points.at(-1);
  if (last) line.points.push([Math.max(now, last[0]), last[1]]);
  return line;
}

/** @type {(context: Context, onDay: (day: Day) => void) => View} */
export function makeEquity({ api, account, feed, kept }, onDay) {
  const show = (/** @type {number} */ value) =>
    value.toLocaleString([], { maximumFractionDigits: 2 });
  const equity = new LineChart("Equity", show, false);
  const result = new LineChart("Result, realized and unrealized", show);
  const failed = el("p", { class: "failed", role: "alert" });
  const options = Object.entries(RANGES).map(([value, { title }]) =>
    el("option", { value }, title),
  );
  const range = el("select", { id: "equity-range", onchange: () => void read() }, ...options);
  range.value = kept.range ?? "today";

  /** @type {(resolution: string, from: number, to?: number) => Promise<Json[]>} */
  async function readSpans(resolution, from, to) {
    const query = {
      resolution,
      from: new Date(from).toISOString(),
      to: to && new Date(to).toISOString(),
    };
    return (
      await api.json("read_accounts", "GET", path`/v1/accounts/${account.id}/equity`, { query })
    ).data;
  }

  /** @type {() => Promise<Day>} As the daily-loss limit has it: when it began, and the result that it counts from. */
  async function readDay() {
    const url = path`/v1/controls/accounts/${account.id}/limits`;
    const limits = api.pick("read_controls")
      ? await api.find("read_controls", url).catch(() => null)
      : null;
    const zone = limits?.timezone ?? "UTC";
    const begin = beginDay(Date.now(), zone);
    let last;
    for (const [resolution, millis] of BEFORE)
      last ??= (await readSpans(resolution, begin - millis, begin)).at(-1);
    // A result from before the account came here does not count for today.
    const hadSome = [...feed.positions.values()].some((each) =>
      compareAmounts(each.opening_quantity, "0"),
    );
    if (!last && hadSome) [last] = await readSpans("1m", begin);
    return { zone, begin, limits, base: sum([last?.realized_pnl, last?.unrealized_pnl]) };
  }

  async function read() {
    const chosen = (kept.range = range.value);
    const { resolution = "", days = 0 } = RANGES[chosen] ?? {};
    try {
      const day = await readDay();
      onDay(day);
      const data = await readSpans(resolution, days ? Date.now() - days * DAY_MILLIS : day.begin);
      if (range.value !== chosen) return;
      equity.draw([lineOf("equity", data, Date.now())]);
      result.draw([
        lineOf("realized_pnl", data, Date.now()),
        lineOf("unrealized_pnl", data, Date.now()),
      ]);
      setText(failed, "");
    } catch (error) {
      setText(failed, `The equity cannot be read: ${messageOf(error)}`);
    }
  }

  const tools = el(
    "div",
    { class: "tools" },
    el("label", { for: range.id }, "Equity of"),
    range,
    failed,
  );
  const charts = el("div", { class: "charts" }, equity.element, result.element);
  return makeView(
    el("section", { class: "panel", "aria-label": "Equity" }, tools, charts),
    repeat(READ_SECONDS, read),
  );
}
