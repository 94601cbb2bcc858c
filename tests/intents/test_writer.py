"""The writer: neighbours, locks, a full line, clients that leave, and a database that goes away."""

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from tests.conftest import Urls
from tests.intents.in_process_writer import InProcessWriter, codes, open_in_process_writer
from tests.intents.writer_checks import TRAP, whole
from tests.proxy import FaultProxy, proxied
from tests.waiting import COUNT_BLOCKED, eventually_async
from trading_intents.errors import Unavailable
from trading_intents.intents.model import Submission
from trading_intents.intents.store import ActionRef, find_action
from trading_intents.intents.writing import writer as writer_module
from trading_intents.intents.writing.batch import Receipt, SubmitOutcome
from trading_intents.intents.writing.lock_waits import MAX_WAIT_SECONDS
from trading_intents.intents.writing.queue import CANCEL_RESERVE, MAX_WAITING
from trading_intents.storage.grouped import has_committed
from trading_intents.telemetry import make_log

ANSWER_SECONDS = 3.0
RETURN_SECONDS = 5.0
LEAVERS = 500


@pytest.fixture
async def in_process_writer(urls: Urls) -> AsyncIterator[InProcessWriter]:
    async with open_in_process_writer(urls.login, urls.owner) as in_process_writer:
        yield in_process_writer


async def test_a_batch_is_one_transaction(in_process_writer: InProcessWriter) -> None:
    commands = [
        in_process_writer.create(account)
        for account in in_process_writer.accounts
        for _ in range(5)
    ]
    outcomes = await in_process_writer.submit_all(commands)
    assert codes(outcomes) == ["recorded"] * 15
    assert (
        await in_process_writer.owner.fetchval("SELECT count(DISTINCT xmin::text) FROM actions")
        == 1
    )
    assert await whole(in_process_writer) == [5, 5, 5]
    assert [outcome.seq for outcome in outcomes if isinstance(outcome, Receipt)] == [
        1,
        2,
        3,
        4,
        5,
    ] * 3


async def test_one_that_the_database_refuses_does_not_fail_its_neighbours(
    in_process_writer: InProcessWriter,
) -> None:
    await in_process_writer.owner.execute(TRAP)
    commands = [
        in_process_writer.create(account, symbol)
        for symbol in ("A", "TRAP", "B")
        for account in in_process_writer.accounts
    ]
    assert (
        codes(await in_process_writer.submit_all(commands))
        == ["recorded"] * 3 + ["internal_error"] * 3 + ["recorded"] * 3
    )
    assert await whole(in_process_writer) == [2, 2, 2]
    assert codes(
        await in_process_writer.submit_all(
            [in_process_writer.create(in_process_writer.accounts[0])]
        )
    ) == ["recorded"]


async def test_one_that_cannot_be_understood_does_not_fail_its_neighbours(
    in_process_writer: InProcessWriter,
) -> None:
    """Such as an order with a value that a later version of the program has written."""
    first, *_ = in_process_writer.accounts
    odd = await in_process_writer.writer.submit(in_process_writer.create(first))
    await in_process_writer.owner.execute(
        "UPDATE orders SET time_in_force = 'NEXT_YEAR' WHERE order_id = $1", odd.intent_id
    )
    commands = [in_process_writer.create(account) for account in in_process_writer.accounts] + [
        in_process_writer.cancel(first, odd.intent_id)
    ]
    assert codes(await in_process_writer.submit_all(commands)) == ["recorded"] * 3 + [
        "internal_error"
    ]
    assert await whole(in_process_writer) == [2, 1, 1]


async def test_one_that_nobody_waits_for_is_not_done_and_is_let_go(
    in_process_writer: InProcessWriter,
) -> None:
    """A stop waits for all that are not answered, though their clients hung up."""
    answers: list[SubmitOutcome] = []
    first = asyncio.create_task(
        in_process_writer.submit(in_process_writer.create(in_process_writer.accounts[0]))
    )
    await asyncio.sleep(0)
    in_process_writer.writer.enqueue(
        in_process_writer.create(in_process_writer.accounts[0]), answers.append
    ).abandon()
    assert (
        codes(
            [
                await first,
                await in_process_writer.submit(
                    in_process_writer.create(in_process_writer.accounts[0])
                ),
            ]
        )
        == ["recorded"] * 2
    )
    assert codes(answers) == ["unavailable"]
    assert await whole(in_process_writer) == [2]


