/** A stream without end: connects again after every break, and goes on after the last cursor. */

import {
  CursorExpired,
  LimitReached,
  TradingError,
  Unauthorized,
  UnexpectedAnswer,
} from "./errors.js";
import {
  type EventKind,
  type Gap,
  readEvent,
  type StatusMessage,
  type TradingEvent,
} from "./events.js";
import { mayRepeat, pauseSeconds } from "./retries.js";
import { MessageReader } from "./sse.js";
import type { Transport } from "./transport.js";
import { abortable, chunksOf, sleep, textOf } from "./waits.js";

/** The stream has a heartbeat after 10 seconds without events. */
const READ_SECONDS = 25;
const POSITIONS = "broker_position";

export interface StreamOptions {
  /** The cursor of the last event that was seen. */
  after?: string | undefined;
  kinds?: readonly EventKind[];
}

/** `for await (const event of stream)`. Breaks are mended; what will not pass is thrown. */
export class EventStream<D = string> implements AsyncIterableIterator<TradingEvent<D>> {
  readonly #transport: Transport;
  readonly #path: string;
  readonly #kinds: readonly string[] | undefined;
  readonly #snapshot: () => Promise<Gap<D>>;
  readonly #ends = new AbortController();
  readonly #events: AsyncGenerator<TradingEvent<D>, undefined, undefined>;
  readonly #begun: TradingEvent<D>[] = [];
  #cursor: string | undefined;
  #delivered: string | undefined;
  #isConnected = false;
  #wasConnected = false;
  #hasGap = false;
  #failures = 0;
  #lastError: TradingError | undefined;

  constructor(
    transport: Transport,
    path: string,
    snapshot: () => Promise<Gap<D>>,
    { after, kinds }: StreamOptions = {},
  ) {
    this.#transport = transport;
    this.#path = path;
    this.#kinds = kinds;
    this.#snapshot = snapshot;
    this.#cursor = this.#delivered = after;
    this.#events = this.#follow();
  }

  /** The cursor of the last event that was delivered. */
  get cursor(): string | undefined {
    return this.#delivered;
  }

  /** Whether the server serves this stream now. */
  get isConnected(): boolean {
    return this.#isConnected;
  }

  /** The error that ended the last connection; undefined while there is one. */
  get lastError(): TradingError | undefined {
    return this.#lastError;
  }

  /** Connects: all events from here on are delivered. Without it the first read does. */
  async open(): Promise<this> {
    while (this.#cursor === undefined) {
      const { value } = await this.#events.next();
      if (!value) break;
      this.#begun.push(value);
    }
    return this;
  }

  async next(): Promise<IteratorResult<TradingEvent<D>, undefined>> {
    const begun = this.#begun.shift();
    const result = begun ? { value: begun } : await this.#events.next();
    this.#delivered = result.value?.cursor ?? this.#delivered;
    return result;
  }

