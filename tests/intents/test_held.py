"""Locks that another transaction holds for long: the commands that need them wait, those of other
organizations do not, and nothing is left behind when they are given up."""

import asyncio
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.conftest import Urls
from tests.intents.in_process_writer import (
    PRICES,
    InProcessWriter,
    brokers,
    codes,
    open_in_process_writer,
)
from tests.intents.writer_checks import creates_of, pending, whole
from tests.kept_connections import open_owner
from tests.waiting import COUNT_BLOCKED, eventually_async
from trading_intents.clock import SystemClock
from trading_intents.errors import Unavailable
from trading_intents.ids import id_text_maker
from trading_intents.intents.model import Submission
from trading_intents.intents.writing import lock_waits
from trading_intents.intents.writing.queue import PendingSubmission
from trading_intents.intents.writing.state import BatchDependencies
from trading_intents.intents.writing.statements import LOCK_LIMIT_SECONDS
from trading_intents.intents.writing.system import PlatformActions
from trading_intents.secret import Secret
from trading_intents.storage.database import WORKER_ROLE
from trading_intents.storage.pipeline import Pipeline
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import make_log

MEANWHILE = 10
FREE_SECONDS = 0.2
LOCKS = {
    "the account": "SELECT FROM account_heads WHERE organization_id = $1 FOR UPDATE",
    "the order": "SELECT FROM orders WHERE organization_id = $1 FOR UPDATE",
    "the row of the queue": "SELECT FROM outbox WHERE organization_id = $1 FOR UPDATE",
    "the stream": "SELECT FROM stream_heads WHERE organization_id = $1 FOR UPDATE",
}


@pytest.fixture
async def in_process_writer(urls: Urls) -> AsyncIterator[InProcessWriter]:
    async with open_in_process_writer(urls.login, urls.owner) as in_process_writer:
        yield in_process_writer


