// The account's equity and result over today, a week or a month, from what the platform recorded.

import { messageOf, path } from "./api.js";
import { LineChart, Samples } from "./chart.js";
import { el, makeView, repeat, setText } from "./dom.js";

const READ_SECONDS = 15;
const DAY_MILLIS = 86_400_000;
/** @type {Record<string, {title: string, resolution: string, begin: () => number}>} */
const RANGES = {
  today: { title: "Today", resolution: "1m", begin: () => new Date().setHours(0, 0, 0, 0) },
  week: { title: "Week", resolution: "1h", begin: () => Date.now() - 7 * DAY_MILLIS },
  month: { title: "Month", resolution: "1h", begin: () => Date.now() - 30 * DAY_MILLIS },
};
const LINES = { equity: "Equity", realized_pnl: "Realized", unrealized_pnl: "Unrealized" };

/** @type {(name: keyof typeof LINES, spans: Json[], now: number) => Samples} What was last recorded holds until now. */
export function lineOf(name, spans, now) {
  const line = new Samples(LINES[name]);
  for (const span of spans) if (span[name] !== null) line.points.push([Date.parse(span.at), Number(span[name])]);
  const last = line.points.at(-1);
  if (last) line.points.push([Math.max(now, last[0]), last[1]]);
  return line;
}

/** @type {(context: Context) => View} */
export function makeEquity({ api, account, kept }) {
  const show = (/** @type {number} */ value) => value.toLocaleString([], { maximumFractionDigits: 2 });
  const equity = new LineChart("Equity", show, false);
  const result = new LineChart("Result, realized and unrealized", show);
  const failed = el("p", { class: "failed", role: "alert" });
  const options = Object.entries(RANGES).map(([value, { title }]) => el("option", { value }, title));
  const range = el("select", { id: "equity-range", onchange: () => void read() }, ...options);
  range.value = kept.range ?? "today";

  async function read() {
    const chosen = (kept.range = range.value);
    const { resolution = "", begin = Date.now } = RANGES[chosen] ?? {};
    const query = { resolution, from: new Date(begin()).toISOString() };
    try {
      const { data } = await api.json("read_accounts", "GET", path`/v1/accounts/${account.id}/equity`, { query });
      if (range.value !== chosen) return;
      equity.draw([lineOf("equity", data, Date.now())]);
      result.draw([lineOf("realized_pnl", data, Date.now()), lineOf("unrealized_pnl", data, Date.now())]);
      setText(failed, "");
    } catch (error) {
      setText(failed, `The equity cannot be read: ${messageOf(error)}`);
    }
  }

  const tools = el("div", { class: "tools" }, el("label", { for: range.id }, "Equity of"), range, failed);
  const charts = el("div", { class: "charts" }, equity.element, result.element);
  return makeView(el("section", { class: "panel", "aria-label": "Equity" }, tools, charts), repeat(READ_SECONDS, read));
}
