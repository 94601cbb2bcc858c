// Calls to the public API: picks the credential, reads problems, pages through lists. Knows no endpoint.

import { credentialHeaders } from "./session.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {{pointer: string, detail: string}} FieldProblem */
/** @typedef {{reason: string, detail: string, scope: unknown}} Trigger */
/**
 * @typedef {object} Call
 * @property {string | null} [environment] of the account that it is about
 * @property {unknown} [body]
 * @property {Record<string, string | number | null | undefined>} [query]
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal]
 */

const PAGE = 100;

/** What the platform refused, as RFC 9457 tells it. */
export class Problem extends Error {
  /**
   * @param {number} status
   * @param {Record<string, any>} told
   */
  constructor(status, told) {
    super(String(told.detail || told.title || `the platform answered ${status}`));
    this.status = status;
    this.code = String(told.code ?? "");
    /** @type {FieldProblem[]} */
    this.errors = Array.isArray(told.errors) ? told.errors : [];
    /** @type {Trigger[]} */
    this.triggered = Array.isArray(told.triggered) ? told.triggered : [];
  }
}

/** No answer came: whether the platform did it, nobody knows. */
export class Unreachable extends Error {
  constructor() {
    super("the platform cannot be reached");
  }
}

/** No credential of this session may do it. */
export class NotAllowed extends Error {}

/**
 * A path in which every part that is filled in stays within its segment.
 * @param {TemplateStringsArray} texts
 * @param {...string} parts
 */
export function path(texts, ...parts) {
  return texts.reduce((whole, text, place) => whole + encodeURIComponent(parts[place - 1] ?? "") + text);
}

export class Api {
  /** @param {Session} session */
  constructor(session) {
    this.session = session;
  }

  /**
   * @param {string} policy
   * @param {string} method
   * @param {string} place
   * @param {Call} [call]
   */
  async request(policy, method, place, call = {}) {
    const credential = this.session.pick(policy, call.environment);
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
      throw new Unreachable();
    }
    if (answer.status === 401) this.session.end(credential);
    if (!answer.ok) throw new Problem(answer.status, await readProblem(answer));
    return answer;
  }

  /**
   * @param {string} policy
   * @param {string} method
   * @param {string} place
   * @param {Call} [call]
   * @returns {Promise<any>}
   */
  async json(policy, method, place, call) {
    const answer = await this.request(policy, method, place, call);
    return answer.status === 204 ? null : answer.json();
  }

  /**
   * What a GET finds, or null where there is nothing.
   * @param {string} policy
   * @param {string} place
   * @param {Call} [call]
   * @returns {Promise<any>}
   */
  async find(policy, place, call) {
    try {
      return await this.json(policy, "GET", place, call);
    } catch (error) {
      if (error instanceof Problem && error.status === 404) return null;
      throw error;
    }
  }

  /**
   * The rows of a list, page by page, `max` at most.
   * @param {string} policy
   * @param {string} place
   * @param {number} max
   * @param {Call} [call]
   * @returns {AsyncGenerator<any[]>}
   */
  async *pages(policy, place, max, call = {}) {
    let cursor = null;
    for (let seen = 0; seen < max;) {
      /** @type {{data: any[], next_cursor: string | null}} */
      const page = await this.json(policy, "GET", place, {
        ...call,
        query: { ...call.query, limit: Math.min(PAGE, max - seen), next_cursor: cursor },
      });
      yield page.data;
      seen += page.data.length || PAGE;
      cursor = page.next_cursor;
      if (!cursor) return;
    }
  }

  /**
   * @param {string} policy
   * @param {string} place
   * @param {number} max
   * @param {Call} [call]
   * @returns {Promise<any[]>}
   */
  async list(policy, place, max, call) {
    const rows = [];
    for await (const page of this.pages(policy, place, max, call)) rows.push(...page);
    return rows;
  }
}

/**
 * @param {Response} answer
 * @returns {Promise<Record<string, any>>}
 */
async function readProblem(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text);
  } catch {
    return { detail: text.slice(0, 500) };
  }
}
