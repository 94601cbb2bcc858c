"""Workers killed and stopped at random, a broker that drops its answers: nothing is sent twice, orders end true."""

import asyncio
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import executing, open_floor
from tests.execution.worker_processes import Crew, Mortals, open_crew, until_connected, until_settled
from tests.intents.http_client import cancel, create, limit, market, replace
from tests.seeds import seeded
from tests.waiting import eventually

NEVER_SENT = {("EXPIRED", "stale"), ("REJECTED", "not_delivered")}
SENT_ONCE = ["SUBMIT"]
STOP_SECONDS = 8.0
PACE_SECONDS = 0.5
ORDERED = ["SUBMIT", "REPLACE", "CANCEL"]


def trickle(crew: Crew, intents: int, seconds: float) -> list[str]:
    """CREATEs one after the other from a few clients, spread over the time."""
    chance = seeded("orders")
    bodies = [create(market("1"), symbol=chance.choice(("AAPL", "MSFT"))) for _ in range(intents)]
    pause_seconds, over = seconds / intents, threading.Event()

    def send(place: int) -> str:
        over.wait(max(0.0, started + place * pause_seconds - time.monotonic()))
        return crew.submit(bodies[place], crew.accounts[place % len(crew.accounts)])

    started = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(send, range(intents)))


def check_once(crew: Crew, intents: list[str]) -> None:
    """Each intent reached the broker once, or never where its order says so."""
    journal, orders = crew.journal(), crew.orders()
    assert [intent for intent, commands in journal.items() if commands != SENT_ONCE] == []
    for intent in intents:
        order = orders[intent]
        ended = order["order_status"], order["reason"]
        assert (intent in journal) == (ended not in NEVER_SENT), dict(order)
    assert {order["order_status"] for order in orders.values()} <= {"FILLED", "EXPIRED", "REJECTED"}
    assert crew.assert_true() == len(intents)
    assert crew.tables.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


@pytest.mark.parametrize(
    ("intents", "seconds"), [(40, 4), pytest.param(2_000, 120, marks=pytest.mark.chaos)], ids=["short", "long"]
)
def test_no_order_is_sent_twice_though_workers_die_and_answers_are_lost(
    urls: Urls, tmp_path: Path, intents: int, seconds: int
) -> None:
    is_long = intents > 1_000
    with open_crew(urls, tmp_path, accounts=3) as crew:
        crew.script("drop_answer", "0.05")
        with Mortals(crew, 2, pauses=is_long).working() as workers:
            made = trickle(crew, intents, seconds)
            crew.heal()
            workers.over.set()
            took = until_settled(crew, 60 if is_long else 30, hurry=not is_long)
        ended = crew.statuses(with_reason=True)
        print(f"\n{workers.kills} kills, {workers.stops} stops, settled in {took:.1f} s: {ended}")
        assert workers.kills >= 2
        check_once(crew, made)


@pytest.mark.chaos
def test_a_stopped_worker_that_wakes_up_changes_nothing(urls: Urls, tmp_path: Path) -> None:
    """Twenty times stopped in the middle of its work for longer than any claim or lease."""
    with open_crew(urls, tmp_path, accounts=2) as crew, crew.worker() as first, crew.worker() as second:
        made: list[str] = []
        for turn in range(20):
            sleeper = (first, second)[turn % 2]
            made += trickle(crew, 20, 0.2)
            sleeper.process.send_signal(signal.SIGSTOP)
            time.sleep(STOP_SECONDS)
            final = {intent: order["order_status"] for intent, order in crew.orders().items() if order["finished_at"]}
            sleeper.process.send_signal(signal.SIGCONT)
            until_settled(crew, 30, hurry=True)
            after = crew.orders()
            assert {intent: after[intent]["order_status"] for intent in final} == final
        check_once(crew, made)


