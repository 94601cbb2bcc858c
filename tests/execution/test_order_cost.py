"""The rows that an order writes and the blocks that it touches, counted by the server: the same on
any machine, but for what a busy one puts into one transaction."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from tests.conftest import Urls
from tests.execution.worker_processes import WorkerProcesses, open_worker_processes, until_connected
from tests.intents.http_client import create, market
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ORDERS = 1_200
LONE_ORDERS = 10
ACCOUNTS = 4
SETTLED_SECONDS = 60.0
# A quarter more than what a wave of this size costs today.
MAX_ROW_VERSIONS = 15
MAX_BLOCKS = 225
MAX_QUEUE_BLOCKS = 28
MAX_LONE_ROW_VERSIONS = 18  # each transaction has one order: what it costs today
# Written whether there are orders or not.
UPKEEP = ("workers", "leases", "accounts", "api_keys", "stats_buckets", "equity", "paper_quotes")
COUNTS = """
    SELECT t.relname, n_tup_ins + n_tup_upd + n_tup_del AS versions,
        heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0) AS blocks,
        n_tup_hot_upd AS hot_updates
    FROM pg_stat_user_tables t JOIN pg_statio_user_tables USING (relid)
    WHERE t.relname <> ALL ($1::text[])
"""

# What a session has done counts when it ends, at the latest. The platform opens new ones.
END_SESSIONS = """
    SELECT bool_and(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
    WHERE datname = current_database() AND usename <> current_user
"""


class Cost(NamedTuple):
    versions: float
    blocks: float
    hot_updates: float


def counted(processes: WorkerProcesses) -> dict[str, Cost]:
    assert processes.tables.value(END_SESSIONS)
    found = {}
    for row in processes.tables.fetch(COUNTS, list(UPKEEP)):
        found[row["relname"]] = Cost(*map(float, list(row.values())[1:]))
    return found


def costs_of(processes: WorkerProcesses, orders: int, trade: Callable[[], None]) -> dict[str, Cost]:
    """By table, of an order."""
    before = counted(processes)
    trade()
    costs = {}
    for table, after in counted(processes).items():
        first = before.get(table, Cost(0, 0, 0))
        costs[table] = Cost(
            *((now - then) / orders for now, then in zip(after, first, strict=True))
        )
    for table, cost in sorted(costs.items(), key=lambda each: -each[1].blocks)[:16]:
        print(f"{table:20}{cost.versions:8.2f} rows{cost.blocks:10.1f} blocks")
    return costs


@contextlib.contextmanager
def holding_a_snapshot(urls: Urls) -> Iterator[None]:
    """As a backup or a report does: what is over stays in tables and indexes."""
    with psycopg.connect(urls.owner.reveal()) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM commands")
        yield


@pytest.mark.parametrize("holding", [nullcontext, holding_a_snapshot])
def test_what_an_order_of_a_wave_writes_and_touches_is_bounded(
    new_urls: Urls,
    tmp_path: Path,
    holding: Callable[[Urls], contextlib.AbstractContextManager[None]],
) -> None:
    with (
        holding(new_urls),
        open_worker_processes(new_urls, tmp_path, accounts=ACCOUNTS) as processes,
        processes.worker(),
    ):
        until_connected(processes)

        def trade() -> None:
            processes.submit_all([create(market("1")) for _ in range(ORDERS)])
            eventually(lambda: processes.statuses() == {"FILLED": ORDERS}, SETTLED_SECONDS)

        costs = costs_of(processes, ORDERS, trade)
    versions = sum(each.versions for each in costs.values())
    blocks = sum(each.blocks for each in costs.values())
    print(f"an order: {versions:.1f} row versions, {blocks:.0f} blocks")
    assert costs["actions"].versions == 1
    assert versions <= MAX_ROW_VERSIONS
    assert blocks <= MAX_BLOCKS
    assert costs["commands"].blocks <= MAX_QUEUE_BLOCKS


def test_a_lone_order_writes_its_holding_twice_without_its_index(
    new_urls: Urls, tmp_path: Path
) -> None:
    """It is written with the accept, and with the fill."""
    with (
        open_worker_processes(new_urls, tmp_path, accounts=1) as processes,
        processes.worker(),
    ):
        until_connected(processes)

        def trade() -> None:
            for _ in range(LONE_ORDERS):
                processes.submit(create(market("1")))
                eventually(lambda: set(processes.statuses()) == {"FILLED"}, SETTLED_SECONDS)

        trade()
        costs = costs_of(processes, LONE_ORDERS, trade)
    versions = sum(each.versions for each in costs.values())
    print(f"a lone order: {versions:.1f} row versions")
    assert versions <= MAX_LONE_ROW_VERSIONS
    assert costs["holdings"].versions == 2
    assert costs["holdings"].hot_updates == 2
