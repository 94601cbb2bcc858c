"""Composition root: settings become database, features and the one route table; then serve until told to stop."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import httpx

from trading_intents import __version__
from trading_intents.clock import Clock, SystemClock
from trading_intents.config import LOCAL_PROVIDER, Settings
from trading_intents.identity.access import RULES, Gate
from trading_intents.identity.http import key_routes, organization_routes, provider_routes
from trading_intents.identity.provider import EmbeddedProvider, load_signing_key
from trading_intents.identity.service import ApiKeys, Callers, Organizations, TokenIssuer, keep_reporting
from trading_intents.identity.tokens import TokenVerifier, external_verifier
from trading_intents.ids import IdMaker, id_maker
from trading_intents.secret import Secret
from trading_intents.storage.database import Database, open_database
from trading_intents.storage.embedded import running
from trading_intents.storage.migrate import migrate
from trading_intents.telemetry import Log, Metrics
from trading_intents.web.limits import Limits, Proxies, rates
from trading_intents.web.operations import description_routes, operations_routes
from trading_intents.web.routing import App, Route
from trading_intents.web.server import bind, serving

DRAIN_SECONDS = 10
STOPPED_AT_ONCE = 130


@dataclass(frozen=True, slots=True)
class Urls:
    login: Secret
    owner: Secret


@dataclass(frozen=True, slots=True)
class Parts:
    """What every feature is built from."""

    settings: Settings
    database: Database
    metrics: Metrics
    log: Log
    clock: Clock
    make_id: IdMaker


@contextlib.asynccontextmanager
async def database_urls(settings: Settings, log: Log, metrics: Metrics) -> AsyncIterator[Urls]:
    """Where the database is: the configured one, or the embedded one, which runs while the block does."""
    if settings.database_url:
        yield Urls(settings.database_url, settings.database_owner_url or settings.database_url)
        return
    started = metrics.postgres_starts.inc
    async with running(settings.data_dir, settings.postgres_bin, log, started) as server:
        yield Urls(server.url, server.owner_url)


@contextlib.asynccontextmanager
async def open_parts(settings: Settings, log: Log) -> AsyncIterator[Parts]:
    """A migrated database and the rest, for `serve` and for every command."""
    metrics, clock = Metrics(), SystemClock()
    async with database_urls(settings, log, metrics) as urls:
        await migrate(urls.owner, urls.login, log)
        async with open_database(urls.login, settings.database_pool_size, log, metrics) as database:
            yield Parts(settings, database, metrics, log, clock, id_maker(clock))


def embedded_provider(parts: Parts) -> EmbeddedProvider:
    return EmbeddedProvider(parts.settings, load_signing_key(parts.settings.data_dir), parts.clock, parts.make_id)


@contextlib.asynccontextmanager
async def build_routes(parts: Parts, missing: Callable[[], str]) -> AsyncIterator[tuple[Route, ...]]:
    """The one route table; what its features do in the background runs while the block does."""
    settings, pool = parts.settings, parts.database.service
    local = settings.identity_provider_name == LOCAL_PROVIDER
    async with contextlib.AsyncExitStack() as stack:
        provider = embedded_provider(parts) if local else None
        verifier: TokenVerifier
        if provider:
            verifier = provider.verifier(parts.log)
        else:
            client = await stack.enter_async_context(httpx.AsyncClient())
            verifier = external_verifier(settings, client, parts.clock, parts.log)
        callers = Callers(pool, verifier, settings.identity_provider_name, local, parts.clock)
        internal = frozenset(settings.internal_organizations)
        gates = {name: Gate(rule, callers, internal) for name, rule in RULES.items()}

        async def lacking() -> str:
            return missing() or ("" if await pool.healthy() else "the database is away")

        routes = operations_routes(gates["public"], lacking, parts.metrics.registry)
        if "api" in settings.roles:
            routes += key_routes(gates, ApiKeys(pool, parts.make_id, callers))
            organizations = Organizations(pool, settings.identity_provider_name)
            routes += organization_routes(gates["organization_by_provider"], organizations)
            if provider:
                routes += provider_routes(gates["public"], provider, TokenIssuer(pool, provider))
        reporting = asyncio.create_task(keep_reporting(callers, parts.log))
        try:
            yield routes + description_routes(gates["public"], routes, __version__)
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])
            await callers.report_use()


async def serve(
    settings: Settings,
    log: Log,
    prepare: Callable[[Parts], Awaitable[Secret | None]],
    greet: Callable[[Parts, str, Secret | None], None],
) -> None:
    """Everything this process's roles need, until SIGTERM or SIGINT; the second of them stops at once.

    `prepare` runs before the first request is served and may give the demo's key; `greet` is told the address.
    """
    stop = _stop_signal()
    listener = bind(settings.http_host, settings.http_port)
    app: App | None = None

    def missing() -> str:
        return "this process is shutting down" if app and app.draining else ""

    with contextlib.closing(listener):
        async with open_parts(settings, log) as parts, build_routes(parts, missing) as routes:
            limits = Limits(rates(settings), parts.clock, parts.metrics.rate_limited)
            app = App(routes, limits, Proxies(settings.trusted_proxies), parts.clock, parts.metrics, log)
            demo_key = await prepare(parts)
            async with serving(app, listener):
                greet(parts, _url(settings.http_host, listener.getsockname()[1]), demo_key)
                await stop.wait()
                log.info("draining")
                if not await app.drain(DRAIN_SECONDS):
                    log.warning("requests were still running after the drain", seconds=DRAIN_SECONDS)
    log.info("stopped")


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            # The kernel ends the embedded PostgreSQL with us.
            os._exit(STOPPED_AT_ONCE)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
