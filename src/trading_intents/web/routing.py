"""Takes every request through its steps: match, identify, limit, read, permit, handle, answer."""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import unquote_to_bytes

from trading_intents import errors
from trading_intents.clock import Clock
from trading_intents.loops import LoopSlots, wait_at_most
from trading_intents.telemetry import Log, Metrics
from trading_intents.web.limits import Bucket, ClientAddress, Limits
from trading_intents.web.paging import answer_csv, prefers_csv
from trading_intents.web.problem import PROBLEM, ErrorShape
from trading_intents.web.request import (
    JSON,
    NO_STORE,
    Answer,
    Headers,
    Incoming,
    LimitedCaller,
    PendingRequest,
    Request,
)
from trading_intents.web.routes import Policy, Respond, Route
from trading_intents.web.validation import unknown_parameters

MAX_REFUSALS_LOGGED = 10  # a second, of requests that could not be read
MAX_FAILURES_LOGGED = 100  # a second, of requests that could not be served
DISK_FAILED_SECONDS = 5.0  # for this long after a failure the disk counts as failed

FindAccount = Callable[[Request, Policy], Awaitable[object]]


class App:
    """`find_account` raises what a path gets whose account is not there, or not the caller's."""

    def __init__(
        self,
        routes: Iterable[Route],
        limits: Limits,
        client_address: ClientAddress,
        clock: Clock,
        metrics: Metrics,
        log: Log,
        find_account: FindAccount | None = None,
    ) -> None:
        self.routes = tuple(routes)
        self._table = _Table(self.routes)
        self._limits = limits
        self.client_address = client_address
        self._clock = clock
        self.metrics = metrics
        self._log = log
        self._find_account = find_account
        # Of organizations, and of all requests without a caller together.
        self._slots = LoopSlots[str | None]()
        self._in_flight: set[object] = set()
        self._refusals_logged = _PerSecond(MAX_REFUSALS_LOGGED)
        self._failures_logged = _PerSecond(MAX_FAILURES_LOGGED)
        self._disk_failed_at = -math.inf
        self._idle = asyncio.Event()
        self.draining = False

    async def drain(self, limit_seconds: float) -> bool:
        """Refuses new requests and waits for those in flight; False if the limit came first."""
        self.draining = True
        if not self._in_flight:
            self._idle.set()
        await wait_at_most(self._idle, limit_seconds)
        return not self._in_flight

    def enter(self, connection: object) -> bool:
        """Registers a request that begins to arrive; whether it is served. `leave` ends all of its
        connection's."""
        self._in_flight.add(connection)
        return not self.draining

    def leave(self, connection: object) -> None:
        self._in_flight.discard(connection)
        if self.draining and not self._in_flight:
            self._idle.set()

    def begin(self, incoming: Incoming, respond: Respond) -> PendingRequest | None:
        """Handles the request on the fast path if it can; else gives None, and `handle` does it."""
        found = self._table.match_fast(incoming.method, incoming.raw_path)
        if found is None or not incoming.taken or incoming.query_string:
            return None
        route, parameter = found
        assert route.fast is not None
        started = self._clock.monotonic()

        def answered(answer: Answer) -> None:
            self.metrics.requests.count(
                route.path, answer.status, self._clock.monotonic() - started
            )
            if answer.failure:
                self._note_failure(route.path, *answer.failure)
            respond(answer)

        return route.fast(incoming, parameter, answered)

    async def handle(self, incoming: Incoming) -> Answer:
        """Answers every request; an error becomes an answer too."""
        started = self._clock.monotonic()
        route, request, answer = await self._answer(incoming)
        answer.headers += request.headers_out
        seconds = self._clock.monotonic() - started
        self.metrics.requests.count(route.path if route else "none", answer.status, seconds)
        if answer.failure and route:
            # A process that is not ready or drains has not failed to handle the request.
            is_expected = answer.status == errors.Unavailable.status and (
                route.operation.always or not incoming.taken
            )
            if not is_expected:
                self._note_failure(route.path, *answer.failure)
        return answer

    async def _answer(self, incoming: Incoming) -> tuple[Route | None, Request, Answer]:
        address = self.client_address.address(incoming)
        try:
            incoming.check_target()
            if incoming.refusal:
                raise incoming.refusal
            route, params = self._table.match(incoming.method, incoming.raw_path)
        except errors.PlatformError as error:
            # `incoming` keeps its refusal: with this frame in it they would keep each other.
            error.__traceback__ = None
            request = Request(incoming, {}, address)
            await self._slots.take(None)
            if incoming.refusal:
                self._log_refusal(request, incoming.refusal)
            return (
                None,
                request,
                self._table.error_shape(incoming.raw_path).answer(error, request.id),
            )
        request = Request(incoming, params, address)
        try:
            answer = await self._serve(route, request)
        except errors.PlatformError as error:
            answer = route.operation.error_shape.answer(error, request.id)
        except Exception as error:
            fault = errors.InternalError(
                "an error of the platform; its log has the details under the request id"
            )
            fault.__cause__ = error
            answer = route.operation.error_shape.answer(fault, request.id)
        return route, request, answer

    def disk_has_failed(self) -> bool:
        """Whether the database lately refused a request since its disk is full or fails."""
        return self._clock.monotonic() - self._disk_failed_at < DISK_FAILED_SECONDS

    def _note_failure(self, route: str, request_id: str, error: errors.PlatformError) -> None:
        """Logs every internal error, and a limited number of unserved requests a second."""
        now = self._clock.monotonic()
        cause = error.__cause__
        if isinstance(error, errors.DiskFailed):
            self._disk_failed_at = now
        if error.status == errors.InternalError.status:
            self._log.error(
                "request failed", request_id=request_id, route=route, exc_info=cause or error
            )
        elif self._failures_logged.has_room(now):
            self._log.warning(
                "request not served",
                request_id=request_id,
                route=route,
                code=error.code,
                reason=error.detail,
                cause=None if cause is None else repr(cause),
            )

    def _log_refusal(self, request: Request, error: errors.PlatformError) -> None:
        """Logs a limited number a second, so that a flood does not fill the disk. The metrics count
        all."""
        if error.__cause__ is not None:
            self._note_failure("none", request.id, error)
        elif self._refusals_logged.has_room(self._clock.monotonic()):
            self._log.warning(
                "request refused",
                request_id=request.id,
                address=request.address,
                status=error.status,
                detail=error.detail,
            )

    async def _serve(self, route: Route, request: Request) -> Answer:
        operation = route.operation
        if not request.incoming.taken and not operation.always:
            raise errors.Unavailable("this process is shutting down; try another, or again")
        if operation.csv_columns:
            request.headers_out.append((b"vary", b"accept"))
        await self._identify(route, request)
        bucket = route.limited_by
        if bucket and not operation.is_counted_by_handler:
            request.headers_out += self._take(bucket, request)
        if not operation.always:
            await self._slots.take(_slot_of(request.caller))
        try:
            if unknown := self._check(route, request):
                await self._check_account(route, request)
                raise unknown
        except errors.PlatformError:
            if bucket and operation.is_counted_by_handler:
                request.headers_out += self._take(bucket, request)
            raise
        answer = await route.handle(request)
        if operation.csv_columns and prefers_csv(request):
            return answer_csv(request, answer, operation.csv_columns)
        return answer

    async def _check_account(self, route: Route, request: Request) -> None:
        """Before a query is refused: the 404 and the 403 of the path's account come first."""
        if self._find_account and "account_id" in request.params:
            await self._find_account(request, route.policy)

    def _check(self, route: Route, request: Request) -> errors.ValidationFailed | None:
        """Reads the request, and raises what keeps it from its handler; gives a refusal that the
        path's object comes before."""
        operation = route.operation
        if operation.body is not None and operation.body_media is JSON:
            request.read_json(operation.max_body_bytes, operation.is_body_optional)
        elif operation.body is not None:
            request.read_form(operation.max_body_bytes)
        unknown = None
        if request.incoming.query_string and not operation.any_query:
            known = [each.name for each in operation.parameters if each.where == "query"]
            unknown = unknown_parameters(request.query, known)
        for parameter in operation.parameters:
            if parameter.check:
                given = request.parameter(parameter.where, parameter.name)
                if given is not None:
                    parameter.check(given)
        route.policy.permit(request)
        return unknown

    async def _identify(self, route: Route, request: Request) -> None:
        if route.policy.public:
            return
        if route.method == "GET":
            # Caches take only `authorization` for a credential: by an API key, one caller would get
            # another's answer.
            request.headers_out.append(NO_STORE)
        await self._limits.identify(
            route.policy, request, route.limited_by, route.operation.verifies_late
        )

    def _take(self, bucket: Bucket, request: Request) -> Headers:
        caller = request.caller
        if caller is None:
            return self._limits.take(
                bucket, f"address:{request.address}", None, "address", request.tokens
            )
        return self._limits.take(
            bucket, caller.limit_key, caller.organization_limit_key, tokens=request.tokens
        )


