// The credentials of this tab. They are in memory only: closing or reloading the tab forgets them.
// A user's session keys are made for the tab, and go with the user.

const RENEW_BEFORE_SECONDS = 120; // a hidden page's timers may run once a minute only
const MAX_ATTEMPTS = 5;
const KEY = /^tip_(paper|live)_/;

/** @type {(secret: string) => Record<string, string>} */
export function credentialHeaders(secret) {
  return KEY.test(secret) ? { "x-api-key": secret } : { authorization: `Bearer ${secret}` };
}

/** @type {(secret: string) => Promise<Caller>} Asks again while the platform is busy or starting. */
async function askCaller(secret) {
  for (let attempt = 1; ; attempt += 1) {
    const answer = await fetch("/v1/caller", {
      headers: credentialHeaders(secret),
      cache: "no-store",
    });
    if (answer.ok) return answer.json();
    if (answer.status === 401)
      throw new Error("The platform does not know this credential, or it has expired.");
    if ((answer.status !== 503 && answer.status !== 429) || attempt === MAX_ATTEMPTS)
      throw new Error(`The platform answered ${answer.status}.`);
    await new Promise((resolve) => setTimeout(resolve, attempt * 500));
  }
}

const SESSION_KEYS = "/v1/api-keys/session";

/** @type {(user: HeldCredential, environment: Environment) => Promise<HeldCredential>} Ends with the token. */
async function makeSessionKey(user, environment) {
  const headers = { ...credentialHeaders(user.secret), "content-type": "application/json" };
  const answer = await fetch(SESSION_KEYS, {
    method: "POST",
    headers,
    body: JSON.stringify({ environment }),
  });
  const made = await answer.json();
  if (!answer.ok) throw new Error(`No session key: ${made.detail ?? answer.status}.`);
  const caller = { ...(await askCaller(made.api_key)), expires_at: made.expires_at };
  const label = `session key of ${user.caller.principal_id}`;
  return {
    slot: `${environment} key`,
    secret: made.api_key,
    caller,
    label,
    renew: null,
    isSession: true,
  };
}

/** @param {HeldCredential} user whose keys of this tab end; also when the tab closes meanwhile */
function endSessionKeys({ secret }) {
  const options = { method: "DELETE", headers: credentialHeaders(secret), keepalive: true };
  void fetch(SESSION_KEYS, options).catch(() => undefined);
}

export class Session extends EventTarget {
  constructor() {
    super();
    /** @type {Map<string, HeldCredential>} keys by environment, and one user */
    this.credentials = new Map();
    /** @type {Set<string>} the ids of all that were held */
    this.principals = new Set();
    /** @type {Map<Environment, string>} why the user has no session key, or that one is being made */
    this.withoutKey = new Map();
  }

  // Keeps a credential beside those of other kinds; one that renews another only while that is
  // still held.
  /** @type {(text: string, renew?: Renew | null, renewed?: HeldCredential | null) => Promise<void>} */
  async add(text, renew = null, renewed = null) {
    const secret = text.trim();
    if (!secret) throw new Error("Paste an API key or a token.");
    if (!/^[\x21-\x7e]+$/.test(secret)) throw new Error("This is neither an API key nor a token.");
    const caller = await askCaller(secret);
    if (renewed && this.credentials.get(renewed.slot) !== renewed) return undefined;
    const isKey = caller.principal_type === "API_KEY";
    const slot = isKey ? `${caller.environment} key` : "user";
    const label = isKey
      ? `${slot} …${secret.slice(-4)}`
      : `${caller.role ?? caller.principal_type.toLowerCase()} ${caller.principal_id}`;
    /** @type {HeldCredential} */
    const added = { slot, secret, caller, label, renew };
    const isSamePerson = this.credentials.get(slot)?.caller.principal_id === caller.principal_id;
    const keys = !isKey && isSamePerson ? await this._remakeKeys(added) : [];
    if (renewed && this.credentials.get(slot) !== renewed)
      return keys.length ? endSessionKeys(added) : undefined;
    if (!isKey && !isSamePerson) this._dropUser();
    for (const credential of [added, ...keys]) this._hold(credential);
    return this._changed();
  }

