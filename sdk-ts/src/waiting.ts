/** Waiting for orders of an account: one stream serves all waits. Without `stream:read` it polls. */

import type { OrderStatus } from "./commands.js";
import { ClientClosed, Forbidden, OrderEnded, WaitTimeout } from "./errors.js";
import type { EventStream } from "./following.js";
import { abortable, Queue, sleep } from "./waits.js";

export const FINAL_STATUSES = ["FILLED", "CANCELLED", "EXPIRED", "REJECTED"] as const;
const FINAL_STATES: readonly string[] = ["CLOSED", "REJECTED"];
const LINGER_SECONDS = 5;
const MAX_BACKLOG = 1000; // of one order's changes
const POLL_SECONDS = [0.1, 0.2, 0.5, 1, 2];

/** What a wait looks at of an order. */
interface WaitedOrder {
  order_id: string;
  order_status: string;
  order_state: string;
  reason: string | null;
  detail?: string | null;
  version: number;
}

type StreamedOrder = Pick<WaitedOrder, "version" | "order_status" | "order_state">;

interface Change {
  version: number;
  status: string;
  isFinal: boolean;
}

/** Look again, whatever it was that changed. */
const ANY: Change = { version: Infinity, status: "", isFinal: true };

export interface WaitOptions {
  /** A status, or one of several; the order's end by default. */
  until?: OrderStatus | readonly OrderStatus[];
  seconds?: number;
}

/** Opens the stream with the first waiter, and closes it some seconds after the last one. */
export class OrderWaits<D, O extends WaitedOrder> {
  readonly #openStream: () => EventStream<D>;
  readonly #read: (intentId: string, signal: AbortSignal) => Promise<O>;
  readonly #waiters = new Map<string, Set<Queue<Change>>>();
  #reader: Reader<D> | undefined;
  #lingering: ReturnType<typeof setTimeout> | undefined;

  constructor(
    openStream: () => EventStream<D>,
    read: (intentId: string, signal: AbortSignal) => Promise<O>,
  ) {
    this.#openStream = openStream;
    this.#read = read;
  }

  async wait(intentId: string, { until = FINAL_STATUSES, seconds = 30 }: WaitOptions): Promise<O> {
    const statuses: readonly string[] = typeof until === "string" ? [until] : until;
    const changes = new Queue<Change>(MAX_BACKLOG, ANY);
    const ends = new AbortController();
    let seen: O | undefined;
    const timer = setTimeout(() => {
      const state = seen ? `${seen.order_status} after` : "not read within";
      ends.abort(new WaitTimeout(`order ${intentId} is ${state} ${seconds} s`, seen));
    }, seconds * 1000);
    const look = async (): Promise<O> => {
      seen = await this.#read(intentId, ends.signal);
      return seen;
    };
    this.#join(intentId, changes);
    try {
      return await this.#waitByStream(look, statuses, changes, ends.signal);
    } catch (error) {
      if (!(error instanceof Forbidden)) throw error;
      return await poll(look, statuses, ends.signal);
    } finally {
      clearTimeout(timer);
      this.#leave(intentId, changes);
    }
  }

  async #waitByStream(
    look: () => Promise<O>,
    statuses: readonly string[],
    changes: Queue<Change>,
    signal: AbortSignal,
  ): Promise<O> {
    const reader = this.#follow();
    await abortable(reader.primed, signal);
    // Read after the stream has begun, so that no change falls between the two.
    let order = await look();
    while (!isOver(order, statuses)) {
      const change = await changes.next(signal);
      if (reader.error) throw reader.error;
      // The stream is late: this is from before the order was read.
      if (change.version <= order.version) continue;
      const isWanted = statuses.includes(change.status);
      if (isWanted || change.isFinal) order = await look();
      if (isWanted) return order;
    }
    return order;
  }

  #follow(): Reader<D> {
    clearTimeout(this.#lingering);
    if (!this.#reader || this.#reader.error) {
      this.#reader = new Reader(this.#openStream(), (intentId, change) => {
        this.#passOn(intentId, change);
      });
    }
    return this.#reader;
  }

  /** Without an id to all who wait. */
  #passOn(intentId: string | undefined, change: Change): void {
    const ids = intentId === undefined ? [...this.#waiters.keys()] : [intentId];
    for (const id of ids) {
      for (const changes of this.#waiters.get(id) ?? []) changes.push(change);
    }
  }

  #join(intentId: string, changes: Queue<Change>): void {
    const waiting = this.#waiters.get(intentId) ?? new Set();
    this.#waiters.set(intentId, waiting.add(changes));
  }

  #leave(intentId: string, changes: Queue<Change>): void {
    const waiting = this.#waiters.get(intentId);
    waiting?.delete(changes);
    if (!waiting?.size) this.#waiters.delete(intentId);
    if (this.#waiters.size) return;
    clearTimeout(this.#lingering);
    this.#lingering = setTimeout(() => {
      const reader = this.#reader;
      this.#reader = undefined; // whoever waits from now on follows another stream
      reader?.stream.close();
    }, LINGER_SECONDS * 1000);
  }
}

/** Reads the stream for all who wait, until it fails or is closed. */
class Reader<D> {
  readonly primed: Promise<void>;
  error: Error | undefined;

  constructor(
    readonly stream: EventStream<D>,
    onChange: (intentId: string | undefined, change: Change) => void,
  ) {
    this.primed = stream.open().then(() => undefined);
    this.primed
      .then(() => this.#readAll(onChange))
      .catch((error: unknown) => {
        this.error = error instanceof Error ? error : new Error(String(error));
      })
      .finally(() => {
        this.error ??= new ClientClosed();
        onChange(undefined, ANY);
      });
  }

  async #readAll(onChange: (intentId: string | undefined, change: Change) => void): Promise<void> {
    for await (const event of this.stream) {
      if (event.kind === "gap") onChange(undefined, ANY);
      if (event.kind === "broker_order") onChange(event.data.intent_id, changeOf(event.data));
    }
  }
}

function changeOf({ version, order_status, order_state }: StreamedOrder): Change {
  return { version, status: order_status, isFinal: isFinal(order_status, order_state) };
}

/** For callers that may read orders and no stream. What lasts shorter than a pause is missed. */
async function poll<O extends WaitedOrder>(
  look: () => Promise<O>,
  statuses: readonly string[],
  signal: AbortSignal,
): Promise<O> {
  for (let looks = 0; ; looks += 1) {
    const order = await look();
    if (isOver(order, statuses)) return order;
    await sleep(POLL_SECONDS[Math.min(looks, POLL_SECONDS.length - 1)] ?? 2, signal);
  }
}

function isOver(order: WaitedOrder, statuses: readonly string[]): boolean {
  const { order_status, order_state, order_id, detail, reason } = order;
  if (statuses.includes(order_status)) return true;
  if (!isFinal(order_status, order_state)) return false;
  // Whoever waits for the end takes an end that only a newer server has a name for.
  if (FINAL_STATUSES.every((status) => statuses.includes(status))) return true;
  const why = detail ?? reason;
  throw new OrderEnded(`order ${order_id} ended ${order_status}${why ? `: ${why}` : ""}`, order);
}

function isFinal(status: string, state: string): boolean {
  return FINAL_STATES.includes(state) || FINAL_STATUSES.some((final) => final === status);
}
