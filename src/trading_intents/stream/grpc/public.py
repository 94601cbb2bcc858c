"""Health and reflection, which need no credential and never use the stream's limits."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from trading_intents.errors import LimitReached, NotFound, PlatformError
from trading_intents.stream.grpc.calls import (
    IDLE_SECONDS,
    SERVICE,
    Context,
    abort,
    parse,
    read,
    read_first,
)

# The name that the protocol has today, with the same messages; grpc_reflection knows only the one
# before.
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
MAX_PUBLIC_CALLS = 200
MAX_PUBLIC_CALLS_PER_CONNECTION = 4


class PublicServicer:
    """Health and reflection for any caller. They have a limit of their own: a new call ends the
    oldest one."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._calls: dict[asyncio.Timeout, None] = {}
        self._connections: Counter[str] = Counter()
        self._reflection = reflection.aio.ReflectionServicer(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        )

    def handlers(self) -> tuple[Any, ...]:
        """Every method reads its messages itself, as grpc would wait for them without a limit."""
        make = grpc.stream_stream_rpc_method_handler
        serve = grpc.method_handlers_generic_handler
        healths: dict[str, Any] = {
            "Check": make(self._limited(self._check)),
            "Watch": make(self._limited(self._watch)),
        }
        reflections: dict[str, Any] = {
            "ServerReflectionInfo": make(self._limited(self._reflect)),
        }
        return (
            serve(health.SERVICE_NAME, healths),
            serve(REFLECTION_V1, reflections),
            serve(reflection.SERVICE_NAME, reflections),
        )

    def stop(self) -> None:
        """Notifies clients that watch the health that nothing is served any more."""
        self._stopping.set()

    def _limited(self, call: Callable[[Context], Awaitable[None]]) -> Any:
        async def serve(_: AsyncIterator[bytes], context: Context) -> None:
            connection = context.peer()
            self._connections[connection] += 1
            try:
                if self._connections[connection] > MAX_PUBLIC_CALLS_PER_CONNECTION:
                    raise LimitReached(
                        "this connection has too many calls without a credential; end some"
                    )
                async with asyncio.timeout(None) as timeout:
                    self._take(timeout)
                    try:
                        await call(context)
                    finally:
                        self._calls.pop(timeout, None)
            except TimeoutError:
                await abort(
                    context, LimitReached("newer calls without a credential ended this one")
                )
            except PlatformError as refusal:
                await abort(context, refusal)
            finally:
                self._connections -= Counter((connection,))  # which also drops what is zero

        return serve

    def _take(self, timeout: asyncio.Timeout) -> None:
        if len(self._calls) >= MAX_PUBLIC_CALLS:
            oldest = next(iter(self._calls))
            del self._calls[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())
        self._calls[timeout] = None

    async def _check(self, context: Context) -> None:
        status = self._status(await read_first(context))
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            raise NotFound("no such service")
        await context.write(_health(status))

    async def _watch(self, context: Context) -> None:
        data = await read_first(context)
        await context.write(_health(self._status(data)))
        await self._stopping.wait()
        await context.write(_health(self._status(data)))

    def _status(self, data: bytes) -> Any:
        if parse(health_pb2.HealthCheckRequest, data).service not in ("", SERVICE):
            return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        if self._stopping.is_set():
            return health_pb2.HealthCheckResponse.NOT_SERVING
        return health_pb2.HealthCheckResponse.SERVING

    async def _reflect(self, context: Context) -> None:
        async def requests() -> AsyncIterator[Any]:
            while (data := await read(context, IDLE_SECONDS)) is not None:
                yield parse(reflection_pb2.ServerReflectionRequest, data)

        async for answer in self._reflection.ServerReflectionInfo(requests(), context):
            await context.write(answer.SerializeToString())


def _health(status: Any) -> bytes:
    return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())
