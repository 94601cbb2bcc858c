// Builds elements. Text is only ever set as text: nothing here takes markup.

import { showAge } from "./amounts.js";

const STALE_MILLIS = 10_000;
const MAX_WIDTHS = 2_000; // that are kept

/** @type {MakeElement} An attribute that is a function listens (`onclick`). A child that is a text stays one. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, String(value));
  }
  for (const child of children) if (child) element.append(child);
  return element;
}

/** @type {(element: Element, ...children: Child[]) => void} */
export function fill(element, ...children) {
  element.replaceChildren();
  for (const child of children) if (child) element.append(child);
}

/** @type {(element: Element, text: string) => void} Nothing if the element has the text: no layout then. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @type {CanvasRenderingContext2D | null} */
let pencil = null;
/** @type {Map<string, number>} */
const widths = new Map();

/** @type {(text: string, font: string) => number} Pixels of a text in bold, whose digits are all as wide as a zero. */
export function widthOf(text, font) {
  const pattern = text.replace(/[\d\u2007]/g, "0").replace("\u2008", ".");
  const key = `${font} ${pattern}`;
  let width = widths.get(key);
  if (width === undefined) {
    pencil ??= document.createElement("canvas").getContext("2d");
    if (pencil) pencil.font = `bold ${font}`;
    width = pencil?.measureText(pattern).width ?? 0;
    if (widths.size >= MAX_WIDTHS) widths.clear();
    widths.set(key, width);
  }
  return width;
}

/** @type {(text: string, onclick: () => void, attributes?: Attributes) => HTMLButtonElement} */
export const button = (text, onclick, attributes) =>
  el("button", { type: "button", onclick, ...attributes }, text);

/** @param {...Child} children */
export const hint = (...children) => el("p", { class: "hint" }, ...children);

/** @type {(title: string, ...children: Child[]) => HTMLElement} */
export const panel = (title, ...children) =>
  el("section", { class: "panel" }, el("h2", {}, title), ...children);

/** @type {(pairs: [string, Child][], look?: string) => HTMLElement} Terms with their values. */
export function terms(pairs, look = "") {
  const rows = pairs.map(([term, value]) =>
    el("div", {}, el("dt", {}, term), el("dd", {}, value || "–")),
  );
  return el("dl", { class: `terms ${look}` }, ...rows);
}

/** @type {(pairs: [string, Child][]) => HTMLElement} Figures with their names above them. */
export const cards = (pairs) => terms(pairs, "cards");

/** @type {(caption: string, rows: Json[], cells: Record<string, (row: Json) => Child>) => HTMLElement} For few rows. */
export function table(caption, rows, cells) {
  const titles = Object.keys(cells).map((title) => el("th", { scope: "col" }, title));
  const show = (/** @type {Json} */ row) =>
    Object.values(cells).map((cell) => el("td", {}, cell(row)));
  const head = el("thead", {}, el("tr", {}, ...titles));
  const body = el("tbody", {}, ...rows.map((row) => el("tr", {}, ...show(row))));
  const region = { class: "scroll", tabindex: 0, role: "region", "aria-label": caption };
  return el("div", region, el("table", {}, el("caption", {}, caption), head, body));
}

// A dialog over the page. Esc or its button closes it, and focus goes back to where it was.
/** @type {(title: string, content: Child[], onClose?: () => void) => HTMLDialogElement} */
export function openDialog(title, content, onClose) {
  const before = document.activeElement;
  const close = button("Close", () => dialog.close(), { class: "quiet" });
  const header = el("header", {}, el("h2", { id: "dialog-title" }, title), close);
  const dialog = el("dialog", { "aria-labelledby": "dialog-title" }, header, ...content);
  dialog.addEventListener("close", () => {
    dialog.remove();
    onClose?.();
    if (before instanceof HTMLElement) before.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** @type {(element: HTMLElement, ...stops: Stop[]) => View} A view, and what ends with it. */
export const makeView = (element, ...stops) => ({
  element,
  close: () => stops.forEach((stop) => stop()),
});

/** @type {(target: EventTarget, kind: string, listener: () => void) => Stop} */
export function listen(target, kind, listener) {
  target.addEventListener(kind, listener);
  return () => target.removeEventListener(kind, listener);
}

/** @type {(millis: number, work: () => void) => {run: () => void, stop: Stop}} Works once for the calls of a while. */
export function throttle(millis, work) {
  let timer = 0;
  const end = () => ((timer = 0), work());
  return {
    run: () => void (timer ||= window.setTimeout(end, millis)),
    stop: () => window.clearTimeout(timer),
  };
}

/** @type {(seconds: number, work: () => Promise<void> | void, whileHidden?: boolean) => Stop} Works now and then. */
export function repeat(seconds, work, whileHidden = false) {
  let timer = 0;
  let stopped = false;
  const run = async () => {
    if (whileHidden || document.visibilityState === "visible") await work();
    if (!stopped) timer = window.setTimeout(run, seconds * 1000);
  };
  void run();
  return () => {
    stopped = true;
    window.clearTimeout(timer);
  };
}

/** @type {(readAt: number, ...figures: Element[]) => string} Marks figures that are old; says how old. */
export function markAge(readAt, ...figures) {
  const isStale = Date.now() - readAt > STALE_MILLIS;
  for (const element of figures) element.classList.toggle("stale", isStale);
  return readAt
    ? `Read ${showAge(readAt)} ago${isStale ? ": these figures are old" : ""}.`
    : "Reading …";
}
