/**
 * Every failure of the client: a class for each `code` of the API, and those of calls that the API
 * did not answer.
 */

export interface FieldError {
  /** A JSON pointer into the body, or `?name` of a query parameter. */
  pointer: string;
  detail: string;
  did_you_mean?: string;
}

export interface TriggeredControl {
  reason: string;
  scope: Record<string, string | Record<string, string>>;
  detail: string;
  limit?: string | number | boolean | string[];
  asked?: string | number;
}

/** The body of an error (RFC 9457). */
export interface Problem {
  title?: string;
  detail?: string;
  code?: string;
  request_id?: string;
  errors?: FieldError[];
  triggered?: TriggeredControl[];
  limit?: string;
}

/** The root. `status` is undefined where there was no answer; `code` is stable, for programs. */
export class TradingError extends Error {
  readonly code: string;
  readonly requestId: string | undefined;
  /** Seconds after which the server, or a proxy before it, wants to be asked again. */
  retryAfter: number | undefined;
  /** Of a submit or close: with it the same command is asked for again and is never made twice. */
  idempotencyKey: string | undefined;
  /** A try had no answer, or one that leaves it open, so the command may have been recorded. */
  mayBeRecorded = false;

  constructor(
    readonly detail: string,
    readonly status?: number,
    readonly problem: Problem = {},
  ) {
    super(detail);
    this.name = new.target.name;
    this.code = problem.code || "unexpected_answer";
    this.requestId = problem.request_id;
  }

  override toString(): string {
    const parts = [this.status ? `${this.status} ${this.code}` : this.code];
    if (this.requestId) parts.push(`request ${this.requestId}`);
    if (this.mayBeRecorded && this.idempotencyKey) {
      parts.push(`Idempotency-Key ${this.idempotencyKey}`);
    }
    return `${this.name}: ${this.detail} (${parts.join(", ")})`;
  }
}

export class InvalidRequest extends TradingError {}
export class InvalidJson extends InvalidRequest {}
export class InvalidCursor extends InvalidRequest {}
export class InvalidScope extends InvalidRequest {}
export class UnsupportedGrantType extends InvalidRequest {}

export class Unauthorized extends TradingError {}
export class InvalidApiKey extends Unauthorized {}
export class InvalidClient extends Unauthorized {}

export class Forbidden extends TradingError {}
export class EntitlementRequired extends Forbidden {}

export class NotFound extends TradingError {}
export class MethodNotAllowed extends TradingError {}
export class RequestTimeout extends TradingError {}

export class Conflict extends TradingError {}
export class AccountClosed extends Conflict {}
export class AccountDisabled extends Conflict {}
export class CancelPending extends Conflict {}
export class CredentialMissing extends Conflict {}
export class IdempotencyConflict extends Conflict {}
export class IntentClosed extends Conflict {}
export class LimitReached extends Conflict {}
export class NoPosition extends Conflict {}
export class NotHalted extends Conflict {}
export class OpenOrders extends Conflict {}
export class ReplacePending extends Conflict {}

/** A control or limit refuses the order. */
export class ControlRejected extends Conflict {
  /** Every control and limit that says no. */
  get triggered(): TriggeredControl[] {
    return this.problem.triggered ?? [];
  }
}

export class CursorExpired extends TradingError {}
export class VersionConflict extends TradingError {}
export class PayloadTooLarge extends TradingError {}
export class UriTooLong extends TradingError {}
export class UnsupportedMediaType extends TradingError {}

export class ValidationFailed extends TradingError {
  /** The fields that break a rule. */
  get errors(): FieldError[] {
    return this.problem.errors ?? [];
  }
}

export class RateLimited extends TradingError {
  /** The owner of the limit: principal, organization or address. */
  get limit(): string {
    return this.problem.limit ?? "";
  }
}

export class InternalError extends TradingError {}
export class SecretUnreadable extends InternalError {}

/** Nothing was recorded: try again after `retryAfter` seconds. */
export class Unavailable extends TradingError {}

/** It may have been recorded. Ask again under the same Idempotency-Key, or read. */
export class OutcomeUnknown extends TradingError {}

/** A failure that is no error answer of the API. */
export class ClientError extends TradingError {}

/** An answer that is not the API's, or of a code and status that this version does not know. */
export class UnexpectedAnswer extends ClientError {}

/** No connection could be made: nothing was sent. */
export class Unreachable extends ClientError {
  constructor(detail: string) {
    super(detail, undefined, { code: "unreachable" });
  }
}

/** The request was sent, or may have been, and no answer came. */
export class AnswerLost extends ClientError {
  constructor(detail: string) {
    super(detail, undefined, { code: "answer_lost" });
  }
}

/** The client was closed, before the call or during it. */
export class ClientClosed extends ClientError {
  constructor() {
    super("the client is closed", undefined, { code: "client_closed" });
  }
}

/** Neither arguments nor the environment nor a local demo say where the platform is, or who calls. */
export class NotConfigured extends ClientError {
  constructor(detail: string) {
    super(detail, undefined, { code: "not_configured" });
  }
}

/** The order did not reach the status in time. `order` is the order as it was last seen. */
export class WaitTimeout<Order = unknown> extends ClientError {
  constructor(
    detail: string,
    readonly order: Order | undefined,
  ) {
    super(detail, undefined, { code: "wait_timeout" });
  }
}

/** The order ended in another status than the one that was waited for. */
export class OrderEnded<Order = unknown> extends ClientError {
  constructor(
    detail: string,
    readonly order: Order,
  ) {
    super(detail, undefined, { code: "order_ended" });
  }
}

type ErrorClass = new (detail: string, status?: number, problem?: Problem) => TradingError;

export const CLASS_OF_CODE: Readonly<Record<string, ErrorClass>> = {
  account_closed: AccountClosed,
  account_disabled: AccountDisabled,
  cancel_pending: CancelPending,
  conflict: Conflict,
  control_rejected: ControlRejected,
  credential_missing: CredentialMissing,
  cursor_expired: CursorExpired,
  entitlement_required: EntitlementRequired,
  forbidden: Forbidden,
  idempotency_conflict: IdempotencyConflict,
  intent_closed: IntentClosed,
  internal_error: InternalError,
  invalid_api_key: InvalidApiKey,
  invalid_client: InvalidClient,
  invalid_cursor: InvalidCursor,
  invalid_json: InvalidJson,
  invalid_request: InvalidRequest,
  invalid_scope: InvalidScope,
  limit_reached: LimitReached,
  method_not_allowed: MethodNotAllowed,
  no_position: NoPosition,
  not_found: NotFound,
  not_halted: NotHalted,
  open_orders: OpenOrders,
  outcome_unknown: OutcomeUnknown,
  payload_too_large: PayloadTooLarge,
  rate_limited: RateLimited,
  replace_pending: ReplacePending,
  request_timeout: RequestTimeout,
  secret_unreadable: SecretUnreadable,
  unauthorized: Unauthorized,
  unavailable: Unavailable,
  unsupported_grant_type: UnsupportedGrantType,
  unsupported_media_type: UnsupportedMediaType,
  uri_too_long: UriTooLong,
  validation_failed: ValidationFailed,
  version_conflict: VersionConflict,
};
