// Accounts: how each is connected and why, its credential's age and its broker's latency; and the organization's keys.

import { showAge, showTime, words } from "./amounts.js";
import { path } from "./api.js";
import { el, fill, openDialog, repeat, table, terms } from "./dom.js";
import { Form } from "./form.js";
import { KeyedList } from "./list.js";

/** @typedef {import("./main.js").Context} Context */
/** @typedef {import("./feed.js").Account} Account */

const READ_SECONDS = 5;
const MAX_KEYS = 1_000;
const PERMISSIONS = [
  "intent:read",
  "intent:edit",
  "control:read",
  "control:edit",
  "account:read",
  "account:edit",
  "credential:edit",
  "stream:read",
];

/** @type {Record<string, string>} */
const CONNECTIONS = {
  connected: "orders are sent, and what the broker tells is recorded",
  connecting: "a worker opens the session",
  disconnected: "no worker has opened it, or the broker cannot be reached; a worker tries again",
  credential_missing: "the broker wants a credential, and none is stored",
  credential_rejected: "the broker refuses the stored credential: replace its secrets",
};

/** @type {import("./list.js").Column<Account>[]} */
const COLUMNS = [
  { id: "name", title: "Name", cell: (account) => account.name, compare: (one, other) => (one.name < other.name ? -1 : 1) },
  {
    id: "environment",
    title: "Environment",
    cell: (account) => ({ text: account.environment.toUpperCase(), class: `environment ${account.environment}` }),
  },
  { id: "broker", title: "Broker", cell: (account) => account.broker },
  {
    id: "connection",
    title: "Connection",
    cell: (account) => ({
      text: account.closed_at ? "Closed" : words(account.connection),
      class: account.connection === "connected" ? "gain" : account.closed_at ? "" : "loss",
    }),
  },
  {
    id: "why",
    title: "Why",
    cell: (account) => (account.closed_at ? "closed for good; its history stays" : (CONNECTIONS[account.connection] ?? "")),
  },
  {
    id: "disabled",
    title: "Orders",
    cell: (account) => (account.disabled ? { text: "disabled: only cancels", class: "loss" } : "taken"),
  },
  { id: "external", title: "At the broker", cell: (account) => account.external_account_id ?? "" },
];

/**
 * @param {Context} context
 * @param {Account} account
 */
async function openAccount(context, account) {
  const { api } = context;
  const { environment } = account;
  const details = el("div", {}, "Reading …");
  const choose = el(
    "button",
    { type: "button", class: "primary", onclick: () => (dialog.close(), context.choose(account.id)) },
    "Show this account",
  );
  const dialog = openDialog(`Account ${account.name}`, [details, el("div", { class: "actions" }, choose)]);
  try {
    const credentials = await api.list("read_accounts", path`/v1/accounts/${account.id}/credentials`, 10, { environment });
    const stats = context.session.pick("read_intents", environment)
      ? await api.json("read_intents", "GET", path`/v1/accounts/${account.id}/intents/stats`, {
          environment,
          query: { time_window: "last_hour" },
        })
      : null;
    const latency = stats?.broker_ack_latency_ms ?? {};
    fill(
      details,
      terms([
        ["Environment", account.environment],
        ["Broker", account.broker],
        ["Connection", `${words(account.connection)}: ${CONNECTIONS[account.connection] ?? ""}`],
        [
          "Credential",
          credentials.length
            ? credentials
                .map((credential) => `${credential.label ?? credential.fingerprint}, ${showAge(credential.updated_at)} old`)
                .join("; ")
            : "none stored",
        ],
        [
          "Broker's first answer, last hour",
          latency.p50 === null || latency.p50 === undefined ? "no orders" : `p50 ${latency.p50} ms, p99 ${latency.p99} ms`,
        ],
        ["Actions, last hour", stats ? String(stats.actions.total) : "–"],
        ["Refused, last hour", stats ? String(stats.refused.total) : "–"],
        ["Account id", account.id],
        ["Created", showTime(account.created_at)],
      ]),
    );
  } catch (error) {
    fill(details, el("p", { class: "failed" }, error instanceof Error ? error.message : "it cannot be read"));
  }
}

