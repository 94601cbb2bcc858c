"""Workers killed and stopped at random, a broker that drops its answers, commits that wait: nothing
is sent twice, orders end true, and sessions equal leases."""

import asyncio
import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tests.chaos.commits import let_commits_wait, own_server
from tests.conftest import Urls
from tests.execution import worker_processes as lives
from tests.execution.arranged import retried
from tests.execution.in_process_execution import executing, open_in_process
from tests.execution.worker_processes import (
    Mortals,
    WorkerProcesses,
    open_worker_processes,
    until_certain,
    until_connected,
    until_sessions_equal_leases,
)
from tests.intents.http_client import cancel, create, limit, market, replace
from tests.seeds import seeded
from tests.waiting import eventually
from trading_intents.config import Settings
from trading_intents.telemetry import Metrics

pytestmark = pytest.mark.slow

NEVER_SENT = {("EXPIRED", "stale"), ("REJECTED", "not_delivered")}
SENT_ONCE = ["SUBMIT"]
STOP_SECONDS = 8.0
SHORT_LIFE_SECONDS = (0.3, 0.8)
PACE_SECONDS = 0.5
SETTLED_SECONDS = 30.0
MAX_AGE = timedelta(milliseconds=Settings().execution_max_age_millis)
ORDERED = ["SUBMIT", "REPLACE", "CANCEL"]


def trickle(worker_processes: WorkerProcesses, intents: int, seconds: float) -> list[str]:
    """CREATEs one after the other from a few clients, spread over the time."""
    chance = seeded("orders")
    bodies = [create(market("1"), symbol=chance.choice(("AAPL", "MSFT"))) for _ in range(intents)]
    pause_seconds = seconds / intents
    over = threading.Event()

    def send(index: int) -> str:
        over.wait(max(0.0, started + index * pause_seconds - time.monotonic()))
        return worker_processes.submit(
            bodies[index], worker_processes.accounts[index % len(worker_processes.accounts)]
        )

    started = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(send, range(intents)))