async def test_a_held_account_is_passed_over_and_the_others_go_on(
    in_process_writer: InProcessWriter, urls: Urls
) -> None:
    held, *free = in_process_writer.accounts
    holder = await asyncpg.connect(urls.owner.reveal())
    async with holder.transaction():
        await holder.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", held)
        waiting = asyncio.create_task(in_process_writer.submit(in_process_writer.create(held)))
        for _ in range(10):
            before = time.monotonic()
            assert (
                codes(
                    await in_process_writer.submit_all(
                        [in_process_writer.create(account) for account in free]
                    )
                )
                == ["recorded"] * 2
            )
            assert time.monotonic() - before < ANSWER_SECONDS
            if waiting.done():
                break
    assert codes([await waiting]) in (["recorded"], ["unavailable"])
    assert await whole(in_process_writer)
    await holder.close()


@pytest.mark.deadline
async def test_a_command_of_a_held_account_waits_and_is_refused_in_time(
    in_process_writer: InProcessWriter, urls: Urls
) -> None:
    held = in_process_writer.accounts[0]
    holder = await asyncpg.connect(urls.owner.reveal())
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", held)
    before = time.monotonic()
    assert codes([await in_process_writer.submit(in_process_writer.create(held))]) == [
        "unavailable"
    ]
    assert MAX_WAIT_SECONDS < time.monotonic() - before < ANSWER_SECONDS
    waiting = asyncio.create_task(in_process_writer.submit(in_process_writer.create(held)))

    async def waits() -> bool:
        return bool(await in_process_writer.owner.fetchval(COUNT_BLOCKED))

    await eventually_async(waits, 2)
    await transaction.rollback()
    assert codes([await waiting]) == ["recorded"], (
        "it waited, and went on once the account was free"
    )
    assert await whole(in_process_writer) == [1]
    await holder.close()


@pytest.mark.deadline
async def test_an_account_that_stays_held_does_not_fail_one_that_comes_free(
    in_process_writer: InProcessWriter, urls: Urls
) -> None:
    stays, comes_free = in_process_writer.accounts[:2]
    holders = [await asyncpg.connect(urls.owner.reveal()) for _ in range(2)]
    transactions = [holder.transaction() for holder in holders]
    for transaction, holder, account in zip(
        transactions, holders, (stays, comes_free), strict=True
    ):
        await transaction.start()
        await holder.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", account)
    both = asyncio.create_task(
        in_process_writer.submit_all(
            [in_process_writer.create(stays), in_process_writer.create(comes_free)]
        )
    )

    async def waits() -> bool:
        return bool(await in_process_writer.owner.fetchval(COUNT_BLOCKED))

    await eventually_async(waits, 2)
    await transactions[1].rollback()
    assert codes(await both) == ["unavailable", "recorded"]
    await transactions[0].rollback()
    for holder in holders:
        await holder.close()


