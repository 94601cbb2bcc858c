// Builds elements. Text is only ever set as text: nothing here takes markup.

/** @typedef {Node | string | null | undefined | false} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Attributes */

/**
 * An element with attributes (a function listens: `onclick`), and children, of which texts become text nodes.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  for (const child of children) if (child) element.append(child);
  return element;
}

/**
 * @param {Element} element
 * @param {...Child} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  for (const child of children) if (child) element.append(child);
}

/**
 * Changes the text only where it differs, so that nothing is laid out again for nothing.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Terms with their values, as a description list.
 * @param {[string, Child][]} pairs
 * @param {string} [className]
 */
export function terms(pairs, className = "terms") {
  return el("dl", { class: className }, ...pairs.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value || "–"))));
}

/**
 * A small table; one of thousands of rows is a KeyedList.
 * @param {string} caption
 * @param {string[]} titles
 * @param {string[][]} rows
 */
export function table(caption, titles, rows) {
  const head = el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title))));
  const body = el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell) => el("td", {}, cell)))));
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption), head, body),
  );
}

/**
 * A dialog over the page. Esc or its button closes it, and focus goes back to where it was.
 * @param {string} title
 * @param {Child[]} content
 * @param {() => void} [onClose]
 */
export function openDialog(title, content, onClose) {
  const before = document.activeElement;
  const heading = el("h2", { id: "dialog-title" }, title);
  const dialog = el(
    "dialog",
    { "aria-labelledby": "dialog-title" },
    el("header", {}, heading, el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close")),
    ...content,
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    onClose?.();
    if (before instanceof HTMLElement) before.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/**
 * Calls `work` now and then every so many seconds while the page is visible. Returns what ends it.
 * @param {number} seconds
 * @param {() => Promise<void> | void} work
 */
export function repeat(seconds, work) {
  let stopped = false;
  /** @type {number | undefined} */
  let timer;
  const run = async () => {
    if (document.visibilityState === "visible") await work();
    if (!stopped) timer = window.setTimeout(run, seconds * 1000);
  };
  void run();
  return () => {
    stopped = true;
    window.clearTimeout(timer);
  };
}
