"""Checks a machine, its settings and accounts, and says what is wrong and what to do. Only a trial
changes anything."""

import asyncio
import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from msgspec.structs import replace

from trading_intents import __version__
from trading_intents.accounts.model import InspectedAccount, SealedSecret
from trading_intents.accounts.store import inspect_account, newest_sealed
from trading_intents.accounts.vault import EmbeddedVault, SecretRef, embedded_vault, open_vault
from trading_intents.app import database_urls
from trading_intents.brokers import port
from trading_intents.brokers.port import (
    AuthFailed,
    BrokerAccount,
    BrokerAdapter,
    BrokerUnavailable,
    IntegrationContext,
)
from trading_intents.brokers.registry import installed_brokers, unknown_settings
from trading_intents.clock import Clock, SystemClock
from trading_intents.config import PREFIX, Settings
from trading_intents.errors import PlatformError, SecretUnreadable
from trading_intents.identity.model import Entitlement
from trading_intents.secret import Secret
from trading_intents.storage import administration
from trading_intents.storage.administration import read_login
from trading_intents.storage.connections import DatabaseUrls, refuse_transaction_pooler
from trading_intents.storage.database import DURABLE_SETTINGS, WORKER_ROLE, Pool, open_pool
from trading_intents.storage.embedded.cluster import has_cluster
from trading_intents.storage.embedded.server import lock_holder
from trading_intents.storage.grouped import GroupTransactions
from trading_intents.storage.migrate import connected, pending
from trading_intents.storage.pipeline import Pipeline
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import Environment, FrozenStruct, OrderKind, OrderSide, Symbol
from trading_intents.web.operations import read_metrics
from trading_intents.web.server.listener import bind
from trading_intents_client import AsyncAccount, AsyncTradingClient, TimeInForce, TradingError
from trading_intents_client.cli.login import find_login

CLOCK_LIMIT_SECONDS = 2.0
BROKER_LIMIT_SECONDS = 10
METRICS_LIMIT_SECONDS = 5
FREE_DISK_BYTES = 1 << 30
MAX_OPENED_SECRETS = 100
RECENT = timedelta(minutes=1)
# Of a trial's order: nobody sells so low, and a fill would cost next to nothing.
TRIAL_PRICE = Decimal(1)
TRIAL_REPLACED_PRICE = Decimal("1.01")


class CheckResult(FrozenStruct):
    state: Literal["ok", "warning", "wrong"]
    subject: str
    text: str


async def examine(settings: Settings, strangers: Mapping[str, str], log: Log) -> list[CheckResult]:
    metrics = await read_metrics(settings.http_url, METRICS_LIMIT_SECONDS) or ""
    is_running = "ti_process_up" in metrics and bool(
        settings.database_url or lock_holder(settings.data_dir)
    )
    checks = [
        *_settings({**strangers, **unknown_settings(settings.others)}),
        *_files(settings),
        _disk(settings),
        _port(settings.http_host, settings.http_port, "HTTP", is_running),
    ]
    if "stream" in settings.roles:
        checks.append(_port(settings.grpc_host, settings.grpc_port, "GRPC", is_running))
    return [*checks, *_processes(metrics), *await _database(settings, log)]


async def examine_account(
    settings: Settings, account_id: UUID, log: Log, symbol: str = ""
) -> list[CheckResult]:
    """Finds what keeps an account from trading: asks its broker, and sends it no order, unless a
    symbol is tried."""
    try:
        if not settings.database_url and not has_cluster(settings.data_dir):
            return [CheckResult("wrong", "database", f"none in {settings.data_dir.absolute()}")]
        async with database_urls(settings, log, Metrics()) as urls:
            if missing := await pending(urls.url):
                return [_schema(missing)]
            async with open_pool(urls.worker_url, WORKER_ROLE, 1, Metrics()) as pool:
                async with pool.transaction(read_only=True) as tx:
                    account = await inspect_account(tx, account_id)
                if account is None:
                    return [CheckResult("wrong", "account", f"there is no account {account_id}")]
                at_broker = _examine_at_broker(
                    settings, urls, pool, account, log=log, symbol=symbol
                )
                return [*_account(account), *await at_broker]
    except TradingError as error:
        return [CheckResult("wrong", "trial", str(error))]
    except PlatformError as error:
        return [CheckResult("wrong", "database", error.detail)]