  /** A loop that is left ends the stream. */
  async return(): Promise<IteratorResult<TradingEvent<D>, undefined>> {
    this.close();
    return this.#events.return(undefined);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** Ends the stream. Whoever iterates over it comes to its end. */
  close(): void {
    this.#begun.length = 0;
    this.#ends.abort(new Error("the stream is closed"));
  }

  async *#follow(): AsyncGenerator<TradingEvent<D>, undefined, undefined> {
    const { done } = this.#transport.track(this.#ends);
    try {
      while (!this.#ends.signal.aborted) {
        try {
          for await (const message of this.#connect()) {
            const event = await this.#take(message);
            if (event) yield event;
          }
          throw new UnexpectedAnswer("the server ended the stream", 503);
        } catch (error) {
          if (this.#ends.signal.aborted) break;
          await this.#onFailure(error);
        }
      }
    } finally {
      this.#isConnected = false;
      done();
    }
    return undefined;
  }

  /** The messages of one connection. */
  async *#connect(): AsyncGenerator<TradingEvent<D> | StatusMessage> {
    const connection = new AbortController();
    const end = () => {
      connection.abort(this.#ends.signal.reason);
    };
    this.#ends.signal.addEventListener("abort", end);
    try {
      const headers = { accept: "text/event-stream", "last-event-id": this.#cursor };
      const request = { method: "GET", path: this.#path, query: this.#query(), headers };
      const opened = this.#transport.open(request, connection.signal);
      const response = await within(opened, this.#transport.options.timeoutSeconds);
      const { status, ok } = response;
      if (!ok || !response.body) {
        const read = textOf(response, connection.signal);
        const text = await within(read, this.#transport.options.timeoutSeconds);
        const answer = { status, headers: response.headers, text };
        throw this.#transport.refusal(answer);
      }
      yield* this.#read(response.body, connection.signal);
    } finally {
      this.#ends.signal.removeEventListener("abort", end);
      connection.abort();
    }
  }

  async *#read(
    body: ReadableStream<Uint8Array>,
    signal: AbortSignal,
  ): AsyncGenerator<TradingEvent<D> | StatusMessage> {
    const chunks = chunksOf(body, signal);
    const reader = new MessageReader();
    for (;;) {
      const { value, done } = await within(chunks.next(), READ_SECONDS);
      if (done) return;
      for (const text of reader.push(value)) {
        const event = readEvent<D>(text, this.#transport.options.decimal);
        if (event) yield event;
      }
    }
  }

  /** Positions are always asked for: with them the server sends a cursor at once. */
  #query(): Record<string, string> {
    if (!this.#kinds) return {};
    return { kinds: [...new Set([...this.#kinds, POSITIONS])].sort().join(",") };
  }

  async #take(message: TradingEvent<D> | StatusMessage): Promise<TradingEvent<D> | undefined> {
    if (message.kind === "error") throw new UnexpectedAnswer(message.message, 503);
    this.#isConnected = this.#wasConnected = true;
    this.#lastError = undefined;
    if (!("data" in message)) return undefined;
    this.#failures = 0;
    if (this.#hasGap) return this.#endGap(message);
    this.#cursor = message.cursor ?? this.#cursor;
    const isWanted = message.kind !== POSITIONS || !this.#kinds || this.#kinds.includes(POSITIONS);
    return isWanted ? message : undefined;
  }

  /** The state is read after the server has said from which cursor on it sends everything. */
  async #endGap(event: TradingEvent<D>): Promise<TradingEvent<D> | undefined> {
    if (event.kind !== "primed") return undefined; // what is retained is in the state too
    const data = await this.#snapshot();
    this.#hasGap = false;
    this.#cursor = event.cursor;
    return { kind: "gap", data, cursor: event.cursor };
  }

  async #onFailure(thrown: unknown): Promise<void> {
    const error = this.#failureOf(thrown);
    const wasServed = this.#isConnected;
    this.#isConnected = false;
    this.#lastError = error;
    if (error instanceof CursorExpired && this.#cursor !== undefined) {
      this.#cursor = undefined;
      this.#hasGap = true;
      return;
    }
    this.#failures += 1;
    const isFirst = !this.#wasConnected;
    const isTooMuch = isFirst && this.#failures > this.#transport.options.maxRetries;
    if (isTooMuch || !this.#isPassing(error, wasServed)) throw error;
    const pause = pauseSeconds(error, this.#failures, Math.random);
    if (pause === undefined) throw error;
    // A stream that is closed meanwhile ends at once.
    await sleep(pause, this.#ends.signal).catch(() => undefined);
  }

  #isPassing(error: TradingError, wasServed: boolean): boolean {
    if (mayRepeat(error, "read") || (error.status ?? 0) >= 500) return true;
    // A server that restarts may count this caller's old connection for a moment.
    if (error instanceof LimitReached) return this.#wasConnected;
    // Its token has ended: the next connection has another one, or is refused.
    return error instanceof Unauthorized && wasServed;
  }

  #failureOf(thrown: unknown): TradingError {
    if (thrown instanceof SyntaxError || thrown instanceof RangeError) {
      return new UnexpectedAnswer(`the stream sent something else: ${thrown.message}`, 503);
    }
    return this.#transport.failureOf(thrown);
  }
}

async function within<T>(promise: Promise<T>, seconds: number): Promise<T> {
  const limit = new AbortController();
  const timer = setTimeout(() => {
    limit.abort(new Error(`nothing came for ${seconds} seconds`));
  }, seconds * 1000);
  try {
    return await abortable(promise, limit.signal);
  } finally {
    clearTimeout(timer);
  }
}
