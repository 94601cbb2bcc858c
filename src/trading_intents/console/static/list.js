// A keyed list as a grid: only the rows in sight are elements, and only what changed in them is written, once a frame.

import { el, setText } from "./dom.js";

/** @typedef {{text: string, class?: string}} Cell */
/**
 * @template Row
 * @typedef {object} Column
 * @property {string} id
 * @property {string} title
 * @property {(row: Row) => string | Cell} cell
 * @property {(one: Row, other: Row) => number} [compare] with it the column can be sorted by
 * @property {boolean} [isNumber]
 */
/**
 * @template Row
 * @typedef {object} ListOptions
 * @property {string} name the class that gives the columns their widths
 * @property {string} label
 * @property {Column<Row>[]} columns
 * @property {(row: Row) => string} key
 * @property {string} empty what is said when there is nothing
 * @property {(row: Row) => void} [onOpen] a click, or Enter on the row
 * @property {(row: Row) => string} [rowClass]
 * @property {string} [sortBy]
 * @property {boolean} [isDescending]
 */

const ROW_PIXELS = 30;
const OVERSCAN_ROWS = 6;
const RESORT_MILLIS = 250;

let lists = 0;

/** @template Row */
export class KeyedList {
  /** @param {ListOptions<Row>} options */
  constructor(options) {
    this._options = options;
    this._number = lists++;
    /** @type {() => Iterable<Row>} */
    this._source = () => [];
    /** @type {Row[]} */
    this._rows = [];
    /** @type {Map<string, {element: HTMLElement, cells: HTMLElement[]}>} */
    this._shown = new Map();
    /** @type {{element: HTMLElement, cells: HTMLElement[]}[]} */
    this._spare = [];
    this._active = "";
    this._isScheduled = false;
    this._isUnsorted = true;
    this._sortedAt = -Infinity;
    this._sortBy = options.sortBy ?? "";
    this._isDescending = options.isDescending ?? false;
    this._head = el(
      "div",
      { role: "row", class: "row head", "aria-rowindex": 1 },
      ...options.columns.map((column) => this._header(column)),
    );
    this._body = el("div", { role: "rowgroup", class: "body" });
    this._empty = el("p", { class: "empty" }, options.empty);
    this.element = el(
      "div",
      { class: "list" },
      el(
        "div",
        {
          role: "grid",
          class: `grid ${options.name}`,
          tabindex: 0,
          "aria-label": options.label,
          "aria-rowcount": 1,
          onkeydown: (/** @type {KeyboardEvent} */ event) => this._onKey(event),
          onclick: (/** @type {MouseEvent} */ event) => this._onClick(event),
          onscroll: () => this.touch(),
        },
        el("div", { role: "rowgroup", class: "heads" }, this._head),
        this._body,
      ),
      this._empty,
    );
    this._grid = /** @type {HTMLElement} */ (this.element.firstElementChild);
    this._resize = new ResizeObserver(() => this.touch());
    this._resize.observe(this._grid);
  }

  close() {
    this._resize.disconnect();
  }

  get size() {
    return this._rows.length;
  }

  /**
   * The rows from now on: those that `source` gives whenever the list is sorted anew.
   * @param {() => Iterable<Row>} source
   */
  setSource(source) {
    this._source = source;
    this.resort(true);
  }

  /**
   * Rows came, went or moved. A list of thousands is sorted four times a second at most.
   * @param {boolean} [isUrgent]
   */
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

  get isSortedByChange() {
    return Boolean(this._sortBy) && this._sortBy !== this._options.sortBy;
  }

  /** @param {Column<Row>} column */
  _header(column) {
    const attributes = {
      role: "columnheader",
      class: `cell c-${column.id}${column.isNumber ? " number" : ""}`,
      "aria-sort": column.compare ? "none" : null,
    };
    const { compare } = column;
    if (!compare) return el("div", attributes, column.title);
    return el("div", attributes, el("button", { type: "button", onclick: () => this._sort(column.id) }, column.title));
  }

  /** @param {string} id */
  _sort(id) {
    this._isDescending = this._sortBy === id ? !this._isDescending : false;
    this._sortBy = id;
    this.resort(true);
  }