  /** @param {Environment} environment in which a user who may trade, and holds no key, gets one */
  async openKey(environment) {
    const user = this.credentials.get("user");
    const mayTrade = user?.caller.policies.includes("open_session");
    if (
      !user ||
      !mayTrade ||
      this.withoutKey.has(environment) ||
      this.pick("submit_intent", environment)
    )
      return;
    this.withoutKey.set(environment, "A session key is being made.");
    try {
      const key = await makeSessionKey(user, environment);
      this.withoutKey.delete(environment);
      if (this.credentials.get("user")?.caller.principal_id !== user.caller.principal_id)
        endSessionKeys(user);
      else if (!this.credentials.has(key.slot)) this._hold(key);
    } catch (error) {
      this.withoutKey.set(environment, String(error instanceof Error ? error.message : error));
    }
    this._changed();
  }

  /** @param {HeldCredential} user with another token: keys end with the one that made them */
  async _remakeKeys(user) {
    this.withoutKey.clear();
    /** @type {HeldCredential[]} */
    const made = [];
    for (const { isSession, caller } of [...this.credentials.values()])
      if (isSession && caller.environment)
        await makeSessionKey(user, caller.environment).then(
          (key) => made.push(key),
          () => 0,
        ); // the old one holds on
    return made;
  }

  _dropUser() {
    const user = this.credentials.get("user");
    const keys = [...this.credentials.values()].filter(({ isSession }) => isSession);
    if (user && keys.length) endSessionKeys(user);
    for (const { slot } of keys) this.credentials.delete(slot);
    this.withoutKey.clear();
    return this.credentials.delete("user");
  }

  /** @param {HeldCredential} credential */
  _hold(credential) {
    this.credentials.set(credential.slot, credential);
    this.principals.add(credential.caller.principal_id);
  }

  /** @param {string} slot */
  remove(slot) {
    if (slot === "user" ? this._dropUser() : this.credentials.delete(slot)) this._changed();
  }

  clear() {
    this._dropUser();
    this.credentials.clear();
    this._changed();
  }

  // The credential that may do this: a key of the environment, the user, the user's session key;
  // null: none may.
  /** @type {(policy: string, environment: Environment | null) => HeldCredential | null} */
  pick(policy, environment) {
    const fitting = [...this.credentials.values()].filter(({ caller }) => {
      const fits = !environment || !caller.environment || caller.environment === environment;
      return fits && caller.policies.includes(policy);
    });
    const rank = ({ slot = "", isSession = false }) => (isSession ? 2 : Number(slot === "user"));
    return fitting.sort((one, other) => rank(one) - rank(other))[0] ?? null;
  }

  /** Tokens that end soon are renewed where their issuer lets us; those that have ended are dropped. */
  async refresh() {
    for (const credential of [...this.credentials.values()]) {
      const ends = credential.caller.expires_at;
      if (!ends) continue;
      const seconds = (new Date(ends).getTime() - Date.now()) / 1000;
      try {
        const { renew } = credential;
        if (seconds < RENEW_BEFORE_SECONDS && renew)
          await this.add(await renew(), renew, credential);
        else if (seconds <= 0) this.end(credential);
      } catch {
        if (seconds <= 0) this.end(credential);
      }
    }
  }

  /** @param {HeldCredential} credential one that the platform no longer takes */
  end(credential) {
    if (this.credentials.get(credential.slot) !== credential) return;
    this.credentials.delete(credential.slot);
    this.dispatchEvent(new CustomEvent("ended", { detail: credential.label }));
    this._changed();
  }

  _changed() {
    this.dispatchEvent(new Event("change"));
  }
}
