"""Fair queues: who is served next, whatever one organization queues; and a slot of the event loop
for each."""

import asyncio

import pytest

from trading_intents.loops import FairQueue, LoopSlots


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
    slots = LoopSlots[str]()
    went_on = list[tuple[str, int]]()
    iterations = 0

    async def work(group: str) -> None:
        await slots.take(group)
        went_on.append((group, iterations))

    tasks = [asyncio.create_task(work(group)) for group in "aaaab"]
    while not all(task.done() for task in tasks):
        iterations += 1
        await asyncio.sleep(0)
    assert [group for group, _ in went_on] == ["a", "a", "b", "a", "a"]
    assert len({iteration for _, iteration in went_on}) == 5


async def test_a_caller_that_is_cancelled_passes_its_slot_on() -> None:
    slots = LoopSlots[str]()
    first, second, third = (asyncio.create_task(slots.take("a")) for _ in range(3))
    await first
    second.cancel()
    async with asyncio.timeout(10):
        await third
        await slots.take("a")
    with pytest.raises(asyncio.CancelledError):
        await second
