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
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from trading_intents import __version__
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
from trading_intents.brokers.registry import installed_brokers
from trading_intents.clock import Clock, SystemClock
from trading_intents.config import Settings, broker_settings
from trading_intents.errors import PlatformError, SecretUnreadable
from trading_intents.identity.model import Entitlement
from trading_intents.secret import Secret
from trading_intents.storage import administration
from trading_intents.storage.administration import read_login
from trading_intents.storage.database import DURABLE_SETTINGS, WORKER_ROLE, Row, open_pool
from trading_intents.storage.embedded.cluster import has_cluster
from trading_intents.storage.embedded.server import lock_holder
from trading_intents.storage.grouped import GroupTransactions
from trading_intents.storage.migrate import connected, pending
from trading_intents.storage.pipeline import Pipeline
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import Environment, FrozenStruct
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


class CheckResult(FrozenStruct, frozen=True):
    state: Literal["ok", "warning", "wrong"]
    subject: str
    text: str


async def examine(settings: Settings, strangers: Mapping[str, str], log: Log) -> list[CheckResult]:
    metrics = await read_metrics(settings.http_url, METRICS_LIMIT_SECONDS) or ""
    is_running = "ti_process_up" in metrics and bool(
        settings.database_url or lock_holder(settings.data_dir)
    )
    return [
        *_settings(strangers),
        *_files(settings),
        _disk(settings),
        _port(settings.http_host, settings.http_port, "HTTP", is_running),
        *(
            [_port(settings.grpc_host, settings.grpc_port, "GRPC", is_running)]
            if "stream" in settings.roles
            else ()
        ),
        *_processes(metrics),
        *await _database(settings, log),
    ]


async def examine_account(
    settings: Settings, account_id: UUID, log: Log, symbol: str = ""
) -> list[CheckResult]:
    """Finds what keeps an account from trading: asks its broker, and sends it no order, unless a
    symbol is tried."""
    try:
        if not settings.database_url and not has_cluster(settings.data_dir):
            return [CheckResult("wrong", "database", f"none in {settings.data_dir.absolute()}")]
        async with contextlib.AsyncExitStack() as stack:
            urls = await stack.enter_async_context(database_urls(settings, log, Metrics()))
            if missing := await pending(urls.url):
                return [_schema(missing)]
            pool = await stack.enter_async_context(
                open_pool(urls.worker_url, WORKER_ROLE, 1, Metrics())
            )
            async with pool.transaction(read_only=True) as tx:
                row = await inspect_account(tx, account_id)
            if row is None:
                return [CheckResult("wrong", "account", f"there is no account {account_id}")]
            signals = await stack.enter_async_context(
                open_signals(settings.database_listen_url or urls.url, log)
            )

            def transactions() -> GroupTransactions:
                pipeline = Pipeline(urls.worker_url, WORKER_ROLE)
                return stack.enter_context(contextlib.closing(GroupTransactions(pipeline)))

            checks = _account(row)
            integration = installed_brokers(log, partial(broker_settings, settings)).integration(
                row["broker"]
            )
            if integration is None:
                return [
                    *checks,
                    CheckResult("wrong", "broker", f"{row['broker']} is not installed here"),
                ]
            if symbol and row["environment"] != Environment.PAPER:
                return [
                    *checks,
                    CheckResult(
                        "wrong", "trial", "only for environment paper: nothing was asked or sent"
                    ),
                ]
            secrets = (
                await _secrets(settings, row, log)
                if integration.capabilities.credential_fields
                else {}
            )
            if isinstance(secrets, CheckResult):
                return [*checks, secrets]
            account = BrokerAccount(
                row["id"],
                row["organization_id"],
                Environment(row["environment"]),
                row["external_account_id"],
            )
            own = broker_settings(settings, row["broker"])
            context = IntegrationContext(
                account=account,
                secrets=secrets,
                clock=SystemClock(),
                settings=own,
                database=pool,
                signals=signals,
                open_transactions=transactions,
                shared={},
            )
            broker = integration.connect(context)
            stack.push_async_callback(broker.close)
            checks += await _broker(broker, context)
            if not symbol:
                return checks
            login = find_login(os.environ)
            client = (
                AsyncTradingClient(login.url, api_key=login.api_key)
                if login
                else AsyncTradingClient()
            )
            await stack.enter_async_context(client)
            return [
                *checks,
                *await _try(client.account(str(account_id)), broker, context.clock, symbol),
            ]
    except TradingError as error:
        return [CheckResult("wrong", "trial", str(error))]
    except PlatformError as error:
        return [CheckResult("wrong", "database", error.detail)]


def _account(row: Row) -> list[CheckResult]:
    text = f"{row['name']}, {row['environment']} at {row['broker']}; its connection is {row['connection']}"
    checks = [CheckResult("ok", "account", text)]
    if row["closed_at"]:
        checks.append(CheckResult("wrong", "account", "it is closed for good"))
    if row["organization_disabled"]:
        checks.append(
            CheckResult(
                "wrong", "account", "its organization is disabled: `admin apply` enables it"
            )
        )
    if row["disabled"]:
        checks.append(CheckResult("warning", "account", "it is disabled: only CANCELs are taken"))
    if (
        row["environment"] == Environment.LIVE
        and Entitlement.TRADING_LIVE not in row["entitlements"]
    ):
        text = f"the organization lacks {Entitlement.TRADING_LIVE}: CREATE and REPLACE are refused"
        checks.append(
            CheckResult(
                "wrong", "permission", f"{text}; `admin apply` with its entitlements adds it"
            )
        )
    return checks


