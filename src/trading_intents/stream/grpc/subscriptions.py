"""TradingService over gRPC: errors become statuses, events are passed on as bytes. Encodes nothing
for each subscriber."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import grpc

from trading_intents.errors import InternalError, InvalidRequest, PlatformError, Unavailable
from trading_intents.identity.access import Gate, caller_of
from trading_intents.identity.model import Caller
from trading_intents.loops import stop_tasks
from trading_intents.stream import trading_pb2
from trading_intents.stream.grpc import calls
from trading_intents.stream.model import EventType
from trading_intents.stream.service import Stream, Streams, SubscribeRequest
from trading_intents.stream.subscriber import Subscriber
from trading_intents.telemetry import Log
from trading_intents.web.limits import Bucket, ClientAddress, Limits
from trading_intents.web.request import Headers, Incoming, Request

MAX_ADMISSIONS = 1_000  # calls whose caller is not yet identified

_PEER = re.compile(r"ipv[46]:\[?(.*?)\]?:\d+\Z")

Ask = Callable[[Stream], Awaitable[None]]


class StreamServicer:
    def __init__(
        self, streams: Streams, gate: Gate, limits: Limits, client_address: ClientAddress, log: Log
    ) -> None:
        self._streams = streams
        self._gate = gate
        self._limits = limits
        self._client_address = client_address
        self._log = log
        self._admitting = 0

    def handler(self) -> Any:
        """Without serializers: what subscribers get is bytes already, and what we read may be no
        message at all.

        SubscribeEvents reads its one message itself: grpc would wait for it without a limit,
        whoever calls.
        """
        return grpc.method_handlers_generic_handler(
            calls.SERVICE,
            {
                "SubscribeEvents": grpc.stream_stream_rpc_method_handler(self._subscribe_events),
                "StreamEvents": grpc.stream_stream_rpc_method_handler(self._stream_events),
            },
        )

    async def _subscribe_events(self, _: AsyncIterator[bytes], context: calls.Context) -> None:
        async def ask(stream: Stream) -> None:
            requested = _read_subscribe(
                calls.parse(trading_pb2.Subscribe, await calls.read_first(context))
            )
            requested.check()
            self._gate.permit(stream.request)
            await self._streams.subscribe(stream, requested)

        await self._serve(context, ask)

    async def _stream_events(self, _: AsyncIterator[bytes], context: calls.Context) -> None:
        async def ask(stream: Stream) -> None:
            self._gate.permit(stream.request)
            limit_seconds: float | None = calls.FIRST_MESSAGE_SECONDS
            while (data := await calls.read(context, limit_seconds)) is not None:
                await self._pace(stream)
                request = calls.parse(trading_pb2.StreamEventsRequest, data)
                match request.WhichOneof("request"):
                    case "subscribe":
                        await self._streams.subscribe(stream, _read_subscribe(request.subscribe))
                    case "unsubscribe":
                        await self._streams.unsubscribe(
                            stream, request.unsubscribe.trading_account_id or None
                        )
                    case _:
                        raise InvalidRequest(
                            "the message has no command; use subscribe or unsubscribe"
                        )
                limit_seconds = None if stream.scopes else calls.IDLE_SECONDS

        await self._serve(context, ask)

    async def _pace(self, stream: Stream) -> None:
        """Reads a call no faster than its caller and organization may send messages. Refuses none:
        a caller may subscribe to all of its accounts at once."""
        caller = caller_of(stream.request)
        wait_seconds = self._limits.reserve(
            Bucket.MESSAGES, caller.limit_key, caller.organization_limit_key
        )
        await asyncio.sleep(wait_seconds)

    async def _serve(self, context: calls.Context, ask: Ask) -> None:
        """`ask` reads the requests and subscribes, until there are no more requests."""
        try:
            error = await self._stream(await self._admit(context), context, ask)
        except PlatformError as refusal:
            error = refusal
        except Exception as fault:
            self._log.error("stream failed", exc_info=fault)
            error = InternalError("an error of the platform; its log has the details")
        if error is not None:
            await calls.abort(context, error)

    async def _stream(
        self, request: Request, context: calls.Context, ask: Ask
    ) -> PlatformError | None:
        """Gives the error that ended the stream; None when the caller ended it."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = asyncio.Event()

        def notify() -> None:
            waiting.set()
            if subscriber.error is not None and not ended.done():
                ended.set_result(None)

        async def ask_on() -> None:
            try:
                await ask(stream)
            except PlatformError as refusal:
                subscriber.end(refusal)
            except Exception as fault:
                self._log.error("stream request failed", exc_info=fault)
                subscriber.end(InternalError("an error of the platform; its log has the details"))
            else:
                if not stream.scopes and not ended.done():
                    ended.set_result(None)

        stream = self._streams.open("grpc", request, notify)
        subscriber = stream.subscriber
        asking = asyncio.create_task(ask_on())
        pumping = asyncio.create_task(_pump(subscriber, waiting, context))
        try:
            # A write can wait for ever for a reader that has stopped, so the end does not wait for
            # it.
            await asyncio.wait((pumping, ended), return_when=asyncio.FIRST_COMPLETED)
            return subscriber.error
        finally:
            self._streams.close(stream)
            await stop_tasks(asking, pumping)

    async def _admit(self, context: calls.Context) -> Request:
        """Identifies the caller and checks its rate limit, as REST does, before any message is
        read: only known callers may wait."""
        if self._admitting >= MAX_ADMISSIONS:
            raise Unavailable("this process has too many calls that begin; try again")
        headers: Headers = []
        for name, value in context.invocation_metadata() or ():
            headers.append((name.encode(), value if isinstance(value, bytes) else value.encode()))
        found = _PEER.match(unquote(context.peer()))
        incoming = Incoming(
            method="POST",
            raw_path=b"",
            query_string=b"",
            headers=headers,
            body=b"",
            peer=found[1] if found else "unknown",
            keep_alive=True,
        )
        request = Request(incoming, {}, self._client_address.address(incoming))
        self._admitting += 1
        try:
            await self._limits.identify(self._gate, request, Bucket.READS)
        finally:
            self._admitting -= 1
        assert isinstance(request.caller, Caller)
        self._limits.take(
            Bucket.READS, request.caller.limit_key, request.caller.organization_limit_key
        )
        return request


async def _pump(subscriber: Subscriber, waiting: asyncio.Event, context: calls.Context) -> None:
    """Runs until cancelled, or until the connection is lost."""
    while True:
        batch = subscriber.take()
        if batch is None:
            waiting.clear()
            await waiting.wait()
            continue
        for message in batch.messages:
            await context.write(message.data)
            subscriber.sent(1, len(message.data))


def _read_subscribe(message: trading_pb2.Subscribe) -> SubscribeRequest:
    known = set(map(int, EventType))
    if message.order_delivery not in trading_pb2.OrderDelivery.values():
        raise InvalidRequest(
            "order_delivery is unknown; use ORDER_DELIVERY_LIVE or ORDER_DELIVERY_PRIMED"
        )
    return SubscribeRequest(
        message.trading_account_id or None,
        frozenset(EventType(kind) for kind in message.subscriptions if kind in known),
        symbol=message.instrument_key,
        orders_primed=message.order_delivery == trading_pb2.ORDER_DELIVERY_PRIMED,
        resume_after=message.resume_after,
    )