async def test_a_full_line_refuses_all_but_cancels_and_then_those_too(urls: Urls) -> None:
    async with open_in_process_writer(urls.login, urls.owner, run=False) as in_process_writer:
        account = in_process_writer.accounts[0]
        create = in_process_writer.create(account)
        cancel = in_process_writer.cancel(account, str(uuid4()))

        def line_up(submission: Submission, count: int) -> list[asyncio.Task[object]]:
            return [asyncio.create_task(in_process_writer.submit(submission)) for _ in range(count)]

        # An organization leaves as much room as it takes.
        creates = (MAX_WAITING - CANCEL_RESERVE) // 2
        tasks = line_up(create, creates)
        await asyncio.sleep(0)
        assert codes([await in_process_writer.submit(create)]) == ["unavailable"]
        tasks += line_up(cancel, (MAX_WAITING - creates) // 2)
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        assert (
            codes([await in_process_writer.submit(cancel), await in_process_writer.submit(create)])
            == ["unavailable"] * 2
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await in_process_writer.count("actions") == 0


async def test_cancels_go_to_the_front_of_the_line(
    in_process_writer: InProcessWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_BATCH", 1)
    account = in_process_writer.accounts[0]
    intent = (await in_process_writer.writer.submit(in_process_writer.create(account))).intent_id
    outcomes = await in_process_writer.submit_all(
        [in_process_writer.create(account)] * 3 + [in_process_writer.cancel(account, intent)]
    )
    assert [outcome.seq for outcome in outcomes if isinstance(outcome, Receipt)] == [3, 4, 5, 2]


async def test_those_who_leave_do_no_harm(in_process_writer: InProcessWriter) -> None:
    """Cancelled at every moment of their way: nothing is half-written, and the pool is free
    again."""
    tasks = []
    for number in range(LEAVERS):
        tasks.append(
            asyncio.create_task(
                in_process_writer.submit(
                    in_process_writer.create(in_process_writer.accounts[number % 3])
                )
            )
        )
        for _ in range(number % 7):
            await asyncio.sleep(0)
        if number % 2:
            tasks[-1].cancel()
        else:
            tasks[number // 2].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert any(isinstance(result, asyncio.CancelledError) for result in results)
    assert codes(
        [await in_process_writer.submit(in_process_writer.create(in_process_writer.accounts[0]))]
    ) == ["recorded"]
    await whole(in_process_writer)

    async def free() -> bool:
        return in_process_writer.in_use() == 0

    await eventually_async(free, 10)


async def answered(in_process_writer: InProcessWriter, seconds: float) -> str:
    before = time.monotonic()
    outcome = await in_process_writer.submit(
        in_process_writer.create(in_process_writer.accounts[0])
    )
    assert time.monotonic() - before < seconds
    return codes([outcome])[0]


# Takes more than five seconds: three stalls, of which each is only known by the limit of an answer.
@pytest.mark.slow
@pytest.mark.deadline
@pytest.mark.parametrize("fault", ["refuse", "reset", "stall"])
async def test_an_unavailable_database_is_answered_in_time_and_used_again_soon(
    urls: Urls, fault: str
) -> None:
    with proxied(urls.login) as (proxy, login):
        async with open_in_process_writer(login, urls.owner) as in_process_writer:
            assert await answered(in_process_writer, 2) == "recorded"
            for _ in range(3):
                before = await in_process_writer.count("actions")
                break_connection(proxy, fault)
                load = await asyncio.gather(
                    *(answered(in_process_writer, ANSWER_SECONDS + 0.5) for _ in range(20))
                )
                assert set(load) == {"unavailable"}
                assert await in_process_writer.count("actions") == before
                proxy.work()

                async def back() -> bool:
                    return await answered(in_process_writer, ANSWER_SECONDS + 0.5) == "recorded"

                await eventually_async(back, RETURN_SECONDS)
            await whole(in_process_writer)


def break_connection(proxy: FaultProxy, fault: str) -> None:
    {"refuse": proxy.refuse, "reset": proxy.reset, "stall": proxy.stall}[fault]()


async def test_an_id_that_a_crashed_server_forgot_or_gave_again_is_no_proof(
    in_process_writer: InProcessWriter,
) -> None:
    """Ids of transactions are not written down before a commit: after a crash another may have
    ours."""
    receipt = await in_process_writer.writer.submit(
        in_process_writer.create(in_process_writer.accounts[0])
    )
    ref = ActionRef(
        *await in_process_writer.owner.fetchrow("SELECT account_id::text, seq, hash FROM actions")
    )
    taken = await in_process_writer.owner.fetchval("SELECT xmin::text FROM actions")
    to_come = str(
        int(await in_process_writer.owner.fetchval("SELECT pg_current_xact_id()::text")) + 1_000_000
    )
    pool = in_process_writer.pool
    organizations = [in_process_writer.organization]
    log = make_log("critical")

    async def committed(transaction_id: str, ref: ActionRef | None) -> bool | None:
        proof = find_action(ref) if ref else None
        return await has_committed(
            pool=pool,
            organizations=organizations,
            transaction_id=transaction_id,
            proof=proof,
            limit_seconds=ANSWER_SECONDS,
            log=log,
        )

    assert receipt.seq == ref.seq == 1
    assert await committed(taken, ref) is True
    assert await committed(taken, ref._replace(hash="f" * 64)) is False
    assert await committed(taken, ref._replace(seq=2)) is False
    assert await committed(taken, None) is True
    assert await committed(to_come, ref) is False


async def test_a_lost_connection_before_anything_was_sent_records_nothing(urls: Urls) -> None:
    with proxied(urls.login) as (proxy, login):
        async with open_in_process_writer(login, urls.owner) as in_process_writer:
            proxy.refuse()
            with pytest.raises(Unavailable):
                await in_process_writer.writer.submit(
                    in_process_writer.create(in_process_writer.accounts[0])
                )
            proxy.work()
            assert await in_process_writer.count("actions") == 0
