"""Workers as a user has them: processes that die, seen from outside."""

import time
from pathlib import Path

from tests.conftest import Urls
from tests.execution.crew import open_crew
from tests.intents.desk import create, market
from tests.waiting import eventually

TAKEOVER_SECONDS = 7.0


def test_a_killed_workers_accounts_are_worked_by_another(urls: Urls, tmp_path: Path) -> None:
    with open_crew(urls, tmp_path) as crew, crew.worker() as first:
        holders = "SELECT count(DISTINCT worker_id) FROM leases"
        eventually(lambda: crew.statuses() == {} and crew.tables.value("SELECT count(*) FROM leases") == 2, 10)
        with crew.worker():
            eventually(lambda: bool(crew.tables.value(holders) == 2), 10)
            first.process.kill()
            killed = time.monotonic()
            crew.submit_all([create(market())] * 2)
            eventually(lambda: crew.statuses() == {"FILLED": 2}, TAKEOVER_SECONDS - (time.monotonic() - killed))
            first.process.wait()


def test_a_worker_that_ends_hands_over_at_once(urls: Urls, tmp_path: Path) -> None:
    with open_crew(urls, tmp_path) as crew, crew.worker() as first:
        eventually(lambda: bool(crew.tables.value("SELECT count(*) FROM leases") == 2), 10)
        with crew.worker():
            assert first.stop() == 0
            crew.submit_all([create(market())] * 2)
            eventually(lambda: crew.statuses() == {"FILLED": 2}, 3)


def test_an_account_says_whether_it_is_connected(urls: Urls, tmp_path: Path) -> None:
    with open_crew(urls, tmp_path, accounts=1) as crew:

        def connection() -> str:
            answer = crew.api.client.get(f"/v1/accounts/{crew.accounts[0]}", headers=crew.headers)
            return str(answer.json()["connection"])

        assert connection() == "disconnected"
        with crew.worker() as worker:
            eventually(lambda: connection() == "connected", 10)
            worker.process.kill()
            eventually(lambda: connection() == "disconnected", TAKEOVER_SECONDS)
            worker.process.wait()
        with crew.worker():
            eventually(lambda: connection() == "connected", 10)
        listed = crew.api.client.get("/v1/accounts", headers=crew.headers).json()["data"]
        assert [account["connection"] for account in listed] == ["disconnected"]


def test_a_broker_that_takes_ten_seconds_holds_no_claim_that_long(urls: Urls, tmp_path: Path) -> None:
    with open_crew(urls, tmp_path, accounts=1) as crew:
        crew.script("delay", millis=10_000)
        with crew.worker():
            intent = crew.submit(create(market()))
            oldest = 0.0

            def is_known() -> bool:
                nonlocal oldest
                age = crew.tables.value(
                    "SELECT max(extract(epoch FROM clock_timestamp() - claimed_at))::float8 FROM outbox"
                )
                oldest = max(oldest, age or 0.0)
                return bool(crew.orders()[intent]["order_status"] == "FILLED")

            eventually(is_known, 15)
            assert 3 < oldest < 5
        assert crew.journal() == {intent: ["SUBMIT"]}
