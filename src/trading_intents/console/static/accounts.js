// Accounts: how each is connected and why, its credential's age and its broker's latency; and the
// organization's keys.

import { showAge, showTime, words } from "./amounts.js";
import { messageOf, path } from "./api.js";
import {
  button,
  el,
  fill,
  hint,
  makeView,
  openDialog,
  panel,
  repeat,
  table,
  terms,
} from "./dom.js";
import { Form } from "./form.js";
import { KeyedList, byText } from "./list.js";
import { CONNECTIONS } from "./status.js";

const READ_SECONDS = 5;
const MAX_CREDENTIALS = 10;
const MAX_KEYS = 1_000;
const MAX_BROKERS = 100;
const READS = "intent:read control:read account:read stream:read".split(" ");
const PERMISSIONS = [...READS, "intent:edit", "control:edit", "account:edit", "credential:edit"];
/** @type {[string, string][]} */
const SETS = [
  ["trader", "trader"],
  ["reader", "reader"],
  ["operator", "operator"],
  ["", "as chosen below"],
];
/** @type {[string, string][]} */
const ENVIRONMENTS = [
  ["paper", "paper"],
  ["live", "live"],
];

/** @param {Account} account */
const explain = ({ connection, closed_at: closed }) =>
  closed ? "closed for good; its history stays" : (CONNECTIONS[connection]?.[1] ?? "");

const ONLY_CANCELS = { text: "disabled: only cancels", class: "loss" };
/** @param {Account} account */
const showEnvironment = ({ environment }) => ({
  text: environment,
  class: `environment ${environment}`,
});
/** @param {Account} account */
const showConnection = ({ connection, closed_at: closed }) =>
  closed
    ? "Closed"
    : { text: words(connection), class: connection === "connected" ? "gain" : "loss" };

/** @type {Column<Account>[]} */
const COLUMNS = [
  {
    id: "name",
    title: "Name",
    isLong: true,
    cell: (account) => account.name,
    compare: byText("name"),
  },
  { id: "environment", title: "Environment", cell: showEnvironment },
  { id: "broker", title: "Broker", cell: (account) => account.broker },
  { id: "connection", title: "Connection", cell: showConnection },
  { id: "why", title: "Why", isLong: true, cell: explain },
  { id: "disabled", title: "Orders", cell: ({ disabled }) => (disabled ? ONLY_CANCELS : "taken") },
  { id: "external", title: "At the broker", cell: (account) => account.external_account_id ?? "" },
];

/** @type {(api: Api, base: string, names: string[], storedId: string | undefined) => Form} */
function credentialForm(api, base, names, storedId) {
  const form = new Form({
    name: "credential",
    submit: storedId ? "Replace the secrets" : "Store the credential",
    fields: names.map((name) => ({ name, label: words(name), isRequired: true, isSecret: true })),
    onSubmit: async (secrets) => {
      const target = storedId ? path`/credentials/${storedId}` : "/credentials";
      await api.json("write_credentials", storedId ? "PATCH" : "POST", base + target, {
        body: { secrets },
      });
      form.clear();
      return "Stored. A worker connects with it.";
    },
  });
  form.setCredential(
    api.pick("write_credentials"),
    "Needs an admin's token, or an API key with credential:edit.",
  );
  return form;
}

/** @param {Context} context */
function accountForm(context) {
  const form = new Form({
    name: "account",
    submit: "Add an account",
    fields: [
      { name: "name", label: "Name", isRequired: true, max: 128 },
      { name: "broker", label: "Broker", kind: "select" },
      { name: "environment", label: "Environment", kind: "select", options: ENVIRONMENTS },
    ],
    onSubmit: async (body) => {
      const api = context.api.forEnvironment(body.environment === "live" ? "live" : "paper");
      const made = await api.json("write_accounts", "POST", "/v1/accounts", { body });
      form.clear();
      await context.readAccounts();
      void openAccount(context, made);
    },
  });
  const show = (/** @type {Json[]} */ brokers) =>
    form.setOptions(
      "broker",
      brokers.map(({ name }) => [name, name]),
    );
  void context.api
    .list("brokers", "/v1/brokers", MAX_BROKERS)
    .then(show, (error) => form.fail(error));
  form.setCredential(
    context.api.pick("write_accounts"),
    "Needs an admin's token, or an API key with account:edit.",
  );
  return form.element;
}

/** @type {(context: Context, account: Account) => Promise<void>} */
async function openAccount(context, account) {
  const api = context.api.forEnvironment(account.environment);
  const base = path`/v1/accounts/${account.id}`;
  const details = el("div", {}, "Reading …");
  const choose = () => (dialog.close(), context.choose(account.id));
  const actions = el(
    "div",
    { class: "actions" },
    button("Show this account", choose, { class: "primary" }),
  );
  const dialog = openDialog(`Account ${account.name}`, [details, actions]);
  try {
    const credentials = await api.list("read_accounts", `${base}/credentials`, MAX_CREDENTIALS);
    const stored = credentials.map(
      (each) => `${each.label ?? each.fingerprint}, ${showAge(each.updated_at)} old`,
    );
    const call = { query: { time_window: "last_hour" } };
    const stats =
      api.pick("read_intents") && (await api.find("read_intents", `${base}/intents/stats`, call));
    const { p50 = null, p99 = null } = stats?.broker_ack_latency_ms ?? {};
    const shown = terms([
      ["Environment", account.environment],
      ["Broker", account.broker],
      ["Connection", `${words(account.connection)}: ${explain(account)}`],
      ["Credential", stored.join("; ") || "none stored"],
      [
        "Broker's first answer, last hour",
        p50 === null ? "no orders" : `p50 ${p50} ms, p99 ${p99} ms`,
      ],
      ["Actions, last hour", stats && `${stats.actions.total}`],
      ["Refused", stats && `${stats.refused.total}`],
      ["Account id", account.id],
      ["Created", showTime(account.created_at)],
    ]);
    const brokers = await api.list("brokers", "/v1/brokers", MAX_BROKERS);
    const fields = brokers.find(({ name }) => name === account.broker)?.credential_fields ?? [];
    fill(
      details,
      shown,
      fields.length > 0 && credentialForm(api, base, fields, credentials[0]?.id).element,
    );
  } catch (error) {
    fill(details, el("p", { class: "failed" }, messageOf(error)));
  }
}