async def _examine_at_broker(
    settings: Settings,
    urls: DatabaseUrls,
    pool: Pool,
    account: InspectedAccount,
    log: Log,
    symbol: str,
) -> list[CheckResult]:
    brokers = installed_brokers(log, settings.others)
    integration = brokers.integration(account.broker)
    if integration is None:
        return [CheckResult("wrong", "broker", f"{account.broker} is not installed here")]
    if symbol and account.environment != Environment.PAPER:
        text = "only for environment paper: nothing was asked or sent"
        return [CheckResult("wrong", "trial", text)]
    secrets: Mapping[str, Secret] | CheckResult = {}
    if integration.capabilities.credential_fields:
        secrets = await _secrets(settings, account, log)
    if isinstance(secrets, CheckResult):
        return [secrets]
    async with contextlib.AsyncExitStack() as stack:
        signals = await stack.enter_async_context(
            open_signals(settings.database_listen_url or urls.url, log)
        )

        def transactions() -> GroupTransactions:
            pipeline = Pipeline(urls.worker_url, WORKER_ROLE)
            return stack.enter_context(contextlib.closing(GroupTransactions(pipeline)))

        context = IntegrationContext(
            account=BrokerAccount(
                account.id,
                account.organization_id,
                account.environment,
                account.external_account_id,
            ),
            secrets=secrets,
            clock=SystemClock(),
            settings=brokers.settings_of(account.broker),
            database=pool,
            signals=signals,
            open_transactions=transactions,
            shared={},
        )
        broker = integration.connect(context)
        stack.push_async_callback(broker.close)
        checks = _integration_settings(integration, context.settings)
        checks += await _broker(broker, context)
        if symbol:
            client = await stack.enter_async_context(_open_client())
            checks += await _try(client.account(str(account.id)), broker, context.clock, symbol)
        return checks


def _open_client() -> AsyncTradingClient:
    login = find_login(os.environ)
    if login is None:
        return AsyncTradingClient()
    return AsyncTradingClient(login.url, api_key=login.api_key)


def _account(account: InspectedAccount) -> list[CheckResult]:
    where = f"{account.environment} at {account.broker}"
    text = f"{account.name}, {where}; its connection is {account.connection}"
    checks = [CheckResult("ok", "account", text)]
    if account.closed_at:
        checks.append(CheckResult("wrong", "account", "it is closed for good"))
    if account.is_organization_disabled:
        text = "its organization is disabled: `admin apply` enables it"
        checks.append(CheckResult("wrong", "account", text))
    if account.disabled:
        checks.append(CheckResult("warning", "account", "it is disabled: only CANCELs are taken"))
    is_live = account.environment == Environment.LIVE
    if is_live and Entitlement.TRADING_LIVE not in account.entitlements:
        text = f"the organization lacks {Entitlement.TRADING_LIVE}: CREATE and REPLACE are refused"
        text += "; `admin apply` with its entitlements adds it"
        checks.append(CheckResult("wrong", "permission", text))
    return checks


async def _secrets(
    settings: Settings, account: InspectedAccount, log: Log
) -> Mapping[str, Secret] | CheckResult:
    if account.sealed is None or account.credential_id is None:
        text = (
            f"none is stored: POST /v1/accounts/{account.id}/credentials with the broker's secrets"
        )
        return CheckResult("wrong", "credential", text)
    ref = SecretRef(account.organization_id, account.id, account.credential_id)
    try:
        async with open_vault(settings, SystemClock(), log) as vault:
            return await vault.open(ref, account.sealed)
    except PlatformError as error:
        return CheckResult("wrong", "credential", f"it cannot be opened: {error.detail}")


