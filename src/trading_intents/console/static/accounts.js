// Accounts: how each is connected and why, its credential's age and its broker's latency; and the organization's keys.

import { showAge, showTime, words } from "./amounts.js";
import { messageOf, path } from "./api.js";
import { button, el, fill, hint, makeView, openDialog, panel, repeat, table, terms } from "./dom.js";
import { Form } from "./form.js";
import { KeyedList, byText } from "./list.js";
import { CONNECTIONS } from "./status.js";

const READ_SECONDS = 5;
const MAX_CREDENTIALS = 10;
const MAX_KEYS = 1_000;
const PERMISSIONS = "intent:read intent:edit control:read control:edit account:read account:edit stream:read";

/** @param {Account} account */
const explain = ({ connection, closed_at: closed }) =>
  closed ? "closed for good; its history stays" : (CONNECTIONS[connection]?.why ?? "");

/** @type {Column<Account>[]} */
const COLUMNS = [
  { id: "name", title: "Name", cell: (account) => account.name, compare: byText("name") },
  {
    id: "environment",
    title: "Environment",
    cell: ({ environment }) => ({ text: environment.toUpperCase(), class: `environment ${environment}` }),
  },
  { id: "broker", title: "Broker", cell: (account) => account.broker },
  {
    id: "connection",
    title: "Connection",
    cell: ({ connection, closed_at: closed }) => ({
      text: closed ? "Closed" : words(connection),
      class: connection === "connected" ? "gain" : closed ? "" : "loss",
    }),
  },
  { id: "why", title: "Why", cell: explain },
  {
    id: "disabled",
    title: "Orders",
    cell: (account) => (account.disabled ? { text: "disabled: only cancels", class: "loss" } : "taken"),
  },
  { id: "external", title: "At the broker", cell: (account) => account.external_account_id ?? "" },
];

/** @type {(context: Context, account: Account) => Promise<void>} */
async function openAccount(context, account) {
  const api = context.api.forEnvironment(account.environment);
  const base = path`/v1/accounts/${account.id}`;
  const details = el("div", {}, "Reading …");
  const choose = () => {
    dialog.close();
    context.choose(account.id);
  };
  const actions = el("div", { class: "actions" }, button("Show this account", choose, { class: "primary" }));
  const dialog = openDialog(`Account ${account.name}`, [details, actions]);
  try {
    const credentials = await api.list("read_accounts", `${base}/credentials`, MAX_CREDENTIALS);
    const stored = credentials.map((each) => `${each.label ?? each.fingerprint}, ${showAge(each.updated_at)} old`);
    const call = { query: { time_window: "last_hour" } };
    const stats = api.pick("read_intents") && (await api.find("read_intents", `${base}/intents/stats`, call));
    const { p50 = null, p99 = null } = stats?.broker_ack_latency_ms ?? {};
    const shown = terms([
      ["Environment", account.environment],
      ["Broker", account.broker],
      ["Connection", `${words(account.connection)}: ${explain(account)}`],
      ["Credential", stored.join("; ") || "none stored"],
      ["Broker's first answer, last hour", p50 === null ? "no orders" : `p50 ${p50} ms, p99 ${p99} ms`],
      ["Actions, last hour", stats && String(stats.actions.total)],
      ["Refused, last hour", stats && String(stats.refused.total)],
      ["Account id", account.id],
      ["Created", showTime(account.created_at)],
    ]);
    fill(details, shown);
  } catch (error) {
    fill(details, el("p", { class: "failed" }, messageOf(error)));
  }
}

/** @param {Api} api */
function keysPanel(api) {
  const user = api.pick("api_keys");
  if (!user) return panel("API keys", hint("Listing and making keys takes a user's token with the role admin."));
  const place = el("div", {});
  const shown = el("div", { role: "status" });
  const failed = el("p", { class: "failed", role: "alert" });
  /** @param {unknown} error */
  const fail = (error) => fill(failed, messageOf(error));

  /** @param {Json} key */
  async function toggle(key) {
    const call = { body: { disabled: !key.disabled }, headers: { "if-match": `"${key.version}"` } };
    await api.json("api_keys", "PATCH", path`/v1/api-keys/${String(key.id)}`, call);
    await read();
  }

  async function read() {
    const keys = await api.list("api_keys", "/v1/api-keys", MAX_KEYS);
    const shownKeys = table("API keys", keys, {
      Name: (key) => key.name,
      Environment: (key) => key.environment,
      "Ends with": (key) => key.hint,
      Permissions: (key) => key.permissions.join(", "),
      "Last used": (key) => (key.last_used_at ? `${showAge(key.last_used_at)} ago` : "never"),
      State: (key) => (key.disabled ? "disabled" : "enabled"),
      Change: (key) => {
        const change = key.disabled ? "Enable" : "Disable";
        return button(change, () => void toggle(key).catch(fail), { "aria-label": `${change} ${key.name}` });
      },
    });
    fill(place, shownKeys);
    fill(failed);
  }

  const form = new Form({
    name: "key",
    submit: "Make a key",
    note: `Uses the ${user.label}.`,
    fields: [
      { name: "name", label: "Name", isRequired: true, max: 128 },
      { name: "environment", label: "Environment", kind: "select", options: [["paper", "paper"], ["live", "live"]] },
      { name: "permissions", label: "Permissions", isRequired: true, value: PERMISSIONS },
    ],
    onSubmit: async (values) => {
      const body = { ...values, permissions: String(values.permissions).split(/[\s,]+/) };
      const made = await api.json("api_keys", "POST", "/v1/api-keys", { body });
      fill(shown, el("p", {}, "The key, shown this once: "), el("code", { class: "secret" }, made.api_key));
      await read();
    },
  });
  void read().catch(fail);
  return panel("API keys", place, failed, form.element, shown);
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
  const accounts = panel("Trading accounts", list.element);
  accounts.classList.add("figures");
  const stop = repeat(READ_SECONDS, async () => {
    const isRead = await context.readAccounts().then(() => true, () => false);
    accounts.classList.toggle("stale", !isRead);
    list.resort(true);
  });
  return makeView(el("div", { class: "stack" }, accounts, keysPanel(context.api)), stop, list.close);
}