@pytest.mark.parametrize("intents", [40, pytest.param(500, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("cause", ["disabled", "stale"])
def test_what_was_queued_is_checked_before_it_is_sent(urls: Urls, tmp_path: Path, cause: str, intents: int) -> None:
    settings = {"EXECUTION_MAX_AGE_MILLIS": "1500"} if cause == "stale" else {}
    with open_crew(urls, tmp_path, accounts=2, **settings) as crew:
        crew.submit_all([create(market())] * intents)
        if cause == "disabled":
            for account in crew.accounts:
                url = f"/v1/controls/accounts/{account}/symbols/AAPL"
                answer = crew.api.client.put(url, json={"manually_disabled": True}, headers=crew.headers)
                assert answer.status_code == 200, answer.text
        else:
            eventually(
                lambda: bool(
                    crew.tables.value("SELECT max(created_at) < clock_timestamp() - interval '2 s' FROM actions")
                ),
                5,
            )
        with crew.worker():
            until_settled(crew, 30, hurry=False)
        expected = "REJECTED symbol_manually_disabled" if cause == "disabled" else "EXPIRED stale"
        assert crew.statuses(with_reason=True) == {expected: intents}
        assert crew.journal() == {}
        crew.assert_true()


def is_subsequence(commands: list[str]) -> bool:
    """Of SUBMIT, REPLACE and CANCELs: only those are repeated."""
    left = iter((*ORDERED, *["CANCEL"] * len(commands)))
    return all(command in left for command in commands)


def send_triples(crew: Crew, triples: int, pause_seconds: float) -> list[str]:
    """CREATE, REPLACE and CANCEL of orders that rest. A REPLACE that comes too late is no harm."""
    pause = threading.Event()

    def send(place: int) -> str:
        account = crew.accounts[place % len(crew.accounts)]
        intent = crew.submit(create(limit("5", "1")), account)
        for body in (replace(intent, limit("6", "1")), cancel(intent)):
            pause.wait(pause_seconds)
            crew.try_to_submit(body, account)
        return intent

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(send, range(triples)))


@pytest.mark.parametrize("triples", [20, pytest.param(300, marks=pytest.mark.chaos)])
def test_commands_of_an_intent_stay_in_order_though_workers_die(urls: Urls, tmp_path: Path, triples: int) -> None:
    is_long = triples > 100
    with open_crew(urls, tmp_path, accounts=3) as crew:
        with Mortals(crew, 2, pauses=False).working() as workers:
            until_connected(crew)
            made = send_triples(crew, triples, 0.2 if is_long else 0.1)
            eventually(lambda: workers.kills >= 2, 20)
            workers.over.set()
            until_settled(crew, 90 if is_long else 40, hurry=not is_long)
        journal, orders = crew.journal(), crew.orders()
        print(f"\n{workers.kills} kills: {Counter(map(tuple, journal.values()))} {crew.statuses(with_reason=True)}")
        assert all(is_subsequence(commands) for commands in journal.values())
        assert set(crew.statuses()) <= {"CANCELLED", "EXPIRED", "REJECTED"}, "every CANCEL gets through"
        before_send = [intent for intent in made if orders[intent]["reason"] == "before_send"]
        assert [intent for intent in before_send if "SUBMIT" in journal.get(intent, ())] == []
        crew.assert_true()


@pytest.mark.parametrize("triples", [16, pytest.param(300, marks=pytest.mark.chaos)])
def test_without_kills_every_command_arrives(urls: Urls, tmp_path: Path, triples: int) -> None:
    with open_crew(urls, tmp_path, accounts=3) as crew, crew.worker():
        until_connected(crew)
        made = send_triples(crew, triples, 1.0)
        until_settled(crew, 30, hurry=False)
        assert crew.journal() == dict.fromkeys(made, ORDERED)
        assert crew.statuses() == {"CANCELLED": triples}
        crew.assert_true()


@pytest.mark.chaos
async def test_a_broker_that_was_away_gets_what_is_young_enough(urls: Urls) -> None:
    """A minute, while intents come in twice a second: no row is used up, and none is sent that is too old."""
    async with open_floor(urls) as floor, executing(floor):
        made: list[tuple[UUID, float]] = []

        async def submit(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                made.append((await floor.create(), time.monotonic()))
                await asyncio.sleep(PACE_SECONDS)

        await submit(2)
        floor.venue.is_away = True
        floor.venue.disconnect()
        await submit(60)
        floor.venue.is_away, back = False, time.monotonic()
        await floor.until_rows_are("completed", 30)
        assert await floor.office.owner.fetchval("SELECT max(attempts) FROM outbox WHERE queue = 'intents'") == 1
        for intent, at in made:
            order = await floor.order(intent)
            if back - at < 15:
                assert order["order_status"] == "NEW"
            elif 35 < back - at < 60:
                assert (order["order_status"], order["reason"]) == ("EXPIRED", "stale")
        assert len(floor.venue.journal) == len({coid for _, coid in floor.venue.journal})
