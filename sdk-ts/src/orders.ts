/** Orders with what can be done about them: cancel, replace, wait, read again. */

import type { Amount, With } from "./amounts.js";
import type { Account } from "./account.js";
import { cancelCommand, replaceCommand, type Schemas, type Terms } from "./commands.js";
import type { WaitOptions } from "./waiting.js";

export interface Replacement extends Terms {
  /** The new total. */
  quantity?: Amount;
}

export interface SubmitOptions {
  clientReferenceId?: string;
  /** Made if it is not given, and kept over all retries. */
  idempotencyKey?: string;
}

/** The commands of an order, by its intent's id. */
export class OrderActions<D> {
  readonly intent_id: string;
  readonly #account: Account<D>;

  constructor(account: Account<D>, intentId: string) {
    this.#account = account;
    this.intent_id = intentId;
  }

  /** Asks for the order to be cancelled. Safe to repeat while it is open. */
  cancel(options: SubmitOptions = {}): Promise<PlacedOrder<D>> {
    return this.#account.submit(cancelCommand(this.intent_id), options);
  }

  /** What is not given stays as the broker last confirmed it. */
  async replace(changes: Replacement, options: SubmitOptions = {}): Promise<PlacedOrder<D>> {
    const order = await this.refresh();
    const { quantity, ...terms } = { ...termsOf(order), ...changes };
    const command = replaceCommand(this.intent_id, quantity, terms);
    return this.#account.submit(command, options);
  }

  /** The order as it is now. */
  refresh(): Promise<Order<D>> {
    return this.#account.order(this.intent_id);
  }

  /** The orders that the broker links to this one, its exits or the other of a pair. */
  findLegs(): Promise<Order<D>[]> {
    return this.#account.orders({ parent_intent_id: this.intent_id }).toArray();
  }

  /** Waits, by the stream, for a status. Throws WaitTimeout, or OrderEnded in another status. */
  wait(options: WaitOptions = {}): Promise<Order<D>> {
    return this.#account.wait(this.intent_id, options);
  }
}

export type OrderRecord<D = string> = With<Schemas["Order"], D>;

/** An order, and what can be done about it. */
export type Order<D = string> = OrderRecord<D> & OrderActions<D>;

/** An accepted command, which is durable at the platform. */
export type PlacedOrder<D = string> = OrderActions<D> & {
  seq: number;
  idempotencyKey: string;
  /** The command was accepted earlier under the same Idempotency-Key. */
  isReplayed: boolean;
  /** What it is to the order that it was placed with. */
  leg: string | undefined;
  /** The orders that were placed with it, which the broker links to it. */
  legs: PlacedOrder<D>[];
};

interface Placed {
  intent_id: string;
  seq: number;
  leg?: string;
  legs?: Placed[];
}

export function bindOrder<D>(account: Account<D>, record: OrderRecord<D>): Order<D> {
  return Object.assign(new OrderActions(account, record.intent_id), record);
}

export function bindPlaced<D>(
  account: Account<D>,
  placed: Placed,
  idempotencyKey: string,
  isReplayed: boolean,
): PlacedOrder<D> {
  const legs = placed.legs ?? [];
  return Object.assign(new OrderActions(account, placed.intent_id), {
    seq: placed.seq,
    idempotencyKey,
    isReplayed,
    leg: placed.leg,
    legs: legs.map((leg) => bindPlaced(account, leg, idempotencyKey, isReplayed)),
  });
}

interface Confirmed {
  quantity: Amount;
  order_type: string;
  limit_price: Amount | null;
  stop_price: Amount | null;
  trail_amount?: Amount | null;
  trail_bps?: number | null;
}

function termsOf<D>(order: OrderRecord<D>): Terms & { quantity: Amount } {
  const now = order as unknown as Confirmed;
  const isTrailing = now.order_type === "TRAILING_STOP"; // its stop is the broker's business
  return {
    quantity: now.quantity,
    limit: now.limit_price ?? undefined,
    stop: isTrailing ? undefined : (now.stop_price ?? undefined),
    trail: now.trail_amount ?? undefined,
    trailBps: now.trail_bps ?? undefined,
  };
}
