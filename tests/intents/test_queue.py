"""The queue before the writer: CANCELs first, organizations in turn, and a share of the queue for
each."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.intents.in_process_writer import (
    InProcessWriter,
    add_account,
    codes,
    furnish,
    open_in_process_writer,
)
from tests.intents.writer_checks import CREATE, pending
from trading_intents.errors import Unavailable
from trading_intents.intents.model import Cancel, Create, Submission
from trading_intents.intents.writing import writer as writer_module
from trading_intents.intents.writing.batch import BatchResult, SubmitOutcome, run_batch
from trading_intents.intents.writing.queue import (
    CANCEL_RESERVE,
    MAX_WAITING,
    PendingSubmission,
    SubmissionQueue,
)
from trading_intents.intents.writing.writer import MAX_BATCH

CANCEL = Cancel("an intent")


def fill(
    queue: SubmissionQueue, organization: str, command: Create | Cancel = CREATE
) -> list[PendingSubmission]:
    """As many as it takes."""
    put: list[PendingSubmission] = []
    while True:
        put.append(pending(organization, command))
        try:
            queue.put(put[-1])
        except Unavailable:
            return put[:-1]


def organizations(batch: list[PendingSubmission]) -> str:
    return "".join(each.organization_id for each in batch)


def test_cancels_come_first_and_organizations_in_turn() -> None:
    queue = SubmissionQueue()
    for organization in "aaaaabbc":
        queue.put(pending(organization))
    for organization in "ddda":
        queue.put(pending(organization, CANCEL))
    assert organizations(queue.take(1)) == "d"
    assert organizations(queue.take(8)) == "addabcab"
    assert organizations(queue.take(100)) == "aaa"
    assert len(queue) == 0


def test_cancels_leave_half_of_a_batch_to_the_others() -> None:
    queue = SubmissionQueue()
    for _ in range(20):
        queue.put(pending("a", CANCEL))
    for organization in "bcb":
        queue.put(pending(organization))
    assert organizations(queue.take(4)) == "aabc"
    assert organizations(queue.take(4)) == "aaab"
    assert organizations(queue.take(4)) == "aaaa"


def test_the_commands_of_an_organization_keep_their_order() -> None:
    queue = SubmissionQueue()
    commands = [pending("a") for _ in range(5)]
    for each in commands:
        queue.put(each)
    first = queue.take(3)
    queue.put_back(first)
    assert queue.take(5) == commands


def test_whatever_an_organization_takes_the_next_one_has_room() -> None:
    queue = SubmissionQueue()
    room = MAX_WAITING - CANCEL_RESERVE
    taken = [len(fill(queue, organization)) for organization in "abcdefgh"]
    assert taken[0] == room // 2, "half of the queue"
    assert taken == sorted(taken, reverse=True)
    assert min(taken) > 10
    assert len(queue) <= room
    cancels = [len(fill(queue, organization, CANCEL)) for organization in "abz"]
    assert min(cancels) >= CANCEL_RESERVE // 8, "CANCELs have a reserve"
    assert len(queue) <= MAX_WAITING


def test_a_full_queue_says_which_it_is_and_how_much_of_it_is_the_callers() -> None:
    queue = SubmissionQueue()
    own = len(fill(queue, "a"))
    others = len(fill(queue, "b"))
    with pytest.raises(Unavailable) as full:
        queue.put(pending("a"))
    assert full.value.detail == (
        f"the queue of CREATEs and REPLACEs is full: of the {MAX_WAITING - CANCEL_RESERVE} commands "
        f"that may wait in this process, {own + others} do, {own} of them CREATEs and REPLACEs of "
        "this organization; try again"
    )


def test_a_command_that_nobody_waits_for_takes_no_room() -> None:
    queue = SubmissionQueue()
    answers = list[SubmitOutcome]()
    put = fill(queue, "a")
    for each in put:
        each.answer = answers.append
        each.abandon()
    assert codes(answers) == ["unavailable"] * len(put)
    assert len(queue) == 0
    assert len(fill(queue, "a")) == len(put)


def test_a_command_whose_caller_left_while_it_was_tried_is_not_put_back() -> None:
    queue = SubmissionQueue()
    answers = list[SubmitOutcome]()
    queue.put(pending("a", answer=answers.append))
    batch = queue.take(1)
    batch[0].abandon()
    assert answers == [], "it may be recorded"
    queue.put_back(batch)
    assert codes(answers) == ["unavailable"]
    assert len(queue) == 0


async def other_create(in_process_writer: InProcessWriter) -> Submission:
    """Of another organization."""
    organization, key = await furnish(in_process_writer.owner)
    account: UUID = await add_account(in_process_writer.owner, organization)
    return Submission(
        account_id=str(account),
        organization_id=str(organization),
        key_id=str(key),
        command=CREATE,
        client_reference_id=None,
        idempotency_key=None,
        body_digest=None,
    )


@pytest.mark.parametrize("is_cancel", [False, True], ids=["creates", "cancels"])
async def test_a_flood_of_one_organization_keeps_no_other_waiting(
    urls: Urls, is_cancel: bool
) -> None:
    """A command behind thousands of another organization is in the first batch all the same."""
    async with open_in_process_writer(urls.login, urls.owner) as in_process_writer:
        other = await other_create(in_process_writer)
        answered = list[str]()
        done = asyncio.Event()
        account = in_process_writer.accounts[0]
        made = await in_process_writer.writer.submit(in_process_writer.create(account))
        flood = (
            in_process_writer.cancel(account, made.intent_id)
            if is_cancel
            else in_process_writer.create(account)
        )
        for _ in range(2 * MAX_BATCH):
            in_process_writer.writer.enqueue(flood, lambda _: answered.append("flood"))

        def answer(outcome: SubmitOutcome) -> None:
            answered.append(codes([outcome])[0])
            done.set()

        in_process_writer.writer.enqueue(other, answer)
        await done.wait()
        assert answered.index("recorded") < MAX_BATCH


async def test_an_organization_has_one_batch_under_way_and_others_do_not_wait_for_it(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_in_process_writer(urls.login, urls.owner) as in_process_writer:
        other = await other_create(in_process_writer)
        busy = in_process_writer.create(in_process_writer.accounts[0])
        may_end = asyncio.Event()
        begun = list[list[str]]()

        async def run(dependencies: Any, submissions: Any, *more: Any) -> BatchResult:
            begun.append([each.organization_id for each in submissions])
            if busy.organization_id in begun[-1]:
                await may_end.wait()
            return await run_batch(dependencies, submissions, *more)

        monkeypatch.setattr(writer_module, "run_batch", run)
        first = asyncio.create_task(in_process_writer.submit(busy))
        while not begun:
            await asyncio.sleep(0)
        second = asyncio.create_task(in_process_writer.submit(busy))
        assert codes([await in_process_writer.submit(other)]) == ["recorded"]
        assert begun == [[busy.organization_id], [other.organization_id]]
        may_end.set()
        assert codes([await first, await second]) == ["recorded"] * 2


def test_a_command_is_answered_once() -> None:
    answers: list[SubmitOutcome] = []
    command = pending("a", answer=answers.append)
    first = Unavailable("first")
    command.reply(first)
    command.reply(Unavailable("second"))
    assert answers == [first]
