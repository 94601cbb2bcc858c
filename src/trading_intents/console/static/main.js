// The page: signs in, follows the chosen account, shows one view at a time, and says when what it
// shows is not fresh.

import { openAccounts } from "./accounts.js";
import { showClock } from "./amounts.js";
import { Api, messageOf } from "./api.js";
import { openBlotter } from "./blotter.js";
import { openControls } from "./controls.js";
import { button, el, fill, openDialog, repeat, setText, terms, throttle } from "./dom.js";
import { AccountFeed } from "./feed.js";
import { openLog } from "./log.js";
import { openOperator } from "./operator.js";
import { describeOutcome } from "./orders.js";
import { openPositions } from "./positions.js";
import { Session } from "./session.js";
import { finishSignIn, forgetIssuer, signInForm } from "./signin.js";
import { describeStatus, troublesOf } from "./status.js";
import { makeSubmit } from "./ticket.js";
import { makeNames } from "./who.js";

/** @type {Record<string, {title: string, open: OpenView, policy: string, needsNoAccount?: boolean}>} */
const VIEWS = {
  blotter: { title: "Blotter", open: openBlotter, policy: "read_intents" },
  positions: { title: "Positions", open: openPositions, policy: "read_intents" },
  controls: { title: "Controls", open: openControls, policy: "read_halts" },
  accounts: {
    title: "Accounts",
    open: openAccounts,
    policy: "read_accounts",
    needsNoAccount: true,
  },
  operator: { title: "Operator", open: openOperator, policy: "read_caller", needsNoAccount: true },
  log: { title: "Log", open: openLog, policy: "read_intents" },
};
const MAX_ACCOUNTS = 1_000;
const RETRY_MILLIS = 2_000;
const CONNECTION_SECONDS = 3;
const NEWS_MILLIS = 300;
/** @type {[string, string][]} */
const KEYS = [
  ["Alt+1 to Alt+6", "open a view"],
  ["n", "write a new order"],
  ["/", "filter the orders"],
  ["Arrows, Enter", "select an order, open it"],
  ["Delete", "cancel the selected order"],
  ["Enter, Esc", "in the ticket: send, clear"],
  ["?", "show these keys"],
];
/** @type {Environment[]} */
const ENVIRONMENTS = ["paper", "live"];

class Page {
  /** @param {ConsoleSettings} settings */
  constructor(settings) {
    this._settings = settings;
    this._session = new Session();
    this._api = new Api(this._session);
    this._names = makeNames(this._session, this._api);
    /** @type {Map<string, Account>} */
    this._accounts = new Map();
    /** @type {AccountFeed | null} */
    this._feed = null;
    /** @type {View | null} */
    this._view = null;
    /** @type {Submit} */
    this._submit = () => Promise.reject(new Error("no account is chosen"));
    /** @type {Record<string, string>} what views are to find again as it was */
    this._kept = {};
    this._name = "";
    this._powers = "";
    this._changes = 0; // of the session; what was read for an earlier one does not count
    this._banner = el("div", { class: "banner", role: "alert", hidden: true });
    this._trouble = el("div", { class: "trouble", role: "status", hidden: true });
    this._notice = el("footer", { class: "notice", role: "status", "aria-live": "polite" });
    this._news = throttle(NEWS_MILLIS, () => this._showNews());
    this._band = el("div", { class: "band" });
    this._state = el("div", { class: "connection", role: "status" });
    const onchange = () => this._choose(this._picker.value);
    this._picker = el("select", { id: "account", "aria-label": "Account", onchange });
    this._nav = el("nav", { "aria-label": "Views" });
    this._credentials = el("div", {
      class: "credentials",
      role: "group",
      "aria-label": "Credentials",
    });
    this._main = el("main", { id: "main", tabindex: -1 });
    const onclick = (/** @type {Event} */ event) => (event.preventDefault(), this._main.focus());
    const skip = el("a", { class: "skip", href: "#main", onclick }, "Skip to the view");
    const brand = el("strong", { class: "brand" }, "Trading Intents");
    const open = () => this._header.classList.toggle("open");
    // On a phone.
    const menu = button("☰", open, { class: "menu quiet", "aria-label": "Credentials" });
    const parts = [skip, brand, this._picker, this._band, this._state, menu, this._credentials];
    this._header = el("header", { class: "top" }, ...parts);
    document.body.replaceChildren(
      ...[this._header, this._nav, this._trouble, this._banner, this._main, this._notice],
    );
    this._session.addEventListener("change", () => void this._onSession());
    this._session.addEventListener("ended", (event) => {
      const ended = `The ${/** @type {CustomEvent} */ (event).detail} is no longer accepted`;
      this._say(`${ended}: it has expired or was withdrawn. Sign in again to go on with it.`);
    });
    const isLink = () => location.hash.startsWith("#code=");
    window.addEventListener("hashchange", () => (isLink() ? void this._finish() : this._route()));
    window.addEventListener("keydown", (event) => this._onKey(event));
    repeat(1, () => this._showStatus());
    repeat(CONNECTION_SECONDS, () => this._feed?.readAccount().catch(() => undefined));
    repeat(10, () => this._session.refresh(), true);
    this._showSignIn();
    void this._finish();
  }

