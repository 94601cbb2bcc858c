"""The endpoints that every process has: liveness, readiness, metrics, and the description of the
rest."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import httpx
import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from trading_intents.clock import Clock
from trading_intents.errors import Unavailable, wire_errors
from trading_intents.telemetry import Requests
from trading_intents.web.description.openapi import build_openapi, codes_by_status
from trading_intents.web.description.pages import STYLE_PATH, make_pages
from trading_intents.web.description.static import HTML, MEDIA, StaticFile
from trading_intents.web.request import JSON, Answer, Request, answer_json
from trading_intents.web.routes import Operation, Policy, Route, Tag

T = TypeVar("T")

UNROUTED_STATUSES = (400, 404, 405, 408, 413, 414, 500, 503)
MAX_AGE_SECONDS = 0.1  # of the answers to probes and scrapers, which have no rate limit


async def read_metrics(url: str, limit_seconds: float) -> str | None:
    """The metrics of another process; None: it does not answer, as while it starts or is frozen."""
    try:
        async with (
            asyncio.timeout(limit_seconds),
            # Certificates are not read: what is sent is no secret, and they name the host that
            # callers know.
            httpx.AsyncClient(verify=False, trust_env=False) as client,  # noqa: S501 - see above
        ):
            return (await client.get(f"{url}/metrics")).raise_for_status().text
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
        return None


class Health(msgspec.Struct):
    status: str


class _Cached(Generic[T]):
    """A value that is computed once for all requests within MAX_AGE_SECONDS."""

    def __init__(self, compute: Callable[[], Awaitable[T]], clock: Clock) -> None:
        self._compute = compute
        self._clock = clock
        self._task: asyncio.Future[T] | None = None
        self._computed_at = 0.0

    async def get(self) -> T:
        now = self._clock.monotonic()
        if self._task is None or (self._task.done() and now - self._computed_at >= MAX_AGE_SECONDS):
            self._task = asyncio.ensure_future(self._compute())
            self._computed_at = now
        return await asyncio.shield(self._task)  # a cancelled caller does not cancel it for others


def operations_routes(
    policy: Policy,
    missing: Callable[[], Awaitable[str]],
    render: Callable[[], Awaitable[bytes]],
    clock: Clock,
) -> tuple[Route, ...]:
    """`missing` says what this process's roles lack now; an empty text means that it is ready.
    `render` gives the metrics."""
    text = CONTENT_TYPE_LATEST.encode()
    lacking = _Cached(missing, clock)
    rendered = _Cached(render, clock)

    @Operation(tag=Tag.OPERATIONS, answer=Health, always=True, any_query=True)
    async def check_liveness(request: Request) -> Answer:
        """Check that the process is alive."""
        return answer_json(Health("alive"))

    @Operation(
        tag=Tag.OPERATIONS, answer=Health, errors=(Unavailable,), always=True, any_query=True
    )
    async def check_readiness(request: Request) -> Answer:
        """Check that the process can do its roles' work."""
        if lack := await lacking.get():
            raise Unavailable(lack)
        return answer_json(Health("ready"))

    @Operation(tag=Tag.OPERATIONS, answer_media=text, always=True, any_query=True)
    async def get_metrics(request: Request) -> Answer:
        """Read the metrics for Prometheus."""
        return Answer(body=await rendered.get(), status=200, content_type=text)

    return (
        Route("GET", "/healthz", policy, check_liveness),
        Route("GET", "/readyz", policy, check_readiness),
        Route("GET", "/metrics", policy, get_metrics),
    )


def make_request_series(requests: Requests, routes: Sequence[Route]) -> None:
    for route in routes:
        statuses = [route.operation.status, *codes_by_status(route)]
        requests.make_series(route.path, statuses)
    requests.make_series("none", UNROUTED_STATUSES)


def description_routes(
    policy: Policy, described: Sequence[Route], version: str, url: str
) -> tuple[Route, ...]:
    """/, /docs and /openapi.json describe `described` and themselves; `url` is where their examples
    find us."""

    def describe() -> tuple[bytes, dict[str, StaticFile]]:
        document = build_openapi(tuple(described) + routes, version, url)
        return msgspec.json.encode(document), make_pages(document, wire_errors(), url)

    @functools.cache
    def description() -> asyncio.Future[tuple[bytes, dict[str, StaticFile]]]:
        """Made when somebody asks for it, because that takes a third of a start, and beside other
        requests."""
        return asyncio.ensure_future(asyncio.to_thread(describe))

    async def answer_page(path: str, request: Request) -> Answer:
        _, pages = await asyncio.shield(description())
        return pages[path].answer(request)

    @Operation(tag=Tag.OPERATIONS, answer=dict[str, Any])
    async def get_openapi(request: Request) -> Answer:
        """Read this description as OpenAPI 3.1."""
        encoded, _ = await asyncio.shield(description())
        return Answer(body=encoded, status=200, content_type=JSON)

    @Operation(tag=Tag.OPERATIONS, answer_media=HTML, any_query=True)
    async def get_docs(request: Request) -> Answer:
        """Read this description as a page."""
        return await answer_page("/docs", request)

    @Operation(tag=Tag.OPERATIONS, answer_media=HTML, any_query=True)
    async def get_home(request: Request) -> Answer:
        """Read what this is and where to begin."""
        return await answer_page("/", request)

    @Operation(tag=Tag.OPERATIONS, answer_media=MEDIA[".css"], any_query=True)
    async def get_page_style(request: Request) -> Answer:
        """Read the style of these pages."""
        return await answer_page(STYLE_PATH, request)

    routes = (
        Route("GET", "/openapi.json", policy, get_openapi),
        Route("GET", "/docs", policy, get_docs),
        Route("GET", "/", policy, get_home),
        Route("GET", STYLE_PATH, policy, get_page_style),
    )
    return routes
