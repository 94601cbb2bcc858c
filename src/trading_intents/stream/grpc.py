"""The stream's gRPC door: statuses for errors, bytes passed through. Encodes nothing for a subscriber."""

import asyncio
import contextlib
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from trading_intents.errors import InternalError, InvalidRequest, PlatformError, StartupRefused, Unauthorized
from trading_intents.identity.access import Gate
from trading_intents.identity.model import Caller
from trading_intents.stream import trading_pb2
from trading_intents.stream.hub import MOST_STREAMS
from trading_intents.stream.model import EventType
from trading_intents.stream.service import Asked, Stream, Streams
from trading_intents.stream.subscriber import Subscriber
from trading_intents.telemetry import Log
from trading_intents.web.limits import Bucket, Limits, Proxies
from trading_intents.web.request import Incoming, Request

SERVICE = "trading.TradingService"
MOST_REQUEST_BYTES = 64 * 1024
MOST_METADATA_BYTES = 16 * 1024
KEEPALIVE_MILLIS, KEEPALIVE_LIMIT_MILLIS = 30_000, 10_000
LEAST_PING_MILLIS = 10_000
LAST_WORD_SECONDS = 5.0  # for a status to leave; a reader that has stopped finds it when it reads on
STOP_SECONDS = 2.0
REACH_SECONDS = 1.0

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
OPTIONS = (
    ("grpc.so_reuseport", 0),  # a taken port is refused, not shared
    ("grpc.max_receive_message_length", MOST_REQUEST_BYTES),
    ("grpc.max_metadata_size", MOST_METADATA_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MILLIS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_LIMIT_MILLIS),
    ("grpc.http2.min_ping_interval_without_data_ms", LEAST_PING_MILLIS),
)
_PEER = re.compile(r"ipv[46]:\[?(.*?)\]?:\d+\Z")

Context = grpc.aio.ServicerContext[bytes, bytes]
Ask = Callable[[Stream], Awaitable[bool]]


class Door:
    def __init__(self, streams: Streams, gate: Gate, limits: Limits, proxies: Proxies, log: Log) -> None:
        self._streams, self._gate, self._limits, self._proxies, self._log = streams, gate, limits, proxies, log

    def handler(self) -> Any:
        """Without serializers: what subscribers get is bytes already, and what we read may be no message at all."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "SubscribeEvents": grpc.unary_stream_rpc_method_handler(self._subscribe_events),
                "StreamEvents": grpc.stream_stream_rpc_method_handler(self._stream_events),
            },
        )

    async def _subscribe_events(self, data: bytes, context: Context) -> None:
        def read() -> None:
            _asked(_parse(trading_pb2.Subscribe, data)).check()

        async def ask(stream: Stream) -> bool:
            await self._streams.subscribe(stream, _asked(_parse(trading_pb2.Subscribe, data)))
            return True

        await self._serve(context, read, ask)

    async def _stream_events(self, requests: AsyncIterator[bytes], context: Context) -> None:
        async def ask(stream: Stream) -> bool:
            async for data in requests:
                request = _parse(trading_pb2.StreamEventsRequest, data)
                match request.WhichOneof("request"):
                    case "subscribe":
                        await self._streams.subscribe(stream, _asked(request.subscribe))
                    case "unsubscribe":
                        await self._streams.unsubscribe(stream, request.unsubscribe.trading_account_id or None)
                    case _:
                        raise InvalidRequest("neither subscribe nor unsubscribe")
            return bool(stream.scopes)

        await self._serve(context, lambda: None, ask)

    async def _serve(self, context: Context, read: Callable[[], None], ask: Ask) -> None:
        """`read` raises when the request cannot be read. `ask` asks for events; False: there is nothing to wait for."""
        try:
            error = await self._stream(await self._admit(context, read), context, ask)
        except PlatformError as refusal:
            error = refusal
        except Exception as fault:
            self._log.error("stream failed", exc_info=fault)
            error = InternalError("our fault; the logs tell")
        if error is not None:
            code = STATUS.get(error.status, grpc.StatusCode.INTERNAL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORD_SECONDS):
                    await context.abort(code, error.detail)

    async def _stream(self, request: Request, context: Context, ask: Ask) -> PlatformError | None:
        """Why it ended; None when the caller wanted nothing more."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = asyncio.Event()

        def notify() -> None:
            waiting.set()
            if subscriber.error is not None and not ended.done():
                ended.set_result(None)

        async def ask_on() -> None:
            try:
                more = await ask(stream)
            except PlatformError as refusal:
                subscriber.end(refusal)
            except Exception as fault:
                self._log.error("asking for events failed", exc_info=fault)
                subscriber.end(InternalError("our fault; the logs tell"))
            else:
                if not more and not ended.done():
                    ended.set_result(None)

        stream = self._streams.open("grpc", request, notify)
        subscriber = stream.subscriber
        asking = asyncio.create_task(ask_on())
        pumping = asyncio.create_task(_pump(subscriber, waiting, context))
        try:
            # A write can wait for ever on a reader that has stopped: the end must not wait with it.
            await asyncio.wait((pumping, ended), return_when=asyncio.FIRST_COMPLETED)
            return subscriber.error
        finally:
            self._streams.close(stream)
            asking.cancel()
            pumping.cancel()
            await asyncio.gather(asking, pumping, return_exceptions=True)

    async def _admit(self, context: Context, read: Callable[[], None]) -> Request:
        """In the order of REST: who, too often, can it be read, may they."""
        headers = [
            (name.encode(), value if isinstance(value, bytes) else value.encode())
            for name, value in context.invocation_metadata() or ()
        ]
        found = _PEER.match(unquote(context.peer()))
        incoming = Incoming("POST", b"", b"", headers, b"", found[1] if found else "unknown", keep_alive=True)
        request = Request(incoming, {}, self._proxies.address(incoming))
        self._limits.check(Bucket.FAILURES, request.address)
        try:
            await self._gate.identify(request)
        except Unauthorized:
            self._limits.spend(Bucket.FAILURES, request.address)
            raise
        assert isinstance(request.caller, Caller)
        self._limits.take(Bucket.READS, request.caller.limit_key)
        read()
        self._gate.permit(request)
        return request


