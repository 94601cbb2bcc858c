"""The composition root: builds database, features and the route table, and serves until it is
stopped."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import httpx
from prometheus_client import CollectorRegistry

from trading_intents import __version__
from trading_intents.accounts.credentials import Credentials
from trading_intents.accounts.http import (
    account_routes,
    broker_route,
    credential_routes,
    find_account,
)
from trading_intents.accounts.jobs import account_handlers
from trading_intents.accounts.service import Accounts
from trading_intents.accounts.vault import Vault, open_vault
from trading_intents.balances.http import balance_routes
from trading_intents.balances.service import Balances
from trading_intents.brokers.paper.http import quote_routes
from trading_intents.brokers.paper.quotes import Quotes
from trading_intents.brokers.port import Simulation
from trading_intents.brokers.registry import BUILT_IN, Registry, installed_brokers
from trading_intents.clock import Clock, SystemClock
from trading_intents.config import LOCAL_PROVIDER, Settings, broker_settings
from trading_intents.console.http import console_routes
from trading_intents.controls.halts.service import Halts
from trading_intents.controls.limits.upkeep import LossJudge
from trading_intents.controls.routes import control_routes
from trading_intents.errors import InternalError, PlatformError, Unavailable
from trading_intents.execution.restored.restoring import keep_restoring
from trading_intents.execution.service import Execution
from trading_intents.execution.upkeep import keep_execution
from trading_intents.identity.access import RULES, Gate, organization_of
from trading_intents.identity.http import (
    key_routes,
    organization_route,
    provider_routes,
    session_routes,
    user_route,
)
from trading_intents.identity.provider import EmbeddedProvider, load_issuer
from trading_intents.identity.service import (
    ApiKeys,
    Callers,
    Organizations,
    TokenIssuer,
    keep_reporting,
)
from trading_intents.identity.tokens import external_verifier
from trading_intents.identity.users import UserDirectory, Users, keep_resuming, user_handlers
from trading_intents.ids import IdMaker, id_maker, id_text_maker
from trading_intents.intents.http import intent_routes, submit_route
from trading_intents.intents.reductions import reduction_routes
from trading_intents.intents.service import Intents
from trading_intents.intents.writing.state import BatchDependencies
from trading_intents.intents.writing.statements import LOCK_LIMIT_SECONDS
from trading_intents.intents.writing.system import PlatformActions
from trading_intents.intents.writing.writer import Writer
from trading_intents.loops import (
    collect_rarely,
    interrupted_by,
    start_loop,
    stop_tasks,
    watch_loops,
)
from trading_intents.orders.events import retained_orders, retained_positions
from trading_intents.orders.http import order_routes
from trading_intents.orders.service import Orders
from trading_intents.outbox.http import outbox_routes
from trading_intents.outbox.model import Queue, channel
from trading_intents.outbox.worker import Worker, WorkerContext
from trading_intents.prices.http import price_routes
from trading_intents.prices.model import PriceRules
from trading_intents.prices.service import ReferencePrices
from trading_intents.secret import Secret
from trading_intents.storage.connections import DatabaseUrls, WalHistory
from trading_intents.storage.database import (
    HEALTH_LIMIT_SECONDS,
    SERVICE_ROLE,
    WORKER_ROLE,
    Database,
    open_database,
)
from trading_intents.storage.embedded.server import running
from trading_intents.storage.grouped import GroupTransactions
from trading_intents.storage.migrate import migrate
from trading_intents.storage.pipeline import Pipeline
from trading_intents.storage.signals import Signals, open_signals
from trading_intents.stream.grpc.listener import GrpcListener
from trading_intents.stream.grpc.subscriptions import StreamServicer
from trading_intents.stream.http import event_routes
from trading_intents.stream.hub import Hub
from trading_intents.stream.model import CHANNEL as STREAM
from trading_intents.stream.model import EventType
from trading_intents.stream.service import Streams
from trading_intents.telemetry import Log, Metrics, TrafficLog, render_metrics
from trading_intents.web.limits import ClientAddress, Limits, organization_rates, rates
from trading_intents.web.operations import (
    description_routes,
    make_request_series,
    operations_routes,
)
from trading_intents.web.request import Request
from trading_intents.web.routes import Policy, Route
from trading_intents.web.routing import App
from trading_intents.web.server.listener import bind, serving
from trading_intents.web.server.table import connection_limits, max_grpc_connections
from trading_intents.web.server.tls import certificate_files

Demo = TypeVar("Demo")
RenderMetrics = Callable[[CollectorRegistry], Awaitable[bytes]]

USERS_POLL_SECONDS = 5.0  # removing a person's data is not urgent
DRAIN_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Infrastructure:
    settings: Settings
    database: Database
    signals: Signals
    # For an external identity provider: reading the authorities takes longer than all the rest of a
    # command.
    client: httpx.AsyncClient | None
    brokers: Registry
    metrics: Metrics
    log: Log
    clock: Clock
    make_id: IdMaker
    pipeline: Pipeline
    worker_pipeline: Pipeline
    owner_url: Secret
    # Of the worker's role, each on a connection of its own.
    open_transactions: Callable[[], GroupTransactions]


@contextlib.asynccontextmanager
async def database_urls(
    settings: Settings, log: Log, metrics: Metrics, may_create: bool = False, may_start: bool = True
) -> AsyncIterator[DatabaseUrls]:
    """Gives the URLs of the configured database, or of the embedded one, which runs while the block
    does: here, unless another process runs it or this one may not."""
    if settings.database_url:
        yield DatabaseUrls(
            owner_url=settings.database_owner_url or settings.database_url,
            url=settings.database_url,
            worker_url=settings.database_worker_url or settings.database_url,
        )
        return
    async with running(
        settings.data_dir,
        settings.postgres_bin,
        log,
        on_start=metrics.postgres_starts.inc,
        may_create=may_create,
        may_start=may_start,
    ) as urls:
        yield urls


@contextlib.asynccontextmanager
async def open_infrastructure(
    settings: Settings,
    log: Log,
    needs_worker: bool = True,
    may_create: bool = False,
    may_start: bool = True,
) -> AsyncIterator[Infrastructure]:
    """Opens a migrated database and the rest, for `serve` and for every command. Without
    `needs_worker` the login of the worker's role is not used, and need not exist."""
    metrics = Metrics()
    clock = SystemClock()
    brokers = installed_brokers(log, partial(broker_settings, settings))
    async with contextlib.AsyncExitStack() as stack:
        urls = await stack.enter_async_context(
            database_urls(settings, log, metrics, may_create, may_start)
        )
        await migrate(
            urls.owner_url,
            urls.url,
            log,
            worker_url=urls.worker_url,
            needs_worker=needs_worker,
            may_create=may_create,
        )
        history = WalHistory()
        opening = open_database(
            url=urls.url,
            pool_size=settings.database_pool_size,
            log=log,
            metrics=metrics,
            worker_url=urls.worker_url,
            needs_worker=needs_worker,
            history=history,
        )
        database = await stack.enter_async_context(opening)
        signals = await stack.enter_async_context(
            open_signals(settings.database_listen_url or urls.url, log)
        )
        is_local = settings.identity_provider_name == LOCAL_PROVIDER
        client = None if is_local else await stack.enter_async_context(httpx.AsyncClient())

        def pipeline(url: Secret, role: str) -> Pipeline:
            opened = Pipeline(url, role, LOCK_LIMIT_SECONDS, history)
            return stack.enter_context(contextlib.closing(opened))

        def transactions() -> GroupTransactions:
            own = Pipeline(urls.worker_url, WORKER_ROLE, history=history)
            return stack.enter_context(contextlib.closing(GroupTransactions(own)))

        yield Infrastructure(
            settings=settings,
            database=database,
            signals=signals,
            client=client,
            brokers=brokers,
            metrics=metrics,
            log=log,
            clock=clock,
            make_id=id_maker(clock),
            pipeline=pipeline(urls.url, SERVICE_ROLE),
            worker_pipeline=pipeline(urls.worker_url, WORKER_ROLE),
            owner_url=urls.owner_url,
            open_transactions=transactions,
        )