/** @param {Api} api */
function keysPanel(api) {
  const user = api.pick("api_keys");
  if (!user)
    return panel(
      "API keys",
      hint("Listing and making keys takes a user's token with the role admin."),
    );
  const [listed, shown] = [el("div", {}), el("div", { role: "status" })];
  const failed = el("p", { class: "failed", role: "alert" });
  /** @param {unknown} error */
  const fail = (error) => fill(failed, messageOf(error));

  /** @param {Json} key */
  async function toggle(key) {
    const call = { body: { disabled: !key.disabled }, headers: { "if-match": `"${key.version}"` } };
    await api.json("api_keys", "PATCH", path`/v1/api-keys/${String(key.id)}`, call);
    await read();
  }

  /** @param {Json} key */
  async function showUse(key) {
    const budget = await api.find("api_keys", path`/v1/api-keys/${String(key.id)}/limits`);
    const used =
      budget &&
      `${budget.used.daily_notional} of ${budget.max_daily_notional ?? "any amount"} today`;
    fill(shown, el("p", {}, `${key.name} has used ${used ?? "no budget: it has none"}.`));
  }

  async function read() {
    const keys = await api.list("api_keys", "/v1/api-keys", MAX_KEYS);
    fill(
      listed,
      table("API keys", keys, {
        Name: (key) => key.name,
        Environment: (key) => key.environment,
        "Ends with": (key) => key.hint,
        Permissions: (key) => key.permissions.join(", "),
        "Last used": (key) => (key.last_used_at ? `${showAge(key.last_used_at)} ago` : "never"),
        Expires: (key) => (key.expires_at ? showTime(key.expires_at) : "never"),
        State: (key) => (key.disabled ? "disabled" : "enabled"),
        Used: (key) =>
          button("Budget", () => void showUse(key).catch(fail), {
            "aria-label": `Budget of ${key.name}`,
          }),
        Change: (key) => {
          const change = key.disabled ? "Enable" : "Disable";
          return button(change, () => void toggle(key).catch(fail), {
            "aria-label": `${change} ${key.name}`,
          });
        },
      }),
    );
    fill(failed);
  }

  const form = new Form({
    name: "key",
    submit: "Make a key",
    note: `Uses the ${user.label}.`,
    fields: [
      { name: "name", label: "Name", isRequired: true, max: 128 },
      { name: "environment", label: "Environment", kind: "select", options: ENVIRONMENTS },
      { name: "permission_set", label: "Permissions", kind: "select", options: SETS },
      { name: "expires_at", label: "Expires", isDate: true, hint: "at 00:00 UTC; empty: never" },
      ...PERMISSIONS.map((name) => /** @type {Field} */ ({ name, label: name, kind: "checkbox" })),
    ],
    onInput: () => layOut(),
    onSubmit: async ({ name, environment, permission_set: set, expires_at: day, ...boxes }) => {
      const granted = set
        ? { permission_set: set }
        : { permissions: PERMISSIONS.filter((each) => boxes[each]) };
      const body = {
        name,
        environment,
        ...granted,
        expires_at: day ? `${day}T00:00:00Z` : undefined,
      };
      const made = await api.json("api_keys", "POST", "/v1/api-keys", { body });
      fill(
        shown,
        el("p", {}, "The key, shown this once: "),
        el("code", { class: "secret" }, made.api_key),
      );
      await read();
    },
  });
  const layOut = () => PERMISSIONS.forEach((name) => form.show(name, !form.text("permission_set")));
  layOut();
  void read().catch(fail);
  return panel("API keys", listed, failed, form.element, shown);
}

/** @type {(context: Context) => View} */
export function openAccounts(context) {
  const list = new KeyedList({
    name: "accounts",
    label: "Accounts",
    columns: COLUMNS,
    rows: context.accounts,
    key: (account) => account.id,
    empty: "No account can be read with these credentials.",
    sortBy: "name",
    onOpen: (account) => void openAccount(context, account),
    rowClass: (account) => account.environment,
  });
  const accounts = panel("Trading accounts", list.element, accountForm(context));
  accounts.classList.add("figures");
  const stop = repeat(READ_SECONDS, async () => {
    const isRead = await context.readAccounts().then(
      () => true,
      () => false,
    );
    accounts.classList.toggle("stale", !isRead);
    list.resort(true);
  });
  return makeView(
    el("div", { class: "stack" }, accounts, keysPanel(context.api)),
    stop,
    list.close,
  );
}
