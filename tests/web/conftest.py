"""A small application on the real server and a real socket, with one route for each thing that web
promises."""

import asyncio
import contextlib
import gc
import io
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import pytest

from tests.fakes import ManualClock
from trading_intents.config import Rate, Settings
from trading_intents.errors import Forbidden, NotFound, Unauthorized, Unavailable, VersionConflict
from trading_intents.loops import collect_rarely
from trading_intents.telemetry import Metrics, make_log, render_metrics
from trading_intents.web.limits import Bucket, ClientAddress, Limits
from trading_intents.web.operations import description_routes, operations_routes
from trading_intents.web.paging import PAGE_PARAMETERS, Listing, read_page
from trading_intents.web.problem import PLAIN
from trading_intents.web.request import Answer, PendingAnswer, Request, answer_json
from trading_intents.web.routes import (
    IF_MATCH,
    Handler,
    Operation,
    Policy,
    Respond,
    Route,
    Tag,
)
from trading_intents.web.routing import App
from trading_intents.web.server.listener import bind, serving
from trading_intents.web.server.table import ConnectionLimits
from trading_intents.web.server.tls import certificate_files


class Leg(msgspec.Struct, forbid_unknown_fields=True):
    quantity: str


class Order(msgspec.Struct, forbid_unknown_fields=True):
    symbol: str
    legs: list[Leg] = []


class Echo(msgspec.Struct):
    text: str


@dataclass(frozen=True)
class Named:
    limit_key: str
    organization_limit_key: str | None = None

    @property
    def slot(self) -> str:
        return self.organization_limit_key or self.limit_key


@dataclass
class Anyone:
    name: str = "anyone"
    meaning: str = "anyone"
    public: bool = True
    credentials: tuple[str, ...] = ()
    names_organization: bool = False

    def recognize(self, request: Request) -> None: ...

    async def identify(self, request: Request) -> None: ...

    def is_verified(self, request: Request) -> bool:
        raise AssertionError("a public endpoint reads no credential")

    has_well_formed_key = is_verified

    def permit(self, request: Request) -> None: ...


@dataclass
class Known:
    """The header x-name identifies, after a look-up; `bad` does not verify, `weak` may not, `other`
    is of another kind.
    `friend` was verified before. `key…` is well-formed, and verifies only as `key`."""

    name: str = "known"
    meaning: str = "whoever says a name"
    public: bool = False
    credentials: tuple[str, ...] = ("bearer",)
    names_organization: bool = False

    def recognize(self, request: Request) -> None: ...

    async def identify(self, request: Request) -> None:
        name = request.header(b"x-name")
        await asyncio.sleep(0)
        if name is None or name == "bad" or (name.startswith("key") and name != "key"):
            raise Unauthorized
        if name == "broken":
            raise Unavailable
        request.caller = Named(name, request.header(b"x-organization"))
        if name == "other":
            raise Unauthorized

    def is_verified(self, request: Request) -> bool:
        return request.header(b"x-name") == "friend"

    def has_well_formed_key(self, request: Request) -> bool:
        return str(request.header(b"x-name")).startswith("key")

    def permit(self, request: Request) -> None:
        assert request.caller
        if request.caller.limit_key == "weak":
            raise Forbidden


class Pending:
    def abandon(self) -> None:
        pass


@dataclass(kw_only=True)
class Site:
    """The application and the levers that a test moves."""

    app: App
    client: httpx.AsyncClient
    clock: ManualClock
    port: int
    logs: io.StringIO
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    missing: str = ""
    readiness_checks: int = 0
    pending: list[Respond] = field(default_factory=list)  # of requests that are answered later


ROWS = [f"{n:03}" for n in range(120)]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as site:
        yield site


@contextlib.asynccontextmanager
async def open_site(settings: Settings | None = None) -> AsyncIterator[Site]:
    """By TLS, if the settings have its files."""
    clock = ManualClock()
    metrics = Metrics()
    logs = io.StringIO()
    lever: list[Site] = []

    async def missing() -> str:
        lever[0].readiness_checks += 1
        return lever[0].missing

    routes = _routes(lever)
    routes += operations_routes(Anyone(), missing, lambda: render_metrics(metrics.registry), clock)
    routes += description_routes(Anyone(), routes, "0.1.0", "http://127.0.0.1:8080")
    rates, shared = (dict.fromkeys(Bucket, rate) for rate in (Rate(5, 10), Rate(10, 15)))
    limits = Limits(rates | {Bucket.CANCELS: Rate(1000, 1000)}, shared, clock, metrics.rate_limited)
    log = make_log("info", logs)
    app = App(
        routes=routes,
        limits=limits,
        client_address=ClientAddress(("127.0.0.9", "10.0.0.0/8")),
        clock=clock,
        metrics=metrics,
        log=log,
    )
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    files = certificate_files(settings or Settings(), "HTTP_TLS", metrics, log)
    url = f"http{'s' if files else ''}://127.0.0.1:{port}"
    async with (
        serving(app, listener, ConnectionLimits(100, 50), files),
        httpx.AsyncClient(base_url=url, verify=False) as client,
    ):
        lever.append(Site(app=app, client=client, clock=clock, port=port, logs=logs))
        yield lever[0]
        lever[0].leave.set()


