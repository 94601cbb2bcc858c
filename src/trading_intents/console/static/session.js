// The credentials of this tab. They are in memory only: closing or reloading the tab forgets them.

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
    const answer = await fetch("/v1/caller", { headers: credentialHeaders(secret), cache: "no-store" });
    if (answer.ok) return answer.json();
    if (answer.status === 401) throw new Error("The platform does not know this credential, or it has expired.");
    if ((answer.status !== 503 && answer.status !== 429) || attempt === MAX_ATTEMPTS)
      throw new Error(`The platform answered ${answer.status}.`);
    await new Promise((resolve) => setTimeout(resolve, attempt * 500));
  }
}

export class Session extends EventTarget {
  constructor() {
    super();
    /** @type {Map<string, HeldCredential>} keys by environment, and one user */
    this.credentials = new Map();
  }

  /**
   * Keeps a credential beside those of other kinds; one that renews another only while that is still held.
   * @type {(text: string, renew?: Renew | null, renewed?: HeldCredential | null) => Promise<void>}
   */
  async add(text, renew = null, renewed = null) {
    const secret = text.trim();
    if (!secret) throw new Error("Paste an API key or a token.");
    if (!/^[\x21-\x7e]+$/.test(secret)) throw new Error("This is neither an API key nor a token.");
    const caller = await askCaller(secret);
    if (renewed && this.credentials.get(renewed.slot) !== renewed) return;
    const isKey = caller.principal_type === "API_KEY";
    const slot = isKey ? `${caller.environment} key` : "user";
    const label = isKey
      ? `${slot} …${secret.slice(-4)}`
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
   * @type {(policy: string, environment: Environment | null) => HeldCredential | null}
   */
  pick(policy, environment) {
    const fitting = [...this.credentials.values()].filter(({ caller }) => {
      const fits = !environment || !caller.environment || caller.environment === environment;
      return fits && caller.policies.includes(policy);
    });
    return fitting.find(({ slot }) => slot !== "user") ?? fitting[0] ?? null;
  }

  /** Tokens that end soon are renewed where their issuer lets us; those that have ended are dropped. */
  async refresh() {
    for (const credential of [...this.credentials.values()]) {
      const ends = credential.caller.expires_at;
      if (!ends) continue;
      const seconds = (new Date(ends).getTime() - Date.now()) / 1000;
      try {
        const { renew } = credential;
        if (seconds < RENEW_BEFORE_SECONDS && renew) await this.add(await renew(), renew, credential);
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
