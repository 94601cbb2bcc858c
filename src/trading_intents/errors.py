"""Every expected failure: a class with its stable code, HTTP status and title. A programmer's error
is an assertion.

PlatformError
├── InvalidRequest 400 ── InvalidJson, InvalidCursor, InvalidScope, UnsupportedGrantType
├── Unauthorized 401 ── InvalidApiKey
├── Forbidden 403 ── EntitlementRequired
├── NotFound 404
├── MethodNotAllowed 405
├── RequestTimeout 408
├── AccountClosed, AccountDisabled, CancelPending, ControlRejected, CredentialMissing,
│   IdempotencyConflict, IntentClosed, LimitReached, NoPosition, NotHalted, OpenOrders,
│   ReplacePending 409
├── CursorExpired 410
├── VersionConflict 412
├── PayloadTooLarge 413
├── UriTooLong 414
├── UnsupportedMediaType 415
├── ValidationFailed 422
├── RateLimited 429
├── InternalError, SecretUnreadable 500
├── Unavailable 503 ── DiskFailed
├── OutcomeUnknown 503
└── StartupRefused ── DatabaseMissing, PortTaken (never on the wire: the process says it and ends)
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec


class FieldProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    pointer: str  # RFC 6901, into the body; of a query parameter ?name
    detail: str
    did_you_mean: str = ""


def json_pointer(*steps: str) -> str:
    """RFC 6901."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def either(names: Iterable[str]) -> str:
    """Writes names as `a, b or c`, to say what is allowed."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


class PlatformError(Exception):
    """The root. `detail` is shown to the caller: it never holds a secret or another tenant's
    data."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"

    def __init__(
        self,
        detail: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[FieldProblem] = (),
    ) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        self.headers = dict(headers or {})
        self.errors = tuple(errors)


class InvalidRequest(PlatformError):
    status = 400
    code = "invalid_request"
    title = "The request cannot be read"


class InvalidJson(InvalidRequest):
    code = "invalid_json"
    title = "The body is not acceptable JSON"


class InvalidCursor(InvalidRequest):
    code = "invalid_cursor"
    title = "The cursor is not valid here: begin without one"


class InvalidScope(InvalidRequest):
    code = "invalid_scope"
    title = "The client does not have this scope"


class UnsupportedGrantType(InvalidRequest):
    code = "unsupported_grant_type"
    title = "The grant type must be client_credentials"


BASIC_CHALLENGE = 'Basic realm="trading-intents"'  # RFC 7617 requires the realm


class Unauthorized(PlatformError):
    status = 401
    code = "unauthorized"
    title = "No valid credential"

    def __init__(
        self, detail: str = "", *, challenge: str = 'Bearer realm="trading-intents"'
    ) -> None:
        super().__init__(detail, headers={"www-authenticate": challenge})


class InvalidApiKey(Unauthorized):
    code = "invalid_api_key"
    title = "The API key is not valid"


class Forbidden(PlatformError):
    status = 403
    code = "forbidden"
    title = "Not allowed"


class EntitlementRequired(Forbidden):
    code = "entitlement_required"
    title = "The organization's plan does not include this"


class NotFound(PlatformError):
    status = 404
    code = "not_found"
    title = "Not found"


class MethodNotAllowed(PlatformError):
    status = 405
    code = "method_not_allowed"
    title = "Method not allowed"


class RequestTimeout(PlatformError):
    status = 408
    code = "request_timeout"
    title = "The request took too long to arrive"


class AccountClosed(PlatformError):
    status = 409
    code = "account_closed"
    title = "The account is closed"


class AccountDisabled(PlatformError):
    status = 409
    code = "account_disabled"
    title = "The account is disabled"


class CancelPending(PlatformError):
    status = 409
    code = "cancel_pending"
    title = "A CANCEL is still pending"


class ControlRejected(PlatformError):
    """The answer has `triggered`: every control that refused."""

    status = 409
    code = "control_rejected"
    title = "A control refuses this order"

    def __init__(self, triggered: Sequence[Any] = ()) -> None:
        details = dict.fromkeys(item.detail for item in triggered)
        super().__init__("; ".join(details) or self.title)
        self.triggered = tuple(triggered)
        self.reasons: tuple[str, ...] = tuple(dict.fromkeys(item.reason for item in triggered))


