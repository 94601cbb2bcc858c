// A line chart over time as SVG. Its numbers are for looking at, not for accounting: they are floats.

import { el } from "./dom.js";

/** @typedef {{name: string, points: [number, number][]}} Series points: milliseconds and value */

const NS = "http://www.w3.org/2000/svg";
const DEFAULT_WIDTH = 600;
const HEIGHT = 160;
const LEFT = 8;
const RIGHT = 70;
const TOP = 10;
const BOTTOM = 20;

/**
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 * @param {string} [text]
 */
function svg(tag, attributes, text) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Values over time, in bounded memory: when it is full, every other point goes. */
export class Samples {
  /**
   * @param {string} name
   * @param {number} [max]
   */
  constructor(name, max = 600) {
    this.name = name;
    this._max = max;
    /** @type {[number, number][]} */
    this.points = [];
  }

  /**
   * @param {number} time
   * @param {number} value
   */
  add(time, value) {
    if (!Number.isFinite(value)) return;
    this.points.push([time, value]);
    if (this.points.length > this._max) this.points = this.points.filter((_, place) => place % 2 === 0 || place > this._max - 60);
  }
}

export class LineChart {
  /**
   * @param {string} title
   * @param {(value: number) => string} show
   */
  constructor(title, show) {
    this._title = title;
    this._show = show;
    this._svg = svg("svg", { height: HEIGHT, role: "img", "aria-label": title, class: "chart" });
    this._legend = el("div", { class: "legend" });
    this.element = el("figure", { class: "figure" }, el("figcaption", {}, title), this._svg, this._legend);
  }

  /** @param {Series[]} series */
  draw(series) {
    const width = this._svg.clientWidth || DEFAULT_WIDTH;
    const all = series.flatMap((line) => line.points);
    if (!all.length) {
      this._svg.replaceChildren(
        svg("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle", class: "axis" }, "nothing to show yet"),
      );
      return;
    }
    const times = all.map(([time]) => time);
    const values = all.map(([, value]) => value);
    const start = Math.min(...times);
    const end = Math.max(...times, start + 1000);
    const low = Math.min(0, ...values);
    const high = Math.max(0, ...values, low + 1e-9);
    const x = (/** @type {number} */ time) => LEFT + ((time - start) / (end - start)) * (width - LEFT - RIGHT);
    const y = (/** @type {number} */ value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    const lines = series.map((line, place) =>
      svg("polyline", {
        class: `series series-${place}`,
        points: line.points.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
      }),
    );
    // The last value of each, so that one that came alone is seen too.
    const ends = series.flatMap((line, place) =>
      line.points.slice(-1).map(([time, value]) => svg("circle", { class: `series-${place}`, cx: x(time), cy: y(value), r: 3 })),
    );
    const clock = (/** @type {number} */ time) => new Date(time).toLocaleTimeString([], { hour12: false });
    this._svg.replaceChildren(
      svg("line", { class: "zero", x1: LEFT, x2: width - RIGHT, y1: y(0), y2: y(0) }),
      ...lines,
      ...ends,
      svg("text", { class: "axis", x: width - RIGHT + 6, y: TOP + 8 }, this._show(high)),
      svg("text", { class: "axis", x: width - RIGHT + 6, y: HEIGHT - BOTTOM }, this._show(low)),
      svg("text", { class: "axis", x: LEFT, y: HEIGHT - 5 }, clock(start)),
      svg("text", { class: "axis", x: width - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, clock(end)),
    );
    const last = series.map((line) => ({ name: line.name, value: line.points.at(-1)?.[1] }));
    this._svg.setAttribute(
      "aria-label",
      `${this._title}: ${last.map(({ name, value }) => `${name} ${value === undefined ? "unknown" : this._show(value)}`).join(", ")}`,
    );
    this._legend.replaceChildren(
      ...last.map(({ name, value }, place) =>
        el("span", { class: `key series-${place}` }, `${name} ${value === undefined ? "–" : this._show(value)}`),
      ),
    );
  }
}
