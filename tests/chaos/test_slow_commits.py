"""Commits wait for a standby that is not there, under load: afterwards sessions equal leases, and all is worked."""

import threading
import time
from pathlib import Path

import pytest

from tests.conftest import Urls
from tests.execution.worker_processes import open_worker_processes, until_connected, until_settled
from tests.intents.http_client import Tables, create, market
from tests.seeds import seeded
from tests.storage.conftest import ServerProcess
from tests.waiting import eventually
from trading_intents.secret import Secret

FAULT_SECONDS = 20.0
STALL_SECONDS = (0.5, 3.0)
WORKED_SECONDS = 10.0
ACCOUNTS = 5


def name_standby(tables: Tables, name: str) -> None:
    tables.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    tables.execute("SELECT pg_reload_conf()")


@pytest.mark.chaos
def test_commits_that_wait_end_no_session_for_good(tmp_path: Path) -> None:
    server, chance, over = ServerProcess(tmp_path / "server"), seeded("stalls"), threading.Event()
    said = server.until("url")
    urls = Urls(owner=Secret(said["owner_url"]), login=Secret(said["url"]))
    with (
        open_worker_processes(urls, tmp_path / "0", accounts=ACCOUNTS) as worker_processes,
        worker_processes.worker() as worker,
    ):
        until_connected(worker_processes)
        tables, until = worker_processes.tables, time.monotonic() + FAULT_SECONDS

        def submit() -> None:
            while not over.is_set():
                for account in worker_processes.accounts:
                    worker_processes.try_to_submit(create(market()), account)

        load = threading.Thread(target=submit)
        load.start()
        while time.monotonic() < until:
            name_standby(tables, "nobody")
            over.wait(chance.uniform(*STALL_SECONDS))
            name_standby(tables, "")
            over.wait(chance.uniform(0.02, 0.5))
        over.set()
        load.join()

        def sessions_equal_leases() -> bool:
            valid = (
                "SELECT count(*) FROM leases JOIN workers w ON w.id = worker_id WHERE expires_at > clock_timestamp()"
            )
            lines = worker.client.get("/metrics").text.splitlines()
            sessions = next(float(line.split()[1]) for line in lines if line.startswith("ti_execution_leases "))
            connected = tables.value("SELECT count(*) FROM accounts WHERE connection = 'connected'")
            return bool(sessions == tables.value(valid) == connected == ACCOUNTS)

        eventually(sessions_equal_leases, WORKED_SECONDS)
        until_settled(worker_processes, 60, hurry=True)
        journal = worker_processes.journal()
        assert [intent for intent, commands in journal.items() if commands != ["SUBMIT"]] == []
        failed = "SELECT count(*) FROM outbox WHERE queue = 'intents' AND status = 'failed'"
        assert tables.value(failed) == 0
        print(f"\n{len(journal)} orders sent: {worker_processes.statuses(with_reason=True)}")
    server.stop()
    server.close()