class CredentialMissing(PlatformError):
    status = 409
    code = "credential_missing"
    title = "The account has no credential"


class IdempotencyConflict(PlatformError):
    status = 409
    code = "idempotency_conflict"
    title = "The Idempotency-Key was used with a different body"


class IntentClosed(PlatformError):
    status = 409
    code = "intent_closed"
    title = "The intent's order is finished"


class NoPosition(PlatformError):
    status = 409
    code = "no_position"
    title = "There is nothing to close"


class NotHalted(PlatformError):
    status = 409
    code = "not_halted"
    title = "No halt stands"


class OpenOrders(PlatformError):
    status = 409
    code = "open_orders"
    title = "The account has open orders"


class ReplacePending(PlatformError):
    status = 409
    code = "replace_pending"
    title = "A REPLACE is still pending"


class LimitReached(PlatformError):
    status = 409
    code = "limit_reached"
    title = "Limit reached"


class CursorExpired(PlatformError):
    status = 410
    code = "cursor_expired"
    title = "The cursor has expired"


class VersionConflict(PlatformError):
    status = 412
    code = "version_conflict"
    title = "The version has changed"


class PayloadTooLarge(PlatformError):
    status = 413
    code = "payload_too_large"
    title = "The body is too large"


class UriTooLong(PlatformError):
    status = 414
    code = "uri_too_long"
    title = "The path or the query is too long"


class UnsupportedMediaType(PlatformError):
    status = 415
    code = "unsupported_media_type"
    title = "The body's media type is not supported"


class ValidationFailed(PlatformError):
    status = 422
    code = "validation_failed"
    title = "The request breaks a rule"

    @classmethod
    def at(cls, pointer: str, detail: str) -> "ValidationFailed":
        return cls.listing([FieldProblem(pointer, detail)])

    @classmethod
    def listing(cls, found: Sequence[FieldProblem]) -> "ValidationFailed":
        return cls(
            "; ".join(f"{error.pointer or '/'}: {error.detail}" for error in found), errors=found
        )


class RateLimited(PlatformError):
    """The answer has `limit`: whether it was the principal's, the organization's or the
    address's."""

    status = 429
    code = "rate_limited"
    title = "Too many requests"

    def __init__(self, limit: str, detail: str, headers: Mapping[str, str]) -> None:
        super().__init__(detail, headers=headers)
        self.limit = limit


class InternalError(PlatformError):
    pass


class SecretUnreadable(PlatformError):
    """A sealed secret cannot be opened. `reason` is only for the log."""

    status = 500
    code = "secret_unreadable"
    title = "A stored secret cannot be read"

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class Unavailable(PlatformError):
    """Nothing was recorded; the caller may try again."""

    status = 503
    code = "unavailable"
    title = "A dependency is unavailable"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail, headers={"retry-after": "1"})


class DiskFailed(Unavailable):
    """The database's disk is full or fails: nothing can be recorded until an operator has corrected
    that."""

    def __init__(self) -> None:
        super().__init__("the database cannot write: its disk is full or fails")


class OutcomeUnknown(PlatformError):
    """The connection was lost during the commit: all of it is recorded or nothing, and only a read
    can show which."""

    status = 503
    code = "outcome_unknown"
    title = "The outcome is unknown"

    def __init__(self, detail: str = "") -> None:
        default = (
            "the connection to the database was lost during the commit; repeat with the same "
            "Idempotency-Key, or read"
        )
        super().__init__(detail or default, headers={"retry-after": "1"})


class StartupRefused(PlatformError):
    """The process cannot start as configured; the text says what is wrong and what to do."""

    code = "startup_refused"
    title = "Cannot start"


class PortTaken(StartupRefused):
    """Another process listens there, or the address is not this machine's."""


class DatabaseMissing(StartupRefused):
    """The command found no database, or not its files, and must not make one itself."""

    title = "Nothing is here"


def wire_errors() -> list[type[PlatformError]]:
    """Every error that a request can get, by status and code; of those with the same code the
    general one."""
    found = list[type[PlatformError]]()
    for kind in globals().values():
        is_error = (
            isinstance(kind, type) and issubclass(kind, PlatformError) and kind is not PlatformError
        )
        if is_error and not issubclass(kind, StartupRefused):
            found += [kind] if "code" in vars(kind) or kind is InternalError else []
    return sorted(found, key=lambda kind: (kind.status, kind.code))
