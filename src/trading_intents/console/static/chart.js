// A line chart over time as SVG. Its numbers are for looking at, not for accounting: they are
// floats.

import { showTime } from "./amounts.js";
import { el, widthOf } from "./dom.js";

const NS = "http://www.w3.org/2000/svg";
const DEFAULT_WIDTH = 600;
const HEIGHT = 160;
const LEFT = 8;
const TOP = 10;
const BOTTOM = 20;
const AXIS_PIXELS = 10; // beside the texts on the right
const MAX_POINTS = 600;
const KEPT_POINTS = 60; // the last ones, which stay whole

/** @type {(tag: string, attributes: Record<string, string | number>, text?: string) => SVGElement} */
function svg(tag, attributes, text = "") {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.textContent = text;
  return element;
}

/** Values over time, in bounded memory: when it is full, every other point goes. */
export class Samples {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
    /** @type {Point[]} */
    this.points = [];
  }

  /** @type {(time: number, value: number) => void} */
  add(time, value) {
    if (!Number.isFinite(value)) return;
    this.points.push([time, value]);
    if (this.points.length <= MAX_POINTS) return;
    this.points = this.points.filter(
      (_, index) => index % 2 === 0 || index > MAX_POINTS - KEPT_POINTS,
    );
  }
}

export class LineChart {
  /** @param {string} title @param {(value: number) => string} show @param {boolean} hasZero whether zero is in sight */
  constructor(title, show, hasZero = true) {
    this._base = hasZero ? [0] : [];
    this._title = title;
    this._show = show;
    this._svg = svg("svg", { height: HEIGHT, role: "img", "aria-label": title, class: "chart" });
    this._legend = el("div", { class: "legend" });
    this.element = el(
      "figure",
      { class: "figure" },
      el("figcaption", {}, title),
      this._svg,
      this._legend,
    );
  }

  /** @param {Samples[]} series */
  draw(series) {
    const width = this._svg.clientWidth || DEFAULT_WIDTH;
    const all = series.flatMap((line) => line.points);
    if (!all.length) {
      const middle = { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle", class: "axis" };
      this._svg.replaceChildren(svg("text", middle, "nothing to show yet"));
      return;
    }
    const times = all.map(([time]) => time);
    const values = all.map(([, value]) => value);
    const start = Math.min(...times);
    const end = Math.max(...times, start + 1000);
    const low = Math.min(...this._base, ...values);
    const high = Math.max(...this._base, ...values, low + 1e-9);
    const marks = [this._show(high), this._show(low)];
    const { font } = window.getComputedStyle(this.element);
    const right = width - AXIS_PIXELS - Math.max(...marks.map((text) => widthOf(text, font)));
    const x = (/** @type {number} */ time) =>
      LEFT + ((time - start) / (end - start)) * (right - LEFT);
    const y = (/** @type {number} */ value) =>
      TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    const lines = series.map(({ points }, index) => {
      const corners = points.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`);
      return svg("polyline", { class: `series series-${index}`, points: corners.join(" ") });
    });
    // The last value of each, so that a single one is seen too.
    const ends = series.flatMap(({ points }, index) => {
      const name = `series-${index}`;
      return points
        .slice(-1)
        .map(([time, value]) => svg("circle", { class: name, cx: x(time), cy: y(value), r: 3 }));
    });
    const base = y(this._base[0] ?? low);
    this._svg.replaceChildren(
      svg("line", { class: "zero", x1: LEFT, x2: right, y1: base, y2: base }),
      ...lines,
      ...ends,
      svg("text", { class: "axis", x: right + 6, y: TOP + 8 }, marks[0]),
      svg("text", { class: "axis", x: right + 6, y: HEIGHT - BOTTOM }, marks[1]),
      svg("text", { class: "axis", x: LEFT, y: HEIGHT - 5 }, showTime(start)),
      svg("text", { class: "axis", x: right, y: HEIGHT - 5, "text-anchor": "end" }, showTime(end)),
    );
    const last = series.map(({ name, points }) => {
      const value = points.at(-1)?.[1];
      return `${name} ${value === undefined ? "–" : this._show(value)}`;
    });
    this._svg.setAttribute("aria-label", `${this._title}: ${last.join(", ")}`);
    this._legend.replaceChildren(
      ...last.map((text, index) => el("span", { class: `key series-${index}` }, text)),
    );
  }
}
