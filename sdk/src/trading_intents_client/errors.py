"""Every failure of the client: one class for each `code` of the API, and those that happen before
an answer is there.

TradingError
├── InvalidRequest 400 ── InvalidJson, InvalidCursor, InvalidScope, UnsupportedGrantType
├── Unauthorized 401 ── InvalidApiKey, InvalidClient
├── Forbidden 403 ── EntitlementRequired
├── NotFound 404, MethodNotAllowed 405, RequestTimeout 408
├── Conflict 409 ── AccountClosed, AccountDisabled, CancelPending, ControlRejected,
│   CredentialMissing, IdempotencyConflict, IntentClosed, LimitReached, NoPosition, NotHalted,
│   OpenOrders, ReplacePending
├── CursorExpired 410, VersionConflict 412, PayloadTooLarge 413, UriTooLong 414,
│   UnsupportedMediaType 415
├── ValidationFailed 422, RateLimited 429
├── InternalError 500 ── SecretUnreadable
├── Unavailable 503, OutcomeUnknown 503
└── ClientError                    the API did not answer this
    ├── UnexpectedAnswer           an answer that is not the API's, or of an unknown code and status
    ├── Unreachable                no connection: nothing was sent
    ├── AnswerLost                 sent, and no answer came
    ├── ClientClosed               the client was closed
    ├── Cancelled                  the cause of a CancelledError: a submit had no answer yet
    ├── WaitTimeout, OrderEnded    `order.wait()` did not see what it waited for
    └── NotConfigured              no URL or credential was found
"""

from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct

from trading_intents_client.types.controls import Triggered
from trading_intents_client.types.trading import OrderRecord


class FieldError(Struct, frozen=True, kw_only=True):
    """A field that breaks a rule: a JSON pointer into the body, or `?name` of a query parameter."""

    pointer: str
    detail: str
    did_you_mean: str = ""


class Problem(Struct, frozen=True, kw_only=True):
    """The body of an error (RFC 9457)."""

    title: str = ""
    detail: str = ""
    code: str = ""
    request_id: str | None = None
    errors: tuple[FieldError, ...] = ()
    triggered: tuple[Triggered, ...] = ()
    limit: str = ""


class TradingError(Exception):
    """The root. `status` is None where there was no answer; `code` is stable and made for
    programs."""

    default_code: ClassVar[str] = "unexpected_answer"
    # Seconds after which the server, or a proxy before it, wants to be asked again.
    retry_after: int | None = None

    def __init__(
        self, detail: str = "", *, status: int | None = None, problem: Problem | None = None
    ) -> None:
        given = problem or Problem()
        self.detail = detail or given.detail or given.title or type(self).__name__
        self.status = status
        self.code = given.code or self.default_code
        self.request_id = given.request_id
        self.problem = given
        # Of a submit or close: with it the same command can be asked for again and is never made
        # twice.
        self.idempotency_key: str | None = None
        # A try of this call had no answer, or one that leaves it open, so that the command may have
        # been recorded.
        self.may_be_recorded = False
        super().__init__(self.detail)

    def __str__(self) -> str:
        parts = [f"{self.status} {self.code}" if self.status else self.code]
        if self.request_id:
            parts.append(f"request {self.request_id}")
        if self.may_be_recorded and self.idempotency_key:
            parts.append(f"Idempotency-Key {self.idempotency_key}")
        return f"{self.detail} ({', '.join(parts)})"


class InvalidRequest(TradingError):
    """The request cannot be read, or a header is bad or missing."""

    default_code = "invalid_request"


class InvalidJson(InvalidRequest):
    """The body is not acceptable JSON."""

    default_code = "invalid_json"


class InvalidCursor(InvalidRequest):
    """The cursor does not belong to this list or stream."""

    default_code = "invalid_cursor"


class InvalidScope(InvalidRequest):
    """The service account does not have this scope."""

    default_code = "invalid_scope"


class UnsupportedGrantType(InvalidRequest):
    """The token endpoint takes client credentials only."""

    default_code = "unsupported_grant_type"


class Unauthorized(TradingError):
    """No credential, one that does not verify, or one of a kind that the endpoint does not take."""

    default_code = "unauthorized"


class InvalidApiKey(Unauthorized):
    """The API key that was to be validated is none."""

    default_code = "invalid_api_key"


class InvalidClient(Unauthorized):
    """The service account's id or secret is wrong."""

    default_code = "invalid_client"


class Forbidden(TradingError):
    """The caller lacks the permission, role, scope or environment."""

    default_code = "forbidden"


class EntitlementRequired(Forbidden):
    """The organization's plan does not include this."""

    default_code = "entitlement_required"


class NotFound(TradingError):
    """There is no such thing, or it belongs to another organization."""

    default_code = "not_found"


class MethodNotAllowed(TradingError):
    """The path does not take this method."""

    default_code = "method_not_allowed"


class RequestTimeout(TradingError):
    """The request took too long to arrive."""

    default_code = "request_timeout"


class Conflict(TradingError):
    """The request clashes with the present state."""

    default_code = "conflict"


class AccountClosed(Conflict):
    """The account is closed for good."""

    default_code = "account_closed"


