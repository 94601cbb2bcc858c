// The account's log: every accepted action with its hash, newest first; each is checked against the one before it.

import { showAmount, showTime, words } from "./amounts.js";
import { path } from "./api.js";
import { el, openDialog, terms } from "./dom.js";
import { KeyedList } from "./list.js";

/** @typedef {import("./main.js").Context} Context */
/** @typedef {Record<string, any> & {seq: number, hash: string}} Action */

const PAGE = 100;
const GENESIS = "0".repeat(64);

/**
 * RFC 8785 for what a record holds: texts, whole numbers, null.
 * @param {Record<string, any>} record
 */
function canonical(record) {
  return `{${Object.keys(record)
    .sort()
    .map((name) => `${JSON.stringify(name)}:${JSON.stringify(record[name])}`)
    .join(",")}}`;
}

/**
 * @param {Action} action
 * @param {string} before the hash of the action before it
 */
export async function hashOf(action, before) {
  const { hash: _, ...record } = action;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`${before}\n${canonical(record)}`));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {Context} context */
export function openLog(context) {
  const { api, account, feed } = context;
  const { environment } = account;
  /** @type {Map<number, Action>} */
  const actions = new Map();
  /** @type {Map<number, string>} */
  const verdicts = new Map();
  const place = path`/v1/accounts/${account.id}/intents`;
  let cursor = "";
  let isReading = false;

  /** @type {import("./list.js").Column<Action>[]} */
  const columns = [
    {
      id: "seq",
      title: "Seq",
      isNumber: true,
      cell: (action) => String(action.seq),
      compare: (one, other) => one.seq - other.seq,
    },
    { id: "time", title: "Time", cell: (action) => showTime(action.created_at) },
    { id: "action", title: "Action", cell: (action) => words(action.action_type) },
    { id: "symbol", title: "Symbol", cell: (action) => action.symbol },
    { id: "side", title: "Side", cell: (action) => words(action.order_side) },
    { id: "quantity", title: "Quantity", isNumber: true, cell: (action) => showAmount(action.quantity) },
    { id: "who", title: "Who", cell: (action) => `${words(action.principal_type)} ${action.principal_id}` },
    {
      id: "check",
      title: "Chain",
      cell: (action) => ({ text: verdicts.get(action.seq) ?? "…", class: verdicts.get(action.seq) === "broken" ? "loss" : "" }),
    },
    { id: "hash", title: "Hash", cell: (action) => action.hash },
  ];
  const list = new KeyedList({
    name: "log",
    label: "Actions of the account",
    columns,
    key: (action) => String(action.seq),
    empty: "No actions.",
    sortBy: "seq",
    isDescending: true,
    onOpen: (action) =>
      openDialog(`Action ${action.seq}`, [
        terms(Object.entries(action).map(([name, value]) => [words(name), value === null ? null : String(value)])),
      ]),
  });
  list.setSource(() => actions.values());
  const older = el("button", { type: "button", onclick: () => void readOlder() }, "Older");
  const said = el("span", { class: "hint", role: "status" });

  async function check() {
    if (!crypto.subtle) return;
    for (const action of actions.values()) {
      const before = action.seq === 1 ? GENESIS : actions.get(action.seq - 1)?.hash;
      if (verdicts.has(action.seq) || before === undefined) continue;
      verdicts.set(action.seq, (await hashOf(action, before)) === action.hash ? "holds" : "broken");
    }
    list.touch();
  }

  /** @param {Record<string, string>} query */
  async function read(query) {
    /** @type {{data: Action[], next_cursor: string | null}} */
    const page = await api.json("read_intents", "GET", place, { environment, query: { order: "desc", limit: PAGE, ...query } });
    for (const action of page.data) actions.set(action.seq, action);
    list.resort(true);
    await check();
    return page.next_cursor ?? "";
  }

  async function readOlder() {
    if (isReading) return;
    isReading = true;
    try {
      cursor = await read(cursor ? { next_cursor: cursor } : {});
      older.disabled = !cursor;
      said.textContent = `${actions.size} actions`;
    } catch (error) {
      said.textContent = `The log cannot be read: ${error instanceof Error ? error.message : ""}`;
    } finally {
      isReading = false;
    }
  }

  let timer = 0;
  const onChange = () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(() => void read({}).catch(() => undefined), 500);
  };
  feed.addEventListener("change", onChange);
  void readOlder();
  return {
    element: el(
      "section",
      { class: "panel figures", "aria-label": "Log" },
      el("div", { class: "tools" }, older, said),
      el(
        "p",
        { class: "hint" },
        "Each hash covers the action and the hash before it. “Holds” means that this browser computed the same one; the proof of the whole history is `trading-intents audit verify`.",
      ),
      list.element,
    ),
    close: () => {
      window.clearTimeout(timer);
      feed.removeEventListener("change", onChange);
      list.close();
    },
  };
}
