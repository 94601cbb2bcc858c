// The live state of one account: a snapshot by the lists, then its event stream. Orders are kept by
// id, the newest version of each, so that nothing shows twice whatever comes again.

import { messageOf, path } from "./api.js";
import { isUnprotected } from "./orders.js";
import { EventStream } from "./stream.js";

const KINDS = "intent_action,broker_order,broker_trade,broker_position,halt";
const MAX_FINISHED_ORDERS = 5_000;
const PRUNE_STEP = 500;
const MAX_OPEN_ORDERS = 10_000;
const MAX_POSITIONS = 2_000;
const RELOAD_MILLIS = 2_000;
const NEWS = ["PARTIALLY_FILLED", "FILLED", "REJECTED", "EXPIRED"];
const ENUM_PREFIX =
  /^(ORDER_(STATUS|STATE|TYPE|SIDE|VENUE)|TIME_IN_FORCE|INTENT_ACTION_TYPE|INTENT_PRINCIPAL_TYPE)_/;

/** @type {(message: Json) => Json} An event's fields, with the names that the lists use. */
function plain(message) {
  const shorten = (/** @type {unknown} */ it) =>
    typeof it === "string" ? it.replace(ENUM_PREFIX, "") : it;
  return Object.fromEntries(Object.entries(message).map(([name, value]) => [name, shorten(value)]));
}

export class AccountFeed extends EventTarget {
  /** @param {Api} api @param {Account} account */
  constructor(api, account) {
    super();
    this.account = account;
    this._api = api;
    /** @type {Map<string, Order>} */
    this.orders = new Map();
    /** @type {Map<string, Position>} */
    this.positions = new Map();
    /** @type {FeedStatus} */
    this.status = { state: "connecting", since: new Date(), detail: "" };
    /** @type {string | undefined} the credential that opened the stream */
    this.streamedBy = undefined;
    this.membership = 0; // grows when an order comes or goes
    /** @type {Json[]} the active ones, of the account or its organization; a new array with each change */
    this.halts = [];
    /** @type {Map<string, Json>} the resumed ones too */
    this._halts = new Map();
    /** @type {Set<string>} orders that were filled or refused, not announced yet */
    this.news = new Set();
    /** @type {Set<string>} orders of which events came since the last frame */
    this.touched = new Set();
    this._isScheduled = false;
    this._pruneAt = MAX_FINISHED_ORDERS + PRUNE_STEP; // orders
    this._snapshot = 0; // the number of the reading that counts
    this._hasSnapshot = false;
    this._stream = new EventStream({
      open: (cursor, signal) => {
        this.streamedBy = api.pick("stream")?.label;
        const call = {
          query: { kinds: KINDS },
          headers: cursor ? { "last-event-id": cursor } : undefined,
          signal,
        };
        return api.request("stream", "GET", path`/v1/accounts/${account.id}/events`, call);
      },
      onEvents: (events) => this._take(events),
      onState: (state, detail) => this._become(state, detail),
      onGap: () => this._forget(),
    });
  }

  start() {
    void this._stream.run();
  }

  stop() {
    this._snapshot += 1;
    this._stream.stop();
  }

  /** @type {() => Promise<Position[]>} The positions as they are now, with their prices, which no event has. */
  async readPositions() {
    const url = path`/v1/accounts/${this.account.id}/positions`;
    const positions = await this._api.list("read_intents", url, MAX_POSITIONS);
    for (const position of positions) this._keepPosition(position);
    return positions;
  }

  /** The symbols with an unprotected entry. */
  bareSymbols() {
    const symbols = [...this.orders.values()].filter(isUnprotected).map(({ symbol }) => symbol);
    return [...new Set(symbols)];
  }

  /** Reads how the account is connected, which no event says. */
  async readAccount() {
    if (!this._api.pick("read_accounts")) return;
    const found = await this._api.find("read_accounts", path`/v1/accounts/${this.account.id}`);
    Object.assign(this.account, found); // not replaced: views hold the object
    this.dispatchEvent(new Event("status"));
  }

  /** @param {StreamEvent[]} events */
  _take(events) {
    for (const { kind, data } of events) {
      const message = plain(data[kind] ?? {});
      if (kind === "status") this._onSubscribed();
      else if (kind === "broker_order") this._keepOrder(message);
      else if (kind === "intent_action") this._keepAction(message);
      else if (kind === "broker_trade") this.touched.add(message.order_id);
      else if (kind === "broker_position") this._keepPosition(message);
      else if (kind === "halt") this._keepHalt(message);
    }
    this._schedule();
  }

  /** A stream that resumes after the last event brings all that is missing; one that begins anew needs the lists. */
  _onSubscribed() {
    if (this._hasSnapshot) this._become("live", "");
    else void this._load();
  }

