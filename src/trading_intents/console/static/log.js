// The account's log: every accepted action with its hash, newest first; each is checked against the
// one before it.

import { showAmount, showTime, words } from "./amounts.js";
import { messageOf, path } from "./api.js";
import { button, el, hint, listen, makeView, openDialog, setText, terms, throttle } from "./dom.js";
import { KeyedList } from "./list.js";

const PAGE = 100;
const MAX_NEWER = 10_000;
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
  const digest = await crypto.subtle.digest(
    "SHA-256",
    new TextEncoder().encode(`${before}\n${canonical(record)}`),
  );
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @type {(context: Context) => View} */
export function openLog({ api, account, feed, names }) {
  /** @type {Map<number, Action>} */
  const actions = new Map();
  /** @type {Map<number, string>} */
  const verdicts = new Map();
  const url = path`/v1/accounts/${account.id}/intents`;
  let cursor = "";
  let newest = 0;
  let queue = Promise.resolve(); // one reading after the other

  /** @param {Action} action */
  const showVerdict = ({ seq }) => {
    const verdict = verdicts.get(seq) ?? "…";
    return { text: verdict, class: verdict === "broken" ? "loss" : "" };
  };
  /** @type {Column<Action>[]} */
  const columns = [
    {
      id: "seq",
      title: "Seq",
      isNumber: true,
      cell: ({ seq }) => String(seq),
      compare: (a, b) => a.seq - b.seq,
    },
    { id: "time", title: "Time", cell: (action) => showTime(action.created_at) },
    { id: "action", title: "Action", cell: (action) => words(action.action_type) },
    { id: "symbol", title: "Symbol", cell: (action) => action.symbol },
    { id: "side", title: "Side", cell: (action) => words(action.order_side) },
    {
      id: "quantity",
      title: "Quantity",
      isNumber: true,
      cell: (action) => showAmount(action.quantity),
    },
    { id: "who", title: "Who", isLong: true, cell: (action) => names.describe(action) },
    { id: "check", title: "Chain", cell: showVerdict },
    { id: "hash", title: "Hash", isLong: true, cell: (action) => action.hash },
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
      openDialog(`Action ${action.seq}`, [
        terms(fields.map(([name, value]) => [words(name), String(value ?? "")])),
      ]);
    },
  });
  const older = button("Older", () => enqueue(readOlder));
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

  /** @param {() => Promise<void>} read */
  function enqueue(read) {
    queue = queue.then(read).then(
      () => setText(said, `${actions.size} actions`),
      (error) => setText(said, `The log cannot be read: ${messageOf(error)}`),
    );
  }

  /** @param {Action[]} page */
  async function keep(page) {
    for (const action of page) actions.set(action.seq, action);
    newest = Math.max(newest, ...page.map((action) => action.seq));
    await names.prepare(page);
    list.resort(true);
    await check();
  }

  async function readOlder() {
    const query = { order: "desc", limit: PAGE, next_cursor: cursor };
    /** @type {{data: Action[], next_cursor: string | null}} */
    const page = await api.json("read_intents", "GET", url, { query });
    cursor = page.next_cursor ?? "";
    older.disabled = !cursor;
    await keep(page.data);
  }

  /** Reads newer actions without a hole: the newest page, and those before it until one joins the actions here. */
  async function readNewer() {
    const known = newest;
    if (!known) return readOlder();
    for await (const page of api.pages("read_intents", url, MAX_NEWER, {
      query: { order: "desc" },
    })) {
      await keep(page);
      if (page.some(({ seq }) => seq <= known + 1)) return undefined;
    }
    return undefined;
  }

  const refresh = throttle(REFRESH_MILLIS, () => enqueue(readNewer));
  enqueue(readOlder);
  const tools = el("div", { class: "tools" }, older, said);
  const explanation = hint(
    "Each hash covers the action and the hash before it. “Holds” means that this browser computed the same one; ",
    "the proof of the whole history is `trading-intents audit verify`.",
  );
  const attributes = { class: "panel figures", "aria-label": "Log" };
  const element = el("section", attributes, tools, explanation, list.element);
  return makeView(element, refresh.stop, listen(feed, "change", refresh.run), list.close);
}
