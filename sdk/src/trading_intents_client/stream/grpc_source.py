"""The stream over gRPC. The messages are made of the description beside this file, in a pool of
their own."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from trading_intents_client.errors import (
    AnswerLost,
    CursorExpired,
    Forbidden,
    InvalidRequest,
    NotConfigured,
    NotFound,
    RateLimited,
    TradingError,
    Unauthorized,
    UnexpectedAnswer,
    Unreachable,
    ValidationFailed,
)
from trading_intents_client.stream.events import Event, StatusMessage, read_event
from trading_intents_client.stream.following import Connect
from trading_intents_client.transport.http import STREAM_READ_SECONDS, Transport

METHOD = "/trading.TradingService/SubscribeEvents"
DESCRIPTION = Path(__file__).parent / "trading.desc"
KINDS = ("intent_action", "broker_order", "broker_trade", "broker_position")
PORT = 5051
SECURE_PORT = 443
ERRORS: dict[grpc.StatusCode, type[TradingError]] = {
    grpc.StatusCode.UNAUTHENTICATED: Unauthorized,
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: CursorExpired,
    grpc.StatusCode.RESOURCE_EXHAUSTED: RateLimited,
    grpc.StatusCode.UNAVAILABLE: Unreachable,
}
KEEPALIVE_MILLIS = 10_000


def grpc_source(
    transport: Transport, account_id: str, kinds: Sequence[str] | None, target: str | None
) -> Connect:
    messages = _messages()
    wanted = [f"EVENT_TYPE_{kind.upper()}" for kind in (KINDS if kinds is None else kinds)]

    async def follow(cursor: str | None) -> AsyncIterator[Event | StatusMessage]:
        if transport.grpc_pid not in (None, os.getpid()):
            # The library would abort the process.
            raise NotConfigured(
                "gRPC was used before the fork and cannot be used after it: follow over HTTP"
            )
        transport.grpc_pid = os.getpid()
        asked = {
            "trading_account_id": account_id,
            "subscriptions": wanted,
            "resume_after": cursor or "",
        }
        try:
            request = json_format.ParseDict(asked, messages["trading.Subscribe"]())
        except json_format.ParseError as error:
            raise ValidationFailed(f"kinds: {error}") from None
        metadata = await transport.endpoint.credentials.metadata()
        if transport.options.organization_id:
            metadata.append(("x-organization-id", transport.options.organization_id))
        async with _channel(transport.url, target) as channel:
            call: Any = channel.unary_stream(
                METHOD,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=messages["trading.TradingEvent"].FromString,
            )(request, metadata=metadata)
            try:
                while True:
                    # Keep-alive asks the next proxy only. The platform has a heartbeat.
                    # Not by wait_for, which can lose a cancellation.
                    async with asyncio.timeout(STREAM_READ_SECONDS):
                        message = await call.read()
                    if message is grpc.aio.EOF:
                        return
                    fields = json_format.MessageToDict(message, preserving_proto_field_name=True)
                    event = read_event(fields)
                    if event is not None:
                        yield event
            except grpc.RpcError as error:
                raise _failure(error) from None
            except TimeoutError:
                raise AnswerLost(f"not even a heartbeat for {STREAM_READ_SECONDS:g} s") from None

    return follow


def _messages() -> dict[str, Any]:
    """A private pool: a program may have its own code of the same messages."""
    pool = descriptor_pool.DescriptorPool()
    files = FileDescriptorSet.FromString(DESCRIPTION.read_bytes())
    for file in files.file:
        pool.Add(file)
    return dict(message_factory.GetMessageClassesForFiles([file.name for file in files.file], pool))


def _channel(url: str, target: str | None) -> grpc.aio.Channel:
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    address = target or f"{host}:{SECURE_PORT if is_secure else PORT}"
    options = [
        ("grpc.keepalive_time_ms", KEEPALIVE_MILLIS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_MILLIS),
    ]
    if is_secure:
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(), options=options)
    return grpc.aio.insecure_channel(address, options=options)


def _failure(error: grpc.RpcError) -> TradingError:
    code = error.code()
    details = error.details() or ""
    kind = ERRORS.get(code, UnexpectedAnswer)
    status = 503 if kind is UnexpectedAnswer else None
    return kind(f"{code.name}: {details}", status=status)