  async _finish() {
    try {
      await finishSignIn(this._settings, this._session);
    } catch (error) {
      this._say(`Signing in did not work: ${messageOf(error)}`);
    }
  }

  /** @param {string} text */
  _say(text) {
    this._banner.hidden = !text;
    fill(
      this._banner,
      el("span", {}, text),
      button("Dismiss", () => this._say(""), { class: "quiet" }),
    );
  }

  _showSignIn() {
    this._close();
    this._main.ariaBusy = null;
    this._header.hidden = this._nav.hidden = true;
    document.title = "Sign in · Trading Intents console";
    const { form, element } = signInForm(this._settings, this._session);
    fill(
      this._main,
      el("div", { class: "signin-page" }, el("h1", {}, "Trading Intents console"), element),
    );
    form.focus("credential");
  }

  async _onSession() {
    const mine = ++this._changes;
    if (!this._session.credentials.size) {
      this._accounts.clear();
      this._follow(null);
      this._showSignIn();
      return;
    }
    this._showCredentials();
    this._main.ariaBusy = "true"; // the view may be opened anew
    try {
      await this._readAccounts();
    } catch (error) {
      if (mine !== this._changes) return;
      this._say(`Accounts cannot be read: ${messageOf(error)}. Trying again.`);
      setTimeout(() => mine === this._changes && void this._onSession(), RETRY_MILLIS);
      return;
    }
    if (mine !== this._changes) return;
    if (this._header.hidden) this._say("");
    this._header.hidden = this._nav.hidden = false;
    const credentials = [...this._session.credentials.values()];
    const given = credentials.flatMap(({ isSession, label, caller }) =>
      isSession ? [] : [label, caller.policies],
    );
    const powers = given.join(); // not of a session key: it comes while somebody types
    if (powers !== this._powers) this._close(); // a view offers what the credentials may do
    this._powers = powers;
    const accounts = [...this._accounts.values()];
    const chosen = this._accounts.get(this._feed?.account.id ?? "");
    const account =
      chosen ?? accounts.find(({ closed_at: closed }) => !closed) ?? accounts[0] ?? null;
    const { streamedBy, status } = this._feed ?? {};
    const isForgotten = streamedBy && !credentials.some(({ label }) => label === streamedBy);
    if (!chosen || isForgotten || status?.state === "refused") this._follow(account);
    this._route();
    this._main.ariaBusy = null;
    if (this._feed) void this._session.openKey(this._feed.account.environment);
    const advice = "Add another credential, or make an account by POST /v1/accounts.";
    if (!account) this._say(`These credentials may read no trading account. ${advice}`);
  }

  /** Reads the accounts of all credentials together. */
  async _readAccounts() {
    const changes = this._changes;
    /** @type {Map<string, Account>} */
    const found = new Map();
    for (const environment of ENVIRONMENTS) {
      const api = this._api.forEnvironment(environment);
      if (!api.pick("read_accounts")) continue;
      const accounts = await api.list("read_accounts", "/v1/accounts", MAX_ACCOUNTS);
      for (const account of accounts) found.set(account.id, account);
    }
    if (changes !== this._changes) return;
    this._accounts = found;
    const options = [...found.values()].map(({ id, name, environment, closed_at: closed }) =>
      el(
        "option",
        { value: id },
        `${environment === "live" ? "LIVE" : "paper"} · ${name}${closed ? " (closed)" : ""}`,
      ),
    );
    const shown = [...this._picker.options];
    if (
      shown.length === options.length &&
      options.every((option, index) => option.isEqualNode(shown[index] ?? null))
    )
      return; // a list that is open stays open
    fill(this._picker, ...options);
    const chosen = this._feed?.account.id ?? "";
    if (found.has(chosen)) this._picker.value = chosen;
  }

  /** @param {string} accountId */
  _choose(accountId) {
    const account = this._accounts.get(accountId);
    if (!account) return;
    this._follow(account);
    this._route();
    void this._session.openKey(account.environment);
  }

  /** @param {Account | null} account whose events are followed from now on */
  _follow(account) {
    this._close();
    this._feed?.stop();
    this._feed = null;
    fill(this._notice);
    this._trouble.hidden = true;
    this._picker.hidden = this._band.hidden = this._state.hidden = !account;
    delete document.body.dataset.environment;
    document.body.classList.remove("not-fresh");
    if (!account) return;
    const { id, environment } = account;
    const api = this._api.forEnvironment(environment);
    this._submit = makeSubmit(api, account);
    this._feed = new AccountFeed(api, account);
    this._feed.addEventListener("status", () => this._showStatus());
    this._feed.addEventListener("change", () => this._feed?.news.size && this._news.run());
    this._picker.value = id;
    document.body.dataset.environment = environment;
    const [name, what] =
      environment === "live" ? ["LIVE", " · real money"] : ["PAPER", " · simulated"];
    fill(this._band, name, el("span", { class: "wide" }, what));
    this._feed.start();
    this._showStatus();
  }

