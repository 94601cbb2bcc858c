// Calls to the public API: picks the credential, reads problems, pages through lists. Knows no endpoint.

import { credentialHeaders } from "./session.js";

const PAGE = 100;

/** What the platform refused, as RFC 9457 tells it. */
export class Problem extends Error {
  /** @param {number} status @param {Json} told */
  constructor(status, told) {
    super(String(told.detail || told.title || `the platform answered ${status}`));
    this.status = status;
    /** @type {FieldProblem[]} */
    this.errors = Array.isArray(told.errors) ? told.errors : [];
    /** @type {Trigger[]} */
    this.triggered = Array.isArray(told.triggered) ? told.triggered : [];
  }
}

/** No answer came: whether the platform did it, nobody knows. */
export class Unreachable extends Error {}

/** No credential of this session may do it. */
export class NotAllowed extends Error {}

/** @param {unknown} error */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/** @type {(texts: TemplateStringsArray, ...parts: string[]) => string} What is filled in stays within its segment. */
export function path(texts, ...parts) {
  return texts.reduce((whole, text, place) => whole + encodeURIComponent(parts[place - 1] ?? "") + text);
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

  /** @type {(policy: string, method: string, place: string, call?: Call) => Promise<Response>} */
  async request(policy, method, place, call = {}) {
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
      answer = await fetch(query.size ? `${place}?${query}` : place, options);
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new Unreachable("the platform cannot be reached");
    }
    if (answer.status === 401) this._session.end(credential);
    if (!answer.ok) throw new Problem(answer.status, await readProblem(answer));
    return answer;
  }

  /** @type {(policy: string, method: string, place: string, call?: Call) => Promise<any>} */
  async json(policy, method, place, call) {
    const answer = await this.request(policy, method, place, call);
    return answer.status === 204 ? null : answer.json();
  }

  /** @type {(policy: string, place: string, call?: Call) => Promise<any>} What a GET finds, or null. */
  async find(policy, place, call) {
    try {
      return await this.json(policy, "GET", place, call);
    } catch (error) {
      if (error instanceof Problem && error.status === 404) return null;
      throw error;
    }
  }

  /** @type {(policy: string, place: string, max: number, call?: Call) => AsyncGenerator<any[]>} */
  async *pages(policy, place, max, call = {}) {
    let cursor = null;
    for (let seen = 0; seen < max;) {
      const query = { ...call.query, limit: Math.min(PAGE, max - seen), next_cursor: cursor };
      /** @type {{data: any[], next_cursor: string | null}} */
      const page = await this.json(policy, "GET", place, { ...call, query });
      yield page.data;
      seen += page.data.length || PAGE;
      cursor = page.next_cursor;
      if (!cursor) return;
    }
  }

  /** @type {(policy: string, place: string, max: number, call?: Call) => Promise<any[]>} */
  async list(policy, place, max, call) {
    const rows = [];
    for await (const page of this.pages(policy, place, max, call)) rows.push(...page);
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
