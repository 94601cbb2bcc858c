"""More orders at once than a worker with little of a processor can send for a long time: none
fails, none is sent twice, and it does not become slower the longer that lasts."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.background import working
from tests.conftest import Urls
from tests.execution.worker_processes import (
    WorkerProcesses,
    open_worker_processes,
    until_certain,
    until_connected,
    until_sessions_equal_leases,
)
from tests.intents.http_client import create, market
from tests.platform import Platform

CPU_SHARE = 0.2
CPU_PERIOD_SECONDS = 0.02
BURNERS = 2
SENT_ONCE = ["SUBMIT"]
SETTLED_SECONDS = 600.0
MIN_GOODPUT = 0.7  # of the last quarter of the orders, as a share of the first quarter's
MAX_AGE_MILLIS = "3600000"  # no order ends because it has waited


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def limiting_cpu(worker: Platform) -> Iterator[None]:
    """The worker is stopped whenever it has used more than its share, so that a busy machine makes
    no difference."""
    process = worker.process
    since_seconds = time.monotonic()
    used_seconds = cpu_seconds(process.pid)

    def stop_and_go(over: threading.Event) -> None:
        while not over.wait(CPU_PERIOD_SECONDS):
            due_seconds = CPU_SHARE * (time.monotonic() - since_seconds)
            is_over = cpu_seconds(process.pid) - used_seconds > due_seconds
            process.send_signal(signal.SIGSTOP if is_over else signal.SIGCONT)
        process.send_signal(signal.SIGCONT)

    with working(stop_and_go):
        yield


@contextlib.contextmanager
def burning_cpu(_: Platform) -> Iterator[None]:
    """Processes beside the worker that compute without a pause."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BURNERS)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def goodput(worker_processes: WorkerProcesses) -> list[float]:
    """The orders a second of each quarter of the orders, in the order in which they ended."""
    tables = worker_processes.tables
    ended = [
        row["finished_at"]
        for row in tables.fetch("SELECT finished_at FROM orders ORDER BY finished_at")
    ]
    started = tables.value("SELECT min(sent_at) FROM orders")
    quarter = len(ended) // 4
    bounds = [started, *(ended[n * quarter - 1] for n in (1, 2, 3, 4))]
    return [quarter / (end - start).total_seconds() for start, end in pairwise(bounds)]


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("orders", "accounts", "congesting"),
    [(3_000, 8, limiting_cpu), (10_000, 64, burning_cpu)],
    ids=["a_fifth_of_a_core", "beside_burners"],
)
def test_orders_that_come_faster_than_they_are_sent_are_all_sent_once(
    urls: Urls,
    tmp_path: Path,
    orders: int,
    accounts: int,
    congesting: Callable[[Platform], contextlib.AbstractContextManager[None]],
) -> None:
    settings = {"EXECUTION_MAX_AGE_MILLIS": MAX_AGE_MILLIS}
    with open_worker_processes(urls, tmp_path, accounts=accounts, **settings) as worker_processes:
        made = worker_processes.submit_all([create(market("1"))] * orders)
        tables = worker_processes.tables
        with worker_processes.worker() as worker, congesting(worker):
            until_connected(worker_processes)
            took_seconds = until_certain(worker_processes, SETTLED_SECONDS, hurry=False)
            until_sessions_equal_leases(tables, [worker], accounts)
        rates = goodput(worker_processes)
        left = tables.value("SELECT count(*) FROM commands")
        print(
            f"\n{orders} orders in {took_seconds:.1f} s, load {os.getloadavg()[0]:.1f}, a second by quarters:"
        )
        print(
            *map(round, rates),
            f"; {left} commands left, {worker_processes.statuses()}",
        )
        assert left == 0, "none has failed"
        assert tables.value("SELECT count(*) FROM paper_journal WHERE duplicate") == 0
        assert worker_processes.journal() == dict.fromkeys(made, SENT_ONCE)
        assert worker_processes.statuses() == {"FILLED": orders}
        assert worker_processes.assert_true() == orders
        assert rates[-1] >= MIN_GOODPUT * rates[0]
