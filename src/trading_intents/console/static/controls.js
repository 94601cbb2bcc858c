// Controls: halts, switches, windows and limits of the organization, the account and its symbols.

import { showTime, words } from "./amounts.js";
import { path } from "./api.js";
import { el, fill, openDialog, repeat, terms } from "./dom.js";
import { Form } from "./form.js";
import { KeyedList } from "./list.js";

/** @typedef {import("./main.js").Context} Context */
/** @typedef {import("./form.js").Field} Field */
/** @typedef {import("./form.js").Values} Values */
/** @typedef {{title: string, base: string, write: string, halt: string | null, level: "organization" | "account" | "symbol"}} Level */

const HALT_SECONDS = 2;
const MAX_SYMBOLS = 10_000;

/** @type {(Field & {levels: string, whole?: boolean})[]} */
const LIMITS = [
  { name: "max_order_quantity", label: "Max order quantity", isNumber: true, levels: "organization account symbol" },
  { name: "max_order_notional", label: "Max order notional", isNumber: true, levels: "organization account symbol" },
  {
    name: "price_collar_bps",
    label: "Price collar, basis points",
    isNumber: true,
    whole: true,
    levels: "organization account symbol",
  },
  { name: "max_open_orders", label: "Max open orders", isNumber: true, whole: true, levels: "account symbol" },
  { name: "max_position_quantity", label: "Max position quantity", isNumber: true, levels: "account symbol" },
  { name: "max_orders_per_minute", label: "Max orders per minute", isNumber: true, whole: true, levels: "account" },
  {
    name: "allow_short",
    label: "Short selling",
    kind: "select",
    options: [
      ["", "no limit"],
      ["true", "allowed"],
      ["false", "refused"],
    ],
    levels: "organization account symbol",
  },
  { name: "allowed_symbols", label: "Allowed symbols", hint: "separated by spaces", levels: "account" },
  { name: "duplicate_window_millis", label: "Duplicate window, ms", isNumber: true, whole: true, levels: "account" },
  { name: "max_daily_loss", label: "Max daily loss", isNumber: true, levels: "account" },
  { name: "timezone", label: "Time zone of the day", hint: "such as America/New_York; UTC where empty", levels: "account" },
];

/**
 * @param {Context} context
 * @param {string} policy
 */
function usage(context, policy) {
  const credential = context.session.pick(policy, policy.includes("organization") ? null : context.account.environment);
  return credential
    ? `Uses the ${credential.label}.`
    : policy.includes("organization")
      ? "Needs a user's token with the role admin."
      : "Needs an admin's token, or an API key with control:edit.";
}

/**
 * @param {Context} context
 * @param {Level} level
 */
function environmentOf(context, level) {
  return level.level === "organization" ? null : context.account.environment;
}

/** @param {Record<string, any> | null} found what was read; a write then replaces that version only @returns {Record<string, string>} */
function ifUnchanged(found) {
  return found?.version ? { "if-match": `"${found.version}"` } : {};
}

/**
 * A form over what one GET tells and one PUT, PATCH or DELETE changes.
 * @param {Context} context
 * @param {Level} level
 * @param {Omit<import("./form.js").FormOptions, "onSubmit">} options
 * @param {(found: any) => Record<string, string | boolean | null>} show
 * @param {() => Promise<any>} read
 * @param {(values: Values, found: any) => Promise<any>} write
 */
function boundForm(context, level, options, show, read, write) {
  /** @type {any} */
  let found = null;
  const form = new Form({
    ...options,
    note: usage(context, level.write),
    onSubmit: async (values) => {
      found = await write(values, found);
      form.set(show(found));
      return `Saved${found?.version ? `, version ${found.version}` : ""}.`;
    },
  });
  form.setDisabled(!context.session.pick(level.write, environmentOf(context, level)));
  form.setReading(true);
  void read()
    .then((told) => {
      found = told;
      form.setReading(false);
      form.set(show(told));
    })
    .catch((error) => form.fail(error));
  return form;
}