def check_once(worker_processes: WorkerProcesses, intents: list[str]) -> None:
    """Each intent reached the broker once, or never where its order says so."""
    journal = worker_processes.journal()
    orders = worker_processes.orders()
    assert [intent for intent, commands in journal.items() if commands != SENT_ONCE] == []
    for intent in intents:
        order = orders[intent]
        ended = order["order_status"], order["reason"]
        assert (intent in journal) == (ended not in NEVER_SENT), dict(order)
        # Nothing but its age keeps a CREATE from being sent again.
        if ended == ("REJECTED", "not_delivered"):
            assert order["finished_at"] - order["created_at"] > MAX_AGE, dict(order)
    assert {order["order_status"] for order in orders.values()} <= {"FILLED", "EXPIRED", "REJECTED"}
    assert worker_processes.assert_true() == len(intents)
    assert (
        worker_processes.tables.value(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        == 0
    )


# A row that a killed worker had claimed is another's after CLAIM_SECONDS, which are five.
@pytest.mark.parametrize(
    ("intents", "seconds"),
    [(24, 1.5), pytest.param(2_000, 120, marks=pytest.mark.chaos)],
    ids=["short", "long"],
)
def test_no_order_is_sent_twice_though_workers_die_and_answers_are_lost(
    urls: Urls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, intents: int, seconds: float
) -> None:
    is_long = intents > 1_000
    if not is_long:
        monkeypatch.setattr(lives, "LIFE_SECONDS", SHORT_LIFE_SECONDS)
    with contextlib.ExitStack() as stack:
        if is_long:
            urls = stack.enter_context(own_server(tmp_path / "server"))
        worker_processes = stack.enter_context(
            open_worker_processes(urls, tmp_path / "processes", accounts=3)
        )
        worker_processes.script("drop_answer", "0.05")
        with (
            Mortals(worker_processes, 2, pauses=is_long).working() as workers,
            ThreadPoolExecutor(1) as threads,
        ):
            waiting = threads.submit(let_commits_wait, urls) if is_long else None
            made = trickle(worker_processes, intents, seconds)
            if waiting:
                waiting.result()
            eventually(lambda: workers.kills >= 2, SETTLED_SECONDS)
            worker_processes.heal()
            workers.over.set()
            took = until_certain(worker_processes, 60 if is_long else 30, hurry=not is_long)
        ended = worker_processes.statuses(with_reason=True)
        print(f"\n{workers.kills} kills, {workers.stops} stops, settled in {took:.1f} s: {ended}")
        check_once(worker_processes, made)


@pytest.mark.chaos
def test_a_stopped_worker_that_wakes_up_changes_nothing(urls: Urls, tmp_path: Path) -> None:
    """Twenty times stopped in the middle of its work for longer than any claim or lease."""
    with (
        open_worker_processes(urls, tmp_path, accounts=2) as worker_processes,
        worker_processes.worker() as first,
        worker_processes.worker() as second,
    ):
        made: list[str] = []
        for turn in range(20):
            sleeper = (first, second)[turn % 2]
            made += trickle(worker_processes, 20, 0.2)
            sleeper.process.send_signal(signal.SIGSTOP)
            time.sleep(STOP_SECONDS)
            final = {
                intent: order["order_status"]
                for intent, order in worker_processes.orders().items()
                if order["finished_at"]
            }
            sleeper.process.send_signal(signal.SIGCONT)
            until_certain(worker_processes, 30, hurry=True)
            after = worker_processes.orders()
            assert {intent: after[intent]["order_status"] for intent in final} == final
        until_sessions_equal_leases(worker_processes.tables, [first, second], 2)
        check_once(worker_processes, made)


@pytest.mark.parametrize("intents", [20, pytest.param(500, marks=pytest.mark.chaos)])
def test_what_was_queued_is_checked_before_it_is_sent(
    urls: Urls, tmp_path: Path, intents: int
) -> None:
    """Of one account, whose symbol is disabled meanwhile, and of another, whose intents grow too
    old."""
    with open_worker_processes(urls, tmp_path, accounts=2) as worker_processes:
        worker_processes.submit_all([create(market())] * intents * 2)
        disabled, stale = worker_processes.accounts
        answer = worker_processes.api.client.put(
            f"/v1/controls/accounts/{disabled}/symbols/AAPL",
            json={"manually_disabled": True},
            headers=worker_processes.headers,
        )
        assert answer.status_code == 200, answer.text
        make_older(worker_processes, stale, MAX_AGE)
        with worker_processes.worker() as worker:
            until_certain(worker_processes, 30, hurry=False)
            until_sessions_equal_leases(worker_processes.tables, [worker], 2)
        expected = {"REJECTED symbol_manually_disabled": intents, "EXPIRED stale": intents}
        assert worker_processes.statuses(with_reason=True) == expected
        ended = {
            (str(order["account_id"]), order["reason"])
            for order in worker_processes.orders().values()
        }
        assert ended == {(disabled, "symbol_manually_disabled"), (stale, "stale")}
        assert worker_processes.journal() == {}
        worker_processes.assert_true()


def make_older(worker_processes: WorkerProcesses, account: str, by: timedelta) -> None:
    """All that was recorded of the account. What an action says of itself cannot be changed
    otherwise."""
    tables = worker_processes.tables
    tables.execute("ALTER TABLE actions DISABLE TRIGGER ALL")
    for table in ("actions", "commands"):
        tables.execute(
            f"""
                UPDATE {table} SET created_at = created_at - $2::interval
                WHERE account_id = $1::text::uuid
            """,
            account,
            by,
        )
    tables.execute("ALTER TABLE actions ENABLE TRIGGER ALL")


def is_subsequence(commands: list[str]) -> bool:
    """Of SUBMIT, REPLACE and CANCELs: only those are repeated."""
    left = iter((*ORDERED, *["CANCEL"] * len(commands)))
    return all(command in left for command in commands)


def send_triples(
    worker_processes: WorkerProcesses, triples: int, pause: Callable[[str, str], object]
) -> list[str]:
    """CREATE, REPLACE and CANCEL of orders that rest. A REPLACE that comes too late is no harm."""

    def send(index: int) -> str:
        account = worker_processes.accounts[index % len(worker_processes.accounts)]
        intent = worker_processes.submit(create(limit("5", "1")), account)
        for body in (replace(intent, limit("6", "1")), cancel(intent)):
            pause(account, intent)
            worker_processes.try_to_submit(body, account)
        return intent

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(send, range(triples)))


