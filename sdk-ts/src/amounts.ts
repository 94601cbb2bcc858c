/** Amounts are decimal strings, never a `number` with a fraction: 0.1 is none that it can hold. */

/** Any decimal class: decimal.js, big.js and bignumber.js have a `toFixed` that is exact. */
export interface DecimalLike {
  toFixed(): string;
}

export type Amount = string | bigint | number | DecimalLike;

/** Makes an amount of a text: `(text) => new Decimal(text)`. */
export type ReadDecimal<D> = (text: string) => D;

export const AMOUNT_FIELDS = [
  "ask",
  "ask_size",
  "average_cost",
  "average_price",
  "bid",
  "bid_size",
  "broker_quantity",
  "buying_power",
  "cash",
  "cumulative_quantity",
  "daily_notional",
  "daily_pnl",
  "equity",
  "fee",
  "filled_quantity",
  "last",
  "last_size",
  "leaves_quantity",
  "limit_price",
  "market_price",
  "market_value",
  "max_daily_loss",
  "max_daily_notional",
  "max_order_notional",
  "max_order_quantity",
  "max_position_quantity",
  "notional",
  "opening_quantity",
  "order_quantity",
  "price",
  "quantity",
  "realized_pnl",
  "stop_price",
  "trail_amount",
  "unrealized_pnl",
  "value_bought",
  "value_sold",
] as const;

type AmountField = (typeof AMOUNT_FIELDS)[number];

const NAMES: ReadonlySet<string> = new Set(AMOUNT_FIELDS);

/** An answer with amounts of another type than `string`. */
export type With<T, D> = T extends (infer Item)[]
  ? With<Item, D>[]
  : T extends object
    ? { [K in keyof T]: K extends AmountField ? Exclude<T[K], string> | D : With<T[K], D> }
    : T;

/** A plain decimal. A number must be a whole one. */
export function textOf(amount: Amount): string {
  if (typeof amount === "string") return amount;
  if (typeof amount === "bigint") return amount.toString();
  if (typeof amount === "object") return amount.toFixed();
  if (!Number.isSafeInteger(amount)) {
    throw new TypeError(`${amount} is no whole number: give an amount as a text or a decimal`);
  }
  return amount.toString();
}

/** JSON, whose amounts become what `decimal` makes of them. */
export function readJson(text: string, decimal: ReadDecimal<unknown> | undefined): unknown {
  if (!decimal) return JSON.parse(text);
  return JSON.parse(text, (name, value: unknown) =>
    typeof value === "string" && NAMES.has(name) ? decimal(value) : value,
  );
}
