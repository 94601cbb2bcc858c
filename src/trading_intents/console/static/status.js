// The one status of the account that is followed: its stream, its broker's connection and its
// active halts.

import { showAge, showClock, showTime } from "./amounts.js";

const WELL = { connecting: "Connecting", loading: "Reading", live: "Up to date" };
const STREAMS = { ...WELL, lost: "Disconnected", refused: "Not allowed to follow" };
const WAITS =
  "an order is accepted, waits, and is given up when it has waited too long (30 s, or the symbol's limit)";

/** @type {Record<string, [name: string, why: string]>} */
export const CONNECTIONS = {
  connected: ["Connected", "orders are sent, and the broker's reports are recorded"],
  connecting: [
    "Broker connecting",
    "a worker opens the session, or sends orders without the broker's updates",
  ],
  disconnected: [
    "Broker away",
    "no worker has opened it, or the broker cannot be reached; a worker tries again",
  ],
  credential_missing: ["No credential", "the broker wants a credential, and none is stored"],
  credential_rejected: [
    "Credential refused",
    "the broker refuses the stored credential: replace its secrets",
  ],
};

/** @type {(account: Account, halts: Json[], bare?: string[]) => Trouble[]} The account's troubles, the worst first. */
export function troublesOf(account, halts, bare = []) {
  if (account.closed_at)
    return [{ name: "Closed", text: "The account is closed for good.", look: "away" }];
  const troubles = halts.map(({ scope, account_id: id, created_at: since, reason }) => {
    const whose = id || scope?.Account ? "" : "Organization ";
    return {
      name: "Halted",
      text: `${whose}HALTED since ${showTime(since)}: ${reason}`,
      look: "halted",
    };
  });
  const exposed = `UNPROTECTED: ${bare.join(", ")}. More is held than exits and other orders close.`;
  if (bare.length) troubles.unshift({ name: "Unprotected", text: exposed, look: "halted" });
  const text = "The account is disabled: it takes only cancels.";
  if (account.disabled) troubles.push({ name: "Disabled", text, look: "away" });
  const [name, why] = CONNECTIONS[account.connection] ?? [account.connection, ""];
  if (account.connection !== "connected")
    troubles.push({ name, text: `${name}: ${why}.`, look: "away" });
  return troubles;
}

/** @type {(status: FeedStatus, troubles: Trouble[]) => {text: string, look: string}} For the header. */
export function describeStatus({ state, since }, troubles) {
  const names = [...new Set(troubles.map(({ name }) => name))];
  if (state !== "live")
    names.unshift(`${STREAMS[state]} since ${showClock(since)} (${showAge(since)})`);
  return {
    text: names.join(" · ") || STREAMS.live,
    look: `${state} ${troubles[0]?.look ?? ""}`.trim(),
  };
}

/** @type {(account: Account, halts: Json[]) => string} The warning that a trader sees before sending an order. */
export function warningOf(account, halts) {
  if (halts.length) return "Trading is halted: new orders are refused.";
  if (account.connection === "credential_missing")
    return "No credential is stored: orders are refused.";
  return account.connection === "connected" ? "" : `The broker is not connected: ${WAITS}.`;
}
