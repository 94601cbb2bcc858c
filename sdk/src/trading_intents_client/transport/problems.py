"""An error answer becomes the exception of its code."""

import httpx
import msgspec

from trading_intents_client.errors import (
    CLASS_OF_CODE,
    Problem,
    TradingError,
    UnexpectedAnswer,
)

MAX_DETAIL_CHARACTERS = 500
CODE_OF_STATUS = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "conflict",
    410: "cursor_expired",
    412: "version_conflict",
    413: "payload_too_large",
    414: "uri_too_long",
    415: "unsupported_media_type",
    422: "validation_failed",
    429: "rate_limited",
    500: "internal_error",
}


class TokenProblem(msgspec.Struct, frozen=True):
    """The error of a token endpoint (RFC 6749)."""

    error: str
    error_description: str = ""


def error_of(response: httpx.Response) -> TradingError:
    problem = _problem(response)
    # A newer server's code is at least of its status's class.
    of_status = CLASS_OF_CODE.get(CODE_OF_STATUS.get(response.status_code, ""), UnexpectedAnswer)
    error = CLASS_OF_CODE.get(problem.code, of_status)(
        "", status=response.status_code, problem=problem
    )
    error.retry_after = _retry_after(response)
    return error


def _problem(response: httpx.Response) -> Problem:
    request_id = response.headers.get("x-request-id")
    for kind in (Problem, TokenProblem):
        try:
            read = msgspec.json.decode(response.content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(read, TokenProblem):
            return Problem(
                detail=read.error_description or read.error, code=read.error, request_id=request_id
            )
        if isinstance(read, Problem) and read.code:
            return read
    # Two endpoints answer errors as plain text, and a proxy may answer anything.
    text = response.text.strip()[:MAX_DETAIL_CHARACTERS] or response.reason_phrase
    return Problem(
        detail=text, code=CODE_OF_STATUS.get(response.status_code, ""), request_id=request_id
    )


def _retry_after(response: httpx.Response) -> int | None:
    text = response.headers.get("retry-after", "")
    return int(text) if text.isascii() and text.isdigit() else None
