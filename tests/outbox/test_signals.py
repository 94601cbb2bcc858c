"""Wake-ups between processes: received by all, sent once, and repeated after the connection was
lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.outbox.rows import Table, new_row, put_rows
from tests.outbox.working import LOG, done, until_finished, working
from trading_intents.outbox import worker as worker_module
from trading_intents.outbox.model import Queue, channel
from trading_intents.secret import Secret
from trading_intents.storage.database import Pool
from trading_intents.storage.signals import MAX_NAMED, Signals, open_signals

CHANNEL = "bell"
MANY = 1_000


class Bell:
    def __init__(self) -> None:
        self.rings = 0
        self.rung = asyncio.Event()

    def ring(self, *_: str) -> None:
        self.rings += 1
        self.rung.set()

    async def heard(self) -> None:
        async with asyncio.timeout(10):
            await self.rung.wait()
        self.rung.clear()


@contextlib.asynccontextmanager
async def listening(url: Secret) -> AsyncIterator[tuple[Signals, Bell]]:
    async with open_signals(url, LOG) as signals:
        bell = Bell()
        signals.subscribe(CHANNEL, bell.ring)
        await bell.heard()  # once when it listens: something may have been missed before
        yield signals, bell


async def test_a_signal_reaches_this_process_at_once_and_the_others_soon(
    database_url: Secret,
) -> None:
    async with (
        listening(database_url) as (near, near_bell),
        listening(database_url) as (far, far_bell),
    ):
        near.notify(CHANNEL)
        assert near_bell.rings == 2
        await far_bell.heard()
        far.notify(CHANNEL)
        await near_bell.heard()
        await near_bell.heard()
        assert (near_bell.rings, far_bell.rings) == (3, 3)


async def test_a_signal_that_names_organizations_wakes_whom_it_concerns(
    database_url: Secret,
) -> None:
    async with listening(database_url) as (near, _), listening(database_url) as (far, all_bell):
        ours = Bell()
        known = {"a"}
        far.subscribe(CHANNEL, ours.ring, known.__contains__)
        near.subscribe(CHANNEL, ours.ring, known.__contains__)
        near.notify(CHANNEL, ["b"])
        await all_bell.heard()
        assert ours.rings == 0, "neither here nor there"
        near.notify(CHANNEL, ["b"])
        near.notify(CHANNEL, ["a", "c"])
        await all_bell.heard()
        assert ours.rings == 2, "sent together, in one notification"
        near.notify(CHANNEL, ["b"])
        near.notify(CHANNEL)
        await all_bell.heard()
        assert ours.rings == 4, "without a name it concerns everybody"
        near.notify(CHANNEL, [f"o{number}" for number in range(MAX_NAMED + 1)])
        assert ours.rings == 4
        await all_bell.heard()
        assert ours.rings == 5, "the names of very many are not sent"


async def test_who_unsubscribes_hears_no_more(database_url: Secret) -> None:
    async with listening(database_url) as (signals, bell):
        other = Bell()
        signals.subscribe(CHANNEL, other.ring)
        signals.unsubscribe(CHANNEL, bell.ring)
        signals.unsubscribe("nobody's", bell.ring)
        signals.notify(CHANNEL)
        assert (bell.rings, other.rings) == (1, 1)


async def test_many_signals_travel_as_few(database_url: Secret) -> None:
    async with listening(database_url) as (near, _), listening(database_url) as (_, far_bell):
        for _ in range(MANY):
            near.notify(CHANNEL)
        await far_bell.heard()
        near.notify("other")
        near.notify(CHANNEL)
        await far_bell.heard()
        assert far_bell.rings == 3


async def test_other_channels_do_not_ring(database_url: Secret) -> None:
    async with listening(database_url) as (near, _), listening(database_url) as (_, far_bell):
        near.notify("other")
        near.notify(CHANNEL)
        await far_bell.heard()
        assert far_bell.rings == 2


async def test_a_lost_connection_is_made_again_and_signals_what_was_missed(
    database_url: Secret, table: Table
) -> None:
    async with listening(database_url) as (_, bell):
        await table.connection.execute(
            """
            SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()
            """
        )
        await bell.heard()
        assert bell.rings == 2


async def test_nothing_needs_a_database_that_answers() -> None:
    async with open_signals(Secret("postgresql://a:b@127.0.0.1:1/c"), LOG) as signals:
        bell = Bell()
        signals.subscribe(CHANNEL, bell.ring)
        signals.notify(CHANNEL)
        assert bell.rings == 1


async def test_a_signal_from_another_process_wakes_a_worker(
    pool: Pool, table: Table, database_url: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "POLL_SECONDS", 1000.0)
    woken = Bell()
    async with working(pool, done) as worker, open_signals(database_url, LOG) as here:
        here.subscribe(channel(Queue.ACCOUNTS), worker.wake)
        here.subscribe(channel(Queue.ACCOUNTS), woken.ring)
        await woken.heard()
        await put_rows(pool, new_row())
        async with open_signals(database_url, LOG) as there:
            there.notify(channel(Queue.ACCOUNTS))
            await until_finished(table)

    assert await table.count("completed") == 1