/**
 * @param {Context} context
 * @param {Level} level
 */
function switchForm(context, level) {
  const environment = environmentOf(context, level);
  const { api } = context;
  return boundForm(
    context,
    level,
    {
      name: `switch-${level.level}`,
      submit: "Set the switch",
      fields: [
        { name: "manually_disabled", label: "Stop trading here", kind: "checkbox" },
        { name: "manual_reason", label: "Reason", max: 500 },
      ],
    },
    (found) => ({ manually_disabled: Boolean(found?.manually_disabled), manual_reason: found?.manual_reason ?? "" }),
    async () => {
      const told = await api.find("read_controls", level.base, { environment });
      return level.level === "symbol" ? told?.manual : told;
    },
    (values, found) =>
      api.json(level.write, "PUT", level.base, {
        environment,
        headers: ifUnchanged(found),
        body: {
          manually_disabled: values.manually_disabled,
          ...(values.manual_reason ? { manual_reason: values.manual_reason } : {}),
        },
      }),
  );
}

/**
 * @param {Context} context
 * @param {Level} level
 */
function windowForm(context, level) {
  const { environment } = context.account;
  const { api } = context;
  const names = ["trading_start", "trading_end", "timezone", "stale_order_millis"];
  return boundForm(
    context,
    level,
    {
      name: "window",
      submit: "Set the window",
      fields: [
        { name: "trading_start", label: "Trading from", hint: "HH:MM:SS" },
        { name: "trading_end", label: "Until", hint: "HH:MM:SS" },
        { name: "timezone", label: "Time zone", hint: "such as America/New_York; UTC where empty" },
        { name: "stale_order_millis", label: "Cancel orders older than, ms", isNumber: true },
      ],
    },
    (found) =>
      Object.fromEntries(names.map((name) => [name, found?.[name] === null || found?.[name] === undefined ? "" : String(found[name])])),
    async () => (await api.find("read_controls", level.base, { environment }))?.time,
    (values, found) => {
      /** @type {Record<string, any>} */
      const body = Object.fromEntries(
        names
          .filter((name) => values[name])
          .map((name) => [name, name === "stale_order_millis" ? wholeNumber(values[name]) : values[name]]),
      );
      const cleared = names.filter((name) => !values[name] && found?.[name] !== null && found?.[name] !== undefined);
      if (cleared.length) body.clear = cleared;
      return api.json(level.write, "PATCH", `${level.base}/time`, { environment, headers: ifUnchanged(found), body });
    },
  );
}

/** @param {string | boolean | undefined} text a number where it is one; else the platform says what is wrong with it */
function wholeNumber(text) {
  return /^\d{1,15}$/.test(String(text)) ? Number(text) : text;
}

/**
 * @param {Context} context
 * @param {Level} level
 */
function limitsForm(context, level) {
  const environment = environmentOf(context, level);
  const { api } = context;
  const place = `${level.base}/limits`;
  const fields = LIMITS.filter((field) => field.levels.split(" ").includes(level.level));
  return boundForm(
    context,
    level,
    { name: `limits-${level.level}`, submit: "Set the limits", fields },
    (found) =>
      Object.fromEntries(
        fields.map(({ name }) => [
          name,
          Array.isArray(found?.[name])
            ? found[name].join(" ")
            : found?.[name] === null || found?.[name] === undefined
              ? ""
              : String(found[name]),
        ]),
      ),
    () => api.find("read_controls", place, { environment }),
    (values, found) => {
      /** @type {Record<string, any>} */
      const body = {};
      for (const { name, whole } of fields) {
        const value = values[name];
        if (!value) continue;
        if (name === "allow_short") body[name] = value === "true";
        else if (name === "allowed_symbols") body[name] = String(value).split(/[\s,]+/);
        else body[name] = whole ? wholeNumber(value) : value;
      }
      const call = { environment, headers: ifUnchanged(found) };
      if (Object.keys(body).length) return api.json(level.write, "PUT", place, { ...call, body });
      return found ? api.json(level.write, "DELETE", place, call) : Promise.resolve(null);
    },
  );
}

