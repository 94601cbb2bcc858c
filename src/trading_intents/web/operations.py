"""The endpoints that every process has: liveness, readiness, metrics, and the description of the rest."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from trading_intents.clock import Clock
from trading_intents.errors import Unavailable
from trading_intents.web.limits import Bucket
from trading_intents.web.openapi import build_openapi, render_page
from trading_intents.web.request import JSON, Answer, Request, answer_json
from trading_intents.web.routing import Policy, Route

T = TypeVar("T")

HTML = b"text/html; charset=utf-8"
MAX_AGE_SECONDS = 0.1  # of what probes and scrapers are told: anybody may ask, without a limit


class Health(msgspec.Struct):
    status: str


class _Cached(Generic[T]):
    """A value that is computed once for all who ask within a moment."""

    def __init__(self, compute: Callable[[], Coroutine[Any, Any, T]], clock: Clock) -> None:
        self._compute, self._clock = compute, clock
        self._task: asyncio.Task[T] | None = None
        self._computed_at = 0.0

    async def get(self) -> T:
        now = self._clock.monotonic()
        if self._task is None or (self._task.done() and now - self._computed_at >= MAX_AGE_SECONDS):
            self._task, self._computed_at = asyncio.create_task(self._compute()), now
        return await asyncio.shield(self._task)  # a caller that goes away leaves it to the others


def operations_routes(
    policy: Policy, missing: Callable[[], Coroutine[Any, Any, str]], registry: CollectorRegistry, clock: Clock
) -> tuple[Route, ...]:
    """`missing` names what this process's roles lack right now; an empty text means that it is ready."""

    async def render_metrics() -> bytes:
        return generate_latest(registry)

    lacking, rendered = _Cached(missing, clock), _Cached(render_metrics, clock)

    async def healthz(request: Request) -> Answer:
        return answer_json(Health("alive"))

    async def readyz(request: Request) -> Answer:
        if lack := await lacking.get():
            raise Unavailable(lack)
        return answer_json(Health("ready"))

    async def metrics(request: Request) -> Answer:
        return Answer(await rendered.get(), 200, CONTENT_TYPE_LATEST.encode())

    text = CONTENT_TYPE_LATEST.encode()
    return (
        Route("GET", "/healthz", policy, healthz, "The process is alive.", answer=Health, always=True),
        Route(
            "GET",
            "/readyz",
            policy,
            readyz,
            "The process can do its roles' work.",
            answer=Health,
            always=True,
            errors=(Unavailable,),
        ),
        Route("GET", "/metrics", policy, metrics, "Prometheus metrics.", always=True, answer_media=text),
    )


def description_routes(policy: Policy, described: Sequence[Route], version: str) -> tuple[Route, ...]:
    """/openapi.json and /docs describe `described` and themselves."""

    async def openapi(request: Request) -> Answer:
        return Answer(document, 200, JSON)

    async def docs(request: Request) -> Answer:
        return Answer(page, 200, HTML)

    routes = (
        Route("GET", "/openapi.json", policy, openapi, "This API as OpenAPI 3.1.", bucket=Bucket.READS),
        Route("GET", "/docs", policy, docs, "This API as a page.", bucket=Bucket.READS, answer_media=HTML),
    )
    everything = (*described, *routes)
    document = msgspec.json.encode(build_openapi(everything, version))
    page = render_page(everything, version)
    return routes
