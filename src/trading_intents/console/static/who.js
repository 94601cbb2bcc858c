// Who did something: "you", the name of a key where an admin looks, else the id.

import { words } from "./amounts.js";

const MAX_KEYS = 1_000;

export class Names {
  /** @param {Session} session @param {Api} api */
  constructor(session, api) {
    this._session = session;
    this._api = api;
    /** @type {Map<string, string>} of keys by their ids; empty for those that are gone */
    this._names = new Map();
  }

  /** @param {Json[]} actions whose keys' names are read, if they are not known and may be */
  async prepare(actions) {
    const ids = actions.filter(({ principal_type: type }) => type === "API_KEY").map((action) => action.principal_id);
    if (ids.every((id) => this._names.has(id)) || !this._api.pick("api_keys")) return;
    const keys = await this._api.list("api_keys", "/v1/api-keys", MAX_KEYS).catch(() => []);
    for (const id of ids) this._names.set(id, "");
    for (const { id, name } of keys) this._names.set(id, name);
  }

  /** @param {Json} action */
  describe({ principal_type: type, principal_id: id }) {
    const name = this._names.get(id);
    if (this._session.principals.has(id)) return name ? `you (${name})` : "you";
    return name || `${words(type)} ${id}`;
  }
}
