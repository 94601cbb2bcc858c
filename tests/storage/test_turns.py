"""Organizations take turns at the pool: an organization that asks much keeps no other one waiting
for a connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.waiting import eventually_async
from trading_intents.errors import Unavailable
from trading_intents.loops import LoopSlots
from trading_intents.storage import database
from trading_intents.storage.database import (
    SERVICE_ROLE,
    WORKER_ROLE,
    Pool,
    open_database,
    open_pool,
)
from trading_intents.telemetry import Metrics, make_log

A = UUID(int=1)
B = UUID(int=2)
LIMIT_SECONDS = 10


class Held:
    """Transactions of organizations, each open until it is let go."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.began: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def open(self, name: str, *organizations: UUID) -> None:
        """Asks for one, and lets the loop run until it has begun, if it may."""
        self._leave[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._hold(name, organizations))
        await asyncio.sleep(0)

    async def _hold(self, name: str, organizations: tuple[UUID, ...]) -> None:
        async with self._pool.transaction(organizations, read_only=True):
            self.began.append(name)
            await self._leave[name].wait()

    async def close(self, *names: str) -> None:
        for name in names:
            self._leave[name].set()
            await self._tasks[name]

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])

    async def until(self, count: int) -> list[str]:
        async def have_begun() -> bool:
            return len(self.began) >= count

        await eventually_async(have_begun, LIMIT_SECONDS)
        return self.began


@pytest.fixture
async def held(urls: Urls, metrics: Metrics) -> AsyncIterator[Held]:
    """Over the pool of requests, with six connections, of which an organization has two."""
    async with open_database(urls.login, 6, make_log("critical"), metrics) as database:
        made = Held(database.service)
        yield made
        for task in made._tasks.values():
            task.cancel()
        await asyncio.gather(*made._tasks.values(), return_exceptions=True)


async def test_one_organization_leaves_two_thirds_of_the_connections_to_the_others(
    held: Held,
) -> None:
    for number in range(4):
        await held.open(f"a{number}", A)
    await held.open("b0", B)
    assert sorted(await held.until(3)) == ["a0", "a1", "b0"]
    await held.close("a0")
    assert (await held.until(4))[3] == "a2"


async def test_organizations_that_wait_are_served_in_turn(held: Held) -> None:
    names = [f"x{number}" for number in range(6)]
    for name in names:
        await held.open(name)  # of no single organization: these have no share
    await held.until(6)
    for number in range(3):
        await held.open(f"a{number}", A)
    await held.open("b0", B)
    for count, name in enumerate(names, 7):
        await held.close(name)
        await held.until(min(count, 9))
    assert held.began[6:] == ["a0", "b0", "a1"], "a2 has no share left"
    await held.close("a0")
    assert (await held.until(10))[9] == "a2"


async def test_one_that_stops_waiting_takes_no_connection_with_it(held: Held) -> None:
    for number in range(4):
        await held.open(f"a{number}", A)
    await held.until(2)
    await held.cancel("a2")
    await held.close("a0", "a1")
    assert (await held.until(3))[2] == "a3"
    await held.close("a3")
    for number in range(6):
        await held.open(f"x{number}")
    assert len(await held.until(9)) == 9


async def test_a_worker_may_use_every_connection_for_one_organization(
    urls: Urls, metrics: Metrics
) -> None:
    for role in (WORKER_ROLE, SERVICE_ROLE):
        async with (
            open_pool(urls.login, role, 4, metrics) as pool,
            contextlib.AsyncExitStack() as stack,
        ):
            for _ in range(4):
                await stack.enter_async_context(pool.transaction([A], read_only=True))


async def test_a_refusal_names_the_connections_that_are_all_in_use(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "ACQUIRE_LIMIT_SECONDS", 0.1)
    async with open_pool(
        urls.login, SERVICE_ROLE, 6, Metrics(), slots=LoopSlots[Hashable]()
    ) as pool:
        held = Held(pool)
        for name in ("A1", "A2"):
            await held.open(name, A)
        await held.until(2)
        own = "all connections of this process to the database that an organization may have"
        with pytest.raises(Unavailable, match=own):
            async with pool.transaction([A]):
                pass
        for name in ("1", "2", "3", "4"):
            await held.open(name)
        await held.until(6)
        everyone = "all connections of this process to the database are in use"
        with pytest.raises(Unavailable, match=everyone):
            async with pool.transaction([B]):
                pass
        await held.close("A1", "A2", "1", "2", "3", "4")
