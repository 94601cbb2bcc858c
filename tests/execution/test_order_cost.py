"""The rows that an order writes and the blocks that it touches, counted by the server: the same on
any machine, but for what a busy one puts into one transaction."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Urls
from tests.execution.worker_processes import WorkerProcesses, open_worker_processes, until_connected
from tests.intents.http_client import create, market
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ORDERS = 1_200
ACCOUNTS = 4
SETTLED_SECONDS = 60.0
# A quarter more than what a wave of this size costs today.
MAX_ROW_VERSIONS = 20
MAX_BLOCKS = 240
MAX_QUEUE_BLOCKS = 60
# Written whether there are orders or not.
UPKEEP = ("workers", "leases", "accounts", "api_keys", "stats_buckets", "equity", "paper_quotes")
COUNTS = """
    SELECT t.relname, n_tup_ins + n_tup_upd + n_tup_del AS versions,
        heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0) AS blocks
    FROM pg_stat_user_tables t JOIN pg_statio_user_tables USING (relid)
    WHERE t.relname <> ALL ($1::text[])
"""

Costs = dict[str, tuple[float, float]]  # by table: row versions and blocks


def counted(processes: WorkerProcesses) -> Costs:
    rows = processes.tables.fetch(COUNTS, list(UPKEEP))
    return {row["relname"]: (float(row["versions"]), float(row["blocks"])) for row in rows}


def settled(processes: WorkerProcesses, are_done: Callable[[Costs], bool]) -> Costs:
    """Once the sessions have reported to the server, which takes them ten seconds."""
    found: Costs = {}

    def is_settled() -> bool:
        nonlocal found
        before = found
        found = counted(processes)
        return are_done(found) and _written(before) == _written(found)

    eventually(is_settled, SETTLED_SECONDS)
    return found


def _written(costs: Costs) -> dict[str, float]:
    return {table: versions for table, (versions, _) in costs.items()}


@contextlib.contextmanager
def holding_a_snapshot(urls: Urls) -> Iterator[None]:
    """As a backup or a report does: what is over stays in tables and indexes."""
    with psycopg.connect(urls.owner.reveal()) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM outbox")
        yield


@pytest.mark.parametrize("holding", [nullcontext, holding_a_snapshot])
def test_what_an_order_of_a_wave_writes_and_touches_is_bounded(
    urls: Urls,
    tmp_path: Path,
    holding: Callable[[Urls], contextlib.AbstractContextManager[None]],
) -> None:
    with (
        holding(urls),
        open_worker_processes(urls, tmp_path, accounts=ACCOUNTS) as processes,
        processes.worker(),
    ):
        until_connected(processes)
        before = settled(processes, lambda _: True)
        processes.submit_all([create(market("1")) for _ in range(ORDERS)])
        eventually(lambda: processes.statuses() == {"FILLED": ORDERS}, SETTLED_SECONDS)
        after = settled(processes, lambda found: found["trades"][0] - before["trades"][0] >= ORDERS)
    costs = {}
    for table, (versions, blocks) in after.items():
        first = before.get(table, (0.0, 0.0))
        costs[table] = ((versions - first[0]) / ORDERS, (blocks - first[1]) / ORDERS)
    for table, (versions, blocks) in sorted(costs.items(), key=lambda each: -each[1][1])[:14]:
        print(f"{table:20}{versions:8.2f} rows{blocks:10.1f} blocks")
    versions = sum(each for each, _ in costs.values())
    blocks = sum(each for _, each in costs.values())
    print(f"an order: {versions:.1f} row versions, {blocks:.0f} blocks")
    assert versions <= MAX_ROW_VERSIONS
    assert blocks <= MAX_BLOCKS
    assert costs["outbox"][1] <= MAX_QUEUE_BLOCKS
