"""Commits wait for a standby that is not there, under load: afterwards sessions equal leases, and
all is worked."""

import threading
from pathlib import Path

import pytest

from tests.background import working
from tests.chaos.commits import let_commits_wait, own_server
from tests.execution.worker_processes import (
    open_worker_processes,
    until_certain,
    until_connected,
    until_sessions_equal_leases,
)
from tests.intents.http_client import create, market

WORKED_SECONDS = 10.0
ACCOUNTS = 5


@pytest.mark.chaos
def test_commits_that_wait_end_no_session_for_good(tmp_path: Path) -> None:
    with (
        own_server(tmp_path / "server") as urls,
        open_worker_processes(urls, tmp_path / "0", accounts=ACCOUNTS) as worker_processes,
        worker_processes.worker() as worker,
    ):
        until_connected(worker_processes)

        def submit(over: threading.Event) -> None:
            while not over.is_set():
                for account in worker_processes.accounts:
                    worker_processes.try_to_submit(create(market()), account)

        with working(submit):
            let_commits_wait(urls)
        tables = worker_processes.tables
        until_sessions_equal_leases(tables, [worker], ACCOUNTS, WORKED_SECONDS)
        until_certain(worker_processes, 60, hurry=True)
        journal = worker_processes.journal()
        assert [intent for intent, commands in journal.items() if commands != ["SUBMIT"]] == []
        failed = "SELECT count(*) FROM commands WHERE failed_at IS NOT NULL"
        assert tables.value(failed) == 0
        print(f"\n{len(journal)} orders sent: {worker_processes.statuses(with_reason=True)}")
