/** The rules by which a failed try is repeated, and after how long. Pure: no HTTP, no clock. */

import {
  AnswerLost,
  OutcomeUnknown,
  RateLimited,
  type TradingError,
  Unavailable,
  Unreachable,
} from "./errors.js";

const FIRST_PAUSE_SECONDS = 0.25;
const MAX_PAUSE_SECONDS = 5;
const MAX_RETRY_AFTER_SECONDS = 60;
const JITTER = 0.5;
/** What a proxy answers whose connection to the platform failed: for us the answer is lost. */
const PROXY_FAILURES = [502, 503, 504];
const SERVER_FAULT = 500;

/** Safe to repeat: a `read` changes nothing, and a `keyed` command is the same one again. */
export type Repeat = "read" | "keyed" | "write";

function isNotCarriedOut(failure: TradingError): boolean {
  return (
    failure instanceof RateLimited ||
    failure instanceof Unavailable ||
    failure instanceof Unreachable
  );
}

function isLost(failure: TradingError): boolean {
  return failure instanceof AnswerLost || failure instanceof OutcomeUnknown;
}

/** 429, `unavailable` and failed connects always; others only where that is safe. */
export function mayRepeat(failure: TradingError, repeat: Repeat): boolean {
  if (isNotCarriedOut(failure)) return true;
  const hasNoOutcome = isLost(failure) || PROXY_FAILURES.includes(failure.status ?? 0);
  return hasNoOutcome && repeat !== "write";
}

/** Whether the try may have been carried out although it failed. */
export function mayBeCarriedOut(failure: TradingError): boolean {
  if (isNotCarriedOut(failure)) return false;
  return isLost(failure) || (failure.status ?? 0) >= SERVER_FAULT;
}

/** After the `tries`-th try. Undefined: the server asks for more than a caller would wait. */
export function pauseSeconds(
  failure: TradingError,
  tries: number,
  random: () => number,
): number | undefined {
  const asked = failure.retryAfter ?? 0;
  if (asked > MAX_RETRY_AFTER_SECONDS) return undefined;
  const pause = Math.min(FIRST_PAUSE_SECONDS * 2 ** (tries - 1), MAX_PAUSE_SECONDS);
  // Never earlier than asked for, and not all callers at the same moment.
  return asked + pause * (1 - JITTER + JITTER * random());
}
