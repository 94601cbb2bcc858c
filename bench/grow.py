"""Measures whether reads get slower as an account's history grows: 1,000,000 actions against 1,000,
over HTTP.

Run it alone on the machine: `python bench/grow.py`. Exit code 1 when a bar is missed.
"""

import asyncio
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from submit import Bench, serving
from trading_intents.clock import rfc3339
from trading_intents.intents.audit import verify
from trading_intents.intents.writing.record import (
    FIRST_HASH,
    HASH_VERSION,
    Record,
    canonical,
    chain,
)
from trading_intents.stats import store as stats_store
from trading_intents.stats.model import WIDTHS_SECONDS, Window
from trading_intents.storage.database import WORKER_ROLE, Pool, open_pool
from trading_intents.storage.embedded.cluster import DATABASE, OWNER, WORKER_LOGIN
from trading_intents.telemetry import Metrics
from trading_intents.web.paging import make_cursor

SMALL_ACTIONS = 1_000
LARGE_ACTIONS = int(os.environ.get("GROW_ACTIONS", "1000000"))
HISTORY = timedelta(days=30)
SYMBOLS = 50
CHUNK_ACTIONS = 50_000
ROUNDS = 3
REQUESTS = 200
PAGE = 100
NEWEST = 50
ACTION_COLUMNS = (
    "account_id",
    "seq",
    "intent_id",
    "action_id",
    "organization_id",
    "action_type",
    "created_at",
    "record",
)
ORDER_COLUMNS = (
    *(
        "order_id",
        "account_id",
        "organization_id",
        "environment",
        "broker",
        "create_seq",
        "command_seq",
        "client_order_id",
        "symbol",
    ),
    *(
        "order_status",
        "order_type",
        "order_side",
        "time_in_force",
        "route_strategy",
        "quantity",
        "limit_price",
    ),
    *("received_at", "created_at", "updated_at", "finished_at"),
)


@dataclass(frozen=True, slots=True)
class Account:
    id: uuid.UUID
    organization_id: uuid.UUID
    actions: int


def history(account: Account) -> Iterator[tuple[Record, datetime]]:
    """Evenly over the last days; of five actions three CREATE, one replaces and one cancels the
    last intent."""
    chance = random.Random(account.actions)
    now = datetime.now(UTC)
    intent_id = ""
    symbol = ""
    for seq in range(1, account.actions + 1):
        kind = ("CREATE", "CREATE", "REPLACE", "CREATE", "CANCEL")[seq % 5 - 1]
        if kind == "CREATE":
            intent_id = str(uuid.UUID(int=chance.getrandbits(128)))
            symbol = f"SYM{chance.randrange(SYMBOLS)}"
        at = now - HISTORY * (1 - seq / account.actions)
        yield (
            Record(
                account_id=str(account.id),
                action_type=kind,
                client_reference_id=f"client-{seq}",
                created_at=rfc3339(at),
                environment="paper",
                hash_version=HASH_VERSION,
                intent_id=intent_id,
                limit_price="187.5",
                order_side="BUY",
                order_type="LIMIT",
                organization_id=str(account.organization_id),
                principal_id=str(account.id),
                principal_type="API_KEY",
                quantity="10",
                route_strategy="SMART",
                seq=seq,
                stop_price=None,
                symbol=symbol,
                time_in_force="DAY",
            ),
            at,
        )


async def fill(owner: asyncpg.Connection, account: Account) -> None:
    """As the writer would have, and as if every order had been filled."""
    remaining = history(account)
    digest = FIRST_HASH
    seq = 0
    while part := list(islice(remaining, CHUNK_ACTIONS)):
        actions = []
        orders = []
        for record, at in part:
            text = canonical(record)
            digest = chain(digest, text)
            seq = record.seq
            intent_id = uuid.UUID(record.intent_id)
            owned = (account.id, account.organization_id)
            actions.append(
                (
                    account.id,
                    seq,
                    intent_id,
                    intent_id,
                    owned[1],
                    record.action_type,
                    at,
                    text.decode(),
                    digest,
                )
            )
            if record.action_type == "CREATE":
                orders.append(
                    (
                        *(
                            intent_id,
                            *owned,
                            "paper",
                            "paper",
                            seq,
                            seq,
                            str(intent_id),
                            record.symbol,
                            "FILLED",
                            "LIMIT",
                            "BUY",
                            "DAY",
                        ),
                        *("SMART", Decimal(10), Decimal("187.5"), at, at, at, at),
                    )
                )
        await owner.copy_records_to_table(
            "actions", records=actions, columns=(*ACTION_COLUMNS, "hash")
        )
        await owner.copy_records_to_table("orders", records=orders, columns=ORDER_COLUMNS)
    await owner.execute(
        "UPDATE account_heads SET seq = $2, hash = $3 WHERE account_id = $1",
        account.id,
        seq,
        digest,
    )


async def count_finished(owner: asyncpg.Connection) -> None:
    """Adds the rows that the execution side adds when an order becomes final."""
    await owner.execute(
        """
        INSERT INTO stats_buckets
        SELECT account_id, width,
            date_bin(make_interval(secs => width), created_at, '2000-01-01Z') AS start,
               'finished', order_status, organization_id, count(*)
        FROM orders CROSS JOIN unnest($1::bigint[]) AS width
        GROUP BY account_id, width, start, order_status, organization_id
        """,
        WIDTHS_SECONDS,
    )


