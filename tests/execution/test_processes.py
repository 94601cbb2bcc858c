"""Workers as a user has them: processes that die, seen from outside."""

import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.conftest import Urls
from tests.execution.worker_processes import open_worker_processes, until_connected
from tests.intents.http_client import Tables, cancel, create, limit, market, replace
from tests.waiting import eventually

pytestmark = pytest.mark.slow

TAKEOVER_SECONDS = 7.0
WAIT_SECONDS = 20.0  # on a busy machine; no rule says how soon


# Takes more than five seconds: a killed worker holds its leases that long.
@pytest.mark.deadline
def test_a_killed_workers_accounts_are_worked_by_another(urls: Urls, tmp_path: Path) -> None:
    with (
        open_worker_processes(urls, tmp_path) as worker_processes,
        worker_processes.worker() as first,
    ):
        holders = "SELECT count(DISTINCT worker_id) FROM leases"
        eventually(
            lambda: (
                worker_processes.statuses() == {}
                and worker_processes.tables.value("SELECT count(*) FROM leases") == 2
            ),
            WAIT_SECONDS,
        )
        with worker_processes.worker():
            eventually(lambda: bool(worker_processes.tables.value(holders) == 2), WAIT_SECONDS)
            first.process.kill()
            killed = time.monotonic()
            worker_processes.submit_all([create(market())] * 2)
            eventually(
                lambda: worker_processes.statuses() == {"FILLED": 2},
                TAKEOVER_SECONDS - (time.monotonic() - killed),
            )
            first.process.wait()


@pytest.mark.deadline
def test_a_worker_that_ends_hands_over_at_once(urls: Urls, tmp_path: Path) -> None:
    with (
        open_worker_processes(urls, tmp_path) as worker_processes,
        worker_processes.worker() as first,
    ):
        eventually(
            lambda: bool(worker_processes.tables.value("SELECT count(*) FROM leases") == 2),
            WAIT_SECONDS,
        )
        worker_id = worker_processes.tables.value("SELECT id FROM workers")
        with worker_processes.worker():
            assert first.stop() == 0
            left = worker_processes.tables.value(
                "SELECT count(*) FROM workers WHERE id = $1", worker_id
            )
            assert left == 0, "its leases are free, and need not expire"
            worker_processes.submit_all([create(market())] * 2)
            eventually(lambda: worker_processes.statuses() == {"FILLED": 2}, TAKEOVER_SECONDS - 2)


# Takes more than five seconds: a killed worker holds its leases that long.
def test_an_account_says_whether_it_is_connected(urls: Urls, tmp_path: Path) -> None:
    with open_worker_processes(urls, tmp_path, accounts=1) as worker_processes:

        def connection() -> str:
            answer = worker_processes.api.client.get(
                f"/v1/accounts/{worker_processes.accounts[0]}", headers=worker_processes.headers
            )
            return str(answer.json()["connection"])

        assert connection() == "disconnected"
        with worker_processes.worker() as worker:
            eventually(lambda: connection() == "connected", WAIT_SECONDS)
            worker.process.kill()
            eventually(lambda: connection() == "disconnected", WAIT_SECONDS)
            worker.process.wait()
        with worker_processes.worker():
            eventually(lambda: connection() == "connected", WAIT_SECONDS)
        listed = worker_processes.api.client.get(
            "/v1/accounts", headers=worker_processes.headers
        ).json()["data"]
        assert [account["connection"] for account in listed] == ["disconnected"]