async def _pump(subscriber: Subscriber, waiting: asyncio.Event, context: Context) -> None:
    """Until cancelled, or the connection is lost."""
    while True:
        batch = subscriber.take()
        if batch is None:
            waiting.clear()
            await waiting.wait()
            continue
        for message in batch.messages:
            await context.write(message.data)
            subscriber.sent(1, len(message.data))


def _parse(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"not a {kind.DESCRIPTOR.full_name}") from None


def _asked(message: trading_pb2.Subscribe) -> Asked:
    known = set(map(int, EventType))
    if message.order_delivery not in trading_pb2.OrderDelivery.values():
        raise InvalidRequest("order_delivery is not one that is known")
    return Asked(
        message.trading_account_id or None,
        frozenset(EventType(kind) for kind in message.subscriptions if kind in known),
        message.instrument_key,
        message.order_delivery == trading_pb2.ORDER_DELIVERY_PRIMED,
        message.resume_after,
    )


class Listener:
    """The port, with health and reflection beside the stream. The hub ends the streams; this only lets them go."""

    def __init__(self, door: Door, host: str, port: int, certificate_file: str, key_file: str) -> None:
        self._door, self._host, self._port = door, host, port
        self._files = (Path(certificate_file), Path(key_file)) if certificate_file else None
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    async def start(self) -> None:
        # PostgreSQL may be started beside us at any time: what grpc does around a fork is for children that use it too.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        self._server = server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MOST_STREAMS)
        server.add_generic_rpc_handlers((self._door.handler(),))
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        try:
            if self._files:
                self._port = server.add_secure_port(self.address, _credentials(*self._files))
            else:
                self._port = server.add_insecure_port(self.address)
        except RuntimeError:
            raise StartupRefused(
                f"cannot listen on {self._host} port {self._port}: end what uses it, or set "
                "TRADING_INTENTS_GRPC_HOST and TRADING_INTENTS_GRPC_PORT"
            ) from None
        await server.start()

    async def is_reachable(self) -> bool:
        try:
            async with asyncio.timeout(REACH_SECONDS):
                _, writer = await asyncio.open_connection(self._host, self._port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def stop(self) -> None:
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(STOP_SECONDS)


def _credentials(certificate: Path, key: Path) -> Any:
    """Read again when the files change, so that a renewed certificate needs no restart."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)  # grpc would say nothing
    except (OSError, ssl.SSLError) as error:
        raise StartupRefused(f"TRADING_INTENTS_TLS_CERTIFICATE_FILE, _KEY_FILE: {error}") from None
    seen: list[tuple[int, int]] = []

    def read() -> Any:
        """None: nothing changed, or the files are half-written."""
        try:
            stamps = (certificate.stat().st_mtime_ns, key.stat().st_mtime_ns)
            if seen and seen[0] == stamps:
                return None
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            pair = (key.read_bytes(), certificate.read_bytes())
        except (OSError, ssl.SSLError):
            return None
        seen[:] = [stamps]
        return grpc.ssl_server_certificate_configuration([pair])

    return grpc.dynamic_ssl_server_credentials(read(), read)