async def _broker(broker: BrokerAdapter, context: IntegrationContext) -> list[CheckResult]:
    try:
        async with asyncio.timeout(BROKER_LIMIT_SECONDS):
            snapshot = await broker.snapshot(context.clock.now() - RECENT, ())
    except AuthFailed as error:
        return [
            CheckResult(
                "wrong", "credential", f"{error}: store the secrets of this account and environment"
            )
        ]
    except TimeoutError:
        return [CheckResult("wrong", "broker", f"no answer within {BROKER_LIMIT_SECONDS} s")]
    except BrokerUnavailable as error:
        return [CheckResult("wrong", "broker", str(error))]
    held = "" if snapshot.positions is None else f" and {len(snapshot.positions)} positions"
    checks = [
        CheckResult(
            "ok",
            "credential",
            "the broker takes it" if context.secrets else "the broker needs none",
        )
    ]
    checks += [CheckResult("ok", "broker", remark) for remark in snapshot.remarks]
    checks += [CheckResult("wrong", "trading", notice) for notice in snapshot.notices]
    if not snapshot.notices:
        checks.append(
            CheckResult(
                "ok", "trading", f"the broker has {len(snapshot.open_orders)} open orders{held}"
            )
        )
    return checks


@contextlib.contextmanager
def _step(checks: list[CheckResult], subject: str, done: str) -> Iterator[list[str]]:
    """Adds what was done, what was shown, and how long it took."""
    began = time.monotonic()
    shown = [done]
    error = None
    try:
        yield shown
    except (TradingError, AuthFailed, BrokerUnavailable) as failure:
        error = str(failure)
    if error:
        shown.append(error)
    text = f"{': '.join(shown)} ({time.monotonic() - began:.1f} s)"
    checks.append(CheckResult("wrong" if error else "ok", subject, text))


async def _try(
    account: AsyncAccount, broker: BrokerAdapter, clock: Clock, symbol: str
) -> list[CheckResult]:
    """Sends an order that nobody fills through the platform, as a caller does: an order of the
    adapter's own would be judged by no control and be in no log. Only the look-up asks the broker
    directly."""
    checks = list[CheckResult]()
    placed = None
    time_in_force = TimeInForce.GOOD_TILL_CANCEL if "/" in symbol else TimeInForce.DAY
    with _step(checks, "connection", f"trading-intents {__version__}, GET account") as shown:
        shown.append((await account.get()).connection)
        if shown[-1] != "connected":
            raise BrokerUnavailable("try again when it is connected")
    if checks[0].state == "ok":
        with _step(checks, "create", f"BUY 1 {symbol} at {TRIAL_PRICE} {time_in_force}") as shown:
            placed = await account.buy(symbol, 1, limit=TRIAL_PRICE, time_in_force=time_in_force)
            order = await placed.wait("NEW")
            named = f"order {order.order_id}, {order.external_order_id} at the broker"
            shown.append(f"{order.order_status}, {named}")
    if placed is None:
        return checks
    with _step(checks, "look-up", "by client order id") as shown:
        order = await placed.refresh()
        sent = port.SentOrder(
            client_order_id="",
            broker_order_id=order.external_order_id,
            symbol=Symbol(symbol),
            side=OrderSide.BUY,
            kind=OrderKind.LIMIT,
            quantity=Decimal(1),
        )
        opened = (await broker.snapshot(clock.now() - RECENT, [sent])).open_orders
        ours = (each for each in opened if each.broker_order_id == order.external_order_id)
        names = {"client_order_id": next((each.client_order_id or "" for each in ours), "")}
        until_seconds = clock.monotonic() + BROKER_LIMIT_SECONDS
        found = await broker.lookup(replace(sent, broker_order_id=None, **names), until_seconds)
        if isinstance(found, port.OrderSnapshot):
            shown.append(", ".join(each.kind for each in found.events))
        elif broker.capabilities.lookup is port.LookupKind.NONE:
            shown.append("the broker cannot")
        else:
            raise BrokerUnavailable(f"the broker should find it: {found}")
    with _step(checks, "replace", f"to {TRIAL_REPLACED_PRICE}") as shown:
        if broker.capabilities.native_replace:
            await placed.replace(limit=TRIAL_REPLACED_PRICE)
            order = await placed.wait("NEW")
            shown.append(f"{order.order_status} at {order.limit_price}")
            if order.limit_price != TRIAL_REPLACED_PRICE:
                raise BrokerUnavailable(f"refused, {order.detail or order.reason}")
        else:
            shown.append("the broker cannot, and nothing was sent")
    with _step(checks, "cancel", "CANCEL") as shown:
        await placed.cancel()
        shown.append((await placed.wait("CANCELLED")).order_status)
    return checks