# Takes more than five seconds: the order becomes stale after four of them, and a worker looks once
# a second.
@pytest.mark.deadline
def test_the_platform_cancels_what_has_worked_too_long(urls: Urls, tmp_path: Path) -> None:
    with (
        open_worker_processes(urls, tmp_path, accounts=1) as worker_processes,
        worker_processes.worker(),
    ):
        until_connected(worker_processes)
        stale = worker_processes.submit(create(limit("5", "1")))
        other = worker_processes.submit(create(limit("5", "1"), symbol="MSFT"))
        eventually(lambda: worker_processes.statuses() == {"NEW": 2}, WAIT_SECONDS)
        worker_processes.submit(replace(stale, limit("6", "1")))
        eventually(lambda: worker_processes.statuses() == {"NEW": 2}, WAIT_SECONDS)
        url = f"/v1/controls/accounts/{worker_processes.accounts[0]}/symbols/AAPL/time"
        answer = worker_processes.api.client.patch(
            url, json={"stale_order_millis": 4_000}, headers=worker_processes.headers
        )
        assert answer.status_code == 200, answer.text
        eventually(lambda: worker_processes.statuses() == {"NEW": 1, "CANCELLED": 1}, WAIT_SECONDS)
        order = worker_processes.orders()[stale]
        records = worker_processes.actions(stale)
        assert [(record["action_type"], record["principal_type"]) for record in records] == [
            ("CREATE", "API_KEY"),
            ("REPLACE", "API_KEY"),
            ("CANCEL", "SYSTEM"),
        ]
        moments = [datetime.fromisoformat(record["created_at"]) for record in records]
        assert timedelta(seconds=4) <= moments[2] - moments[1] <= timedelta(seconds=7), (
            "from the action it reflects"
        )
        assert (order["quantity"], order["filled_quantity"]) == (6, 0)
        assert worker_processes.journal() == {
            stale: ["SUBMIT", "REPLACE", "CANCEL"],
            other: ["SUBMIT"],
        }


def test_the_setting_says_how_often_accounts_with_open_orders_are_reconciled(
    urls: Urls, tmp_path: Path
) -> None:
    with (
        open_worker_processes(
            urls, tmp_path, accounts=1, EXECUTION_RECONCILE_SECONDS="1"
        ) as worker_processes,
        worker_processes.worker(),
    ):
        until_connected(worker_processes)
        worker_processes.submit(create(limit("5", "1")))
        eventually(lambda: worker_processes.statuses() == {"NEW": 1}, WAIT_SECONDS)
        worker_processes.tables.execute(  # no event reports it
            "INSERT INTO paper_holdings VALUES ($1::text::uuid, 'MSFT', 7, 0, NULL, 0, 0, 0)",
            worker_processes.accounts[0],
        )

        def reported() -> list[tuple[str, str]]:
            url = f"/v1/accounts/{worker_processes.accounts[0]}/positions"
            found = worker_processes.api.client.get(url, headers=worker_processes.headers).json()[
                "data"
            ]
            return [(each["symbol"], each["broker_quantity"]) for each in found]

        eventually(lambda: reported() == [("MSFT", "7")], WAIT_SECONDS)


@pytest.mark.deadline
def test_an_account_that_is_locked_keeps_no_other_accounts_stale_orders_working(
    urls: Urls, tmp_path: Path
) -> None:
    with open_worker_processes(urls, tmp_path) as worker_processes, worker_processes.worker():
        locked, free = worker_processes.accounts
        until_connected(worker_processes)
        older = [worker_processes.submit(create(limit("5", "1")), locked) for _ in range(3)]
        other = worker_processes.submit(create(limit("5", "1")), free)
        eventually(lambda: worker_processes.statuses() == {"NEW": 4}, WAIT_SECONDS)
        holder = Tables(urls.owner)
        try:
            holder.execute("BEGIN")
            holder.execute(
                "SELECT FROM account_heads WHERE account_id = $1::text::uuid FOR UPDATE", locked
            )
            for account in worker_processes.accounts:
                url = f"/v1/controls/accounts/{account}/symbols/AAPL/time"
                answer = worker_processes.api.client.patch(
                    url, json={"stale_order_millis": 100}, headers=worker_processes.headers
                )
                assert answer.status_code == 200, answer.text
            eventually(
                lambda: bool(worker_processes.orders()[other]["order_status"] == "CANCELLED"), 6
            )
            assert worker_processes.statuses() == {"NEW": 3, "CANCELLED": 1}
        finally:
            holder.close()
        eventually(lambda: worker_processes.statuses() == {"CANCELLED": 4}, WAIT_SECONDS)
        assert set(worker_processes.journal()) == {*older, other}


