"""How an error looks on the wire: RFC 9457 problem+json, or plain text where the specification says so."""

import msgspec

from trading_intents.errors import PlatformError
from trading_intents.web.request import Answer

PROBLEM = b"application/problem+json"
PLAIN = b"text/plain; charset=utf-8"


class FieldProblem(msgspec.Struct):
    pointer: str
    detail: str


class Problem(msgspec.Struct, omit_defaults=True):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[FieldProblem] = []


def answer_problem(error: PlatformError, request_id: str) -> Answer:
    problem = Problem(
        type=f"/docs#{error.code}",
        title=error.title,
        status=error.status,
        detail=error.detail,
        code=error.code,
        request_id=request_id,
        errors=[FieldProblem(e.pointer, e.detail) for e in error.errors],
    )
    return Answer(msgspec.json.encode(problem), error.status, PROBLEM, _headers(error))


def answer_plain(error: PlatformError) -> Answer:
    # The specification fixes the 401's text to the one word.
    text = error.code if error.status == 401 else error.detail
    return Answer(text.encode(), error.status, PLAIN, _headers(error))


def _headers(error: PlatformError) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in error.headers.items()]
