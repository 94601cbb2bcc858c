"""Reads a gRPC call's messages within a limit, and ends the call with a status."""

import asyncio
import contextlib
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from trading_intents.errors import InvalidRequest, LimitReached, PlatformError

SERVICE = "trading.TradingService"
FIRST_MESSAGE_SECONDS = 10.0
IDLE_SECONDS = 60.0  # between messages, while a call has no subscription
ABORT_SECONDS = 5.0  # for a status to be sent; a reader that has stopped finds it when it reads on

STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.RESOURCE_EXHAUSTED,
    410: grpc.StatusCode.OUT_OF_RANGE,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}

Context = grpc.aio.ServicerContext[bytes, bytes]


async def read(context: Context, limit_seconds: float | None) -> bytes | None:
    """The call's next message; None: there are no more."""
    try:
        async with asyncio.timeout(limit_seconds):
            message: object = await context.read()  # bytes, or EOF
    except TimeoutError:
        raise LimitReached(f"the call sent no message within {limit_seconds:.0f} s") from None
    return message if isinstance(message, bytes) else None


async def read_first(context: Context) -> bytes:
    message = await read(context, FIRST_MESSAGE_SECONDS)
    if message is None:
        raise InvalidRequest("the call has no request message")
    return message


async def abort(context: Context, error: PlatformError) -> None:
    code = STATUS.get(error.status, grpc.StatusCode.INTERNAL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ABORT_SECONDS):
            await context.abort(code, error.detail)


def parse(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"the request message is not a {kind.DESCRIPTOR.full_name}") from None