def _integration_settings(
    integration: port.Integration, settings: Mapping[str, str]
) -> list[CheckResult]:
    checks = []
    for each in integration.settings:
        shown = "***" if each.is_secret and settings[each.name] else settings[each.name]
        checks.append(CheckResult("ok", "setting", f"{PREFIX}{each.name} is {shown or 'empty'}"))
    return checks


def _settings(strangers: Mapping[str, str]) -> list[CheckResult]:
    if not strangers:
        return [CheckResult("ok", "settings", "every TRADING_INTENTS_* variable is known")]
    checks = []
    for name, near in strangers.items():
        text = f"{name} means nothing" + (f"; did you mean {near}?" if near else "")
        checks.append(CheckResult("warning", "settings", text))
    return checks


def _files(settings: Settings) -> list[CheckResult]:
    folder = settings.data_dir
    try:
        if not folder.exists():
            return [_future_folder(folder)]
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            text = f"{folder} is {_owner(folder)}'s, and not for you: run this as that user"
            return [CheckResult("wrong", "files", text)]
        # Checks the folder itself and the files with secrets; PostgreSQL checks its own folder.
        open_to_others = []
        for path in (folder, *sorted(folder.iterdir())):
            is_private = path == folder or (path.is_file() and path.suffix != ".log")
            if is_private and stat.S_IMODE(path.stat().st_mode) & 0o077:
                open_to_others.append(path)
    except OSError as error:
        return [CheckResult("wrong", "files", f"{error.filename} cannot be read: {error.strerror}")]
    if not open_to_others:
        return [CheckResult("ok", "files", f"{folder} and its secrets are readable by you only")]
    return [
        CheckResult("wrong", "files", f"{path} can be read by others: chmod go-rwx {path}")
        for path in open_to_others
    ]


def _future_folder(folder: Path) -> CheckResult:
    above = _existing(folder)
    if not os.access(above, os.W_OK | os.X_OK):
        text = f"{folder} does not exist, and you may not make it: {above} is {_owner(above)}'s"
        return CheckResult("wrong", "files", f"{text}; set TRADING_INTENTS_DATA_DIR")
    return CheckResult("ok", "files", f"{folder} does not exist yet: `serve` makes it")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:
        return f"user {path.stat().st_uid}"


def _disk(settings: Settings) -> CheckResult:
    try:
        free = shutil.disk_usage(_existing(settings.data_dir)).free
    except OSError as error:
        return CheckResult("warning", "disk", f"cannot be looked at: {error.strerror}")
    if free < FREE_DISK_BYTES:
        return CheckResult(
            "warning", "disk", f"only {free >> 20} MiB are free for {settings.data_dir}"
        )
    return CheckResult("ok", "disk", "there is room")


def _port(host: str, port: int, setting: str, is_running: bool) -> CheckResult:
    try:
        bind(host, port, setting).close()
    except PlatformError as error:
        held = CheckResult("ok", "port", f"{host} port {port} is held by this platform")
        return held if is_running else CheckResult("warning", "port", error.detail)
    return CheckResult("ok", "port", f"{host} port {port} is free")


def _processes(metrics: str) -> list[CheckResult]:
    """Looks at the processes of a parent that runs on these settings."""
    found = re.findall(r'^ti_process_up\{process="([\w-]+)"\} (\S+)$', metrics, re.MULTILINE)
    answering = []
    silent = []
    for name, value in found:
        if value == "0.0":
            text = f"{name} does not answer: it starts, or hangs"
            silent.append(CheckResult("wrong", "processes", text))
        else:
            answering.append(CheckResult("ok", "processes", f"{name} answers"))
    return silent or answering


