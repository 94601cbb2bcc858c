"""Every expected failure: a class with its stable code, HTTP status and title. A programmer's error
is an assertion.

PlatformError ├── InvalidRequest 400 ── InvalidJson, InvalidCursor, InvalidScope,
UnsupportedGrantType ├── Unauthorized 401 ── InvalidApiKey ├── Forbidden 403 ── EntitlementRequired
├── NotFound 404 ├── MethodNotAllowed 405 ├── RequestTimeout 408 ├── AccountClosed, AccountDisabled,
CancelPending, ControlRejected, CredentialMissing, IdempotencyConflict, │   IntentClosed,
LimitReached, NoPosition, NotHalted, OpenOrders, ReplacePending 409 ├── CursorExpired 410 ├──
VersionConflict 412 ├── PayloadTooLarge 413 ├── UriTooLong 414 ├── UnsupportedMediaType 415 ├──
ValidationFailed 422 ├── RateLimited 429 ├── InternalError, SecretUnreadable 500 ├── Unavailable 503
── DiskFailed ├── OutcomeUnknown 503 └── StartupRefused ── DatabaseMissing, PortTaken        (never
on the wire: the process says it and ends)
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
    status, code, title = 400, "invalid_request", "The request cannot be read"


class InvalidJson(InvalidRequest):
    code, title = "invalid_json", "The body is not acceptable JSON"


class InvalidCursor(InvalidRequest):
    code, title = "invalid_cursor", "The cursor is not valid here: begin without one"


class InvalidScope(InvalidRequest):
    code, title = "invalid_scope", "The client does not have this scope"


class UnsupportedGrantType(InvalidRequest):
    code, title = "unsupported_grant_type", "The grant type must be client_credentials"


BASIC_CHALLENGE = 'Basic realm="trading-intents"'  # RFC 7617 requires the realm


class Unauthorized(PlatformError):
    status, code, title = 401, "unauthorized", "No valid credential"

    def __init__(
        self, detail: str = "", *, challenge: str = 'Bearer realm="trading-intents"'
    ) -> None:
        super().__init__(detail, headers={"www-authenticate": challenge})


class InvalidApiKey(Unauthorized):
    code, title = "invalid_api_key", "The API key is not valid"


class Forbidden(PlatformError):
    status, code, title = 403, "forbidden", "Not allowed"


class EntitlementRequired(Forbidden):
    code, title = "entitlement_required", "The organization's plan does not include this"


class NotFound(PlatformError):
    status, code, title = 404, "not_found", "Not found"


class MethodNotAllowed(PlatformError):
    status, code, title = 405, "method_not_allowed", "Method not allowed"


class RequestTimeout(PlatformError):
    status, code, title = 408, "request_timeout", "The request took too long to arrive"


class AccountClosed(PlatformError):
    status, code, title = 409, "account_closed", "The account is closed"


class AccountDisabled(PlatformError):
    status, code, title = 409, "account_disabled", "The account is disabled"


class CancelPending(PlatformError):
    status, code, title = 409, "cancel_pending", "A CANCEL is still pending"


class ControlRejected(PlatformError):
    """The answer has `triggered`: every control that refused."""

    status, code, title = 409, "control_rejected", "A control refuses this order"

    def __init__(self, triggered: Sequence[Any] = (), reasons: Sequence[str] = ()) -> None:
        super().__init__("; ".join(dict.fromkeys(item.detail for item in triggered)) or self.title)
        self.triggered, self.reasons = tuple(triggered), tuple(reasons)


class CredentialMissing(PlatformError):
    status, code, title = 409, "credential_missing", "The account has no credential"


class IdempotencyConflict(PlatformError):
    status, code, title = (
        409,
        "idempotency_conflict",
        "The Idempotency-Key was used with a different body",
    )


class IntentClosed(PlatformError):
    status, code, title = 409, "intent_closed", "The intent's order is finished"


class NoPosition(PlatformError):
    status, code, title = 409, "no_position", "There is nothing to close"


class NotHalted(PlatformError):
    status, code, title = 409, "not_halted", "No halt stands"


class OpenOrders(PlatformError):
    status, code, title = 409, "open_orders", "The account has open orders"


class ReplacePending(PlatformError):
    status, code, title = 409, "replace_pending", "A REPLACE is still pending"


class LimitReached(PlatformError):
    status, code, title = 409, "limit_reached", "Limit reached"


class CursorExpired(PlatformError):
    status, code, title = 410, "cursor_expired", "The cursor has expired"


class VersionConflict(PlatformError):
    status, code, title = 412, "version_conflict", "The version has changed"


class PayloadTooLarge(PlatformError):
    status, code, title = 413, "payload_too_large", "The body is too large"


class UriTooLong(PlatformError):
    status, code, title = 414, "uri_too_long", "The path or the query is too long"


class UnsupportedMediaType(PlatformError):
    status, code, title = 415, "unsupported_media_type", "The body's media type is not supported"


class ValidationFailed(PlatformError):
    status, code, title = 422, "validation_failed", "The request breaks a rule"

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

    status, code, title = 429, "rate_limited", "Too many requests"

    def __init__(self, limit: str, detail: str, headers: Mapping[str, str]) -> None:
        super().__init__(detail, headers=headers)
        self.limit = limit


class InternalError(PlatformError):
    pass


class SecretUnreadable(PlatformError):
    """A sealed secret cannot be opened. `reason` is only for the log."""

    status, code, title = 500, "secret_unreadable", "A stored secret cannot be read"

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class Unavailable(PlatformError):
    """Nothing was recorded; the caller may try again."""

    status, code, title = 503, "unavailable", "A dependency is unavailable"

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

    status, code, title = 503, "outcome_unknown", "The outcome is unknown"

    def __init__(self, detail: str = "") -> None:
        default = "the connection to the database was lost during the commit; repeat with the same Idempotency-Key, or read"
        super().__init__(detail or default, headers={"retry-after": "1"})


class StartupRefused(PlatformError):
    """The process cannot start as configured; the text says what is wrong and what to do."""

    code, title = "startup_refused", "Cannot start"


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