# Takes some five seconds: two back-offs, and the look-ups of workers in processes of their own.
def test_commands_that_never_arrived_are_sent_again(urls: Urls, tmp_path: Path) -> None:
    with (
        open_worker_processes(urls, tmp_path, accounts=1) as worker_processes,
        worker_processes.worker(),
    ):
        until_connected(worker_processes)
        worker_processes.script("lose", command="SUBMIT", remaining=1)
        intent = worker_processes.submit(create(limit("5", "1")))
        eventually(lambda: worker_processes.statuses() == {"UNKNOWN": 1}, WAIT_SECONDS)
        assert worker_processes.journal() == {}

        def is_sent_again() -> bool:
            worker_processes.hurry_proofs()
            return worker_processes.statuses() == {"NEW": 1}

        eventually(is_sent_again, WAIT_SECONDS)
        worker_processes.heal()
        worker_processes.script("lose", command="CANCEL", remaining=2)
        worker_processes.submit(cancel(intent))

        def is_cancelled() -> bool:
            worker_processes.tables.execute("UPDATE commands SET due_at = clock_timestamp()")
            return worker_processes.statuses() == {"CANCELLED": 1}

        eventually(is_cancelled, WAIT_SECONDS)
        assert worker_processes.journal() == {intent: ["SUBMIT", "CANCEL"]}
        assert worker_processes.assert_true() == 1


@pytest.mark.deadline
def test_a_broker_that_takes_ten_seconds_holds_no_claim_that_long(
    urls: Urls, tmp_path: Path
) -> None:
    # By chance an account is reconciled soon after it connects, and its fill known too early.
    rarely = "86400"
    with open_worker_processes(
        urls, tmp_path, accounts=1, EXECUTION_RECONCILE_SECONDS=rarely
    ) as worker_processes:
        worker_processes.script("delay", millis=10_000)
        with worker_processes.worker():
            intent = worker_processes.submit(create(market()))
            oldest = 0.0

            def is_known() -> bool:
                nonlocal oldest
                age = worker_processes.tables.value(
                    """
                        SELECT max(extract(epoch FROM clock_timestamp() - sent_at))::float8
                        FROM commands
                    """
                )
                oldest = max(oldest, age or 0.0)
                return bool(worker_processes.orders()[intent]["order_status"] == "FILLED")

            eventually(is_known, WAIT_SECONDS)
            assert 3 < oldest < 5
        assert worker_processes.journal() == {intent: ["SUBMIT"]}


def test_a_symbol_with_a_resting_order_and_no_trade_has_no_position(
    urls: Urls, tmp_path: Path
) -> None:
    with open_worker_processes(urls, tmp_path, accounts=1) as worker_processes:

        def positions() -> dict[str, str]:
            url = f"/v1/accounts/{worker_processes.accounts[0]}/positions"
            found = worker_processes.api.client.get(url, headers=worker_processes.headers).json()[
                "data"
            ]
            return {position["symbol"]: position["quantity"] for position in found}

        with worker_processes.worker() as worker:
            resting = worker_processes.submit(create(limit("10", "1")))
            worker_processes.submit(create(market(), symbol="MSFT"))
            eventually(lambda: worker_processes.statuses() == {"NEW": 1, "FILLED": 1}, WAIT_SECONDS)
            assert worker.stop() == 0
        with worker_processes.worker() as worker:
            until_connected(worker_processes)  # it has read what the broker reports
            assert positions() == {"MSFT": "10"}
            worker_processes.submit(cancel(resting))
            eventually(
                lambda: worker_processes.statuses() == {"CANCELLED": 1, "FILLED": 1},
                WAIT_SECONDS,
            )
            assert worker.stop() == 0
        with worker_processes.worker():
            until_connected(worker_processes)
            assert positions() == {"MSFT": "10"}