  /** Reads the lists, after the stream has begun: changes meanwhile come by it. */
  async _load() {
    const mine = ++this._snapshot;
    this._become("loading", "");
    try {
      for (const query of [{ state: "OPEN" }, { flag: "unprotected" }, { order: "desc" }]) {
        const max = "order" in query ? MAX_FINISHED_ORDERS : MAX_OPEN_ORDERS;
        const orders = path`/v1/accounts/${this.account.id}/orders`;
        for await (const page of this._api.pages("read_intents", orders, max, { query })) {
          if (mine !== this._snapshot) return;
          for (const order of page) this._keepOrder(order);
          this._schedule();
        }
      }
      await this.readPositions();
      await this._readHalts();
      if (mine !== this._snapshot) return;
      this._hasSnapshot = true;
      this._become("live", "");
    } catch (error) {
      if (mine !== this._snapshot) return;
      this._become("lost", messageOf(error));
      const lost = this._snapshot;
      setTimeout(() => lost === this._snapshot && void this._load(), RELOAD_MILLIS);
    }
  }

  async _readHalts() {
    if (!this._api.pick("read_halts")) return;
    for (const url of [
      path`/v1/controls/accounts/${this.account.id}/halt`,
      "/v1/controls/organization/halt",
    ]) {
      const halt = await this._api.find("read_halts", url);
      if (halt) this._keepHalt(halt);
    }
  }

  /** @param {Json} halt */
  _keepHalt(halt) {
    const known = this._halts.get(halt.id);
    if (known && Date.parse(known.updated_at) > Date.parse(halt.updated_at)) return;
    this._halts.set(halt.id, halt);
    this.halts = [...this._halts.values()].filter(({ state }) => state !== "resumed");
    this.dispatchEvent(new Event("status"));
  }

  /** @param {Json} message */
  _keepOrder(message) {
    const version = Number(message.version ?? 0);
    const known = this.orders.get(message.order_id);
    if (known && known.version > version) return;
    const created = message.created_at ?? known?.created_at ?? message.received_at;
    // The object is not replaced: lists hold it. A field that an event leaves out is not known any
    // more.
    const order = known ?? /** @type {Order} */ ({});
    const before = order.order_status;
    for (const name of Object.keys(order)) if (!(name in message)) delete order[name];
    Object.assign(order, message, { version, created_at: created });
    if (!known) {
      this.orders.set(message.order_id, order);
      this.membership += 1;
    }
    this.touched.add(message.order_id);
    if (before && before !== order.order_status && NEWS.includes(order.order_status))
      this.news.add(message.order_id);
  }

  /** @param {Json} action a CREATE's order is shown before its broker has received it */
  _keepAction(action) {
    const id = action.intent_id;
    this.touched.add(id);
    if (action.action_type !== "CREATE" || this.orders.has(id)) return;
    const sent = {
      order_state: "OPEN",
      order_status: "PENDING_NEW",
      filled_quantity: "0",
      version: 0,
    };
    this._keepOrder({ ...action, ...sent, order_id: id });
  }

  /** @param {Json} message */
  _keepPosition(message) {
    const known = this.positions.get(message.symbol);
    if (known && known.received_at > message.received_at) return;
    this.positions.set(message.symbol, /** @type {Position} */ ({ ...known, ...message }));
    this._schedule();
  }

  _forget() {
    this._hasSnapshot = false;
    this.orders.clear();
    this.positions.clear();
    this._halts.clear();
    this.membership += 1;
    this._schedule();
  }

  /** Drops the oldest finished orders, so that a day of trading does not fill the memory. */
  _prune() {
    if (this.orders.size < this._pruneAt) return;
    const orders = [...this.orders.values()].filter((order) => !isUnprotected(order));
    const finished = orders.filter((order) => order.order_state !== "OPEN");
    finished.sort((one, other) => (one.created_at < other.created_at ? -1 : 1));
    const excess = Math.max(0, finished.length - MAX_FINISHED_ORDERS);
    for (const { order_id: id } of finished.slice(0, excess)) {
      this.orders.delete(id);
      this.touched.delete(id);
      this.news.delete(id);
    }
    if (excess) this.membership += 1;
    this._pruneAt = this.orders.size + PRUNE_STEP;
  }

  /** @type {(state: FeedStatus["state"], detail: string) => void} */
  _become(state, detail) {
    // What was being read belongs to the stream that ended.
    if (state === "lost") this._snapshot += 1;
    const since = this.status.state === state ? this.status.since : new Date();
    this.status = { state, since, detail };
    this.dispatchEvent(new Event("status"));
  }

  _schedule() {
    this._prune(); // not in the frame: a hidden page has none
    if (this._isScheduled) return;
    this._isScheduled = true;
    requestAnimationFrame(() => {
      this._isScheduled = false;
      this.dispatchEvent(new Event("change"));
      this.touched.clear();
    });
  }
}