# A row that a killed worker had claimed is another's after CLAIM_SECONDS, which are five.
@pytest.mark.parametrize("triples", [16, pytest.param(300, marks=pytest.mark.chaos)])
def test_commands_of_an_intent_stay_in_order_though_workers_die(
    urls: Urls, tmp_path: Path, triples: int
) -> None:
    is_long = triples > 100
    over = threading.Event()
    with open_worker_processes(urls, tmp_path, accounts=3) as worker_processes:
        with Mortals(worker_processes, 2, pauses=False).working() as workers:
            until_connected(worker_processes)
            made = send_triples(
                worker_processes, triples, lambda *_: over.wait(0.2 if is_long else 0.1)
            )
            eventually(lambda: workers.kills >= 2, SETTLED_SECONDS)
            workers.over.set()
            until_certain(worker_processes, 90 if is_long else 40, hurry=not is_long)
        journal = worker_processes.journal()
        orders = worker_processes.orders()
        ends = worker_processes.statuses(with_reason=True)
        print(f"\n{workers.kills} kills: {Counter(map(tuple, journal.values()))} {ends}")
        assert all(is_subsequence(commands) for commands in journal.values())
        assert set(worker_processes.statuses()) <= {"CANCELLED", "EXPIRED", "REJECTED"}, (
            "every CANCEL gets through"
        )
        before_send = [intent for intent in made if orders[intent]["reason"] == "before_send"]
        assert [intent for intent in before_send if "SUBMIT" in journal.get(intent, ())] == []
        worker_processes.assert_true()


@pytest.mark.parametrize("triples", [8, pytest.param(300, marks=pytest.mark.chaos)])
def test_without_kills_every_command_arrives(urls: Urls, tmp_path: Path, triples: int) -> None:
    with (
        open_worker_processes(urls, tmp_path, accounts=3) as worker_processes,
        worker_processes.worker() as worker,
    ):
        until_connected(worker_processes)

        def until_working(account: str, intent: str) -> None:
            url = f"{worker_processes.api.url}/v1/accounts/{account}/orders/{intent}"
            client = worker_processes.api.client
            headers = worker_processes.headers
            eventually(
                lambda: client.get(url, headers=headers).json()["order_status"] == "NEW",
                SETTLED_SECONDS,
            )

        made = send_triples(worker_processes, triples, until_working)
        until_certain(worker_processes, 30, hurry=False)
        until_sessions_equal_leases(worker_processes.tables, [worker], 3)
        assert worker_processes.journal() == dict.fromkeys(made, ORDERED)
        assert worker_processes.statuses() == {"CANCELLED": triples}
        worker_processes.assert_true()


@pytest.mark.chaos
async def test_a_broker_that_was_away_gets_what_is_young_enough(urls: Urls) -> None:
    """A minute, while intents come in twice a second: no row is used up, and none is sent that is
    too old."""
    metrics = Metrics()
    async with open_in_process(urls) as in_process, executing(in_process, metrics=metrics):
        made: list[tuple[UUID, float]] = []

        async def submit(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                made.append((await in_process.create(), time.monotonic()))
                await asyncio.sleep(PACE_SECONDS)

        await submit(2)
        in_process.venue.is_away = True
        in_process.venue.disconnect()
        await submit(60)
        in_process.venue.is_away = False
        back = time.monotonic()
        await in_process.until_queue_is_empty(30)
        assert retried(metrics) == 0
        for intent, at in made:
            order = await in_process.order(intent)
            if back - at < 15:
                assert order["order_status"] == "NEW"
            elif 35 < back - at < 60:
                assert (order["order_status"], order["reason"]) == ("EXPIRED", "stale")
        assert len(in_process.venue.journal) == len({coid for _, coid in in_process.venue.journal})
