// Calls to the public API: picks the credential, reads problems, pages through lists. Knows no
// endpoint.

import { credentialHeaders } from "./session.js";

const PAGE = 100;

/** A refusal of the platform, as RFC 9457 describes it. */
export class Problem extends Error {
  /** @param {number} status @param {Json} body */
  constructor(status, body) {
    super(String(body.detail || body.title || `the platform answered ${status}`));
    this.status = status;
    /** @type {FieldProblem[]} */
    this.errors = Array.isArray(body.errors) ? body.errors : [];
    /** @type {Trigger[]} */
    this.triggered = Array.isArray(body.triggered) ? body.triggered : [];
  }
}

/** No answer came: the platform may have done it. */
export class Unreachable extends Error {}

/** No credential of this session may do it. */
export class NotAllowed extends Error {}

/** @param {unknown} error */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/** @type {(texts: TemplateStringsArray, ...parts: string[]) => string} Each part stays within its segment. */
export function path(texts, ...parts) {
  return texts.reduce(
    (whole, text, index) => whole + encodeURIComponent(parts[index - 1] ?? "") + text,
  );
}

export class Api {
  /** @param {Session} session @param {Environment | null} [environment] of the account that the calls are about */
  constructor(session, environment = null) {
    this._session = session;
    this._environment = environment;
  }

  /** @param {Environment} environment */
  forEnvironment(environment) {
    return new Api(this._session, environment);
  }

  /** @param {string} policy */
  pick(policy) {
    return this._session.pick(policy, this._environment);
  }

  /** @type {(policy: string, method: string, url: string, call?: Call) => Promise<Response>} */
  async request(policy, method, url, call = {}) {
    const credential = this.pick(policy);
    if (!credential) throw new NotAllowed("no credential of this session may do this");
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(call.query ?? {}))
      if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
    const headers = { ...credentialHeaders(credential.secret), ...call.headers };
    /** @type {RequestInit} */
    const options = { method, headers, cache: "no-store", credentials: "omit", redirect: "error" };
    if (call.signal) options.signal = call.signal;
    if (call.body !== undefined) {
      options.body = JSON.stringify(call.body);
      options.headers = { ...headers, "content-type": "application/json" };
    }
    let answer;
    try {
      answer = await fetch(query.size ? `${url}?${query}` : url, options);
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new Unreachable("the platform cannot be reached");
    }
    if (answer.status === 401) this._session.end(credential);
    if (!answer.ok) throw new Problem(answer.status, await readProblem(answer));
    return answer;
  }

  /** @type {(policy: string, method: string, url: string, call?: Call) => Promise<any>} */
  async json(policy, method, url, call) {
    const answer = await this.request(policy, method, url, call);
    return answer.status === 204 ? null : answer.json();
  }

  /** @type {(policy: string, url: string, call?: Call) => Promise<any>} The object that a GET finds, or null. */
  async find(policy, url, call) {
    try {
      return await this.json(policy, "GET", url, call);
    } catch (error) {
      if (error instanceof Problem && error.status === 404) return null;
      throw error;
    }
  }

  /** @type {(policy: string, url: string, max: number, call?: Call) => AsyncGenerator<any[]>} */
  async *pages(policy, url, max, call = {}) {
    let cursor = null;
    for (let seen = 0; seen < max;) {
      const query = { ...call.query, limit: Math.min(PAGE, max - seen), next_cursor: cursor };
      /** @type {{data: any[], next_cursor: string | null}} */
      const page = await this.json(policy, "GET", url, { ...call, query });
      yield page.data;
      seen += page.data.length || PAGE;
      cursor = page.next_cursor;
      if (!cursor) return;
    }
  }

  /** @type {(policy: string, url: string, max: number, call?: Call) => Promise<any[]>} */
  async list(policy, url, max, call) {
    const rows = [];
    for await (const page of this.pages(policy, url, max, call)) rows.push(...page);
    return rows;
  }
}

/** @type {(answer: Response) => Promise<Json>} */
async function readProblem(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text);
  } catch {
    return { detail: text.slice(0, 500) };
  }
}