@pytest.fixture
async def holder(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    """Nothing limits how long it holds its locks."""
    async with open_owner(urls.owner) as connection:
        yield connection


@pytest.fixture
def endless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine may take longer for what happens meanwhile than a command waits for its
    lock."""
    monkeypatch.setattr(lock_waits, "MAX_WAIT_SECONDS", 60.0)


async def go_on(in_process_writer: InProcessWriter, submissions: list[Submission]) -> None:
    """Records them again and again, while another one is held. A round takes milliseconds; one may
    be unlucky."""
    seconds = []
    for _ in range(MEANWHILE):
        began = time.monotonic()
        assert await recorded(in_process_writer, submissions)
        seconds.append(time.monotonic() - began)
    assert min(seconds) < FREE_SECONDS


async def recorded(in_process_writer: InProcessWriter, submissions: list[Submission]) -> bool:
    return codes(await in_process_writer.submit_all(submissions)) == ["recorded"] * len(submissions)


async def waiters(in_process_writer: InProcessWriter) -> int:
    found: int = await in_process_writer.owner.fetchval(COUNT_BLOCKED)
    return found


@pytest.mark.usefixtures("endless_wait")
@pytest.mark.parametrize("is_remembered", [True, False], ids=["ahead", "asked"])
@pytest.mark.parametrize("lock", LOCKS)
async def test_a_lock_of_one_organization_keeps_no_other_waiting(
    in_process_writer: InProcessWriter, holder: asyncpg.Connection, lock: str, is_remembered: bool
) -> None:
    others = await creates_of(in_process_writer, 3)
    made = await in_process_writer.writer.submit(
        in_process_writer.create(in_process_writer.accounts[0])
    )
    # Which a CANCEL takes back.
    await in_process_writer.owner.execute("UPDATE outbox SET due_at = now() + interval '1 hour'")
    if is_remembered:
        assert await recorded(
            in_process_writer, [in_process_writer.create(in_process_writer.accounts[0]), *others]
        )
    cancel = in_process_writer.cancel(in_process_writer.accounts[0], made.intent_id)
    create = in_process_writer.create(in_process_writer.accounts[0])
    needs = cancel if lock in ("the order", "the row of the queue") else create
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute(LOCKS[lock], in_process_writer.organization)
    held = asyncio.create_task(in_process_writer.submit(needs))
    assert await recorded(in_process_writer, others), "in one batch with it"
    await go_on(in_process_writer, others)
    assert not held.done()
    await transaction.rollback()
    assert codes([await held]) == ["recorded"], "it waited, and went on once the lock was free"
    assert await recorded(in_process_writer, [create, *others])


@pytest.mark.usefixtures("endless_wait")
async def test_an_account_that_is_held_keeps_no_other_of_its_organization_waiting(
    in_process_writer: InProcessWriter, holder: asyncpg.Connection
) -> None:
    first, *free = in_process_writer.accounts
    async with holder.transaction():
        await holder.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", first)
        held = asyncio.create_task(in_process_writer.submit(in_process_writer.create(first)))
        await go_on(in_process_writer, [in_process_writer.create(account) for account in free])
        assert not held.done()
    assert codes([await held]) == ["recorded"]
    assert await whole(in_process_writer) == [1, MEANWHILE, MEANWHILE]


@pytest.mark.usefixtures("endless_wait")
async def test_a_limits_count_that_is_held_keeps_no_other_organization_waiting(
    in_process_writer: InProcessWriter, holder: asyncpg.Connection
) -> None:
    """A transaction that records a fill of a limited account holds its count of open orders."""
    limited = in_process_writer.accounts[0]
    others = await creates_of(in_process_writer, 3)
    await in_process_writer.owner.execute(
        "INSERT INTO trading_limits (owner_id, organization_id, rules)"
        """ VALUES ($1, $2, '{"max_open_orders": 3}')""",
        limited,
        in_process_writer.organization,
    )
    assert await recorded(in_process_writer, [in_process_writer.create(limited)])
    async with holder.transaction():
        assert (
            await holder.execute("SELECT FROM holdings WHERE account_id = $1 FOR UPDATE", limited)
            == "SELECT 1"
        )
        held = asyncio.create_task(in_process_writer.submit(in_process_writer.create(limited)))
        assert await recorded(in_process_writer, others), "in one batch with it"
        await go_on(in_process_writer, others)
        assert not held.done()
    assert codes([await held]) == ["recorded"]
    last = await in_process_writer.submit_all([in_process_writer.create(limited) for _ in range(2)])
    assert codes(last) == ["recorded", "control_rejected"]


@pytest.mark.usefixtures("endless_wait")
async def test_more_held_organizations_than_connections_all_get_their_turn(
    in_process_writer: InProcessWriter, holder: asyncpg.Connection
) -> None:
    others = await creates_of(in_process_writer, 2 * lock_waits.MAX_CONNECTIONS)
    assert await recorded(in_process_writer, others)
    async with holder.transaction():
        await holder.execute("SELECT FROM stream_heads FOR UPDATE")
        held = [asyncio.create_task(in_process_writer.submit(each)) for each in others]

        async def waits() -> bool:
            return await waiters(in_process_writer) == lock_waits.MAX_CONNECTIONS

        await eventually_async(waits, 10)
        assert not any(task.done() for task in held)
    assert codes(await asyncio.gather(*held)) == ["recorded"] * len(others)


async def test_a_cancel_of_the_platforms_own_waits_for_no_lock_for_long(
    in_process_writer: InProcessWriter, holder: asyncpg.Connection, urls: Urls
) -> None:
    """A CANCEL that meets a held lock is asked for again later."""
    (other,) = await creates_of(in_process_writer, 1)
    mine = await in_process_writer.writer.submit(
        in_process_writer.create(in_process_writer.accounts[0])
    )
    theirs = await in_process_writer.writer.submit(other)
    log = make_log("critical")
    pipeline = Pipeline(urls.login, WORKER_ROLE, LOCK_LIMIT_SECONDS)
    async with open_signals(urls.login, log) as signals:
        cancels = PlatformActions(
            BatchDependencies(
                pipeline=pipeline,
                brokers=brokers(),
                make_id=id_text_maker(),
                clock=SystemClock(),
                prices=PRICES,
            ),
            signals,
        )
        async with holder.transaction():
            await holder.execute(LOCKS["the stream"], in_process_writer.organization)
            held = cancels.cancel(
                str(in_process_writer.organization),
                str(in_process_writer.accounts[0]),
                mine.intent_id,
            )
            free = cancels.cancel(other.organization_id, other.account_id, theirs.intent_id)
            outcomes = await asyncio.gather(held, free, return_exceptions=True)
            assert isinstance(outcomes[0], Unavailable)
            assert outcomes[1] is True
        assert await cancels.cancel(
            str(in_process_writer.organization), str(in_process_writer.accounts[0]), mine.intent_id
        )
        cancels.close()


@pytest.mark.deadline
async def test_a_command_that_is_given_up_leaves_nothing_behind(
    in_process_writer: InProcessWriter, holder: asyncpg.Connection
) -> None:
    account = in_process_writer.accounts[0]
    assert await recorded(in_process_writer, [in_process_writer.create(account)])
    async with holder.transaction():
        await holder.execute("SELECT FROM stream_heads FOR UPDATE")
        assert codes([await in_process_writer.submit(in_process_writer.create(account))]) == [
            "unavailable"
        ]

        async def nobody_waits() -> bool:
            return await waiters(in_process_writer) == 0

        await eventually_async(nobody_waits, 1)
    assert await recorded(in_process_writer, [in_process_writer.create(account)])
    assert await whole(in_process_writer) == [2]


async def test_a_caller_who_leaves_while_his_command_waits_takes_it_with_him(
    in_process_writer: InProcessWriter, holder: asyncpg.Connection
) -> None:
    account = in_process_writer.accounts[0]
    submission = in_process_writer.create(account)
    async with holder.transaction():
        await holder.execute("SELECT FROM account_heads FOR UPDATE")
        held = asyncio.create_task(in_process_writer.submit(submission))

        async def waits() -> bool:
            return await waiters(in_process_writer) == 1

        await eventually_async(waits, 2)
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)

        async def is_given_up() -> bool:
            # Between two attempts nobody waits for the lock either.
            return in_process_writer.writer._lock_waits.queue_for(submission) is None

        await eventually_async(is_given_up, 10)
    assert await recorded(in_process_writer, [in_process_writer.create(account)])
    assert await whole(in_process_writer) == [1]


async def test_a_lock_that_is_found_as_the_last_waits_end_is_waited_for() -> None:
    free = asyncio.Event()
    written = list[PendingSubmission]()

    async def attempt(_: Pipeline, batch: list[PendingSubmission]) -> list[PendingSubmission]:
        await free.wait()
        written.extend(batch)
        return []

    async def find_one_more() -> None:
        await free.wait()
        waits.add("one more", [pending("one more")])

    pipeline = Pipeline(Secret("postgresql://nowhere"), WORKER_ROLE)
    clock = SystemClock()
    waits = lock_waits.LockWaits(pipeline, attempt, lambda *_: None, clock)
    for number in range(lock_waits.MAX_CONNECTIONS):
        waits.add(str(number), [pending(str(number))])
    await asyncio.sleep(0)  # by now each of them waits
    finding = asyncio.create_task(find_one_more())
    await asyncio.sleep(0)
    free.set()  # all go on in the loop's next iteration, the finder last
    await finding

    async def is_written() -> bool:
        return len(written) == lock_waits.MAX_CONNECTIONS + 1

    await eventually_async(is_written, 10)
