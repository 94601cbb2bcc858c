"""The form of an error in an answer: RFC 9457 problem+json; plain text or RFC 6749 where the
specification says so."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from trading_intents.errors import (
    ControlRejected,
    FieldProblem,
    InternalError,
    PlatformError,
    RateLimited,
    Unavailable,
)
from trading_intents.web.request import JSON, Answer, Headers


class TriggeredControl(msgspec.Struct):
    """A control that refused; `scope` has one key, which names its level. A limit adds its value
    and what was asked."""

    reason: str
    scope: dict[str, str | dict[str, str]]
    detail: str
    limit: str | int | bool | list[str] | msgspec.UnsetType = msgspec.UNSET
    asked: str | int | msgspec.UnsetType = msgspec.UNSET


class Problem(msgspec.Struct, omit_defaults=True, kw_only=True):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[FieldProblem] = []
    triggered: list[TriggeredControl] = []  # with control_rejected: every control that says no
    limit: str = ""  # with rate_limited: whose it is, principal, organization or address


class TokenError(msgspec.Struct):
    """RFC 6749, section 5.2."""

    error: str
    error_description: str


@dataclass(frozen=True, slots=True)
class ErrorShape:
    media: bytes
    kind: Any  # the msgspec type of the body
    encode: Callable[[PlatformError, str], bytes]
    unavailable_status: int = Unavailable.status

    def answer(self, error: PlatformError, request_id: str) -> Answer:
        headers: Headers = []
        for name, value in error.headers.items():
            headers.append((name.encode(), value.encode()))
        failure = (request_id, error) if error.status >= InternalError.status else None
        status = self.status_of(type(error))
        return Answer(
            body=self.encode(error, request_id),
            status=status,
            content_type=self.media,
            headers=headers,
            failure=failure,
        )

    def status_of(self, error: type[PlatformError]) -> int:
        if error.status == Unavailable.status:
            return self.unavailable_status
        return error.status


def _encode_problem(error: PlatformError, request_id: str) -> bytes:
    problem = Problem(
        type=f"/docs#{error.code}",
        title=error.title,
        status=error.status,
        detail=error.detail,
        code=error.code,
        request_id=request_id,
        errors=list(error.errors),
    )
    if isinstance(error, ControlRejected):
        problem.triggered = list(error.triggered)
    if isinstance(error, RateLimited):
        problem.limit = error.limit
    return msgspec.json.encode(problem)


def _encode_plain(error: PlatformError, request_id: str) -> bytes:
    # The specification says that the 401's text is this one word.
    return (error.code if error.status == 401 else error.detail).encode()


def _encode_token_error(error: PlatformError, request_id: str) -> bytes:
    by_status = {
        401: "invalid_client",
        429: "temporarily_unavailable",
        500: "server_error",
        503: "server_error",
    }
    code = error.code
    if code not in TOKEN_ERROR_CODES:
        code = by_status.get(error.status, "invalid_request")
    return msgspec.json.encode(TokenError(code, error.detail))


TOKEN_ERROR_CODES = ("invalid_scope", "unsupported_grant_type")
PROBLEM = ErrorShape(b"application/problem+json", Problem, _encode_problem)
PLAIN = ErrorShape(b"text/plain; charset=utf-8", str, _encode_plain)
PLAIN_500 = replace(PLAIN, unavailable_status=500)  # the specification's outbox health knows no 503
OAUTH = ErrorShape(JSON, TokenError, _encode_token_error)
