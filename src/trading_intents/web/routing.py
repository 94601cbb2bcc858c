"""Takes every request through its steps: match, identify, limit, read, permit, handle, answer."""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from functools import partial
from urllib.parse import unquote_to_bytes

from trading_intents import errors
from trading_intents.clock import Clock
from trading_intents.loops import EagerTasks, LoopSlots, wait_at_most
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
    PendingAnswer,
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
        slots: LoopSlots[Hashable] | None = None,
    ) -> None:
        self.routes = tuple(routes)
        self._table = _Table(self.routes)
        self._limits = limits
        self.client_address = client_address
        self._clock = clock
        self.metrics = metrics
        self._log = log
        self._find_account = find_account
        self.slots = slots or LoopSlots[Hashable]()
        self._tasks = EagerTasks()
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

    def begin(self, incoming: Incoming, respond: Respond) -> "Serving":
        """Answers the request when its turn comes: its organization's, or its address's if it
        has no caller. Calls `respond` once, perhaps at once."""
        serving = self.prepare(incoming, respond)
        if self._begins_at_once(serving) or self.slots.has_time():
            self._run(serving)
        else:
            self.slots.wait(_slot_of(serving.request), partial(self._run, serving))
        return serving

    def _begins_at_once(self, serving: "Serving") -> bool:
        """A probe does, and a request whose caller has to be read before its turn is known."""
        route = serving.route
        if route is None or route.policy.public:
            return route is not None and route.operation.always
        return serving.request.caller is None

    def prepare(self, incoming: Incoming, respond: Respond) -> "Serving":
        """Finds the route, and the caller if it is known without waiting."""
        request = Request(incoming, {}, self.client_address.address(incoming))
        serving = Serving(request, respond, self._clock.monotonic())
        request.answer = partial(self._take_answer, serving)
        try:
            incoming.check_target()
            if incoming.refusal:
                raise incoming.refusal
            serving.route, request.params = self._table.match(incoming.method, incoming.raw_path)
        except errors.PlatformError as error:
            # `incoming` keeps its refusal: with this frame in it they would keep each other.
            error.__traceback__ = None
            serving.refusal = error
        else:
            if not serving.route.policy.public:
                serving.route.policy.recognize(request)
        return serving

    def _run(self, serving: "Serving") -> None:
        if not serving.is_over:
            serving.has_begun = True
            serving.task = self._tasks.run(self.answer(serving), partial(self.end, serving))

    async def answer(self, serving: "Serving") -> Answer | PendingAnswer:
        """Answers every request; an error becomes an answer too."""
        request = serving.request
        route = serving.route
        try:
            if route:
                return await self._serve(route, request)
            assert serving.refusal
            if request.incoming.refusal:
                self._log_refusal(request, serving.refusal)
            error = serving.refusal
        except errors.PlatformError as raised:
            error = raised
        except Exception as fault:
            error = errors.InternalError(
                "an error of the platform; its log has the details under the request id"
            )
            error.__cause__ = fault
        return self._explain(serving, error)

    def _explain(self, serving: "Serving", error: errors.PlatformError) -> Answer:
        request = serving.request
        shape = (
            serving.route.operation.error_shape
            if serving.route
            else self._table.error_shape(request.incoming.raw_path)
        )
        return shape.answer(error, request.id)

    def end(self, serving: "Serving", given: Answer | PendingAnswer) -> None:
        if isinstance(given, Answer):
            self._finish(serving, given)
        else:
            serving.pending = given

    def _take_answer(self, serving: "Serving", given: Answer | errors.PlatformError) -> None:
        """Takes the answer that was pending, and sends it in its turn: a batch has many."""
        serving.pending = None
        if self.slots.has_time():
            self._finish_pending(serving, given)
        else:
            step = partial(self._finish_pending, serving, given)
            self.slots.wait(_slot_of(serving.request), step)

    def _finish_pending(self, serving: "Serving", given: Answer | errors.PlatformError) -> None:
        answer = given if isinstance(given, Answer) else self._explain(serving, given)
        self._finish(serving, answer)

    def _finish(self, serving: "Serving", answer: Answer) -> None:
        request = serving.request
        route = serving.route
        answer.headers += request.headers_out
        seconds = self._clock.monotonic() - serving.began_seconds
        self.metrics.requests.count(route.path if route else "none", answer.status, seconds)
        if answer.failure and route:
            # A process that is not ready or drains has not failed to handle the request.
            is_expected = answer.status == errors.Unavailable.status and (
                route.operation.always or not request.incoming.taken
            )
            if not is_expected:
                self._note_failure(route.path, *answer.failure)
        serving.end()
        serving.respond(answer)

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

    async def _serve(self, route: Route, request: Request) -> Answer | PendingAnswer:
        operation = route.operation
        if not request.incoming.taken and not operation.always:
            raise errors.Unavailable("this process is shutting down; try another, or again")
        if operation.csv_columns:
            request.headers_out.append((b"vary", b"accept"))
        await self._admit(route, request)
        bucket = route.limited_by
        try:
            if unknown := self._check(route, request):
                await self._check_account(route, request)
                raise unknown
        except errors.PlatformError:
            if bucket and operation.is_counted_by_handler:
                request.headers_out += self._take(bucket, request)
            raise
        given = await route.handle(request)
        if operation.csv_columns and isinstance(given, Answer) and prefers_csv(request):
            return answer_csv(request, given, operation.csv_columns)
        return given

    async def _admit(self, route: Route, request: Request) -> None:
        """Identifies and counts the caller, and waits for its slot if it was not known before."""
        policy = route.policy
        bucket = route.limited_by
        if route.method == "GET" and not policy.public:
            # Caches take only `authorization` for a credential: by an API key, one caller would get
            # another's answer.
            request.headers_out.append(NO_STORE)
        is_known = policy.public or request.caller is not None
        if not is_known:
            await self._limits.identify(policy, request, bucket, route.operation.verifies_late)
        if bucket and not route.operation.is_counted_by_handler:
            request.headers_out += self._take(bucket, request)
        if not is_known:
            await self.slots.take(_slot_of(request))

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

    def _take(self, bucket: Bucket, request: Request) -> Headers:
        caller = request.caller
        if caller is None:
            return self._limits.take(
                bucket, f"address:{request.address}", None, "address", request.tokens
            )
        return self._limits.take(
            bucket, caller.limit_key, caller.organization_limit_key, tokens=request.tokens
        )


