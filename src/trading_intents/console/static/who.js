// Names the principal of an action: "you", the name of a key where an admin looks, else the id.

import { words } from "./amounts.js";

/** @type {(session: Session, api: Api) => Names} */
export function makeNames(session, api) {
  /** @type {Map<string, string>} of keys by their ids; empty for those that are gone */
  const names = new Map();
  return {
    prepare: async (actions) => {
      const ids = actions
        .filter(({ principal_type: type }) => type === "API_KEY")
        .map((action) => action.principal_id);
      if (ids.every((id) => names.has(id)) || !api.pick("api_keys")) return;
      const keys = await api.list("api_keys", "/v1/api-keys", 1_000).catch(() => []);
      for (const { id, name } of [...ids.map((each) => ({ id: each, name: "" })), ...keys])
        names.set(id, name);
    },
    describe: ({ principal_type: type, principal_id: id }) => {
      const name = names.get(id);
      if (session.principals.has(id)) return name ? `you (${name})` : "you";
      return name || `${words(type)} ${id}`;
    },
  };
}