def route(
    method: str,
    path: str,
    policy: Policy,
    handle: Handler,
    summary: str,
    **more: Any,
) -> Route:
    @Operation(tag=Tag.OPERATIONS, **more)
    async def named(request: Request) -> Answer | PendingAnswer:
        return await handle(request)

    named.__name__ = re.sub(r"\W+", "_", method.lower() + path).strip("_")
    named.__doc__ = summary
    return Route(method, path, policy, named)


async def echo(request: Request) -> Answer:
    return answer_json(Echo("|".join(request.params.values())))


async def create(request: Request) -> Answer:
    if request.params["place"] == "nowhere":
        raise NotFound
    return answer_json(request.body(Order), 201)


async def listing(request: Request) -> Answer:
    page = read_page(request, f"rows:{request.params['owner']}")
    return answer_json(page.answer(page.select(ROWS, str), str, Echo))


async def update(request: Request) -> Answer:
    expected = request.if_match()
    if expected is not None and 3 not in expected:
        raise VersionConflict
    return answer_json(request.body(Order), version=4)


async def broken(request: Request) -> Answer:
    raise ZeroDivisionError("secret-marker")


async def limited(request: Request) -> Answer:
    return answer_json(Echo("ok"))


def _order_routes(anyone: Anyone, known: Known) -> tuple[Route, ...]:
    return (
        route(
            "GET",
            "/v1/things/{symbol}/time",
            anyone,
            echo,
            "Echo.",
            answer=Echo,
            bucket=Bucket.CANCELS,
        ),
        route("GET", "/v1/things/special/time", anyone, limited, "Literal.", answer=Echo),
        route(
            "POST",
            "/v1/places/{place}/orders",
            known,
            create,
            "Create.",
            body=Order,
            answer=Order,
            status=201,
        ),
        route(
            "PUT",
            "/v1/orders",
            anyone,
            update,
            "Update.",
            body=Order,
            answer=Order,
            parameters=(IF_MATCH,),
        ),
        route(
            "GET",
            "/v1/lists/{owner}",
            anyone,
            listing,
            "List.",
            answer=Listing[Echo],
            parameters=PAGE_PARAMETERS,
        ),
    )


def _routes(lever: list[Site]) -> tuple[Route, ...]:
    async def slow(request: Request) -> Answer:
        lever[0].entered.set()
        await lever[0].leave.wait()
        return answer_json(Echo("done"))

    async def later(request: Request) -> Pending:
        lever[0].pending.append(request.answer)
        return Pending()

    async def quick(request: Request) -> Pending:
        if request.params["name"] == "broken":
            raise ZeroDivisionError("secret-marker")
        lever[0].pending.append(request.answer)
        lever[0].entered.set()
        return Pending()

    anyone = Anyone()
    known = Known()
    return (
        *_order_routes(anyone, known),
        route("GET", "/v1/slow", anyone, slow, "Wait.", answer=Echo),
        route("GET", "/v1/broken", anyone, broken, "Break.", answer=Echo),
        route(
            "GET",
            "/v1/plain",
            known,
            broken,
            "Break in plain text.",
            answer=Echo,
            error_shape=PLAIN,
        ),
        route("GET", "/v1/limited", known, limited, "Limited.", answer=Echo),
        route(
            "POST",
            "/v1/stops",
            known,
            limited,
            "Stop.",
            answer=Echo,
            bucket=Bucket.CANCELS,
            verifies_late=True,
        ),
        route(
            "POST",
            "/v1/quick/{name}",
            anyone,
            quick,
            "Answered later, without a task.",
            answer=Echo,
            is_counted_by_handler=True,
        ),
        route(
            "POST",
            "/v1/later",
            known,
            later,
            "Answered later, to a caller.",
            answer=Echo,
            bucket=Bucket.CANCELS,
        ),
        route("GET", "/v1/limited-address", anyone, limited, "Limited.", answer=Echo),
    )


@pytest.fixture
def rare_collections() -> Iterator[None]:
    """Has garbage collected as rarely as by a process that serves. What is frozen stays so: to go
    through all that was collected takes a third of a second."""
    thresholds = gc.get_threshold()
    collect_rarely()
    yield
    gc.set_threshold(*thresholds)
