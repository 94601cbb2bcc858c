/** The events of the stream, and how they are read from its JSON. */

import { readJson, type ReadDecimal, type With } from "./amounts.js";
import type { Schemas } from "./commands.js";
import { FIELDS } from "./fields.js";
import type { components } from "./stream.js";

type Messages = components["schemas"];

export type EventKind =
  "broker_order" | "broker_trade" | "broker_position" | "intent_action" | "balance" | "halt";

interface Known<K extends string, T> {
  kind: K;
  data: T;
  /** Keep the last one: with `events({ after })` nothing is missed or repeated. */
  cursor: string | undefined;
}

/** Events were missed. This is the state from which the stream goes on: orders are the open ones. */
export interface Gap<D> {
  orders: With<Schemas["Order"], D>[];
  positions: With<Schemas["Position"], D>[];
}

/** `kind` says which event it is. A newer server may send kinds that are not named here. */
export type TradingEvent<D = string> =
  | Known<"broker_order", With<Messages["BrokerOrder"], D>>
  | Known<"broker_trade", With<Messages["BrokerTrade"], D>>
  | Known<"broker_position", With<Messages["BrokerPosition"], D>>
  | Known<"intent_action", With<Messages["IntentAction"], D>>
  | Known<"balance", With<Messages["Balance"], D>>
  | Known<"halt", With<Messages["Halt"], D>>
  /** The present state of a kind has been sent; what follows happens now. */
  | Known<"primed", Messages["Primed"]>
  | Known<"gap", Gap<D>>;

/** Of the connection and not of the account: `subscribed`, or why the server ends the stream. */
export interface StatusMessage {
  kind: "status" | "error";
  message: string;
}

type Fields = Readonly<Record<string, string>>;

/** From one message's data. Undefined: there is nothing in it. */
export function readEvent<D>(
  text: string,
  decimal: ReadDecimal<unknown> | undefined,
): TradingEvent<D> | StatusMessage | undefined {
  const { cursor, ...rest } = readJson(text, decimal) as Record<string, unknown>;
  const [kind, data] = Object.entries(rest)[0] ?? [];
  if (kind === undefined || kind === "heartbeat") return undefined;
  if (kind === "status" || kind === "error") {
    return { kind, message: (data as { message?: string }).message ?? "" };
  }
  const fields: Fields = kind in FIELDS ? FIELDS[kind as keyof typeof FIELDS] : {};
  return { kind, data: plain(data, fields), cursor } as TradingEvent<D>;
}

/** Enums without their type's prefix, numbers as numbers, lists that may be empty. */
function plain(data: unknown, fields: Fields): Record<string, unknown> {
  const shown: Record<string, unknown> = { ...(data as object) };
  for (const [name, treatment] of Object.entries(fields)) {
    const value = shown[name];
    if (treatment === "list") shown[name] = value ?? [];
    else if (treatment === "number") shown[name] = Number(value ?? 0);
    else if (value === undefined) continue;
    else if (treatment === "number?") shown[name] = Number(value);
    else if (typeof value === "string") shown[name] = value.replace(treatment, "");
  }
  return shown;
}