/**
 * The halt of an account or the organization: what it will do, how far it is, and its end.
 * @param {Context} context
 * @param {Level} level
 */
function haltPanel(context, level) {
  const { api, feed, session } = context;
  const policy = String(level.halt);
  const environment = environmentOf(context, level);
  const standing = el("div", { class: "halt", role: "status" });
  const may = Boolean(session.pick(policy, environment));
  const start = new Form({
    name: `halt-${level.level}`,
    submit: `Halt ${level.title}`,
    isDangerous: true,
    note: usage(context, policy),
    fields: [
      { name: "reason", label: "Reason", isRequired: true, max: 500 },
      { name: "cancel_orders", label: "Cancel every open order", kind: "checkbox", value: "true" },
      { name: "close_positions", label: "Then close every position at the market", kind: "checkbox" },
    ],
    onSubmit: async (values) => {
      await api.json(policy, "POST", `${level.base}/halt`, { environment, body: values });
      await read();
    },
  });
  const resume = new Form({
    name: `resume-${level.level}`,
    submit: `Resume ${level.title}`,
    note: usage(context, policy),
    fields: [],
    onSubmit: async () => {
      await api.json(policy, "POST", `${level.base}/resume`, { environment });
      await read();
    },
  });
  start.setDisabled(!may);
  resume.setDisabled(!may);
  const explanation = el(
    "p",
    { class: "hint" },
    "From the moment of the answer new orders and replaces are refused, also those that were accepted and not sent. Cancels always pass. It holds until somebody resumes.",
  );

  /** @param {Record<string, any> | null} halt */
  function show(halt) {
    const stands = Boolean(halt) && halt?.state !== "resumed";
    start.element.hidden = explanation.hidden = stands;
    resume.element.hidden = !stands;
    standing.classList.toggle("stands", stands);
    if (!halt) return fill(standing, el("p", {}, "Not halted."));
    /** @type {Record<string, any>[]} */
    const waiting = halt.waiting ?? [];
    const bar = (/** @type {string} */ name, /** @type {number} */ done, /** @type {number} */ all) =>
      el("label", { class: "progress" }, `${name}: ${done} of ${all} done `, el("progress", { value: done, max: Math.max(1, all) }));
    return fill(
      standing,
      el(
        "p",
        {},
        stands ? el("strong", {}, `HALTED: ${words(halt.state)}`) : `Not halted. The last halt was resumed ${showTime(halt.updated_at)}.`,
      ),
      terms([
        ["Reason", halt.reason],
        ["By", `${words(halt.principal_type)} ${halt.principal_id}`],
        ["Since", showTime(halt.created_at)],
      ]),
      stands && bar("Orders", halt.orders_done, halt.orders),
      stands && halt.positions > 0 && bar("Positions", halt.positions_done, halt.positions),
      ...(stands ? waiting.map((wait) => el("p", { class: "hint" }, `Waits for ${wait.symbol ?? wait.order_id}: ${wait.reason}`)) : []),
    );
  }

  async function read() {
    if (!session.pick("read_halts", environment)) return;
    try {
      show(await api.find("read_halts", `${level.base}/halt`, { environment }));
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
  feed.addEventListener("change", onChange);
  const stop = repeat(HALT_SECONDS, read);
  const element = el("div", {}, el("h3", {}, "Halt"), standing, explanation, start.element, resume.element);
  return { element, close: () => (stop(), feed.removeEventListener("change", onChange)) };
}

/**
 * @param {Context} context
 * @param {string} symbol
 * @param {() => void} onClose
 */
function openSymbol(context, symbol, onClose) {
  /** @type {Level} */
  const level = {
    title: symbol,
    base: path`/v1/controls/accounts/${context.account.id}/symbols/${symbol}`,
    write: "write_controls",
    halt: null,
    level: "symbol",
  };
  openDialog(
    `Controls of ${symbol}`,
    [
      el(
        "div",
        { class: "columns" },
        section("Switch", switchForm(context, level).element),
        section("Trading window", windowForm(context, level).element),
        section("Limits", limitsForm(context, level).element),
      ),
    ],
    onClose,
  );
}

/**
 * @param {string} title
 * @param {...Node} content
 */
function section(title, ...content) {
  return el("section", {}, el("h3", {}, title), ...content);
}

/** @param {Context} context */
function symbolsPanel(context) {
  const { api, account, session } = context;
  /** @type {Record<string, any>[]} */
  let rows = [];
  const find = new Form({
    name: "symbol",
    submit: "Open its controls",
    fields: [{ name: "symbol", label: "Symbol", isRequired: true, isUpper: true, max: 32 }],
    onSubmit: async (values) => openSymbol(context, String(values.symbol), () => void read()),
  });
  const list = new KeyedList({
    name: "symbols",
    label: "Symbols with controls",
    empty: "No symbol has a switch or a window.",
    key: (row) => String(row.symbol),
    onOpen: (row) => openSymbol(context, String(row.symbol), () => void read()),
    columns: [
      { id: "symbol", title: "Symbol", cell: (row) => String(row.symbol) },
      {
        id: "switch",
        title: "Switch",
        cell: (row) => (row.manual?.manually_disabled ? { text: `stopped: ${row.manual.manual_reason ?? ""}`, class: "loss" } : "trades"),
      },
      {
        id: "window",
        title: "Window",
        cell: (row) =>
          row.time?.trading_start || row.time?.trading_end
            ? `${row.time.trading_start ?? "00:00:00"} to ${row.time.trading_end ?? "24:00:00"} ${row.time.timezone ?? "UTC"}`
            : "always",
      },
      { id: "stale", title: "Stale after, ms", isNumber: true, cell: (row) => String(row.time?.stale_order_millis ?? "–") },
    ],
  });
  list.setSource(() => rows);
  async function read() {
    if (!session.pick("read_controls", account.environment)) return;
    rows = await api.list("read_controls", path`/v1/controls/accounts/${account.id}/symbols`, MAX_SYMBOLS, {
      environment: account.environment,
    });
    list.resort(true);
  }
  void read().catch(() => undefined);
  return {
    element: el("section", { class: "panel" }, el("h2", {}, "Symbols"), find.element, list.element),
    close: () => list.close(),
  };
}

/** @param {Context} context */
export function openControls(context) {
  const { account, session } = context;
  /** @type {Level[]} */
  const levels = [
    {
      title: `account ${account.name}`,
      base: path`/v1/controls/accounts/${account.id}`,
      write: "write_controls",
      halt: "halt_account",
      level: "account",
    },
    {
      title: "the organization",
      base: "/v1/controls/organization",
      write: "write_organization_control",
      halt: "halt_organization",
      level: "organization",
    },
  ];
  const mayRead = session.pick("read_controls", account.environment);
  const halts = levels.map((level) => haltPanel(context, level));
  const panels = levels.map((level, place) =>
    el(
      "section",
      { class: "panel" },
      el("h2", {}, words(level.title)),
      el(
        "div",
        { class: "level" },
        el(
          "div",
          {},
          /** @type {{element: HTMLElement}} */ (halts[place]).element,
          mayRead && section("Switch", switchForm(context, level).element),
        ),
        ...(mayRead
          ? [section("Limits", limitsForm(context, level).element)]
          : [
              el(
                "p",
                { class: "hint" },
                "Switches, windows and limits take the entitlement controls_premium, and a credential that may read controls.",
              ),
            ]),
      ),
    ),
  );
  const symbols = mayRead ? symbolsPanel(context) : null;
  return {
    element: el("div", { class: "stack" }, ...panels, symbols?.element),
    close: () => {
      halts.forEach((halt) => halt.close());
      symbols?.close();
    },
  };
}
