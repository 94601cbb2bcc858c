"""Workers of a parent that are killed and frozen under load: accepts go on, and every order is
executed once."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import Urls
from tests.execution.worker_processes import (
    WorkerProcesses,
    open_worker_processes,
    until_certain,
    until_connected,
)
from tests.intents.http_client import create, market
from tests.processes.conftest import pids
from tests.waiting import eventually

pytest_plugins = ("tests.started_dirs",)
pytestmark = pytest.mark.slow

ROLES = "api,stream,worker"
SIZES = pytest.mark.parametrize("orders", [60, pytest.param(120, marks=pytest.mark.chaos)])
SETTLED_SECONDS = 60
TAKEN_OVER_SECONDS = 30


def submit_while(
    processes: WorkerProcesses, orders: int, disturb: signal.Signals, victim: int
) -> None:
    """Half of the orders before the signal, half after it; each is accepted."""
    half = threading.Barrier(2)

    def submit() -> None:
        for number in range(orders):
            if number == orders // 2:
                half.wait()
                half.wait()
            processes.submit(create(market("1"), f"S{number % 7}"), processes.accounts[number % 4])

    with ThreadPoolExecutor(1) as thread:
        submitting = thread.submit(submit)
        half.wait()
        os.kill(victim, disturb)
        half.wait()
        submitting.result()


def assert_executed_once(processes: WorkerProcesses) -> None:
    # Else a worker that takes accounts again changes what is compared.
    assert processes.api.stop() == 0
    assert set(map(tuple, processes.journal().values())) == {("SUBMIT",)}
    processes.assert_true()


# Takes more than five seconds: what a killed worker had leased and claimed is another's after five.
@SIZES
def test_orders_are_accepted_beside_a_killed_worker_and_filled_once_by_the_next(
    urls: Urls, tmp_path: Path, orders: int
) -> None:
    with open_worker_processes(urls, tmp_path, accounts=4, ROLES=ROLES, WORKERS="1") as processes:
        until_connected(processes)
        before = pids(processes.api)
        submit_while(processes, orders, signal.SIGKILL, before["worker-1"])
        until_certain(processes, SETTLED_SECONDS, hurry=True)
        assert processes.statuses() == {"FILLED": orders}
        after = pids(processes.api)
        assert after["api"] == before["api"]
        assert after["worker-1"] != before["worker-1"]
        assert_executed_once(processes)


# Takes more than five seconds: what a frozen worker had leased and claimed is another's after five.
@SIZES
def test_another_worker_takes_the_accounts_of_a_frozen_one(
    urls: Urls, tmp_path: Path, orders: int
) -> None:
    with open_worker_processes(urls, tmp_path, accounts=4, ROLES=ROLES, WORKERS="2") as processes:
        until_connected(processes)
        before = pids(processes.api)
        submit_while(processes, orders, signal.SIGSTOP, before["worker-1"])
        try:
            until_certain(processes, SETTLED_SECONDS, hurry=True)
            assert processes.statuses() == {"FILLED": orders}
            leased = 'ti_execution_leases{process="worker-2"} 4.0'
            eventually(
                lambda: leased in processes.api.client.get("/metrics").text, TAKEN_OVER_SECONDS
            )
        finally:
            os.kill(before["worker-1"], signal.SIGCONT)
        again = 'ti_execution_leases{process="worker-1"} 2.0'  # it takes its share again
        eventually(lambda: again in processes.api.client.get("/metrics").text, TAKEN_OVER_SECONDS)
        assert pids(processes.api) == before
        assert_executed_once(processes)


@pytest.mark.chaos
def test_a_worker_that_fails_again_and_again_is_restarted_ever_more_slowly(
    urls: Urls, tmp_path: Path
) -> None:
    kills = 5
    with open_worker_processes(urls, tmp_path, accounts=4, ROLES=ROLES, WORKERS="1") as processes:
        for _ in range(kills):
            worker = pids(processes.api)["worker-1"]
            processes.submit(create(market("1")))
            os.kill(worker, signal.SIGKILL)
            eventually(
                lambda dead=worker: pids(processes.api)["worker-1"] != dead,  # type: ignore[misc]  # a default binds it
                TAKEN_OVER_SECONDS,
            )
        until_certain(processes, SETTLED_SECONDS, hurry=True)
        assert processes.statuses() == {"FILLED": kills}
        assert_executed_once(processes)