def embedded_provider(infra: Infrastructure, may_create: bool) -> EmbeddedProvider:
    return EmbeddedProvider(
        infra.settings, load_issuer(infra.settings, may_create), infra.clock, infra.make_id
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services that the routes, the stream and the background work share."""

    provider: EmbeddedProvider | None
    directory: UserDirectory | None
    callers: Callers
    gates: dict[str, Gate]
    limits: Limits
    accounts: Accounts
    simulations: Mapping[str, Simulation]
    batch_dependencies: BatchDependencies
    writer: Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """All that the features provide; the process's roles say which of it runs."""

    services: Services
    routes: tuple[Route, ...]
    event_routes: tuple[Route, ...]
    hub: Hub
    grpc: GrpcListener


def build_services(infra: Infrastructure) -> Services:
    settings = infra.settings
    pool = infra.database.service
    name = settings.identity_provider_name
    provider = None
    directory = None
    if name == LOCAL_PROVIDER:
        provider = embedded_provider(infra, may_create=True)
        verifier = provider.verifier(infra.log)
    else:
        assert infra.client is not None
        directory = UserDirectory(infra.client, settings.identity_users_url)
        verifier = external_verifier(settings, infra.client, infra.clock, infra.log)
    callers = Callers(pool, verifier, name, provider is not None, infra.clock)
    internal = frozenset(settings.internal_organizations)
    simulations = infra.brokers.simulations(partial(broker_settings, settings))
    dependencies = BatchDependencies(
        pipeline=infra.pipeline,
        brokers=infra.brokers,
        make_id=id_text_maker(),
        clock=infra.clock,
        prices=PriceRules(settings.reference_price_max_age_seconds, simulations[BUILT_IN]),
    )
    return Services(
        provider=provider,
        directory=directory,
        callers=callers,
        gates={rule.name: Gate(rule, callers, internal) for rule in RULES.values()},
        limits=Limits(
            rates(settings), organization_rates(settings), infra.clock, infra.metrics.rate_limited
        ),
        accounts=Accounts(pool, infra.make_id, infra.brokers, infra.signals),
        simulations=simulations,
        batch_dependencies=dependencies,
        writer=Writer(dependencies, pool, infra.signals, infra.metrics, infra.log),
    )


def build_features(infra: Infrastructure, vault: Vault) -> Features:
    settings = infra.settings
    services = build_services(infra)
    gate = services.gates["stream"]
    # No more than there are HTTP connections: else one organization's quarter of them could be all
    # connections.
    max_streams = min(settings.max_streams, connection_limits(0).total)
    hub = Hub(
        pool=infra.database.stream,
        max_streams=max_streams,
        per_organization=settings.streams_per_organization,
        clock=infra.clock,
        metrics=infra.metrics,
        log=infra.log,
    )
    streams = Streams(
        pool=infra.database.stream,
        hub=hub,
        accounts=services.accounts,
        gate=gate,
        retained={
            EventType.BROKER_ORDER: retained_orders,
            EventType.BROKER_POSITION: retained_positions,
        },
        log=infra.log,
    )
    addresses = ClientAddress(settings.trusted_proxies)
    files = None
    if "stream" in settings.roles:
        files = certificate_files(settings, "TLS", infra.metrics, infra.log)
    grpc = GrpcListener(
        StreamServicer(streams, gate, services.limits, addresses, infra.log),
        max_streams=max_streams,
        max_connections=max_grpc_connections(settings.database_pool_size),
        host=settings.grpc_host,
        port=settings.grpc_port,
        files=files,
    )
    return Features(
        services=services,
        routes=(*identity_routes(infra, services), *trading_routes(infra, services, vault)),
        event_routes=event_routes(gate, streams, infra.log),
        hub=hub,
        grpc=grpc,
    )


def identity_routes(infra: Infrastructure, services: Services) -> tuple[Route, ...]:
    pool = infra.database.service
    gates = services.gates
    callers = services.callers
    name = infra.settings.identity_provider_name
    keys = ApiKeys(pool, infra.make_id, callers)
    users = Users(
        pool=pool,
        provider=name,
        directory=services.directory,
        make_id=infra.make_id,
        signals=infra.signals,
        callers=callers,
    )
    routes = (
        *key_routes(gates, keys),
        *session_routes(gates, keys),
        organization_route(gates["organization_by_provider"], Organizations(pool, name)),
        user_route(gates["delete_current_user"], users),
    )
    issuer = None
    if services.provider:
        issuer = TokenIssuer(pool, services.provider)
        routes += provider_routes(gates["public"], services.provider, issuer)
    return routes + console_routes(gates, infra.settings, issuer)


def trading_routes(infra: Infrastructure, services: Services, vault: Vault) -> tuple[Route, ...]:
    pool = infra.database.service
    signals = infra.signals
    gates = services.gates
    accounts = services.accounts
    writer = services.writer
    prices = services.batch_dependencies.prices
    read_accounts = gates["read_accounts"]
    read_intents = gates["read_intents"]
    submit = gates["submit_intent"]
    credentials = Credentials(pool, infra.make_id, infra.brokers, signals, vault)
    intents = Intents(pool, prices, infra.brokers)
    halts = Halts(pool, infra.make_id, signals, infra.log)
    quotes = Quotes(pool, signals, infra.settings.paper_seed)
    balances = Balances(pool, services.simulations)
    references = ReferencePrices(pool, prices)
    return (
        *account_routes(read_accounts, gates["write_accounts"], accounts),
        *credential_routes(read_accounts, gates["write_credentials"], accounts, credentials),
        broker_route(gates["brokers"], infra.brokers),
        *outbox_routes(gates["outbox_health"], pool),
        *control_routes(gates, pool, prices, halts),
        *quote_routes(gates["read_paper_quotes"], gates["paper_quotes"], organization_of, quotes),
        *balance_routes(read_accounts, accounts, balances, infra.clock),
        *price_routes(read_accounts, gates["write_reference_prices"], references, accounts),
        submit_route(submit, services.callers, accounts, writer, services.limits),
        *intent_routes(read_intents, gates["read_controls"], accounts, intents),
        *reduction_routes(submit, accounts, intents, writer, services.limits),
        *order_routes(read_intents, accounts, Orders(pool, prices)),
    )


def build_workers(
    infra: Infrastructure, vault: Vault, dependencies: BatchDependencies, losses: LossJudge
) -> list[Worker | Execution]:
    settings = infra.settings
    signals = infra.signals
    pool = infra.database.worker
    context = WorkerContext(
        pool, settings.outbox_attempt_limit, infra.clock, infra.metrics, infra.log
    )
    accounts = Worker(Queue.ACCOUNTS, account_handlers(pool, infra.brokers, vault), context)
    users = Worker(Queue.USERS, user_handlers(), context, poll_seconds=USERS_POLL_SECONDS)
    signals.subscribe(channel(Queue.ACCOUNTS), accounts.wake)
    signals.subscribe(channel(Queue.USERS), users.wake)
    execution = Execution(
        context=context,
        brokers=infra.brokers,
        vault=vault,
        settings=partial(broker_settings, settings),
        signals=signals,
        make_id=infra.make_id,
        max_age_millis=settings.execution_max_age_millis,
        actions=PlatformActions(replace(dependencies, pipeline=infra.worker_pipeline), signals),
        open_transactions=infra.open_transactions,
        reconcile_seconds=settings.execution_reconcile_seconds,
        prices=dependencies.prices,
        on_trades=losses.on_trades,
    )
    return [accounts, users, execution]


@contextlib.contextmanager
def ended_by_loops(log: Log, stop: asyncio.Event) -> Iterator[None]:
    """Sets `stop` when a loop of this process fails, and raises InternalError once the block has
    ended."""
    failed: list[str] = []

    def end(name: str, error: BaseException) -> None:
        log.critical("loop failed", loop=name, exc_info=error)
        failed.append(name)
        stop.set()

    watch_loops(end)
    yield
    log.info("stopped")
    if failed:
        raise InternalError(f"{failed[0]} has failed, so the process has ended; the log says why")


def take_ports(settings: Settings, sockets: contextlib.ExitStack) -> tuple[socket.socket, Settings]:
    """Binds REST's port, and the stream's for gRPC to listen on while `sockets` are open, so that a
    taken one is reported before anything is started; 0 becomes the free port that was found."""
    if "stream" in settings.roles:
        kept = bind(settings.grpc_host, settings.grpc_port, "GRPC", listens=False)
        settings = replace(
            settings, grpc_port=sockets.enter_context(contextlib.closing(kept)).getsockname()[1]
        )
    listener = sockets.enter_context(
        contextlib.closing(bind(settings.http_host, settings.http_port))
    )
    return listener, replace(settings, http_port=listener.getsockname()[1])


async def serve(
    settings: Settings,
    log: Log,
    stop: asyncio.Event,
    prepare: Callable[[Infrastructure], Awaitable[Demo]],
    greet: Callable[[Settings, Demo], None],
    given: socket.socket | None = None,
    render: RenderMetrics = render_metrics,
) -> None:
    """Runs everything that this process's roles need, until `stop` is set.

    `prepare` runs before the first request is served; `greet` gets the settings with their ports,
    and what `prepare` gave. A process with a parent is given its listener by it, and leaves
    PostgreSQL to it.
    """
    with ended_by_loops(log, stop), contextlib.ExitStack() as sockets:
        listener = given
        if listener is None:
            listener, settings = take_ports(settings, sockets)
        needs_worker = "worker" in settings.roles
        async with (
            interrupted_by(stop) as interrupt,
            open_infrastructure(
                settings, log, needs_worker, may_create=True, may_start=given is None
            ) as infra,
            open_vault(settings, infra.clock, log) as vault,
        ):
            features = build_features(infra, vault)
            infra.metrics.watch_folder(settings.data_dir)
            app = build_app(infra, features, render)
            collect_rarely()
            demo = await prepare(infra)
            connections = connection_limits(settings.http_connections_per_address)
            # Else a port on loopback, for its parent.
            is_public = listener.getsockname()[1] == settings.http_port
            files = None
            if is_public:
                files = certificate_files(settings, "HTTP_TLS", infra.metrics, log)
            async with (
                infra.database.kept_warm(),
                serving(app, listener, connections, files),
                working(infra, features, vault) as workers,
            ):
                interrupt.cancel()
                greet(replace(settings, grpc_port=features.grpc.port), demo)
                await stop.wait()
                log.info("draining")
                features.hub.drain()
                drained, *_ = await asyncio.gather(
                    app.drain(DRAIN_SECONDS),
                    features.grpc.stop(),
                    *(worker.stop(DRAIN_SECONDS) for worker in workers),
                )
                if not drained:
                    log.warning("requests still running after the drain", seconds=DRAIN_SECONDS)


def build_app(
    infra: Infrastructure, features: Features, render: RenderMetrics = render_metrics
) -> App:
    """Builds the route table, without the routes of roles that this process does not have."""
    settings = infra.settings
    public = features.services.gates["public"]

    async def can_write() -> bool:
        if "api" not in settings.roles:
            return True
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(HEALTH_LIMIT_SECONDS):
                await infra.pipeline.connect()
        return infra.pipeline.open_connection is not None

    async def not_ready_reason() -> str:
        if app.draining:
            return "this process is shutting down; try another, or again"
        if "stream" in settings.roles and not await features.grpc.is_reachable():
            return "the gRPC port does not answer"
        if app.disk_has_failed():
            return "the database's disk is full or fails"
        if not await infra.database.service.healthy():
            return "the database cannot be reached, or its disk is full"
        if not infra.database.is_warm or not await can_write():
            return "the connections to the database are still being opened"
        return ""

    routes = operations_routes(
        public, not_ready_reason, lambda: render(infra.metrics.registry), infra.clock
    )
    if "api" in settings.roles:
        routes += features.routes
    if {"api", "stream"} & set(settings.roles):
        routes += features.event_routes
    routes += description_routes(public, routes, __version__, settings.http_url)
    make_request_series(infra.metrics.requests, routes)
    addresses = ClientAddress(settings.trusted_proxies)

    async def find_path_account(request: Request, policy: Policy) -> None:
        assert isinstance(policy, Gate)
        await find_account(request, policy, features.services.accounts)

    app = App(
        routes=routes,
        limits=features.services.limits,
        client_address=addresses,
        clock=infra.clock,
        metrics=infra.metrics,
        log=infra.log,
        find_account=find_path_account,
    )
    return app


@contextlib.asynccontextmanager
async def working(
    infra: Infrastructure, features: Features, vault: Vault
) -> AsyncIterator[list[Worker | Execution]]:
    services = features.services
    background = [
        start_loop(keep_reporting(services.callers, infra.log)),
        start_loop(features.hub.run()),
        start_loop(TrafficLog(infra.metrics, infra.log).run()),
    ]
    infra.signals.subscribe(STREAM, features.hub.wake, features.hub.has_followers)
    if "api" in infra.settings.roles:
        background.append(start_loop(services.writer.run()))
    workers: list[Worker | Execution] = []
    if "worker" in infra.settings.roles:
        pool = infra.database.worker
        dependencies = services.batch_dependencies
        losses = LossJudge(
            pool=pool,
            prices=dependencies.prices,
            make_id=infra.make_id,
            signals=infra.signals,
            clock=infra.clock,
            log=infra.log,
        )
        resuming = keep_resuming(
            pool, services.directory, infra.settings.identity_provider_name, infra.log
        )
        upkeep = keep_execution(pool, dependencies.prices, infra.clock, infra.metrics, infra.log)
        assert infra.database.restoring is not None
        restoring = keep_restoring(infra.database.restoring, infra.metrics, infra.log)
        for work in (resuming, losses.run(), upkeep, restoring):
            background.append(start_loop(work))
        workers = build_workers(infra, vault, dependencies, losses)
        for each in workers:
            each.start()
    try:
        if "stream" in infra.settings.roles:
            await features.grpc.start()
        yield workers
    finally:
        await features.grpc.stop()
        await stop_tasks(*background)
        for each in workers:
            await each.stop(0)
        with contextlib.suppress(PlatformError):
            await services.callers.report_use()
