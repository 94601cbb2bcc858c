// The credentials of this tab. They are in memory only: closing or reloading the tab forgets them.

/**
 * @typedef {object} Caller
 * @property {"API_KEY" | "USER" | "SERVICE"} principal_type
 * @property {string} principal_id
 * @property {string | null} organization_id
 * @property {string | null} organization_name
 * @property {"paper" | "live" | null} environment
 * @property {string | null} role
 * @property {string | null} expires_at
 * @property {string[]} policies
 */
/**
 * @typedef {object} Credential
 * @property {string} slot
 * @property {string} secret
 * @property {Caller} caller
 * @property {string} label
 * @property {(() => Promise<string>) | null} renew
 */

const RENEW_BEFORE_SECONDS = 60;
const MAX_ATTEMPTS = 5;
const KEY = /^tip_(paper|live)_/;

/**
 * @param {string} secret
 * @returns {Record<string, string>}
 */
export function credentialHeaders(secret) {
  return KEY.test(secret) ? { "x-api-key": secret } : { authorization: `Bearer ${secret}` };
}

/**
 * Who a credential is. A platform that is busy or starting is asked again.
 * @param {string} secret
 */
async function askCaller(secret) {
  for (let attempt = 1; ; attempt += 1) {
    const answer = await fetch("/v1/caller", { headers: credentialHeaders(secret), cache: "no-store" });
    if ((answer.status !== 503 && answer.status !== 429) || attempt === MAX_ATTEMPTS) return answer;
    await new Promise((resolve) => setTimeout(resolve, attempt * 500));
  }
}

export class Session extends EventTarget {
  constructor() {
    super();
    /** @type {Map<string, Credential>} keys by environment, and one user */
    this.credentials = new Map();
  }

  /**
   * Asks the platform who the credential is, and keeps it beside those of other kinds.
   * @param {string} text
   * @param {(() => Promise<string>) | null} [renew]
   */
  async add(text, renew = null) {
    const secret = text.trim();
    if (!secret) throw new Error("Paste an API key or a token.");
    if (!/^[\x21-\x7e]+$/.test(secret)) throw new Error("This is neither an API key nor a token.");
    const answer = await askCaller(secret);
    if (!answer.ok)
      throw new Error(
        answer.status === 401
          ? "The platform does not know this credential, or it has expired."
          : `The platform answered ${answer.status}.`,
      );
    /** @type {Caller} */
    const caller = await answer.json();
    const isKey = caller.principal_type === "API_KEY";
    const slot = isKey ? `${caller.environment} key` : "user";
    const label = isKey
      ? `${caller.environment} key …${secret.slice(-4)}`
      : `${caller.role ?? caller.principal_type.toLowerCase()} ${caller.principal_id}`;
    this.credentials.set(slot, { slot, secret, caller, label, renew });
    this._changed();
  }

  /** @param {string} slot */
  remove(slot) {
    if (this.credentials.delete(slot)) this._changed();
  }

  clear() {
    this.credentials.clear();
    this._changed();
  }

  /**
   * The credential that may do this, a key of the environment before a user; null: none may.
   * @param {string} policy
   * @param {string | null} [environment]
   */
  pick(policy, environment = null) {
    for (const credential of [...this.credentials.values()].sort(
      (one, other) => (one.slot === "user" ? 1 : 0) - (other.slot === "user" ? 1 : 0),
    )) {
      const own = credential.caller.environment;
      const fits = !environment || !own || own === environment;
      if (fits && credential.caller.policies.includes(policy)) return credential;
    }
    return null;
  }

  /** Tokens that end soon are renewed where their issuer lets us; those that have ended are dropped. */
  async refresh() {
    for (const credential of [...this.credentials.values()]) {
      const ends = credential.caller.expires_at;
      if (!ends) continue;
      const seconds = (new Date(ends).getTime() - Date.now()) / 1000;
      try {
        if (seconds < RENEW_BEFORE_SECONDS && credential.renew) await this.add(await credential.renew(), credential.renew);
        else if (seconds <= 0) this.end(credential);
      } catch {
        if (seconds <= 0) this.end(credential);
      }
    }
  }

  /** @param {Credential} credential one that the platform no longer takes */
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
