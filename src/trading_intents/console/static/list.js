// A keyed list as a grid: only the rows in sight are elements, and only what changed in them is
// written, once a frame.

import { compareAmounts, padTail, showAmount, tailOf } from "./amounts.js";
import { button, el, setText, widthOf } from "./dom.js";

const ROW_PIXELS = 30;
const OVERSCAN_ROWS = 6;
const RESORT_MILLIS = 250;
const CELL_PIXELS = 6; // beside a cell's text
const MIN_LONG_PIXELS = 60; // of a text that gives way

let lists = 0;

/** @type {(name: string) => (one: Json, other: Json) => number} */
export const byText = (name) => (one, other) =>
  one[name] < other[name] ? -1 : one[name] > other[name] ? 1 : 0;

/** @type {(id: string, title: string, name: string, show?: (amount: Amount) => string | Cell) => Column<Json>} */
export function amountColumn(id, title, name, show = showAmount) {
  const compare = (/** @type {Json} */ one, /** @type {Json} */ other) =>
    compareAmounts(one[name], other[name]);
  return { id, title, isNumber: true, cell: (row) => show(row[name]), compare };
}

/** @template Row */
export class KeyedList {
  /** @param {ListOptions<Row>} options */
  constructor(options) {
    this._options = options;
    this._number = lists++;
    /** @type {Row[]} */
    this._rows = [];
    /** @type {number[]} where each row begins, in pixels, and where the last one ends */
    this._tops = [0];
    /** @type {Map<string, ShownRow>} */
    this._shown = new Map();
    /** @type {ShownRow[]} */
    this._spare = [];
    this._active = "";
    this._widths = options.columns.map(() => 0);
    this._isResized = true;
    this._isScheduled = false;
    this._isUnsorted = true;
    this._sortedAt = -Infinity;
    this._sortBy = options.sortBy ?? "";
    this._isDescending = options.isDescending ?? false;
    const heads = options.columns.map((column) => this._makeHeader(column));
    this._head = el("div", { role: "row", class: "row head", "aria-rowindex": 1 }, ...heads);
    this._body = el("div", { role: "rowgroup", class: "body" });
    this._empty = el("p", { class: "empty" }, options.empty);
    const attributes = {
      role: "grid",
      class: `grid ${options.name}`,
      tabindex: 0,
      "aria-label": options.label,
      "aria-rowcount": 1,
      onkeydown: (/** @type {KeyboardEvent} */ event) => this._onKey(event),
      onclick: (/** @type {MouseEvent} */ event) => this._onClick(event),
      onscroll: () => this.touch(),
    };
    this._grid = el(
      "div",
      attributes,
      el("div", { role: "rowgroup", class: "heads" }, this._head),
      this._body,
    );
    this.element = el("div", { class: "list" }, this._grid, this._empty);
    const resize = new ResizeObserver(() => {
      this._isResized = true;
      this.touch();
    });
    resize.observe(this._grid);
    this.close = () => resize.disconnect();
    this.touch();
  }

  /** Rows came, went or moved. A list of thousands is sorted four times a second at most, but where it `isUrgent`. */
  resort(isUrgent = false) {
    this._isUnsorted = true;
    if (isUrgent) this._sortedAt = -Infinity;
    this.touch();
  }

  /** Something of the rows may have changed: look at those in sight in the next frame. */
  touch() {
    if (this._isScheduled) return;
    this._isScheduled = true;
    requestAnimationFrame((now) => {
      this._isScheduled = false;
      this._render(now);
    });
  }

  /** Whether a change of a row may move it: the first order is one that never changes. */
  get isSortedByChange() {
    return this._sortBy !== (this._options.sortBy ?? "");
  }

  /** @param {Column<Row>} column */
  _makeHeader({ id, title, isNumber, compare }) {
    const attributes = {
      role: "columnheader",
      class: `cell c-${id}${isNumber ? " number" : ""}`,
      "aria-sort": compare ? "none" : null,
    };
    const sort = () => {
      this._isDescending = this._sortBy === id ? !this._isDescending : false;
      this._sortBy = id;
      this.resort(true);
    };
    return el("div", attributes, compare ? button(title, sort) : title);
  }

