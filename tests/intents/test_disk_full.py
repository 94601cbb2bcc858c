"""The database's disk is full: orders are not taken and are told so, the process is not ready, the log says why; and
all is well again once there is room."""

import json
from pathlib import Path

import httpx
import pytest

from tests.conftest import Urls
from tests.execution.worker_processes import Crew, open_crew
from tests.intents.http_client import Tables, create
from tests.waiting import eventually

READY_SECONDS = 10.0
NO_SPACE = "could not extend file: No space left on device"
FILL_DISK = """
    CREATE FUNCTION fill_disk() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION '{message}' USING ERRCODE = '{code}'; END $$;
    CREATE TRIGGER fill_disk BEFORE INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION fill_disk();
"""


def fill_disk(tables: Tables, table: str, code: str = "53100") -> None:
    tables.execute(FILL_DISK.format(message=NO_SPACE, code=code, table=table))


def make_room(tables: Tables) -> None:
    tables.execute("DROP FUNCTION fill_disk CASCADE")


def submit(crew: Crew, request_id: str) -> httpx.Response:
    url = f"/v1/accounts/{crew.accounts[0]}/intents"
    return crew.api.client.post(url, json=create(), headers=crew.headers | {"x-request-id": request_id})


def readiness(crew: Crew) -> int:
    return crew.api.client.get("/readyz").status_code


def log_line(crew: Crew, request_id: str) -> dict[str, str]:
    def found() -> list[dict[str, str]]:
        return [line for text in crew.api.logs if request_id in text and (line := json.loads(text))]

    eventually(lambda: bool(found()), 5)
    (line,) = found()
    return line


@pytest.mark.parametrize("code", ["53100", "58030"])
@pytest.mark.parametrize("table", ["actions", "stream_events"])
def test_an_order_that_cannot_be_written_is_not_taken_and_the_log_says_why(
    urls: Urls, tmp_path: Path, table: str, code: str
) -> None:
    with open_crew(urls, tmp_path, accounts=1) as crew:
        tables = crew.tables
        for round_number in range(2):  # the first order is asked about, later ones may be decided ahead
            assert [submit(crew, f"before-{n}").status_code for n in range(3)] == [202] * 3
            recorded = tables.value("SELECT count(*) FROM actions")
            eventually(lambda: readiness(crew) == 200, READY_SECONDS)
            fill_disk(tables, table, code)
            refused = submit(crew, f"full-{round_number}")
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            assert refused.headers["retry-after"] == "1"
            eventually(lambda: readiness(crew) == 503, 1)
            line = log_line(crew, f"full-{round_number}")
            assert (line["level"], line["code"], NO_SPACE in line["cause"]) == ("warning", "unavailable", True)
            assert tables.value("SELECT count(*) FROM actions") == recorded
            make_room(tables)
            assert submit(crew, f"after-{round_number}").status_code == 202
        eventually(lambda: readiness(crew) == 200, READY_SECONDS)


def test_what_is_no_order_is_told_the_same(urls: Urls, tmp_path: Path) -> None:
    with open_crew(urls, tmp_path, accounts=1) as crew:
        fill_disk(crew.tables, "accounts")
        body = {"name": "another", "broker": "paper", "environment": "paper"}
        headers = crew.headers | {"x-request-id": "full"}
        refused = crew.api.client.post("/v1/accounts", json=body, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert readiness(crew) == 503
        assert NO_SPACE in log_line(crew, "full")["cause"]


def test_a_full_disk_is_noticed_before_an_order_is(urls: Urls, tmp_path: Path) -> None:
    """A server that may write no temporary file stands for one that has no room for it."""
    with open_crew(urls, tmp_path, accounts=1) as crew:

        def change_limit(change: str) -> None:
            database = crew.tables.value("SELECT current_database()")
            crew.tables.execute(f"ALTER DATABASE {database} {change}")
            crew.tables.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

        assert readiness(crew) == 200
        change_limit("SET temp_file_limit = 0")
        eventually(lambda: readiness(crew) == 503, READY_SECONDS)
        assert submit(crew, "small").status_code == 202  # it is connected again
        assert readiness(crew) == 503
        assert "its disk is full" in crew.api.client.get("/readyz").json()["detail"]
        change_limit("RESET temp_file_limit")
        eventually(lambda: readiness(crew) == 200, READY_SECONDS)


def test_our_own_fault_is_found_by_the_request_id(urls: Urls, tmp_path: Path) -> None:
    with open_crew(urls, tmp_path, accounts=1) as crew:
        fill_disk(crew.tables, "actions", code="XX000")
        failed = submit(crew, "broken-1")
        assert (failed.status_code, failed.json()["code"]) == (500, "internal_error")
        assert NO_SPACE in log_line(crew, "broken-1")["exception"]
        assert readiness(crew) == 200