def _slot_of(caller: LimitedCaller | None) -> str | None:
    if caller is None:
        return None
    return caller.organization_limit_key or caller.limit_key


class _PerSecond:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._second = 0
        self._count = 0

    def has_room(self, now_seconds: float) -> bool:
        if int(now_seconds) != self._second:
            self._second = int(now_seconds)
            self._count = 0
        self._count += 1
        return self._count <= self._limit


Methods = dict[str, tuple["Route", tuple[str, ...]]]  # with the names of the path's parameters


class _Table:
    """Routes on the raw path: %2F stays inside its segment, and a literal segment goes before a
    parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._literal: dict[bytes, Methods] = {}
        self._fast: list[tuple[str, re.Pattern[bytes], Route]] = []
        shapes: dict[str, Methods] = {}
        for route in routes:
            names = tuple(re.findall(r"{(\w+)}", route.path))
            if names:
                methods = shapes.setdefault(re.sub(r"{\w+}", "{}", route.path), {})
            else:
                methods = self._literal.setdefault(route.path.encode(), {})
            if route.method in methods:
                raise ValueError(f"{route.method} {route.path} is registered twice")
            methods[route.method] = (route, names)
            if route.fast:
                assert len(names) == 1
                expression = re.escape(route.path).replace(re.escape(f"{{{names[0]}}}"), "([^/%]+)")
                self._fast.append((route.method, re.compile(expression.encode()), route))
        # One expression for all routes: the last group that closes is the shape, the groups inside
        # are its parameters.
        self._shapes: dict[int, Methods] = {}
        alternatives = []
        group = 1
        for shape in sorted(shapes, key=lambda shape: [part == "{}" for part in shape.split("/")]):
            pattern = re.escape(shape).replace(re.escape("{}"), "([^/]*)")
            alternatives.append(f"({pattern})")
            self._shapes[group] = shapes[shape]
            group += 1 + shape.count("{}")
        self._expression = re.compile("|".join(alternatives).encode())

    def error_shape(self, raw_path: bytes) -> ErrorShape:
        """Gives the form of a path's errors, whatever the method."""
        routes = self._literal.get(raw_path, {}).values()
        return next((route.operation.error_shape for route, _ in routes), PROBLEM)

    def match_fast(self, method: str, raw_path: bytes) -> tuple[Route, str] | None:
        for wanted, expression, route in self._fast:
            if method == wanted and (found := expression.fullmatch(raw_path)):
                return route, found[1].decode("latin-1")
        return None

    def match(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        methods = self._literal.get(raw_path)
        if methods is not None:
            return _pick(methods, method)[0], {}
        found = self._expression.fullmatch(raw_path) if self._shapes else None
        if found is None:
            raise errors.NotFound("no such path; /docs lists the paths")
        group = found.lastindex
        assert group is not None
        route, names = _pick(self._shapes[group], method)
        params = {}
        for name, value in zip(names, found.groups()[group:], strict=False):
            params[name] = _decode(value)
        return route, params


def _pick(methods: Methods, method: str) -> tuple[Route, tuple[str, ...]]:
    found = methods.get("GET" if method == "HEAD" else method)
    if found is None:
        takes = set(methods)
        if "GET" in takes:
            takes.add("HEAD")
        allowed = ", ".join(sorted(takes))
        raise errors.MethodNotAllowed(
            f"this path does not take {method}; use {allowed}", headers={"allow": allowed}
        )
    return found


def _decode(part: bytes) -> str:
    try:
        unquoted = unquote_to_bytes(part) if b"%" in part else part
        text = unquoted.decode()
    except UnicodeDecodeError:
        raise errors.NotFound("no such path; /docs lists the paths") from None
    if "\x00" in text:  # there can be no such object: PostgreSQL's text has no NUL
        raise errors.NotFound("no such path; /docs lists the paths")
    return text