/** @param {Context} context */
function keysPanel(context) {
  const { api, session } = context;
  const user = session.pick("api_keys");
  if (!user)
    return el(
      "section",
      { class: "panel" },
      el("h2", {}, "API keys"),
      el("p", { class: "hint" }, "Listing and making keys takes a user's token with the role admin."),
    );
  const place = el("div", {});
  const shown = el("div", { role: "status" });
  /** @param {Record<string, any>} key */
  const toggle = async (key) => {
    await api.json("api_keys", "PATCH", path`/v1/api-keys/${String(key.id)}`, {
      body: { disabled: !key.disabled },
      headers: { "if-match": `"${key.version}"` },
    });
    await read();
  };
  async function read() {
    const keys = await api.list("api_keys", "/v1/api-keys", MAX_KEYS);
    const rows = table(
      "API keys",
      ["Name", "Environment", "Ends with", "Permissions", "Last used", "State", "Change"],
      keys.map((key) => [
        key.name,
        key.environment,
        key.hint,
        key.permissions.join(", "),
        key.last_used_at ? `${showAge(key.last_used_at)} ago` : "never",
        key.disabled ? "disabled" : "enabled",
        "",
      ]),
    );
    rows.querySelectorAll("tbody tr").forEach((row, index) =>
      row.lastElementChild?.append(
        el(
          "button",
          {
            type: "button",
            "aria-label": `${keys[index].disabled ? "Enable" : "Disable"} ${keys[index].name}`,
            onclick: () => toggle(keys[index]).catch((error) => fill(shown, error.message)),
          },
          keys[index].disabled ? "Enable" : "Disable",
        ),
      ),
    );
    fill(place, rows);
  }
  const form = new Form({
    name: "key",
    submit: "Make a key",
    note: `Uses the ${user.label}.`,
    fields: [
      { name: "name", label: "Name", isRequired: true, max: 128 },
      {
        name: "environment",
        label: "Environment",
        kind: "select",
        options: [
          ["paper", "paper"],
          ["live", "live"],
        ],
      },
      {
        name: "permissions",
        label: "Permissions",
        isRequired: true,
        value: PERMISSIONS.filter((name) => !name.startsWith("credential")).join(" "),
      },
    ],
    onSubmit: async (values) => {
      const made = await api.json("api_keys", "POST", "/v1/api-keys", {
        body: { name: values.name, environment: values.environment, permissions: String(values.permissions).split(/[\s,]+/) },
      });
      fill(shown, el("p", {}, "The key, shown this once: "), el("code", { class: "secret" }, made.api_key));
      await read();
    },
  });
  void read().catch((error) => fill(place, el("p", { class: "failed" }, error.message)));
  return el("section", { class: "panel" }, el("h2", {}, "API keys"), place, form.element, shown);
}

/** @param {Context} context */
export function openAccounts(context) {
  const list = new KeyedList({
    name: "accounts",
    label: "Accounts",
    columns: COLUMNS,
    key: (account) => account.id,
    empty: "No account can be read with these credentials.",
    sortBy: "name",
    onOpen: (account) => void openAccount(context, account),
    rowClass: (account) => account.environment,
  });
  list.setSource(() => context.accounts());
  const stop = repeat(READ_SECONDS, async () => {
    await context.readAccounts().catch(() => undefined);
    list.resort(true);
  });
  return {
    element: el(
      "div",
      { class: "stack" },
      el("section", { class: "panel figures" }, el("h2", {}, "Trading accounts"), list.element),
      keysPanel(context),
    ),
    close: () => {
      stop();
      list.close();
    },
  };
}
