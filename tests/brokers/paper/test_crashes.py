"""A session's process may die at any moment: what was answered is kept, and what was not is whole
or not there at all."""

import asyncio
import subprocess
from uuid import uuid4

import pytest

from tests.brokers.paper.venue import Venue, assert_books_balance, deadline
from tests.conftest import Urls
from tests.fork_server import Fork
from trading_intents.brokers.paper.venue import store
from trading_intents.brokers.port import OrderSnapshot, Outcome
from trading_intents.storage.pipeline import Statement

ANSWERS_BEFORE_A_KILL = 40


@pytest.mark.slow
async def test_what_was_answered_survives_a_kill(venue: Venue, tenants_database: Urls) -> None:
    account = uuid4()
    await venue.post("99x1000000 101x1000000")
    answered: dict[str, str] = {}
    for life in "ab":
        arguments = (
            tenants_database.login.reveal(),
            tenants_database.owner.reveal(),
            str(venue.organization),
            str(account),
            life,
        )
        process = Fork("tests.brokers.paper.session_process", *arguments, stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout:
            for n in range(ANSWERS_BEFORE_A_KILL):
                line = (await asyncio.to_thread(process.stdout.readline)).split()
                answered[line[0]] = line[1]
                if n == ANSWERS_BEFORE_A_KILL // 2:
                    await venue.post("99x1000000 99.5x7")
            process.kill()
            rest = await asyncio.to_thread(process.stdout.read)
        # The kill may have cut the last one.
        whole_lines = rest[: rest.rfind("\n") + 1].splitlines()
        answered |= dict(line.split() for line in whole_lines)
        process.wait()
    session = await venue.open_session(account)
    for client_order_id, outcome in answered.items():
        found = await session.broker.lookup(client_order_id, None, deadline())
        assert isinstance(found, OrderSnapshot), client_order_id
        assert (found.events[0].kind == "REJECTED") == (outcome == Outcome.REJECTED)
    await assert_books_balance(venue.owner, account)
    journal = await venue.journal(account)
    assert len(journal) == len(set(journal)) >= len(answered)
    working = await venue.value("SELECT count(*) FROM paper_working WHERE account_id = $1", account)
    assert (
        len((await session.broker.snapshot(await venue.value("SELECT now()"))).open_orders)
        == working
    )


@pytest.mark.parametrize("step", ["add_rows", "save_working", "save_holdings", "save_accounts"])
async def test_a_command_is_taken_as_a_whole_or_not_at_all(
    venue: Venue, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    account = uuid4()
    await venue.post("99x10 101x10")  # fills a part: the rest waits for the next
    session = await venue.open_session(account)

    def fail(*_: object) -> Statement:
        return Statement("SELECT 1 / 0")

    with monkeypatch.context() as patched:
        patched.setattr(store, step, fail)
        assert (await session.submit("one", "buy 50 market")).outcome is Outcome.NOT_SENT
    tables = ("paper_journal", "paper_working", "paper_holdings")
    for table in tables:
        assert (
            await venue.value(f"SELECT count(*) FROM {table} WHERE account_id = $1", account) == 0
        )
    assert (await session.submit("one", "buy 50 market")).outcome is Outcome.ACKED
    await assert_books_balance(venue.owner, account)