  /** @param {number} now */
  _order(now) {
    if (now - this._sortedAt < RESORT_MILLIS) {
      setTimeout(() => this.touch(), RESORT_MILLIS);
      return;
    }
    this._sortedAt = now;
    this._isUnsorted = false;
    this._rows = [...this._options.rows()];
    const sortedColumn = this._options.columns.findIndex((column) => column.id === this._sortBy);
    const compare = this._options.columns[sortedColumn]?.compare;
    const { leader = (/** @type {Row} */ row) => row, compareGrouped = () => 0 } = this._options;
    const sign = this._isDescending ? -1 : 1;
    if (compare)
      this._rows.sort(
        (one, other) => sign * compare(leader(one), leader(other)) || compareGrouped(one, other),
      );
    [...this._head.children].forEach((cell, column) => {
      const sorted =
        column !== sortedColumn ? "none" : this._isDescending ? "descending" : "ascending";
      if (cell.hasAttribute("aria-sort")) cell.setAttribute("aria-sort", sorted);
    });
    this._grid.setAttribute("aria-rowcount", String(this._rows.length + 1));
    this._empty.hidden = this._rows.length > 0;
  }

  /** @param {number} now */
  _render(now) {
    if (this._isUnsorted) this._order(now);
    const { scrollTop, clientHeight } = this._grid;
    const { isTall } = this._options;
    let end = 0;
    this._tops = [
      0,
      ...this._rows.map((row) => (end += isTall?.(row) ? 2 * ROW_PIXELS : ROW_PIXELS)),
    ];
    this._body.style.height = `${end}px`;
    const first = Math.max(0, this._tops.findLastIndex((top) => top <= scrollTop) - OVERSCAN_ROWS);
    const last = first + Math.ceil(clientHeight / ROW_PIXELS) + 2 * OVERSCAN_ROWS;
    const inSight = this._rows.slice(first, last);
    const visible = new Set(inSight.map(this._options.key));
    for (const [key, row] of this._shown) {
      if (visible.has(key)) continue;
      this._shown.delete(key);
      row.element.hidden = true;
      this._spare.push(row);
    }
    const cells = inSight.map((row) =>
      this._options.columns.map((column) => asCell(column.cell(row))),
    );
    const tails = this._options.columns.map(({ isNumber }, column) =>
      isNumber ? Math.max(0, ...cells.map((ofRow) => tailOf(ofRow[column]?.text ?? ""))) : 0,
    );
    this._fit(cells, tails);
    inSight.forEach((row, index) => this._show(row, first + index, cells[index] ?? [], tails));
    if (this._shown.has(this._active))
      this._grid.setAttribute("aria-activedescendant", this._id(this._active));
    else this._grid.removeAttribute("aria-activedescendant");
  }

  /** @type {(cells: Cell[][], tails: number[]) => void} A column is as wide as the widest text that it showed. */
  _fit(cells, tails) {
    const { font } = window.getComputedStyle(this._head);
    if (!font) return; // it is not in the page yet
    let isWider = this._isResized;
    this._isResized = false;
    this._options.columns.forEach(({ title, compare, isLong }, column) => {
      if (isLong) return;
      const texts = cells.map((ofRow) => padTail(ofRow[column]?.text ?? "", tails[column] ?? 0));
      const pixels = [compare ? `${title} ▲` : title, ...texts].map((text) => widthOf(text, font));
      const widest = Math.ceil(Math.max(...pixels)) + CELL_PIXELS;
      if (widest <= (this._widths[column] ?? 0)) return;
      this._widths[column] = widest;
      isWider = true;
    });
    if (isWider) this._layOut();
  }

  _layOut() {
    const shown = this._options.columns.filter((_, column) => {
      const head = this._head.children[column];
      return head && window.getComputedStyle(head).display !== "none";
    });
    const widths = shown.map((column) =>
      column.isLong
        ? `minmax(${MIN_LONG_PIXELS}px, 1fr)`
        : `${this._widths[this._options.columns.indexOf(column)]}px`,
    );
    this._grid.style.setProperty("--columns", widths.join(" "));
  }

