// Controls: halts, switches, windows and limits of the organization, the account and its symbols.

import { showTime, words } from "./amounts.js";
import { messageOf, path } from "./api.js";
import { el, fill, hint, listen, makeView, openDialog, panel, repeat, terms } from "./dom.js";
import { Form } from "./form.js";
import { KeyedList } from "./list.js";

const HALT_SECONDS = 2;
const MAX_SYMBOLS = 10_000;
const ZONE_HINT = "such as America/New_York; UTC where empty";
const NEEDS_CONTROLS =
  "Switches, windows and limits take the entitlement controls_premium, and a credential that may read controls.";
const EVERYWHERE = "organization account symbol";
/** @type {[string, string][]} */
const SHORTS = [
  ["", "no limit"],
  ["true", "allowed"],
  ["false", "refused"],
];

/** @type {(Field & {levels: string, isWhole?: boolean})[]} */
const LIMITS = [
  { name: "max_order_quantity", label: "Max order quantity", isNumber: true, levels: EVERYWHERE },
  { name: "max_order_notional", label: "Max order notional", isNumber: true, levels: EVERYWHERE },
  {
    name: "price_collar_bps",
    label: "Price collar, basis points",
    isNumber: true,
    isWhole: true,
    levels: EVERYWHERE,
  },
  {
    name: "max_open_orders",
    label: "Max open orders",
    isNumber: true,
    isWhole: true,
    levels: "account symbol",
  },
  {
    name: "max_position_quantity",
    label: "Max position quantity",
    isNumber: true,
    levels: "account symbol",
  },
  {
    name: "max_orders_per_minute",
    label: "Max orders per minute",
    isNumber: true,
    isWhole: true,
    levels: "account",
  },
  {
    name: "allow_short",
    label: "Short selling",
    kind: "select",
    options: SHORTS,
    levels: EVERYWHERE,
  },
  {
    name: "allowed_symbols",
    label: "Allowed symbols",
    hint: "separated by spaces",
    levels: "account",
  },
  {
    name: "duplicate_window_millis",
    label: "Duplicate window, ms",
    isNumber: true,
    isWhole: true,
    levels: "account",
  },
  {
    name: "max_daily_loss",
    label: "Max daily loss",
    isNumber: true,
    hint: "of Today in Positions",
    levels: "account",
  },
  { name: "timezone", label: "Time zone of the day", hint: ZONE_HINT, levels: "account" },
];

/** @type {(form: Form, api: Api, policy: string) => void} */
function setCredential(form, api, policy) {
  const needs = policy.includes("organization")
    ? "Needs a user's token with the role admin."
    : "Needs an admin's token, or an API key with control:edit.";
  form.setCredential(api.pick(policy), needs);
}

/** @param {string | boolean | undefined} text a number where it is one; else the platform says what is wrong with it */
const wholeNumber = (text) => (/^\d{1,15}$/.test(String(text)) ? Number(text) : text);

/** @type {(title: string, content: Node) => HTMLElement} */
const section = (title, content) => el("section", {}, el("h3", {}, title), content);

// A form for the answer of one GET. Its write changes only the version that was shown.
/** @type {(api: Api, level: Level, options: BoundOptions) => HTMLElement} */
function boundForm(api, level, { url, part, write, ...options }) {
  /** @type {Json | null} */
  let found = null;
  const form = new Form({
    ...options,
    onSubmit: async (values) => {
      const [method, target, body] = write(values, found) ?? [];
      const headers = found?.version ? { "if-match": `"${found.version}"` } : undefined;
      if (method && target) found = await api.json(level.write, method, target, { headers, body });
      show();
      return `Saved${found?.version ? `, version ${found.version}` : ""}.`;
    },
  });
  function show() {
    const values = options.fields.map(({ name }) => [name, found?.[name] ?? ""]);
    form.set(
      Object.fromEntries(
        values.map(([name, value]) => [name, Array.isArray(value) ? value.join(" ") : value]),
      ),
    );
  }
  async function read() {
    const answer = await api.find("read_controls", url);
    found = (part ? answer?.[part] : answer) ?? null;
    form.setReading(false);
    show();
  }
  setCredential(form, api, level.write);
  form.setReading(true);
  void read().catch((error) => form.fail(error));
  return form.element;
}

/** @type {(api: Api, level: Level) => HTMLElement} */
function switchForm(api, level) {
  return boundForm(api, level, {
    name: `switch-${level.level}`,
    submit: "Set the switch",
    fields: [
      { name: "manually_disabled", label: "Stop trading here", kind: "checkbox" },
      { name: "manual_reason", label: "Reason", max: 500 },
    ],
    url: level.base,
    part: level.level === "symbol" ? "manual" : "",
    write: (values) => [
      "PUT",
      level.base,
      { ...values, manual_reason: values.manual_reason || undefined },
    ],
  });
}

