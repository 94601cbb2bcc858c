"""The writer: neighbours, locks, a full line, clients that leave, and a database that goes away."""

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.conftest import Urls
from tests.intents.in_process_writer import Office, codes, open_office
from tests.proxy import FaultProxy, proxied
from tests.waiting import eventually_async
from trading_intents.errors import Unavailable
from trading_intents.intents.model import Submission
from trading_intents.intents.store import ActionPlace
from trading_intents.intents.writing import writer as writer_module
from trading_intents.intents.writing.batch import Receipt
from trading_intents.intents.writing.lock_waits import MAX_WAIT_SECONDS
from trading_intents.intents.writing.queue import CANCEL_RESERVE, MAX_WAITING, Outcome

ANSWER_SECONDS, RETURN_SECONDS = 3.0, 5.0
LEAVERS = 500
TRAP = """
    CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF NEW.symbol = 'TRAP' THEN RAISE EXCEPTION 'trapped'; END IF; RETURN NEW; END $$;
    CREATE TRIGGER trap BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION trap();
"""


@pytest.fixture
async def office(urls: Urls) -> AsyncIterator[Office]:
    async with open_office(urls.login, urls.owner) as office:
        yield office


async def whole(office: Office) -> list[int]:
    """What was appended is complete: one order, one row in the queue and two events an action, seqs without a gap."""
    actions = await office.owner.fetch("SELECT account_id, seq FROM actions ORDER BY account_id, seq")
    by_account: dict[UUID, list[int]] = {}
    for account, seq in actions:
        by_account.setdefault(account, []).append(seq)
    assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in by_account.values())
    heads = await office.owner.fetch("SELECT account_id, seq FROM account_heads WHERE seq > 0")
    assert {account: len(seqs) for account, seqs in by_account.items()} == {
        row["account_id"]: row["seq"] for row in heads
    }
    creates = await office.owner.fetchval("SELECT count(*) FROM actions WHERE action_type = 'CREATE'")
    counts = [await office.count(table) for table in ("orders", "outbox", "stream_events")]
    assert counts == [creates, len(actions), 2 * len(actions)]
    return [len(seqs) for _, seqs in sorted(by_account.items())]


async def test_a_batch_is_one_transaction(office: Office) -> None:
    commands = [office.create(account) for account in office.accounts for _ in range(5)]
    outcomes = await office.submit_all(commands)
    assert codes(outcomes) == ["recorded"] * 15
    assert await office.owner.fetchval("SELECT count(DISTINCT xmin::text) FROM actions") == 1
    assert await whole(office) == [5, 5, 5]
    assert [outcome.seq for outcome in outcomes if isinstance(outcome, Receipt)] == [1, 2, 3, 4, 5] * 3


async def test_one_that_the_database_refuses_does_not_fail_its_neighbours(office: Office) -> None:
    await office.owner.execute(TRAP)
    commands = [office.create(account, symbol) for symbol in ("A", "TRAP", "B") for account in office.accounts]
    assert codes(await office.submit_all(commands)) == ["recorded"] * 3 + ["internal_error"] * 3 + ["recorded"] * 3
    assert await whole(office) == [2, 2, 2]
    assert codes(await office.submit_all([office.create(office.accounts[0])])) == ["recorded"]


async def test_one_that_cannot_be_understood_does_not_fail_its_neighbours(office: Office) -> None:
    """Such as an order with a value that a later version of the program has written."""
    first, *_ = office.accounts
    odd = await office.writer.submit(office.create(first))
    await office.owner.execute("UPDATE orders SET time_in_force = 'NEXT_YEAR' WHERE order_id = $1", odd.intent_id)
    commands = [office.create(account) for account in office.accounts] + [office.cancel(first, odd.intent_id)]
    assert codes(await office.submit_all(commands)) == ["recorded"] * 3 + ["internal_error"]
    assert await whole(office) == [2, 1, 1]


async def test_one_that_nobody_waits_for_is_not_done_and_is_let_go(office: Office) -> None:
    """A stop waits for all that are not answered, though their clients hung up."""
    answers: list[Outcome] = []
    first = asyncio.create_task(office.submit(office.create(office.accounts[0])))
    await asyncio.sleep(0)
    office.writer.enqueue(office.create(office.accounts[0]), answers.append).is_abandoned = True
    assert codes([await first, await office.submit(office.create(office.accounts[0]))]) == ["recorded"] * 2
    assert codes(answers) == ["unavailable"]
    assert await whole(office) == [2]


async def test_a_held_account_is_passed_over_and_the_others_go_on(office: Office, urls: Urls) -> None:
    held, *free = office.accounts
    holder = await asyncpg.connect(urls.owner.reveal())
    async with holder.transaction():
        await holder.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", held)
        waiting = asyncio.create_task(office.submit(office.create(held)))
        for _ in range(10):
            before = time.monotonic()
            assert codes(await office.submit_all([office.create(account) for account in free])) == ["recorded"] * 2
            assert time.monotonic() - before < ANSWER_SECONDS
            if waiting.done():
                break
    assert codes([await waiting]) in (["recorded"], ["unavailable"])
    assert await whole(office)
    await holder.close()


