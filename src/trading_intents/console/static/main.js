// The page: signs in, follows the chosen account, shows one view at a time, and says when what it shows is not fresh.

import { openAccounts } from "./accounts.js";
import { showAge } from "./amounts.js";
import { Api, Problem } from "./api.js";
import { openBlotter } from "./blotter.js";
import { openControls } from "./controls.js";
import { el, fill, openDialog, repeat } from "./dom.js";
import { AccountFeed } from "./feed.js";
import { openLog } from "./log.js";
import { openOperator } from "./operator.js";
import { openPositions } from "./positions.js";
import { Session } from "./session.js";
import { finishSignIn, signInForm } from "./signin.js";

/** @typedef {import("./feed.js").Account} Account */
/**
 * @typedef {object} Context what a view is given
 * @property {Session} session
 * @property {Api} api
 * @property {Account} account
 * @property {AccountFeed} feed
 * @property {() => Account[]} accounts
 * @property {() => Promise<void>} readAccounts
 * @property {(accountId: string) => void} choose
 */
/** @typedef {{element: HTMLElement, close: () => void}} View */

/** @type {Record<string, {title: string, open: (context: Context) => View, policy: string, needsNoAccount?: boolean}>} */
const VIEWS = {
  blotter: { title: "Blotter", open: openBlotter, policy: "read_intents" },
  positions: { title: "Positions", open: openPositions, policy: "read_intents" },
  controls: { title: "Controls", open: openControls, policy: "read_halts" },
  accounts: { title: "Accounts", open: openAccounts, policy: "read_accounts", needsNoAccount: true },
  operator: { title: "Operator", open: openOperator, policy: "read_caller", needsNoAccount: true },
  log: { title: "Log", open: openLog, policy: "read_intents" },
};
const MAX_ACCOUNTS = 1_000;
const RETRY_MILLIS = 2_000;
const STATUS = {
  connecting: "Connecting",
  loading: "Reading",
  live: "Up to date",
  lost: "Disconnected",
  refused: "Not allowed to follow",
};

class Page {
  /** @param {import("./signin.js").ConsoleSettings} settings */
  constructor(settings) {
    this._settings = settings;
    this._session = new Session();
    this._api = new Api(this._session);
    /** @type {Map<string, Account>} */
    this._accounts = new Map();
    /** @type {AccountFeed | null} */
    this._feed = null;
    /** @type {View | null} */
    this._view = null;
    this._name = "";
    this._powers = "";
    this._banner = el("div", { class: "banner", role: "alert", hidden: true });
    this._band = el("div", { class: "band" });
    this._state = el("div", { class: "connection", role: "status" });
    this._picker = el("select", { id: "account", "aria-label": "Account", onchange: () => this._choose(this._picker.value) });
    this._nav = el("nav", { "aria-label": "Views" });
    this._credentials = el("div", { class: "credentials", role: "group", "aria-label": "Credentials" });
    this._main = el("main", { id: "main", tabindex: -1 });
    this._header = el(
      "header",
      { class: "top" },
      el(
        "a",
        { class: "skip", href: "#main", onclick: (/** @type {Event} */ event) => (event.preventDefault(), this._main.focus()) },
        "Skip to the view",
      ),
      el("strong", { class: "brand" }, "Trading Intents"),
      this._picker,
      this._band,
      this._state,
      this._credentials,
    );
    document.body.replaceChildren(this._header, this._nav, this._banner, this._main);
    this._session.addEventListener("change", () => this._onSession());
    this._session.addEventListener("ended", (event) =>
      this._say(
        `The ${/** @type {CustomEvent} */ (event).detail} is no longer accepted: it has expired or was withdrawn. Sign in again to go on with it.`,
      ),
    );
    window.addEventListener("hashchange", () => (location.hash.startsWith("#code=") ? void this._finish() : this._route()));
    window.addEventListener("keydown", (event) => this._onKey(event));
    repeat(1, () => this._showStatus());
    repeat(10, () => this._session.refresh());
  }

  async start() {
    this._showSignIn();
    await this._finish();
  }

  async _finish() {
    try {
      await finishSignIn(this._settings, this._session);
    } catch (error) {
      this._say(`Signing in did not work: ${error instanceof Error ? error.message : ""}`);
    }
  }

  /** @param {string} text */
  _say(text) {
    this._banner.hidden = !text;
    fill(this._banner, el("span", {}, text), el("button", { type: "button", class: "quiet", onclick: () => this._say("") }, "Dismiss"));
  }

  _showSignIn() {
    this._close();
    this._header.hidden = this._nav.hidden = true;
    delete document.body.dataset.environment;
    document.title = "Sign in · Trading Intents console";
    const { form, element } = signInForm(this._settings, this._session, () => undefined);
    fill(this._main, el("div", { class: "signin-page" }, el("h1", {}, "Trading Intents console"), element));
    form.focus("credential");
  }

  async _onSession() {
    if (!this._session.credentials.size) {
      this._feed?.stop();
      this._feed = null;
      this._accounts.clear();
      this._showSignIn();
      return;
    }
    this._showCredentials();
    const before = this._feed?.account.id;
    try {
      await this._readAccounts();
    } catch (error) {
      this._say(`Accounts cannot be read: ${error instanceof Error ? error.message : ""}. Trying again.`);
      setTimeout(() => void this._onSession(), RETRY_MILLIS);
      return;
    }
    if (this._header.hidden) this._say("");
    this._header.hidden = this._nav.hidden = false;
    this._picker.hidden = this._band.hidden = this._state.hidden = !this._accounts.size;
    const powers = [...this._session.credentials.values()].map(({ label, caller }) => `${label} ${caller.policies.join()}`).join();
    if (powers !== this._powers) this._close(); // a view offers what the credentials may do
    this._powers = powers;
    const first = [...this._accounts.values()].find((account) => !account.closed_at) ?? [...this._accounts.values()][0];
    if (before && this._accounts.has(before) && this._feed?.status.state !== "refused") this._route();
    else if (first) this._choose(first.id);
    else {
      this._say("These credentials may read no trading account. Add another credential, or make an account by POST /v1/accounts.");
      this._route();
    }
  }