def _slot_of(request: Request) -> Hashable:
    return request.caller.slot if request.caller else request.address


class Serving:
    """A request that is being answered."""

    __slots__ = (
        "began_seconds",
        "has_begun",
        "is_over",
        "pending",
        "refusal",
        "request",
        "respond",
        "route",
        "task",
    )

    def __init__(self, request: Request, respond: Respond, began_seconds: float) -> None:
        self.request = request
        self.respond = respond
        self.began_seconds = began_seconds
        self.route: Route | None = None
        self.refusal: errors.PlatformError | None = None  # why there is no route
        self.task: asyncio.Task[None] | None = None  # of a handler that waits for something
        self.pending: PendingAnswer | None = None
        self.has_begun = False
        self.is_over = False

    def abandon(self) -> None:
        """The caller has hung up: what has not begun does not begin."""
        if self.pending:
            self.pending.abandon()
        elif not self.has_begun:
            self.end()

    def end(self) -> None:
        self.is_over = True
        del self.request.answer  # it leads back to here


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


class _Node:
    """A node in the tree of all paths' segments."""

    __slots__ = ("literals", "methods", "parameter")

    def __init__(self) -> None:
        self.literals: dict[bytes, _Node] = {}
        self.parameter: _Node | None = None
        self.methods: Methods = {}

    def child(self, segment: str) -> "_Node":
        if not segment.startswith("{"):
            return self.literals.setdefault(segment.encode(), _Node())
        self.parameter = self.parameter or _Node()
        return self.parameter

    def find(self, segments: Sequence[bytes], at: int, values: list[bytes]) -> Methods:
        if at == len(segments):
            return self.methods
        segment = segments[at]
        literal = self.literals.get(segment)
        found = literal.find(segments, at + 1, values) if literal else {}
        if not found and self.parameter:
            values.append(segment)
            found = self.parameter.find(segments, at + 1, values)
            if not found:
                values.pop()
        return found


class _Table:
    """Routes on the raw path: %2F stays inside its segment, and a literal segment goes before a
    parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            names = []
            for segment in route.path.split("/"):
                node = node.child(segment)
                names += re.findall(r"^{(\w+)}$", segment)
            if route.method in node.methods:
                raise ValueError(f"{route.method} {route.path} is registered twice")
            node.methods[route.method] = (route, tuple(names))

    def error_shape(self, raw_path: bytes) -> ErrorShape:
        """Gives the form of a path's errors, whatever the method."""
        routes = self._root.find(raw_path.split(b"/"), 0, []).values()
        return next((route.operation.error_shape for route, _ in routes), PROBLEM)

    def match(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        values: list[bytes] = []
        methods = self._root.find(raw_path.split(b"/"), 0, values)
        if not methods:
            raise errors.NotFound("no such path; /docs lists the paths")
        route, names = _pick(methods, method)
        params = {}
        for name, value in zip(names, values, strict=True):
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