async def prepare(bench: Bench, accounts: list[Account]) -> list[tuple[str, float]]:
    """Gives what was measured on the way: a name, and actions a second."""
    owner = await asyncpg.connect(bench.cluster.url(OWNER, DATABASE).reveal())
    total = sum(account.actions for account in accounts)
    for account in accounts:
        await fill(owner, account)
    # A process without a worker leaves that out.
    await owner.execute(f"GRANT {WORKER_ROLE} TO {WORKER_LOGIN}")
    async with open_pool(
        bench.cluster.url(WORKER_LOGIN, DATABASE), WORKER_ROLE, 2, Metrics()
    ) as pool:
        rolled_seconds = await timed_roll_up(pool)
        await count_finished(owner)
        await owner.execute("VACUUM ANALYZE", timeout=600)
        started_seconds = time.perf_counter()
        found = [found async for found in verify(pool, None, {}, lambda count: None)]
        verified_seconds = time.perf_counter() - started_seconds
    assert not [account for account in found if account.bad_seq is not None]
    await owner.close()
    return [("roll up", total / rolled_seconds), ("audit verify", total / verified_seconds)]


async def timed_roll_up(pool: Pool) -> float:
    started_seconds = time.perf_counter()
    more = True
    while more:
        async with pool.transaction(plans="fresh") as tx:
            more = await stats_store.roll_up(tx)
    return time.perf_counter() - started_seconds


def open_accounts(bench: Bench) -> tuple[dict[str, str], list[Account]]:
    headers = {
        "x-api-key": json.loads((bench.folder / "data" / "demo.json").read_bytes())["api_key"]
    }
    accounts = []
    with httpx.Client(base_url=bench.url, headers=headers) as client:
        for actions in (SMALL_ACTIONS, LARGE_ACTIONS):
            body = {"name": str(actions), "broker": "paper", "environment": "paper"}
            made = client.post("/v1/accounts", json=body).json()
            accounts.append(
                Account(uuid.UUID(made["id"]), uuid.UUID(made["organization_id"]), actions)
            )
    return headers, accounts


def work_of(account: Account) -> dict[str, str]:
    intents = f"/v1/accounts/{account.id}/intents"
    orders = f"/v1/accounts/{account.id}/orders"
    near_end = make_cursor(f"actions:{account.id}", str(account.actions * 9 // 10))
    # An equal share of both histories, so that pages are full in both.
    now = datetime.now(UTC)
    after = rfc3339(now - HISTORY * 0.6)
    times = f"created_after={after}&created_before={rfc3339(now - HISTORY * 0.2)}"
    return {
        "list, first page": f"{intents}?limit={PAGE}",
        "list, at nine tenths": f"{intents}?limit={PAGE}&next_cursor={near_end}",
        "list, newest page": f"{intents}?limit={NEWEST}&order=desc",
        "list, within times": f"{intents}?limit={NEWEST}&order=desc&{times}",
        "list, newest orders": f"{orders}?limit={NEWEST}&order=desc",
        "list, filled orders": f"{orders}?limit={NEWEST}&order=desc&status=FILLED&{times}",
        "list, orders of two statuses": f"{orders}?limit={NEWEST}&status=FILLED,REJECTED&{times}",
    } | {f"stats, {window}": f"{intents}/stats?time_window={window}" for window in Window}


def measure(
    bench: Bench, headers: dict[str, str], accounts: list[Account]
) -> dict[str, tuple[float, float]]:
    """Milliseconds, the best median of the rounds: small and large in turn, request by request."""
    parts = urlsplit(bench.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port)
    small, large = (work_of(account) for account in accounts)
    medians: dict[str, list[tuple[float, float]]] = {name: [] for name in small}
    for _ in range(ROUNDS):
        for name in small:
            times = [
                [request_ms(connection, headers, path) for path in (small[name], large[name])]
                for _ in range(REQUESTS)
            ]
            medians[name].append(
                (statistics.median(t for t, _ in times), statistics.median(t for _, t in times))
            )
    connection.close()
    lowest: Callable[[list[float]], float] = min
    return {
        name: (lowest([s for s, _ in found]), lowest([b for _, b in found]))
        for name, found in medians.items()
    }


def request_ms(connection: http.client.HTTPConnection, headers: dict[str, str], path: str) -> float:
    started_seconds = time.perf_counter()
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    return (time.perf_counter() - started_seconds) * 1000


def report(measured: dict[str, tuple[float, float]], speeds: list[tuple[str, float]]) -> int:
    table = Table(
        *(
            "work",
            f"p50 of {SMALL_ACTIONS:,}",
            f"p50 of {LARGE_ACTIONS:,}",
            "times",
            "bar",
            "goal",
            "",
        ),
        title="a growing history",
    )
    missed = 0
    for name, (small_ms, large_ms) in measured.items():
        bar, goal = (1.5, 1.1) if name.startswith("list") else (2.0, 1.2)
        met = large_ms / small_ms <= bar
        missed += not met
        cells = (
            f"{small_ms:.2f} ms",
            f"{large_ms:.2f} ms",
            f"{large_ms / small_ms:.2f}",
            f"≤ {bar}",
            f"{goal}",
        )
        table.add_row(name, *cells, "met" if met else "MISSED")
    for name, per_second in speeds:
        table.add_row(name, "", f"{per_second:,.0f} actions/s", "", "", "", "")
    Console().print(table)
    return 1 if missed else 0


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ti-bench-") as name, serving(Path(name)) as bench:
        headers, accounts = open_accounts(bench)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            speeds = runner.run(prepare(bench, accounts))
        measured = measure(bench, headers, accounts)
    return report(measured, speeds)


if __name__ == "__main__":
    sys.exit(main())