  /** What every credential may see, together. */
  async _readAccounts() {
    const found = new Map();
    for (const environment of ["paper", "live"]) {
      if (!this._session.pick("read_accounts", environment)) continue;
      for (const account of await this._api.list("read_accounts", "/v1/accounts", MAX_ACCOUNTS, { environment }))
        found.set(account.id, account);
    }
    this._accounts = found;
    const chosen = this._feed?.account.id ?? "";
    fill(
      this._picker,
      ...[...found.values()].map((account) =>
        el(
          "option",
          { value: account.id },
          `${account.environment === "live" ? "LIVE" : "paper"} · ${account.name}${account.closed_at ? " (closed)" : ""}`,
        ),
      ),
    );
    if (found.has(chosen)) this._picker.value = chosen;
  }

  /** @param {string} accountId */
  _choose(accountId) {
    const account = this._accounts.get(accountId);
    if (!account) return;
    this._close();
    this._feed?.stop();
    const feed = new AccountFeed(this._api, account);
    feed.addEventListener("status", () => this._showStatus());
    this._feed = feed;
    this._picker.value = accountId;
    document.body.dataset.environment = account.environment;
    fill(this._band, account.environment === "live" ? "LIVE · real money" : "PAPER · simulated");
    feed.start();
    this._showStatus();
    this._route();
  }

  _route() {
    const feed = /** @type {AccountFeed} */ (this._feed); // null only for views that need no account
    const environment = this._feed?.account.environment ?? null;
    const allowed = Object.entries(VIEWS).filter(
      ([, view]) => (this._feed || view.needsNoAccount) && this._session.pick(view.policy, environment),
    );
    const wanted = location.hash.replace("#/", "");
    const [name, view] = allowed.find(([candidate]) => candidate === wanted) ?? allowed[0] ?? [];
    if (!name || !view || !this._session.credentials.size) return;
    fill(
      this._nav,
      ...allowed.map(([key, other], place) =>
        el("a", { href: `#/${key}`, "aria-current": key === name ? "page" : null, title: `Alt+${place + 1}` }, other.title),
      ),
    );
    document.title = `${environment === "live" ? "LIVE · " : ""}${this._feed ? `${feed.account.name} · ` : ""}${view.title}`;
    if (this._view && this._name === name) return;
    this._close();
    this._name = name;
    this._view = view.open({
      session: this._session,
      api: this._api,
      account: feed?.account,
      feed,
      accounts: () => [...this._accounts.values()],
      readAccounts: () => this._readAccounts(),
      choose: (accountId) => this._choose(accountId),
    });
    fill(this._main, el("h1", { class: "title" }, view.title), this._view.element);
  }

  _close() {
    this._view?.close();
    this._view = null;
    this._name = "";
  }

  _showStatus() {
    const status = this._feed?.status;
    if (!status) return;
    const isFresh = status.state === "live";
    document.body.classList.toggle("not-fresh", !isFresh);
    const text = isFresh
      ? STATUS.live
      : `${STATUS[status.state]} since ${status.since.toLocaleTimeString([], { hour12: false })} (${showAge(status.since)})`;
    if (this._state.textContent !== text) this._state.textContent = text;
    this._state.className = `connection ${status.state}`;
    this._state.title = status.detail;
  }

  _showCredentials() {
    const chips = [...this._session.credentials.values()].map((credential) => {
      const ends = credential.caller.expires_at
        ? `, until ${new Date(credential.caller.expires_at).toLocaleTimeString([], { hour12: false })}`
        : "";
      return el(
        "span",
        { class: "chip", title: `${credential.caller.organization_name ?? ""}${ends}` },
        `${credential.label}${ends}`,
        el(
          "button",
          {
            type: "button",
            class: "quiet",
            "aria-label": `Forget the ${credential.label}`,
            onclick: () => this._session.remove(credential.slot),
          },
          "×",
        ),
      );
    });
    const add = el("button", { type: "button", onclick: () => this._openAdding() }, "Add a credential");
    const leave = el("button", { type: "button", onclick: () => this._session.clear() }, "Sign out");
    fill(this._credentials, ...chips, add, leave);
  }

  _openAdding() {
    const { form, element } = signInForm(this._settings, this._session, () => dialog.close());
    const dialog = openDialog("Add a credential", [element]);
    form.focus("credential");
  }

  /** @param {KeyboardEvent} event Alt and a digit open a view */
  _onKey(event) {
    const place = event.altKey && !event.ctrlKey ? Number(event.code.replace("Digit", "")) : NaN;
    const link = this._nav.children[place - 1];
    if (!(link instanceof HTMLAnchorElement)) return;
    event.preventDefault();
    link.click();
    this._main.focus();
  }
}

/** @returns {Promise<import("./signin.js").ConsoleSettings>} */
async function readSettings() {
  const answer = await fetch("/console/config.json", { cache: "no-store" });
  if (!answer.ok) throw new Problem(answer.status, {});
  return answer.json();
}

readSettings()
  .then((settings) => new Page(settings).start())
  .catch(() =>
    document.body.replaceChildren(
      el("main", {}, el("p", { class: "failed", role: "alert" }, "The platform cannot be reached. Reload the page to try again.")),
    ),
  );