  _route() {
    // Null only for views that need no account.
    const feed = /** @type {AccountFeed} */ (this._feed);
    const environment = this._feed?.account.environment;
    const api = environment ? this._api.forEnvironment(environment) : this._api;
    const allowed = Object.entries(VIEWS).filter(
      ([, view]) => (feed || view.needsNoAccount) && api.pick(view.policy),
    );
    const wanted = location.hash.replace("#/", "");
    const [name, view] = allowed.find(([candidate]) => candidate === wanted) ?? allowed[0] ?? [];
    if (!name || !view) return;
    const links = allowed.map(([key, { title }], index) =>
      el(
        "a",
        {
          href: `#/${key}`,
          "aria-current": key === name ? "page" : null,
          title: `Alt+${index + 1}`,
        },
        title,
      ),
    );
    fill(this._nav, ...links);
    document.title = `${environment === "live" ? "LIVE · " : ""}${feed ? `${feed.account.name} · ` : ""}${view.title}`;
    if (this._view && this._name === name) return;
    this._close();
    this._name = name;
    this._view = view.open({
      session: this._session,
      api,
      account: feed?.account,
      feed,
      submit: this._submit,
      names: this._names,
      kept: this._kept,
      notify: (outcome) => this._notify(outcome),
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
    if (!this._feed) return;
    const { status, account, halts } = this._feed;
    document.body.classList.toggle("not-fresh", status.state !== "live");
    const troubles = troublesOf(account, halts, this._feed.bareSymbols());
    const { text, look } = describeStatus(status, troubles);
    setText(this._state, text);
    this._state.className = `connection ${look}`;
    this._state.title = status.detail;
    this._trouble.hidden = !troubles.length;
    this._trouble.className = `trouble ${troubles[0]?.look ?? ""}`;
    setText(this._trouble, troubles.map((trouble) => trouble.text).join(" "));
  }

  /** @param {Outcome} outcome the one text that is read out, whatever the view */
  _notify({ text, look }) {
    fill(
      this._notice,
      el("span", { class: "hint" }, showClock(new Date())),
      " ",
      el("span", { class: look }, text),
    );
  }

  /** Announces fills and refusals, wherever the orders were placed; of many at once a refusal, else the last. */
  _showNews() {
    const feed = this._feed;
    const orders = [...(feed?.news ?? [])].flatMap((id) => feed?.orders.get(id) ?? []);
    feed?.news.clear();
    const order =
      orders.findLast(({ order_status: status }) => !status.includes("FILLED")) ?? orders.at(-1);
    if (!order) return;
    const { text, look } = describeOutcome(order);
    this._notify({
      text: orders.length > 1 ? `${text} And ${orders.length - 1} more.` : text,
      look,
    });
  }

  _showCredentials() {
    const held = [...this._session.credentials.values()].filter(({ isSession }) => !isSession);
    const chips = held.map(({ slot, label, caller }) => {
      const ends = caller.expires_at ? `, until ${showClock(new Date(caller.expires_at))}` : "";
      const attributes = { class: "quiet", "aria-label": `Forget the ${label}` };
      const forget = button("×", () => this._session.remove(slot), attributes);
      const title = `${caller.organization_name ?? ""}${ends}`;
      return el("span", { class: "chip", title }, `${label}${ends}`, forget);
    });
    const add = button("Add a credential", () => this._openAdding());
    const leave = () => (forgetIssuer(), this._session.clear());
    fill(this._credentials, ...chips, add, button("Sign out", leave));
  }

  _openAdding() {
    const { form, element } = signInForm(this._settings, this._session, () => dialog.close());
    const dialog = openDialog("Add a credential", [element]);
    form.focus("credential");
  }

  /** @param {KeyboardEvent} event one of KEYS */
  _onKey(event) {
    const isTyping =
      event.target instanceof Element && event.target.closest("input, select, textarea, dialog");
    const isPlain =
      !isTyping && !event.altKey && !event.ctrlKey && !event.metaKey && !this._header.hidden;
    if (isPlain && event.key === "?") openDialog("Keys", [terms(KEYS)]);
    const field = event.key === "n" ? "ticket-symbol" : event.key === "/" ? "blotter-filter" : "";
    if (isPlain && field) {
      event.preventDefault();
      location.hash = "#/blotter";
      this._route();
      document.getElementById(field)?.focus();
    }
    const number = event.altKey && !event.ctrlKey ? Number(event.code.replace("Digit", "")) : NaN;
    const link = this._nav.children[number - 1];
    if (!(link instanceof HTMLAnchorElement)) return;
    event.preventDefault();
    link.click();
    this._main.focus();
  }
}

async function start() {
  try {
    const answer = await fetch("/console/config.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    new Page(await answer.json());
  } catch {
    const text = "The platform cannot be reached. Reload the page to try again.";
    document.body.replaceChildren(
      el("main", {}, el("p", { class: "failed", role: "alert" }, text)),
    );
  }
}

void start();