/** @type {(api: Api, level: Level) => HTMLElement} */
function windowForm(api, level) {
  /** @type {Field[]} */
  const fields = [
    { name: "trading_start", label: "Trading from", hint: "HH:MM:SS" },
    { name: "trading_end", label: "Until", hint: "HH:MM:SS" },
    { name: "timezone", label: "Time zone", hint: ZONE_HINT },
    { name: "stale_order_millis", label: "Cancel orders older than, ms", isNumber: true },
  ];
  return boundForm(api, level, {
    name: "window",
    submit: "Set the window",
    fields,
    url: level.base,
    part: "time",
    write: (values, found) => {
      /** @type {Json} */
      const body = {};
      const clear = [];
      for (const { name, isNumber } of fields) {
        if (values[name]) body[name] = isNumber ? wholeNumber(values[name]) : values[name];
        else if ((found?.[name] ?? null) !== null) clear.push(name);
      }
      return ["PATCH", `${level.base}/time`, clear.length ? { ...body, clear } : body];
    },
  });
}

/** @type {(api: Api, level: Level) => HTMLElement} */
function limitsForm(api, level) {
  const url = `${level.base}/limits`;
  const fields = LIMITS.filter((field) => field.levels.split(" ").includes(level.level));
  return boundForm(api, level, {
    name: `limits-${level.level}`,
    submit: "Set the limits",
    fields,
    url,
    write: (values, found) => {
      /** @type {Json} */
      const body = {};
      for (const { name, isWhole } of fields) {
        const value = values[name];
        if (!value) continue;
        if (name === "allow_short") body[name] = value === "true";
        else if (name === "allowed_symbols") body[name] = String(value).split(/[\s,]+/);
        else body[name] = isWhole ? wholeNumber(value) : value;
      }
      if (Object.keys(body).length) return ["PUT", url, body];
      return found ? ["DELETE", url] : null;
    },
  });
}

/** @type {(context: Context, level: Level) => View} Starts, shows and ends a halt. */
function haltPanel({ api, feed }, level) {
  const policy = `halt_${level.level}`;
  const standing = el("div", { class: "halt", role: "status" });
  const start = new Form({
    name: `halt-${level.level}`,
    submit: `Halt ${level.title}`,
    isDangerous: true,
    fields: [
      { name: "reason", label: "Reason", isRequired: true, max: 500 },
      { name: "cancel_orders", label: "Cancel every open order", kind: "checkbox", value: "true" },
      {
        name: "close_positions",
        label: "Then close every position at the market",
        kind: "checkbox",
      },
    ],
    onSubmit: async (body) => {
      await api.json(policy, "POST", `${level.base}/halt`, { body });
      await read();
    },
  });
  const resume = new Form({
    name: `resume-${level.level}`,
    submit: `Resume ${level.title}`,
    onSubmit: async () => {
      await api.json(policy, "POST", `${level.base}/resume`);
      await read();
    },
  });
  for (const form of [start, resume]) setCredential(form, api, policy);
  const explanation = hint(
    "From the moment of the answer new orders and replaces are refused, also those that were accepted and not sent. ",
    "Cancels always pass. It holds until somebody resumes.",
  );
  /** @type {(name: string, done: number, all: number) => HTMLElement} */
  const bar = (name, done, all) => {
    const progress = el("progress", { value: done, max: Math.max(1, all) });
    return el("label", { class: "progress" }, `${name}: ${done} of ${all} done `, progress);
  };

  /** @param {Json | null} halt */
  function show(halt) {
    const stands = halt !== null && halt.state !== "resumed";
    start.element.hidden = explanation.hidden = stands;
    resume.element.hidden = !stands;
    standing.classList.toggle("stands", stands);
    if (!halt) return fill(standing, el("p", {}, "Not halted."));
    /** @type {Json[]} */
    const waiting = (stands && halt.waiting) || [];
    const ended = `Not halted. The last halt was resumed ${showTime(halt.updated_at)}.`;
    const by = `${words(halt.principal_type)} ${halt.principal_id}`;
    return fill(
      standing,
      el("p", {}, stands ? el("strong", {}, `HALTED: ${words(halt.state)}`) : ended),
      terms([
        ["Reason", halt.reason],
        ["By", by],
        ["Since", showTime(halt.created_at)],
      ]),
      stands && bar("Orders", halt.orders_done, halt.orders),
      stands && halt.positions > 0 && bar("Positions", halt.positions_done, halt.positions),
      ...waiting.map((wait) => hint(`Waits for ${wait.symbol ?? wait.order_id}: ${wait.reason}`)),
    );
  }

  async function read() {
    if (!api.pick("read_halts")) return;
    try {
      show(await api.find("read_halts", `${level.base}/halt`));
      standing.classList.remove("stale");
    } catch {
      standing.classList.add("stale");
    }
  }

  let halts = feed.halts;
  const onChange = () => {
    if (feed.halts !== halts) void read();
    halts = feed.halts;
  };
  show(null);
  const element = el(
    "div",
    {},
    el("h3", {}, "Halt"),
    standing,
    explanation,
    start.element,
    resume.element,
  );
  return makeView(element, repeat(HALT_SECONDS, read), listen(feed, "change", onChange));
}

