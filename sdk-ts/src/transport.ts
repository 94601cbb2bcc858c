/** Sends requests: time limits, retries, errors by code. One answer, or one error, for each call. */

import { readJson, type ReadDecimal } from "./amounts.js";
import type { Credentials, IssuedToken, TokenRequest } from "./credentials.js";
import {
  AnswerLost,
  ClientClosed,
  NotConfigured,
  TradingError,
  UnexpectedAnswer,
  Unreachable,
} from "./errors.js";
import { errorOf } from "./problems.js";
import { mayBeCarriedOut, mayRepeat, pauseSeconds, type Repeat } from "./retries.js";
import { abortable, sleep, textOf } from "./waits.js";

export const IDEMPOTENCY_KEY = "idempotency-key";
const JSON_TYPE = "application/json";
/** How Node.js says that no connection was made. In a browser a failed call may have been sent. */
const NOT_SENT = new Set([
  "EAI_AGAIN",
  "ECONNREFUSED",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "UND_ERR_CONNECT_TIMEOUT",
]);

export interface Options {
  url: string;
  credentials: Credentials;
  /** Of service accounts only, which name the organization that they read. */
  organizationId?: string;
  /** Of one try, until its answer is there completely. */
  timeoutSeconds: number;
  /** Tries beyond the first. */
  maxRetries: number;
  fetch: typeof fetch;
  decimal: ReadDecimal<unknown> | undefined;
}

type QueryValue = string | number | boolean | Date | readonly string[] | undefined;

export interface HttpRequest {
  method: string;
  path: string;
  query?: Record<string, QueryValue>;
  headers?: Record<string, string | undefined>;
  body?: unknown;
  signal?: AbortSignal;
}

export interface HttpAnswer {
  status: number;
  headers: Headers;
  text: string;
}

export class Transport {
  readonly #underWay = new Set<AbortController>();
  #isClosed = false;

  constructor(readonly options: Options) {
    const { protocol } = readUrl(options.url);
    if (protocol !== "http:" && protocol !== "https:") {
      throw new NotConfigured(`the URL ${options.url} must begin with http:// or https://`);
    }
  }

