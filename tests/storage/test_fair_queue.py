"""Fair queues: who is served next, whatever one organization queues; and a slot of the event loop
for each."""

import asyncio
from functools import partial

import pytest

from trading_intents.loops import EagerTasks, FairQueue, LoopSlots

MANY_SECONDS = 10.0


def filled(*items: str) -> FairQueue[str, str]:
    """Each item is of the group that its first letter names."""
    queue = FairQueue[str, str]()
    for item in items:
        queue.append(item[0], item)
    return queue


def test_groups_are_served_in_turn_and_their_items_in_order() -> None:
    queue = filled("a1", "a2", "a3", "b1", "c1", "b2")
    assert [queue.pop() for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]
    assert queue.count == 0


def test_a_group_that_may_not_take_keeps_its_rank() -> None:
    queue = filled("a1", "b1", "b2")
    assert queue.pop(lambda group: group == "b") == "b1"
    assert queue.pop(lambda group: group == "c") is None
    assert [queue.pop(), queue.pop()] == ["a1", "b2"]


def test_a_removed_item_is_not_taken_and_a_taken_one_is_not_removed() -> None:
    queue = filled("a1", "a2", "b1")
    assert queue.pop() == "a1"
    for item in ("a1", "a2", "a2"):
        queue.remove("a", item)
    assert (queue.count, queue.count_of("a"), queue.pop(), queue.pop()) == (1, 0, "b1", None)


async def test_one_caller_goes_on_in_each_iteration_of_the_loop_and_groups_in_turn() -> None:
    slots = LoopSlots[str](0)
    went_on = list[tuple[str, int]]()
    iterations = 0

    async def work(group: str) -> None:
        await slots.take(group)
        went_on.append((group, iterations))

    tasks = [asyncio.create_task(work(group)) for group in "aaaab"]
    while not all(task.done() for task in tasks):
        iterations += 1
        await asyncio.sleep(0)
    assert [group for group, _ in went_on] == ["a", "b", "a", "a", "a"]
    assert len({iteration for _, iteration in went_on}) == 5


async def test_a_caller_that_is_cancelled_passes_its_turn_on() -> None:
    slots = LoopSlots[str](0)
    first, second, third = (asyncio.create_task(slots.take("a")) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    await first
    async with asyncio.timeout(10):
        await third
        await slots.take("a")
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_steps_run_at_once_until_the_slot_is_used_up_and_then_in_turn() -> None:
    slots = LoopSlots[str](MANY_SECONDS)
    assert [slots.has_time(), slots.has_time()] == [True, True]
    ran = list[str]()
    for item in ("a1", "a2", "b1"):
        slots.wait(item[0], partial(ran.append, item))
    assert not slots.has_time(), "others wait"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ran == ["a1", "b1", "a2"]
    assert slots.has_time()


async def test_what_does_not_wait_takes_no_task() -> None:
    tasks = EagerTasks()
    ended = list[int]()

    async def work(number: int, event: asyncio.Event) -> int:
        async with asyncio.timeout(10):
            await event.wait()
        return number

    event = asyncio.Event()
    waits = tasks.run(work(1, event), ended.append)
    assert waits is not None
    event.set()
    assert tasks.run(work(2, event), ended.append) is None
    assert ended == [2]
    await waits
    assert ended == [2, 1]


async def test_what_waits_with_a_limit_ends_by_it() -> None:
    ended = list[str]()

    async def work() -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return "in time"

    waits = EagerTasks().run(work(), ended.append)
    assert waits is not None
    await waits
    assert ended == ["late"]


@pytest.mark.parametrize("rounds", [1, 3])
async def test_what_waits_is_cancelled_with_its_task(rounds: int) -> None:
    cleaned_up = list[bool]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.append(True)

    waits = EagerTasks().run(work(), lambda _: cleaned_up.append(False))
    assert waits is not None
    for _ in range(rounds):
        await asyncio.sleep(0)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert cleaned_up == [True]
