"""Cancel-alls of one process: no CANCEL is made twice, each costs a token, and an organization's do
not fill the queue."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import pytest

from tests.fakes import ManualClock
from trading_intents.accounts.model import Account
from trading_intents.config import Rate
from trading_intents.errors import Unavailable
from trading_intents.intents.http import Submitter
from trading_intents.intents.model import Cancel, Submission
from trading_intents.intents.reductions import MAX_CANCELS, MAX_QUEUED, CancelAlls, CancelledAll
from trading_intents.intents.service import Intents
from trading_intents.intents.store import CancellableOrders
from trading_intents.intents.writing.batch import Receipt
from trading_intents.intents.writing.writer import Writer
from trading_intents.telemetry import Metrics
from trading_intents.web.limits import Bucket, Limits

PRESSES = 30
PLENTY = 100_000


@dataclass(frozen=True)
class NamedAccount:
    """As much of an account as a cancel-all looks at."""

    id: UUID = UUID(int=1)
    organization_id: UUID = UUID(int=2)


@dataclass
class OpenBook:
    """The open orders of an account, and the writer of its CANCELs, which answers when it may."""

    open_orders: list[str]
    cancelled: list[str] = field(default_factory=list)
    queued: int = 0
    most_queued: int = 0
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None

    async def cancellable(
        self, account: Account, symbol: None, left_out: list[str], limit: int
    ) -> CancellableOrders:
        await asyncio.sleep(0)
        free = [each for each in self.open_orders if each not in {*self.cancelled, *left_out}]
        return CancellableOrders(free[:limit], len(self.open_orders) - len(free))

    async def submit(self, submission: Submission) -> Receipt:
        self.queued += 1
        self.most_queued = max(self.most_queued, self.queued)
        await self.may_answer.wait()
        await asyncio.sleep(0)
        self.queued -= 1
        if self.error:
            raise self.error
        assert isinstance(submission.command, Cancel)
        self.cancelled.append(submission.command.ref_intent_id)
        return Receipt(submission.command.ref_intent_id, len(self.cancelled))


@dataclass
class Presser:
    book: OpenBook
    burst: int = PLENTY

    def __post_init__(self) -> None:
        rates = {Bucket.CANCELS: Rate(1, self.burst)}
        self.limits = Limits(rates, rates, ManualClock(), Metrics().rate_limited)
        book = cast(Any, self.book)
        self.cancel_alls = CancelAlls(cast(Intents, book), cast(Writer, book), self.limits)

    async def press(self) -> CancelledAll:
        """With the token that every request takes first."""
        keys = ("key:k", "organization:o")
        self.limits.take(Bucket.CANCELS, *keys)
        submitter = Submitter("o", "k", keys)
        account = cast(Account, NamedAccount())
        cancelled, _ = await self.cancel_alls.cancel(account, None, submitter)
        return cancelled


def orders(count: int) -> list[str]:
    return [f"order {number}" for number in range(count)]


async def test_calls_at_once_make_each_cancel_once_and_say_which_are_on_their_way() -> None:
    book = OpenBook(orders(5))
    presser = Presser(book)
    first = asyncio.create_task(presser.press())
    while not book.queued:
        await asyncio.sleep(0)
    again = await presser.press()
    assert (again.intents, again.pending, again.more) == ([], 5, False)
    book.may_answer.set()
    made = await first
    assert [each.intent_id for each in made.intents] == book.cancelled == orders(5)
    assert (made.pending, made.more) == (0, False)
    assert (await presser.press()).pending == 5


async def test_many_calls_of_many_orders_leave_the_queue_to_others() -> None:
    book = OpenBook(orders(3 * MAX_CANCELS))
    book.may_answer.set()
    presser = Presser(book)

    async def press_while_more() -> int:
        made = 0
        more = True
        while more:
            cancelled = await presser.press()
            made += len(cancelled.intents)
            more = cancelled.more
        return made

    counts = await asyncio.gather(*(press_while_more() for _ in range(PRESSES)))
    assert sum(counts) == len(book.open_orders)
    assert sorted(book.cancelled) == sorted(book.open_orders)
    assert book.most_queued <= MAX_QUEUED


@pytest.mark.parametrize(
    ("burst", "open_count", "made", "left", "more"),
    [
        (8, 3, 3, 5, False),
        (8, 8, 8, 0, False),
        (8, 20, 8, 0, True),
        (1, 20, 1, 0, True),
        (8, 0, 0, 7, False),
    ],
)
async def test_a_call_costs_a_token_for_each_cancel(
    burst: int, open_count: int, made: int, left: int, more: bool
) -> None:
    book = OpenBook(orders(open_count))
    book.may_answer.set()
    presser = Presser(book, burst)
    cancelled = await presser.press()
    assert (len(cancelled.intents), cancelled.more) == (made, more)
    tokens = int(presser.limits.left(Bucket.CANCELS, "key:k", "organization:o"))
    assert tokens == left


async def test_orders_whose_cancels_failed_are_not_on_their_way() -> None:
    book = OpenBook(orders(2), error=Unavailable("the queue is full"))
    book.may_answer.set()
    presser = Presser(book)
    with pytest.raises(Unavailable, match="the queue is full"):
        await presser.press()
    book.error = None
    assert len((await presser.press()).intents) == 2