  /** @type {(row: Row, rowIndex: number, content: Cell[], tails: number[]) => void} Decimals line up by `tails`. */
  _show(row, rowIndex, content, tails) {
    const { columns, key, rowClass, isTall } = this._options;
    const id = key(row);
    let shown = this._shown.get(id);
    if (!shown) {
      shown = this._spare.pop() ?? this._makeRow();
      shown.element.hidden = false;
      shown.element.dataset.key = id;
      shown.element.id = this._id(id);
      this._shown.set(id, shown);
    }
    const { element, cells } = shown;
    const moved = `translateY(${this._tops[rowIndex]}px)`;
    if (element.style.transform !== moved) {
      element.style.transform = moved;
      element.setAttribute("aria-rowindex", String(rowIndex + 2));
    }
    const looks = [rowClass?.(row), isTall?.(row) && "tall", id === this._active && "active"];
    setClass(element, ["row", ...looks].filter(Boolean).join(" "));
    cells.forEach((cell, index) => {
      const column = /** @type {Column<Row>} */ (columns[index]);
      const { text, class: own = "" } = content[index] ?? asCell("");
      setText(cell, padTail(text, tails[index] ?? 0));
      if (column.isLong && cell.title !== text) cell.title = text;
      setClass(cell, `cell c-${column.id}${column.isNumber ? " number" : ""} ${own}`);
    });
  }

  _makeRow() {
    const cells = this._options.columns.map(() => el("div", { role: "gridcell" }));
    const element = el("div", { role: "row" }, ...cells);
    this._body.append(element);
    return { element, cells };
  }

  /** @param {string} key */
  _id(key) {
    return `row-${this._number}-${key.replace(/[^A-Za-z0-9-]/g, "_")}`;
  }

  /** @param {MouseEvent} event */
  _onClick(event) {
    const target = event.target instanceof Element ? event.target.closest("[data-key]") : null;
    if (!(target instanceof HTMLElement)) return;
    this._active = target.dataset.key ?? "";
    this.touch();
    const isPress =
      event.target instanceof Element && event.target.closest(".cell.press:not(:empty)");
    this._act(isPress ? this._options.onPress : this._options.onOpen);
  }

  /** @param {((row: Row) => unknown) | undefined} act on the active row */
  _act(act) {
    const row = this._rows.find((candidate) => this._options.key(candidate) === this._active);
    if (row !== undefined) act?.(row);
  }

  /** @param {KeyboardEvent} event */
  _onKey(event) {
    if (event.target !== this._grid) return;
    if (event.key === "Enter" && this._active) {
      event.preventDefault(); // else the same key presses the button that gets the focus
      this._act(this._options.onOpen);
    }
    if (event.key === "Delete") this._act(this._options.onPress);
    const page = Math.max(1, Math.floor(this._grid.clientHeight / ROW_PIXELS) - 2);
    const steps = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -Infinity,
      End: Infinity,
    };
    if (!(event.key in steps) || !this._rows.length) return;
    event.preventDefault();
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    const at = this._rows.findIndex((row) => this._options.key(row) === this._active);
    const next = Math.min(this._rows.length - 1, Math.max(0, at < 0 ? 0 : at + step));
    this._active = this._options.key(/** @type {Row} */ (this._rows[next]));
    const [top = 0, end = 0] = this._tops.slice(next);
    const room = this._grid.clientHeight - ROW_PIXELS; // below the heads
    if (top < this._grid.scrollTop) this._grid.scrollTop = top;
    else if (end > this._grid.scrollTop + room) this._grid.scrollTop = end - room;
    this.touch();
  }
}

/** @type {(content: string | Cell) => Cell} */
const asCell = (content) => (typeof content === "string" ? { text: content } : content);

/** @type {(element: Element, name: string) => void} */
function setClass(element, name) {
  if (element.className !== name) element.className = name;
}
