"""The database's disk is full: orders are refused with the reason, the process is not ready, the
log says why; and all is well again once there is room."""

import json
from pathlib import Path

import httpx
import pytest

from tests.conftest import Urls
from tests.execution.worker_processes import WorkerProcesses, open_worker_processes
from tests.intents.http_client import Tables, create
from tests.waiting import eventually

READY_SECONDS = 20.0
NO_SPACE = "could not extend file: No space left on device"
FILL_DISK = """
    CREATE FUNCTION fill_disk() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION '{message}' USING ERRCODE = '{code}'; END $$;
    CREATE TRIGGER fill_disk BEFORE INSERT ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION fill_disk();
"""


def fill_disk(tables: Tables, table: str, code: str = "53100") -> None:
    tables.execute(FILL_DISK.format(message=NO_SPACE, code=code, table=table))


def make_room(tables: Tables) -> None:
    tables.execute("DROP FUNCTION fill_disk CASCADE")


def submit(worker_processes: WorkerProcesses, request_id: str) -> httpx.Response:
    url = f"/v1/accounts/{worker_processes.accounts[0]}/intents"
    return worker_processes.api.client.post(
        url, json=create(), headers=worker_processes.headers | {"x-request-id": request_id}
    )


def readiness(worker_processes: WorkerProcesses) -> int:
    return worker_processes.api.client.get("/readyz").status_code


def log_line(worker_processes: WorkerProcesses, request_id: str) -> dict[str, str]:
    def found() -> list[dict[str, str]]:
        return [
            line
            for text in worker_processes.api.logs
            if request_id in text and (line := json.loads(text))
        ]

    eventually(lambda: bool(found()), 5)
    (line,) = found()
    return line


# Each takes ten seconds: a process that was full is ready again after up to five, and is filled
# twice. Takes ten seconds: the disk counts as failed for DISK_FAILED_SECONDS, which are five, after
# each of two failures.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "code"),
    [
        ("actions", "53100"),
        ("orders", "58030"),
        pytest.param("actions", "58030", marks=pytest.mark.chaos),
        pytest.param("orders", "53100", marks=pytest.mark.chaos),
    ],
)
def test_an_order_that_cannot_be_written_is_not_taken_and_the_log_says_why(
    urls: Urls, tmp_path: Path, table: str, code: str
) -> None:
    with open_worker_processes(urls, tmp_path, accounts=1) as worker_processes:
        tables = worker_processes.tables
        # The first order is asked about, later ones may be decided ahead.
        for round_number in range(2):
            assert [submit(worker_processes, f"before-{n}").status_code for n in range(3)] == [
                202
            ] * 3
            recorded = tables.value("SELECT count(*) FROM actions")
            eventually(lambda: readiness(worker_processes) == 200, READY_SECONDS)
            fill_disk(tables, table, code)
            refused = submit(worker_processes, f"full-{round_number}")
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            assert refused.headers["retry-after"] == "1"
            eventually(lambda: readiness(worker_processes) == 503, READY_SECONDS)
            line = log_line(worker_processes, f"full-{round_number}")
            assert (line["level"], line["code"], NO_SPACE in line["cause"]) == (
                "warning",
                "unavailable",
                True,
            )
            assert tables.value("SELECT count(*) FROM actions") == recorded
            make_room(tables)
            assert submit(worker_processes, f"after-{round_number}").status_code == 202
        eventually(lambda: readiness(worker_processes) == 200, READY_SECONDS)


def test_other_requests_are_answered_the_same(urls: Urls, tmp_path: Path) -> None:
    with open_worker_processes(urls, tmp_path, accounts=1) as worker_processes:
        fill_disk(worker_processes.tables, "accounts")
        body = {"name": "another", "broker": "paper", "environment": "paper"}
        headers = worker_processes.headers | {"x-request-id": "full"}
        refused = worker_processes.api.client.post("/v1/accounts", json=body, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert readiness(worker_processes) == 503
        assert NO_SPACE in log_line(worker_processes, "full")["cause"]


def test_a_full_disk_is_noticed_before_an_order_is(urls: Urls, tmp_path: Path) -> None:
    """A server that may write no temporary file stands for one that has no room for it."""
    with open_worker_processes(urls, tmp_path, accounts=1) as worker_processes:

        def change_limit(change: str) -> None:
            database = worker_processes.tables.value("SELECT current_database()")
            worker_processes.tables.execute(f"ALTER DATABASE {database} {change}")
            worker_processes.tables.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

        assert readiness(worker_processes) == 200
        change_limit("SET temp_file_limit = 0")
        # Until it is connected again, it says that the database is away.
        eventually(
            lambda: "its disk is full" in worker_processes.api.client.get("/readyz").text,
            READY_SECONDS,
        )
        eventually(lambda: submit(worker_processes, "small").status_code == 202, READY_SECONDS)
        assert readiness(worker_processes) == 503
        change_limit("RESET temp_file_limit")
        eventually(lambda: readiness(worker_processes) == 200, READY_SECONDS)


def test_our_own_fault_is_found_by_the_request_id(urls: Urls, tmp_path: Path) -> None:
    with open_worker_processes(urls, tmp_path, accounts=1) as worker_processes:
        fill_disk(worker_processes.tables, "actions", code="XX000")
        failed = submit(worker_processes, "broken-1")
        assert (failed.status_code, failed.json()["code"]) == (500, "internal_error")
        assert NO_SPACE in log_line(worker_processes, "broken-1")["exception"]
        assert readiness(worker_processes) == 200