async def _secrets(settings: Settings, row: Row, log: Log) -> Mapping[str, Secret] | CheckResult:
    if row["sealed"] is None:
        url = f"POST /v1/accounts/{row['id']}/credentials"
        return CheckResult(
            "wrong", "credential", f"none is stored: {url} with the broker's secrets"
        )
    try:
        async with open_vault(settings, SystemClock(), log) as vault:
            return await vault.open(
                SecretRef(row["organization_id"], row["id"], row["credential_id"]), row["sealed"]
            )
    except PlatformError as error:
        return CheckResult("wrong", "credential", f"it cannot be opened: {error.detail}")


async def _broker(broker: BrokerAdapter, context: IntegrationContext) -> list[CheckResult]:
    try:
        async with asyncio.timeout(BROKER_LIMIT_SECONDS):
            snapshot = await broker.snapshot(context.clock.now() - RECENT)
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
    text = ": ".join([*shown, error] if error else shown)
    checks.append(
        CheckResult(
            "wrong" if error else "ok", subject, f"{text} ({time.monotonic() - began:.1f} s)"
        )
    )


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
            shown.append(
                f"{order.order_status}, order {order.order_id}, {order.external_order_id} at the broker"
            )
    if placed is None:
        return checks
    with _step(checks, "look-up", "by client order id") as shown:
        order = await placed.refresh()
        opened = (await broker.snapshot(clock.now() - RECENT)).open_orders
        names = [
            each.client_order_id
            for each in opened
            if each.broker_order_id == order.external_order_id
        ]
        found = await broker.lookup(
            (*names, None)[0] or "", None, clock.monotonic() + BROKER_LIMIT_SECONDS
        )
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


def _settings(strangers: Mapping[str, str]) -> list[CheckResult]:
    if not strangers:
        return [CheckResult("ok", "settings", "every TRADING_INTENTS_* variable is known")]
    return [
        CheckResult(
            "warning",
            "settings",
            f"{name} means nothing" + (f"; did you mean {near}?" if near else ""),
        )
        for name, near in strangers.items()
    ]


def _files(settings: Settings) -> list[CheckResult]:
    folder = settings.data_dir
    try:
        if not folder.exists():
            return [_future_folder(folder)]
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            return [
                CheckResult(
                    "wrong",
                    "files",
                    f"{folder} is {_owner(folder)}'s, and not for you: run this as that user",
                )
            ]
        # Checks the folder itself and the files with secrets; PostgreSQL checks its own folder.
        private = [
            folder,
            *(
                path
                for path in sorted(folder.iterdir())
                if path.is_file() and path.suffix != ".log"
            ),
        ]
        open_to_others = [path for path in private if stat.S_IMODE(path.stat().st_mode) & 0o077]
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
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


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
    silent = [name for name, value in found if value == "0.0"]
    wrong = [
        CheckResult("wrong", "processes", f"{name} does not answer: it starts, or hangs")
        for name in silent
    ]
    return wrong or [CheckResult("ok", "processes", f"{name} answers") for name, _ in found]


async def _database(settings: Settings, log: Log) -> list[CheckResult]:
    try:
        if not settings.database_url and not has_cluster(settings.data_dir):
            text = f"none in {settings.data_dir.absolute()}: the embedded PostgreSQL is made there at the first start"
            return [CheckResult("ok", "database", text)]
        async with database_urls(settings, log, Metrics()) as urls:
            missing = await pending(urls.url)
            async with connected(urls.url) as connection:
                findings = await _server(connection)
                if settings.database_url:
                    findings += await _logins(connection, settings.database_worker_url)
            findings.append(_schema(missing))
            return (
                findings if missing else [*findings, *await _vault(settings, urls.worker_url, log)]
            )
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
            async with connected(worker_url) as worker:
                await read_login(worker, "DATABASE_WORKER_URL")
    except PlatformError as error:
        return [CheckResult("wrong", "logins", error.detail)]
    if await administration.may_become(connection, WORKER_ROLE):
        text = (
            f"the login {login} of TRADING_INTENTS_DATABASE_URL may become {WORKER_ROLE}, which reads sealed "
            f"secrets: give TRADING_INTENTS_DATABASE_WORKER_URL a login of its own, then REVOKE {WORKER_ROLE} "
            f"FROM {login}"
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
            rows = await newest_sealed(tx, MAX_OPENED_SECRETS)
    except PlatformError as error:
        return [CheckResult("ok", "vault", f"not looked at: {error.detail}")]
    if not rows:
        return [CheckResult("ok", "vault", "no secret is stored yet")]
    try:
        vault = embedded_vault(settings, SystemClock(), log)
        closed = [row["credential_id"] for row in rows if not await _opens(vault, row)]
    except PlatformError as error:
        return [CheckResult("wrong", "vault", f"secrets are stored, but {error.detail}")]
    if not closed:
        return [CheckResult("ok", "vault", "its keys open the stored secrets")]
    text = f"its keys do not open {len(closed)} of the {len(rows)} newest secrets, such as that of credential {closed[0]}"
    return [
        CheckResult("wrong", "vault", f"{text}: put the right keys back, or store the secrets anew")
    ]


async def _opens(vault: EmbeddedVault, row: Row) -> bool:
    try:
        await vault.open(
            SecretRef(row["organization_id"], row["account_id"], row["credential_id"]),
            row["sealed"],
        )
    except SecretUnreadable:
        return False
    return True


def _schema(missing: list[str]) -> CheckResult:
    if missing:
        return CheckResult(
            "warning", "schema", f"lacks {', '.join(missing)}: `trading-intents migrate` adds them"
        )
    return CheckResult("ok", "schema", "up to date")