async def test_a_command_of_a_held_account_waits_and_is_refused_in_time(office: Office, urls: Urls) -> None:
    held = office.accounts[0]
    holder = await asyncpg.connect(urls.owner.reveal())
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", held)
    before = time.monotonic()
    assert codes([await office.submit(office.create(held))]) == ["unavailable"]
    assert MAX_WAIT_SECONDS < time.monotonic() - before < ANSWER_SECONDS
    waiting = asyncio.create_task(office.submit(office.create(held)))

    async def waits() -> bool:
        return bool(await office.owner.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    await eventually_async(waits, 2)
    await transaction.rollback()
    assert codes([await waiting]) == ["recorded"], "it waited, and went on once the account was free"
    assert await whole(office) == [1]
    await holder.close()


async def test_an_account_that_stays_held_does_not_fail_one_that_comes_free(office: Office, urls: Urls) -> None:
    stays, comes_free = office.accounts[:2]
    holders = [await asyncpg.connect(urls.owner.reveal()) for _ in range(2)]
    transactions = [holder.transaction() for holder in holders]
    for transaction, holder, account in zip(transactions, holders, (stays, comes_free), strict=True):
        await transaction.start()
        await holder.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", account)
    both = asyncio.create_task(office.submit_all([office.create(stays), office.create(comes_free)]))

    async def waits() -> bool:
        return bool(await office.owner.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    await eventually_async(waits, 2)
    await transactions[1].rollback()
    assert codes(await both) == ["unavailable", "recorded"]
    await transactions[0].rollback()
    for holder in holders:
        await holder.close()


async def test_a_full_line_refuses_all_but_cancels_and_then_those_too(urls: Urls) -> None:
    async with open_office(urls.login, urls.owner, run=False) as office:
        account = office.accounts[0]
        create, cancel = office.create(account), office.cancel(account, str(uuid4()))

        def line_up(submission: Submission, count: int) -> list[asyncio.Task[object]]:
            return [asyncio.create_task(office.submit(submission)) for _ in range(count)]

        creates = (MAX_WAITING - CANCEL_RESERVE) // 2  # an organization leaves as many places as it takes
        tasks = line_up(create, creates)
        await asyncio.sleep(0)
        assert codes([await office.submit(create)]) == ["unavailable"]
        tasks += line_up(cancel, (MAX_WAITING - creates) // 2)
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        assert codes([await office.submit(cancel), await office.submit(create)]) == ["unavailable"] * 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await office.count("actions") == 0


async def test_cancels_go_to_the_front_of_the_line(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_BATCH", 1)
    account = office.accounts[0]
    intent = (await office.writer.submit(office.create(account))).intent_id
    outcomes = await office.submit_all([office.create(account)] * 3 + [office.cancel(account, intent)])
    assert [outcome.seq for outcome in outcomes if isinstance(outcome, Receipt)] == [3, 4, 5, 2]


async def test_those_who_leave_do_no_harm(office: Office) -> None:
    """Cancelled at every moment of their way: nothing is half-written, and the pool is free again."""
    tasks = []
    for number in range(LEAVERS):
        tasks.append(asyncio.create_task(office.submit(office.create(office.accounts[number % 3]))))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        if number % 2:
            tasks[-1].cancel()
        else:
            tasks[number // 2].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert any(isinstance(result, asyncio.CancelledError) for result in results)
    assert codes([await office.submit(office.create(office.accounts[0]))]) == ["recorded"]
    await whole(office)

    async def free() -> bool:
        return office.in_use() == 0

    await eventually_async(free, 2)


async def answered(office: Office, seconds: float) -> str:
    before = time.monotonic()
    outcome = await office.submit(office.create(office.accounts[0]))
    assert time.monotonic() - before < seconds
    return codes([outcome])[0]


@pytest.mark.alone(seconds=3)
@pytest.mark.parametrize("fault", ["refuse", "reset", "stall"])
async def test_a_database_that_is_away_is_told_in_time_and_is_back_soon(urls: Urls, fault: str) -> None:
    with proxied(urls.login) as (proxy, login):
        async with open_office(login, urls.owner) as office:
            assert await answered(office, 2) == "recorded"
            for _ in range(3):
                before = await office.count("actions")
                break_link(proxy, fault)
                load = await asyncio.gather(*(answered(office, ANSWER_SECONDS + 0.5) for _ in range(20)))
                assert set(load) == {"unavailable"}
                assert await office.count("actions") == before
                proxy.work()

                async def back() -> bool:
                    return await answered(office, ANSWER_SECONDS + 0.5) == "recorded"

                await eventually_async(back, RETURN_SECONDS)
            await whole(office)


def break_link(proxy: FaultProxy, fault: str) -> None:
    {"refuse": proxy.refuse, "reset": proxy.reset, "stall": proxy.stall}[fault]()


async def test_an_id_that_a_crashed_server_forgot_or_gave_again_is_no_proof(office: Office) -> None:
    """Ids of transactions are not written down before a commit: after a crash another may have ours."""
    receipt = await office.writer.submit(office.create(office.accounts[0]))
    place = ActionPlace(*await office.owner.fetchrow("SELECT account_id::text, seq, hash FROM actions"))
    taken = await office.owner.fetchval("SELECT xmin::text FROM actions")
    to_come = str(int(await office.owner.fetchval("SELECT pg_current_xact_id()::text")) + 1_000_000)
    organizations = [office.organization]
    assert receipt.seq == place.seq == 1
    status = office.writer._status
    assert await status(taken, place, organizations) == "committed"
    assert await status(taken, place._replace(hash="f" * 64), organizations) == "aborted"
    assert await status(taken, place._replace(seq=2), organizations) == "aborted"
    assert await status(taken, None, organizations) == "committed"
    assert await status(to_come, place, organizations) == "aborted"


async def test_a_lost_link_before_anything_was_sent_records_nothing(urls: Urls) -> None:
    with proxied(urls.login) as (proxy, login):
        async with open_office(login, urls.owner) as office:
            proxy.refuse()
            with pytest.raises(Unavailable):
                await office.writer.submit(office.create(office.accounts[0]))
            proxy.work()
            assert await office.count("actions") == 0