class AccountDisabled(Conflict):
    """The account is disabled: it takes CANCELs only."""

    default_code = "account_disabled"


class CancelPending(Conflict):
    """A CANCEL of the order is not answered yet, so that it cannot be replaced."""

    default_code = "cancel_pending"


class ControlRejected(Conflict):
    """A control or limit refuses the order. `triggered` names every one that does."""

    default_code = "control_rejected"

    @property
    def triggered(self) -> tuple[Triggered, ...]:
        """Every control and limit that says no."""
        return self.problem.triggered


class CredentialMissing(Conflict):
    """The account has no credential for its broker."""

    default_code = "credential_missing"


class IdempotencyConflict(Conflict):
    """The Idempotency-Key was used with another body."""

    default_code = "idempotency_conflict"


class IntentClosed(Conflict):
    """The intent's order has ended."""

    default_code = "intent_closed"


class LimitReached(Conflict):
    """There are as many as there may be, of symbols with controls, credentials or streams."""

    default_code = "limit_reached"


class NoPosition(Conflict):
    """There is no position to close."""

    default_code = "no_position"


class NotHalted(Conflict):
    """No halt stands that could be ended."""

    default_code = "not_halted"


class OpenOrders(Conflict):
    """The account has open orders, so that it or its credential cannot be removed."""

    default_code = "open_orders"


class ReplacePending(Conflict):
    """A REPLACE of the order is not answered yet."""

    default_code = "replace_pending"


class CursorExpired(TradingError):
    """The events after the cursor are no longer kept."""

    default_code = "cursor_expired"


class VersionConflict(TradingError):
    """The version has changed since it was read."""

    default_code = "version_conflict"


class PayloadTooLarge(TradingError):
    """The body is too large."""

    default_code = "payload_too_large"


class UriTooLong(TradingError):
    """The path or the query is too long."""

    default_code = "uri_too_long"


class UnsupportedMediaType(TradingError):
    """The body's media type is not supported."""

    default_code = "unsupported_media_type"


class ValidationFailed(TradingError):
    """`errors` says which fields, and why."""

    default_code = "validation_failed"

    @property
    def errors(self) -> tuple[FieldError, ...]:
        """The fields that break a rule."""
        return self.problem.errors


class RateLimited(TradingError):
    """`limit` says whose limit it was: principal, organization or address."""

    default_code = "rate_limited"

    @property
    def limit(self) -> str:
        """The owner of the limit: principal, organization or address."""
        return self.problem.limit


class InternalError(TradingError):
    """A fault of the platform. What a command asked for may have been recorded."""

    default_code = "internal_error"


class SecretUnreadable(InternalError):
    """A stored secret cannot be read."""

    default_code = "secret_unreadable"


class Unavailable(TradingError):
    """Nothing was recorded: try again after `retry_after` seconds."""

    default_code = "unavailable"


class OutcomeUnknown(TradingError):
    """The command may have been recorded. Ask again under the same Idempotency-Key, or read."""

    default_code = "outcome_unknown"


class ClientError(TradingError):
    """A failure that is no error answer of the API."""


class UnexpectedAnswer(ClientError):
    """An answer that is not the API's: another server's, or of a code and status that this version
    does not know."""


class Unreachable(ClientError):
    """No connection could be made: nothing was sent."""

    default_code = "unreachable"


class AnswerLost(ClientError):
    """The request was sent and no answer came: it may have been carried out."""

    default_code = "answer_lost"


class ClientClosed(ClientError):
    """The client was closed, before the call or during it."""

    default_code = "client_closed"


class NotConfigured(ClientError):
    """Neither arguments nor the environment nor a local demo say where the platform is and who
    calls."""

    default_code = "not_configured"


class WaitTimeout(ClientError, TimeoutError):
    """The order did not reach the status in time. `order` is the order as it was last seen, if it
    was."""

    default_code = "wait_timeout"

    def __init__(self, detail: str, order: OrderRecord | None = None) -> None:
        super().__init__(detail)
        self.order = order


class OrderEnded(ClientError):
    """The order ended in another status than the one that was waited for. `order` is the order."""

    default_code = "order_ended"

    def __init__(self, detail: str, order: OrderRecord) -> None:
        super().__init__(detail)
        self.order = order


class Cancelled(ClientError):
    """The `__cause__` of the CancelledError of a submit on its way. It may have been recorded: the
    key finds out."""

    default_code = "cancelled"

    def __init__(self, idempotency_key: str) -> None:
        super().__init__("cancelled before the answer came")
        self.idempotency_key = idempotency_key
        self.may_be_recorded = True


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a call of the blocking client. Of a submit it has the Idempotency-Key."""

    def __init__(self, idempotency_key: str | None) -> None:
        super().__init__(
            f"interrupted; Idempotency-Key {idempotency_key}" if idempotency_key else "interrupted"
        )
        self.idempotency_key = idempotency_key


def _below(kind: type[TradingError]) -> Iterator[type[TradingError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


CLASS_OF_CODE = {
    kind.default_code: kind for kind in _below(TradingError) if not issubclass(kind, ClientError)
}
