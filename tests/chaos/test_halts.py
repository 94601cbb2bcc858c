"""A halt that cancels and closes while workers, an API process and PostgreSQL are killed, and
commits wait: all ends flat, and once."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chaos.commits import let_commits_wait
from tests.chaos.restarts import (
    RETURN_SECONDS,
    Restarted,
    api_settings,
    kill_postgres,
    server,
    until_answered,
)
from tests.conftest import Urls
from tests.execution import worker_processes as lives
from tests.execution.worker_processes import WorkerProcesses, open_worker_processes, until_connected
from tests.intents.http_client import Tables, create, limit, market
from tests.platform import serving
from tests.seeds import seeded
from tests.waiting import eventually

__all__ = ["server"]  # a fixture
pytestmark = pytest.mark.slow

REASON = {"reason": "everything at once", "close_positions": True}
DONE_SECONDS = 90.0
SHORT_LIFE_SECONDS = (0.6, 1.5)


def prepare(processes: WorkerProcesses, orders: int, positions: int) -> None:
    """Positions, every third of them short, and orders that rest."""
    symbols = [f"SYM{number}" for number in range(positions)]
    sides = ["SELL_SHORT" if number % 3 == 0 else "BUY" for number in range(positions)]
    held = [
        create(market("2"), symbol=symbol, order_side=side)
        for symbol, side in zip(symbols, sides, strict=True)
    ]
    resting = [
        create(limit("1", "1"), symbol=symbols[number % positions]) for number in range(orders)
    ]
    with processes.worker():
        until_connected(processes)
        processes.submit_all(held)
        eventually(lambda: processes.statuses() == {"FILLED": positions}, RETURN_SECONDS)
        processes.submit_all(resting)
        eventually(
            lambda: processes.statuses() == {"FILLED": positions, "NEW": orders}, RETURN_SECONDS
        )


def start_halt(processes: WorkerProcesses) -> Any:
    """Asked of a process that is killed while it answers, then of another, until there is an
    answer."""
    chance = seeded("halt")
    path = f"/v1/controls/accounts/{processes.accounts[0]}/halt"
    with (
        contextlib.suppress(AssertionError),
        serving(processes.folder, **api_settings(processes)) as mortal,
    ):
        timer = threading.Timer(chance.uniform(0.0, 0.05), mortal.process.kill)
        timer.start()
        with contextlib.suppress(httpx.TransportError):
            mortal.client.post(path, json=REASON, headers=processes.headers)
        timer.join()
        mortal.process.wait()
    return until_answered(processes, "POST", path, REASON)


def check(processes: WorkerProcesses, halt: Any, orders: int, positions: int) -> None:
    tables = processes.tables
    assert (halt["state"], halt["waiting"], halt["reason"]) == ("done", [], REASON["reason"])
    assert (halt["orders"], halt["orders_done"]) == (orders, orders)
    assert (halt["positions"], halt["positions_done"]) == (positions, positions)
    assert halt["principal_type"] == "API_KEY"
    assert tables.value("SELECT count(*) FROM orders WHERE finished_at IS NULL") == 0
    assert tables.value("SELECT count(*) FROM holdings WHERE quantity <> 0") == 0
    assert tables.value("SELECT count(*) FROM paper_holdings WHERE position <> 0") == 0
    assert tables.value("SELECT count(*) FROM halts") == 1
    journal = processes.journal()
    assert [intent for intent, commands in journal.items() if commands.count("SUBMIT") > 1] == []
    # Whatever is not the caller's is the halt's, and says so.
    made = tables.fetch(
        """
            SELECT action_type, record::jsonb ->> 'principal_type' AS type,
                record::jsonb ->> 'principal_id' AS id,
        """
        " count(*) FROM actions GROUP BY 1, 2, 3"
    )
    principals = {(row["action_type"], row["type"]) for row in made}
    assert principals == {("CREATE", "API_KEY"), ("CREATE", "SYSTEM"), ("CANCEL", "SYSTEM")}
    assert {row["id"] for row in made if row["type"] == "SYSTEM"} == {halt["id"]}
    processes.assert_true()


# The database dies after some seconds, and a killed worker's rows and accounts are others' after
# some more. Takes more than five seconds: processes and PostgreSQL are killed and started again
# until four workers have died.
@pytest.mark.parametrize(
    ("orders", "positions", "database_kills"),
    [(12, 3, 1), pytest.param(500, 20, 2, marks=pytest.mark.chaos)],
    ids=["short", "long"],
)
def test_a_halt_ends_flat_though_everything_dies(
    server: tuple[Path, Urls],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    orders: int,
    positions: int,
    database_kills: int,
) -> None:
    folder, urls = server
    if orders < 100:
        monkeypatch.setattr(lives, "LIFE_SECONDS", SHORT_LIFE_SECONDS)
    # On a busy machine the orders of the preparation wait for long.
    settings = {"EXECUTION_MAX_AGE_MILLIS": "120000"}
    with open_worker_processes(urls, tmp_path / "processes", accounts=1, **settings) as processes:
        prepare(processes, orders, positions)
        processes.script("drop_answer", "0.05")
        processes.tables.close()  # its server is about to die
        with Restarted(processes, 2).working() as workers, ThreadPoolExecutor(1) as threads:
            killing = threads.submit(kill_postgres, folder, database_kills)
            started = time.monotonic()
            halt = start_halt(processes)
            killing.result()
            eventually(lambda: workers.kills >= 4, DONE_SECONDS)
            path = f"/v1/controls/accounts/{processes.accounts[0]}/halt"
            # A server that was started again takes connections.
            until_answered(processes, "GET", path)
            if database_kills > 1:
                let_commits_wait(urls)
            processes.tables = Tables(urls.owner)
            processes.heal()
            workers.over.set()
            last: Any = None

            def is_done() -> bool:
                nonlocal last
                last = until_answered(processes, "GET", path)
                return bool(last["state"] == "done")

            try:
                eventually(is_done, DONE_SECONDS)
            except AssertionError:
                raise AssertionError(
                    f"not done: {last} {processes.statuses(with_reason=True)}"
                ) from None
        took = time.monotonic() - started
        kills = f"{workers.kills} workers, {database_kills} servers killed"
        print(f"\n{kills}, done in {took:.1f} s: {processes.statuses(with_reason=True)}")
        assert last["id"] == halt["id"]
        check(processes, last, orders, positions)