/** @param {Json} row */
const showSwitch = ({ manual }) =>
  manual?.manually_disabled
    ? { text: `stopped: ${manual.manual_reason ?? ""}`, class: "loss" }
    : "trades";
/** @param {Json} row */
function showWindow({ time }) {
  const { trading_start: start, trading_end: end, timezone: zone } = time ?? {};
  return start || end
    ? `${start ?? "00:00:00"} to ${end ?? "24:00:00"} ${zone ?? "UTC"}`
    : "always";
}

/** @type {(context: Context) => View} */
function symbolsPanel({ api, account }) {
  const url = path`/v1/controls/accounts/${account.id}/symbols`;
  const failed = el("p", { class: "failed", role: "alert" });
  /** @type {Json[]} */
  let rows = [];

  /** @param {string} symbol */
  function open(symbol) {
    /** @type {Level} */
    const level = {
      title: symbol,
      base: `${url}${path`/${symbol}`}`,
      write: "write_controls",
      level: "symbol",
    };
    const forms = [
      section("Switch", switchForm(api, level)),
      section("Trading window", windowForm(api, level)),
      section("Limits", limitsForm(api, level)),
    ];
    openDialog(
      `Controls of ${symbol}`,
      [el("div", { class: "columns" }, ...forms)],
      () => void read(),
    );
  }

  const find = new Form({
    name: "symbol",
    submit: "Open its controls",
    fields: [{ name: "symbol", label: "Symbol", isRequired: true, isUpper: true, max: 32 }],
    onSubmit: async (values) => open(String(values.symbol)),
  });
  const list = new KeyedList({
    name: "symbols",
    label: "Symbols with controls",
    empty: "No symbol has a switch or a window.",
    rows: () => rows,
    key: (row) => String(row.symbol),
    onOpen: (row) => open(String(row.symbol)),
    columns: [
      { id: "symbol", title: "Symbol", cell: (row) => String(row.symbol) },
      { id: "switch", title: "Switch", isLong: true, cell: showSwitch },
      { id: "window", title: "Window", isLong: true, cell: showWindow },
      {
        id: "stale",
        title: "Stale, ms",
        isNumber: true,
        cell: ({ time }) => `${time?.stale_order_millis ?? "–"}`,
      },
    ],
  });

  async function read() {
    try {
      rows = await api.list("read_controls", url, MAX_SYMBOLS);
      fill(failed);
    } catch (error) {
      fill(failed, `The symbols cannot be read: ${messageOf(error)}`);
    }
    list.element.hidden = failed.hasChildNodes(); // none that were read are not none
    list.resort(true);
  }
  void read();
  return makeView(panel("Symbols", find.element, failed, list.element), list.close);
}

/** @type {(context: Context) => View} */
export function openControls(context) {
  const { account, api } = context;
  const own = path`/v1/controls/accounts/${account.id}`;
  const shared = "/v1/controls/organization";
  /** @type {Level[]} */
  const levels = [
    { title: `account ${account.name}`, base: own, write: "write_controls", level: "account" },
    {
      title: "the organization",
      base: shared,
      write: "write_organization_control",
      level: "organization",
    },
  ];
  const mayRead = api.pick("read_controls");
  const halts = levels.map((level) => ({ level, ...haltPanel(context, level) }));
  const panels = halts.map(({ level, element }) => {
    const first = el("div", {}, element, mayRead && section("Switch", switchForm(api, level)));
    const second = mayRead ? section("Limits", limitsForm(api, level)) : hint(NEEDS_CONTROLS);
    return panel(words(level.title), el("div", { class: "level" }, first, second));
  });
  const symbols = mayRead && symbolsPanel(context);
  const stops = [...halts, ...(symbols ? [symbols] : [])].map((part) => part.close);
  return makeView(el("div", { class: "stack" }, ...panels, symbols && symbols.element), ...stops);
}