  /** @param {number} now */
  _order(now) {
    if (now - this._sortedAt < RESORT_MILLIS) {
      setTimeout(() => this.touch(), RESORT_MILLIS);
      return;
    }
    this._sortedAt = now;
    this._isUnsorted = false;
    this._rows = [...this._source()];
    const place = this._options.columns.findIndex((column) => column.id === this._sortBy);
    const compare = this._options.columns[place]?.compare;
    if (compare) this._rows.sort(this._isDescending ? (one, other) => compare(other, one) : compare);
    [...this._head.children].forEach((cell, column) => {
      if (cell.hasAttribute("aria-sort"))
        cell.setAttribute("aria-sort", column !== place ? "none" : this._isDescending ? "descending" : "ascending");
    });
    this._grid.setAttribute("aria-rowcount", String(this._rows.length + 1));
    this._body.style.height = `${this._rows.length * ROW_PIXELS}px`;
    this._empty.hidden = this._rows.length > 0;
  }

  /** @param {number} now */
  _render(now) {
    if (this._isUnsorted) this._order(now);
    const first = Math.max(0, Math.floor(this._grid.scrollTop / ROW_PIXELS) - OVERSCAN_ROWS);
    const last = Math.min(this._rows.length, Math.ceil((this._grid.scrollTop + this._grid.clientHeight) / ROW_PIXELS) + OVERSCAN_ROWS);
    const visible = new Set(this._rows.slice(first, last).map(this._options.key));
    for (const [key, row] of this._shown) {
      if (visible.has(key)) continue;
      this._shown.delete(key);
      row.element.hidden = true;
      this._spare.push(row);
    }
    for (let place = first; place < last; place += 1) this._show(/** @type {Row} */ (this._rows[place]), place);
    this._grid.setAttribute("aria-activedescendant", this._shown.has(this._active) ? this._id(this._active) : "");
    if (!this._shown.has(this._active)) this._grid.removeAttribute("aria-activedescendant");
  }

  /**
   * @param {Row} row
   * @param {number} place
   */
  _show(row, place) {
    const { columns, key, rowClass } = this._options;
    const id = key(row);
    let shown = this._shown.get(id);
    if (!shown) {
      shown = this._spare.pop() ?? this._make();
      shown.element.hidden = false;
      shown.element.dataset.key = id;
      shown.element.id = this._id(id);
      this._shown.set(id, shown);
    }
    const { element, cells } = shown;
    const moved = `translateY(${place * ROW_PIXELS}px)`;
    if (element.style.transform !== moved) {
      element.style.transform = moved;
      element.setAttribute("aria-rowindex", String(place + 2));
    }
    const name = `row ${rowClass?.(row) ?? ""}${id === this._active ? " active" : ""}`;
    if (element.className !== name) element.className = name;
    columns.forEach((column, index) => {
      const cell = /** @type {HTMLElement} */ (cells[index]);
      const told = column.cell(row);
      const { text, class: own } = typeof told === "string" ? { text: told, class: "" } : { class: "", ...told };
      setText(cell, text);
      const cellName = `cell c-${column.id}${column.isNumber ? " number" : ""} ${own}`;
      if (cell.className !== cellName) cell.className = cellName;
    });
  }

  _make() {
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
    this._open();
  }

  _open() {
    const row = this._rows.find((candidate) => this._options.key(candidate) === this._active);
    if (row !== undefined) this._options.onOpen?.(row);
  }

  /** @param {KeyboardEvent} event */
  _onKey(event) {
    if (event.target !== this._grid) return;
    const page = Math.max(1, Math.floor(this._grid.clientHeight / ROW_PIXELS) - 2);
    const steps = new Map([
      ["ArrowDown", 1],
      ["ArrowUp", -1],
      ["PageDown", page],
      ["PageUp", -page],
      ["Home", -Infinity],
      ["End", Infinity],
    ]);
    const step = steps.get(event.key);
    if (event.key === "Enter" && this._active) {
      event.preventDefault(); // else the same key presses the button that gets the focus
      this._open();
    }
    if (step === undefined || !this._rows.length) return;
    event.preventDefault();
    const at = this._rows.findIndex((row) => this._options.key(row) === this._active);
    const next = Math.min(this._rows.length - 1, Math.max(0, at < 0 ? 0 : at + step));
    this._active = this._options.key(/** @type {Row} */ (this._rows[next]));
    const top = next * ROW_PIXELS;
    const room = this._grid.clientHeight - ROW_PIXELS * 2;
    if (top < this._grid.scrollTop) this._grid.scrollTop = top;
    else if (top > this._grid.scrollTop + room) this._grid.scrollTop = top - room;
    this.touch();
  }
}
