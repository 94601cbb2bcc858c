// The account's log: every accepted action with its hash, newest first; each is checked against the one before it.

import { showAmount, showTime, words } from "./amounts.js";
import { messageOf, path } from "./api.js";
import { button, el, hint, listen, makeView, openDialog, terms } from "./dom.js";
import { KeyedList } from "./list.js";

const PAGE = 100;
const REFRESH_MILLIS = 500;
const GENESIS = "0".repeat(64);

/** @param {Json} record as RFC 8785 writes what it holds: texts, whole numbers, null */
function canonical(record) {
  const names = Object.keys(record).sort();
  return `{${names.map((name) => `${JSON.stringify(name)}:${JSON.stringify(record[name])}`).join(",")}}`;
}

/** @type {(action: Action, before: string) => Promise<string>} `before` is the hash of the action before it. */
export async function hashOf(action, before) {
  const { hash: _, ...record } = action;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`${before}\n${canonical(record)}`));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @type {(context: Context) => View} */
export function openLog({ api, account, feed }) {
  /** @type {Map<number, Action>} */
  const actions = new Map();
  /** @type {Map<number, string>} */
  const verdicts = new Map();
  const place = path`/v1/accounts/${account.id}/intents`;
  let cursor = "";
  let isReading = false;

  /** @param {Action} action */
  const showVerdict = ({ seq }) => {
    const verdict = verdicts.get(seq) ?? "…";
    return { text: verdict, class: verdict === "broken" ? "loss" : "" };
  };
  /** @type {Column<Action>[]} */
  const columns = [
    { id: "seq", title: "Seq", isNumber: true, cell: ({ seq }) => String(seq), compare: (a, b) => a.seq - b.seq },
    { id: "time", title: "Time", cell: (action) => showTime(action.created_at) },
    { id: "action", title: "Action", cell: (action) => words(action.action_type) },
    { id: "symbol", title: "Symbol", cell: (action) => action.symbol },
    { id: "side", title: "Side", cell: (action) => words(action.order_side) },
    { id: "quantity", title: "Quantity", isNumber: true, cell: (action) => showAmount(action.quantity) },
    { id: "who", title: "Who", cell: (action) => `${words(action.principal_type)} ${action.principal_id}` },
    { id: "check", title: "Chain", cell: showVerdict },
    { id: "hash", title: "Hash", cell: (action) => action.hash },
  ];
  const list = new KeyedList({
    name: "log",
    label: "Actions of the account",
    columns,
    rows: () => actions.values(),
    key: (action) => String(action.seq),
    empty: "No actions.",
    sortBy: "seq",
    isDescending: true,
    onOpen: (action) => {
      const fields = Object.entries(action);
      openDialog(`Action ${action.seq}`, [terms(fields.map(([name, value]) => [words(name), String(value ?? "")]))]);
    },
  });
  const older = button("Older", () => void readOlder());
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
    const call = { query: { order: "desc", limit: PAGE, ...query } };
    /** @type {{data: Action[], next_cursor: string | null}} */
    const page = await api.json("read_intents", "GET", place, call);
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
      said.textContent = `The log cannot be read: ${messageOf(error)}`;
    } finally {
      isReading = false;
    }
  }

  let timer = 0;
  const onChange = () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(() => void read({}).catch(() => undefined), REFRESH_MILLIS);
  };
  void readOlder();
  const element = el(
    "section",
    { class: "panel figures", "aria-label": "Log" },
    el("div", { class: "tools" }, older, said),
    hint(
      "Each hash covers the action and the hash before it. “Holds” means that this browser computed the same one; ",
      "the proof of the whole history is `trading-intents audit verify`.",
    ),
    list.element,
  );
  return makeView(element, () => window.clearTimeout(timer), listen(feed, "change", onChange), list.close);
}
