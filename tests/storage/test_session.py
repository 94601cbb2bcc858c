"""The settings of every connection, of either driver, and columns of texts as one parameter."""

from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from tests.conftest import Urls
from tests.waiting import COUNT_BLOCKED
from trading_intents.errors import Unavailable
from trading_intents.storage.database import WORKER_ROLE, Database, Pool, pack_array
from trading_intents.storage.pipeline import Pipeline, Statement

LIMITS = ("idle_in_transaction_session_timeout", "lock_timeout", "client_connection_check_interval")
ALL_LIMITS = (*LIMITS, "transaction_timeout")


async def test_the_limits_of_a_session_are_the_servers(urls: Urls, database: Database) -> None:
    """So that they hold for a process that is stopped, cut off or gone."""
    for pool in (database.service, database.worker):
        async with pool.transaction() as tx:
            assert [await tx.fetchval(f"SHOW {name}") for name in LIMITS] == [
                "2200ms",
                "2400ms",
                "500ms",
            ]
    pipeline = Pipeline(urls.login, WORKER_ROLE, 0.02)
    replies = await (await pipeline.connect()).run(
        [Statement(f"SHOW {name}") for name in ALL_LIMITS]
    )
    assert [reply.rows for reply in replies] == [
        [(b"2200ms",)],
        [(b"20ms",)],
        [(b"500ms",)],
        [(b"2500ms",)],
    ]
    pipeline.close()


async def lock_at_once(pool: Pool) -> None:
    async with pool.transaction() as tx:
        await tx.execute("SELECT pg_advisory_xact_lock(1)")


async def lock_at_the_commit(pool: Pool) -> None:
    async with pool.transaction() as tx:
        await tx.execute("INSERT INTO late VALUES (1)")


@pytest.mark.parametrize("lock", [lock_at_once, lock_at_the_commit])
async def test_a_lock_that_stays_held_is_answered_as_unavailable(
    urls: Urls, database: Database, lock: Callable[[Pool], Awaitable[None]]
) -> None:
    holder = await asyncpg.connect(urls.owner.reveal())
    await holder.execute(
        """
        CREATE TABLE late (n integer); GRANT INSERT ON late TO ti_service;
        CREATE FUNCTION lock_late() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION lock_late();
        """
    )
    async with holder.transaction():
        await holder.execute("SELECT pg_advisory_xact_lock(1)")
        with pytest.raises(Unavailable):
            await lock(database.service)
        assert await holder.fetchval(COUNT_BLOCKED) == 0
    await lock(database.service)
    await holder.close()


@pytest.mark.parametrize(
    "values", [["a"], [""], ["", ""], ["a", None, "b"], [None], [None, None], ["\n", "é"]]
)
async def test_a_column_comes_back_as_it_was(database: Database, values: list[str | None]) -> None:
    async with database.service.transaction() as tx:
        assert await tx.fetchval("SELECT from_column($1)", pack_array(values)) == values


@pytest.mark.parametrize("value", ["a\x1fb", "\x1f", "\x1e", "a\x1e"])
def test_a_value_that_would_shift_a_column_is_never_sent(value: str) -> None:
    """A column with a value more or less would put the others' values into the wrong rows."""
    for values in ([value], ["a", value], [None, value], [value, None, None]):
        with pytest.raises(AssertionError):
            pack_array(values)
    with pytest.raises(AssertionError):
        pack_array([])