  /** What is under way ends with the client, until it is done. */
  track(work: AbortController): { done: () => void } {
    this.#underWay.add(work);
    if (this.#isClosed) work.abort(new ClientClosed());
    return { done: () => this.#underWay.delete(work) };
  }

  close(): void {
    this.#isClosed = true;
    for (const work of this.#underWay) work.abort(new ClientClosed());
  }

  /** The answer's JSON, or its text where it is none; undefined where it is empty. */
  async call(request: HttpRequest): Promise<unknown> {
    return this.read(request, await this.send(request));
  }

  read(request: HttpRequest, answer: HttpAnswer): unknown {
    if (!answer.text) return undefined;
    if (!answer.headers.get("content-type")?.startsWith(JSON_TYPE)) return answer.text;
    try {
      return readJson(answer.text, this.options.decimal);
    } catch (error) {
      const detail = `${request.path} answered something else: ${String(error)}`;
      const failure = new UnexpectedAnswer(detail, answer.status);
      failure.mayBeRecorded = request.method !== "GET";
      throw failure;
    }
  }

  async send(request: HttpRequest): Promise<HttpAnswer> {
    const call = new AbortController();
    const { done } = this.track(call);
    const { signal } = request;
    const giveUp = () => {
      call.abort(signal?.reason);
    };
    signal?.addEventListener("abort", giveUp);
    try {
      signal?.throwIfAborted();
      return await this.#retry(request, call.signal);
    } finally {
      signal?.removeEventListener("abort", giveUp);
      done();
    }
  }

  async #retry(request: HttpRequest, signal: AbortSignal): Promise<HttpAnswer> {
    const repeat = repeatOf(request);
    let isLost = false;
    for (let tries = 1; ; tries += 1) {
      const failure = await this.#try(request, signal);
      if (!(failure instanceof TradingError)) return failure;
      isLost ||= mayBeCarriedOut(failure);
      failure.mayBeRecorded = isLost && repeat !== "read";
      const pause = pauseSeconds(failure, tries, Math.random);
      const isLast = tries > this.options.maxRetries || !mayRepeat(failure, repeat);
      if (isLast || pause === undefined) throw failure;
      await sleep(pause, signal);
    }
  }

  async #try(request: HttpRequest, signal: AbortSignal): Promise<HttpAnswer | TradingError> {
    signal.throwIfAborted();
    const attempt = new AbortController();
    const end = () => {
      attempt.abort(signal.reason);
    };
    const { timeoutSeconds } = this.options;
    const timer = setTimeout(() => {
      attempt.abort(new Error(`nothing within ${timeoutSeconds} seconds`));
    }, timeoutSeconds * 1000);
    signal.addEventListener("abort", end);
    try {
      // Not left to `fetch` alone, which may lose its signal to the garbage collector.
      return await abortable(this.#answer(request, attempt.signal), attempt.signal);
    } catch (error) {
      signal.throwIfAborted();
      return this.failureOf(error);
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
    }
  }

  async #answer(request: HttpRequest, signal: AbortSignal): Promise<HttpAnswer | TradingError> {
    const response = await this.open(request, signal);
    const text = await textOf(response, signal);
    const answer = { status: response.status, headers: response.headers, text };
    return response.ok ? answer : this.refusal(answer);
  }

  /** The answer as soon as it begins: its body may be without end. */
  async open(request: HttpRequest, signal: AbortSignal): Promise<Response> {
    const { options } = this;
    // A credential that is being fetched is for others too: this call alone stops waiting for it.
    const asked = options.credentials.headers((token) => this.fetchToken(token));
    const headers = new Headers(await abortable(asked, signal));
    if (options.organizationId) headers.set("x-organization-id", options.organizationId);
    for (const [name, value] of Object.entries(request.headers ?? {})) {
      if (value !== undefined) headers.set(name, value);
    }
    const init: RequestInit = { method: request.method, headers, signal, redirect: "error" };
    if (request.body !== undefined) {
      headers.set("content-type", JSON_TYPE);
      init.body = JSON.stringify(request.body);
    }
    const { fetch } = options; // a browser's must not be called as a method
    return fetch(this.urlOf(request), init);
  }

  refusal(answer: HttpAnswer): TradingError {
    const error = errorOf(answer);
    if (answer.status === 401) this.options.credentials.onUnauthorized?.();
    return error;
  }

  urlOf({ path, query }: HttpRequest): string {
    const params = new URLSearchParams();
    for (const [name, value] of Object.entries(query ?? {})) {
      if (value !== undefined) params.set(name, queryText(value));
    }
    const base = this.options.url.replace(/\/+$/, "");
    return params.size ? `${base}${path}?${params.toString()}` : base + path;
  }

  /** Client credentials (RFC 6749, section 4.4). */
  async fetchToken({ client_id, client_secret, scope }: TokenRequest): Promise<IssuedToken> {
    const body = new URLSearchParams({
      grant_type: "client_credentials",
      client_id,
      client_secret,
    });
    if (scope) body.set("scope", scope);
    const { fetch, timeoutSeconds } = this.options;
    const signal = AbortSignal.timeout(timeoutSeconds * 1000);
    const url = this.urlOf({ method: "POST", path: "/oauth/token" });
    try {
      const response = await fetch(url, { method: "POST", body, signal, redirect: "error" });
      const { status, headers } = response;
      const text = await textOf(response, signal);
      if (!response.ok) throw errorOf({ status, headers, text });
      return JSON.parse(text) as IssuedToken;
    } catch (error) {
      throw this.failureOf(error);
    }
  }

  failureOf(error: unknown): TradingError {
    if (error instanceof TradingError) return error;
    const { url } = this.options;
    const { code, message } = causeOf(error);
    if (NOT_SENT.has(code)) return new Unreachable(`no connection to ${url}: ${message}`);
    return new AnswerLost(`no answer from ${url}: ${message}`);
  }
}

/** A command with an Idempotency-Key is the same command whenever it is asked again. */
function repeatOf({ method, headers }: HttpRequest): Repeat {
  if (method === "GET") return "read";
  return headers?.[IDEMPOTENCY_KEY] === undefined ? "write" : "keyed";
}

function readUrl(url: string): URL {
  try {
    return new URL(url);
  } catch {
    throw new NotConfigured(`${url} is no URL`);
  }
}

/** `fetch` says "fetch failed", and the reason is the cause. */
function causeOf(error: unknown): { code: string; message: string } {
  const cause: unknown = error instanceof Error ? (error.cause ?? error) : error;
  if (!(cause instanceof Error)) return { code: "", message: String(cause) };
  const code = "code" in cause && typeof cause.code === "string" ? cause.code : "";
  return { code, message: cause.message || code || cause.name };
}

function queryText(value: Exclude<QueryValue, undefined>): string {
  if (value instanceof Date) return value.toISOString();
  return typeof value === "object" ? value.join(",") : String(value);
}