async def _database(settings: Settings, log: Log) -> list[CheckResult]:
    try:
        if not settings.database_url and not has_cluster(settings.data_dir):
            made = "the embedded PostgreSQL is made there at the first start"
            text = f"none in {settings.data_dir.absolute()}: {made}"
            return [CheckResult("ok", "database", text)]
        async with database_urls(settings, log, Metrics()) as urls:
            async with connected(urls.url) as connection, connected(urls.url) as second:
                await refuse_transaction_pooler(connection, second)
                missing = await pending(urls.url)
                findings = await _server(connection)
                if settings.database_url:
                    findings += await _logins(connection, settings.database_worker_url)
            findings.append(_schema(missing))
            if not missing:
                findings += await _vault(settings, urls.worker_url, log)
            return findings
    except PlatformError as error:
        return [CheckResult("wrong", "database", error.detail)]


async def _server(connection: Any) -> list[CheckResult]:
    before = time.time()
    server = await administration.read_server(connection)
    findings = [CheckResult("ok", "database", f"PostgreSQL {server.version} answers")]
    for name in DURABLE_SETTINGS:
        if getattr(server, name) == "off":
            text = f"{name} is off: an answered order could be lost; turn it on"
            findings.append(CheckResult("wrong", "database", text))
    skew = server.clock_seconds - (before + time.time()) / 2
    if abs(skew) > CLOCK_LIMIT_SECONDS:
        text = f"{skew:+.1f} s from the database's: set up NTP on both machines"
        findings.append(CheckResult("wrong", "clock", text))
    else:
        findings.append(CheckResult("ok", "clock", "agrees with the database's"))
    return findings


async def _logins(connection: Any, worker_url: Secret) -> list[CheckResult]:
    try:
        login = await read_login(connection, "DATABASE_URL")
        if worker_url:
            async with connected(worker_url) as worker, connected(worker_url) as second:
                await refuse_transaction_pooler(worker, second)
                await read_login(worker, "DATABASE_WORKER_URL")
    except PlatformError as error:
        return [CheckResult("wrong", "logins", error.detail)]
    if await administration.may_become(connection, WORKER_ROLE):
        text = (
            f"the login {login} of TRADING_INTENTS_DATABASE_URL may become {WORKER_ROLE}, which "
            "reads sealed secrets: give TRADING_INTENTS_DATABASE_WORKER_URL a login of its own, "
            f"then REVOKE {WORKER_ROLE} FROM {login}"
        )
        return [CheckResult("warning", "logins", text)]
    return [CheckResult("ok", "logins", "the service's login cannot become the worker")]


async def _vault(settings: Settings, worker_url: Secret, log: Log) -> list[CheckResult]:
    """Checks that the embedded vault's keys open the newest secrets; another vault is not
    checked."""
    if settings.vault_url:
        return []
    try:
        async with (
            open_pool(worker_url, WORKER_ROLE, 1, Metrics()) as pool,
            pool.transaction(read_only=True) as tx,
        ):
            stored = await newest_sealed(tx, MAX_OPENED_SECRETS)
    except PlatformError as error:
        return [CheckResult("ok", "vault", f"not looked at: {error.detail}")]
    if not stored:
        return [CheckResult("ok", "vault", "no secret is stored yet")]
    try:
        vault = embedded_vault(settings, SystemClock(), log)
        closed = [each for each in stored if not await _opens(vault, each)]
    except PlatformError as error:
        return [CheckResult("wrong", "vault", f"secrets are stored, but {error.detail}")]
    if not closed:
        return [CheckResult("ok", "vault", "its keys open the stored secrets")]
    text = (
        f"its keys do not open {len(closed)} of the {len(stored)} newest secrets, such as that of "
        f"credential {closed[0].credential_id}: put the right keys back, or store the secrets anew"
    )
    return [CheckResult("wrong", "vault", text)]


async def _opens(vault: EmbeddedVault, secret: SealedSecret) -> bool:
    try:
        await vault.open(secret, secret.sealed)
    except SecretUnreadable:
        return False
    return True


def _schema(missing: list[str]) -> CheckResult:
    if missing:
        return CheckResult(
            "warning", "schema", f"lacks {', '.join(missing)}: `trading-intents migrate` adds them"
        )
    return CheckResult("ok", "schema", "up to date")
