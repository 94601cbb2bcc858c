"""The migration that counts the open orders of every account, on data of the version before."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.conftest import Urls
from tests.storage.test_migrate import LOG, empty
from tests.waiting import COUNT_BLOCKED, eventually_async
from trading_intents.storage.migrate import FOLDER, migrate

__all__ = ["empty"]
NAME = "count_every_account"
WAIT_SECONDS = 10.0
MANY = 150_000


class OldDatabase:
    """A database that lacks this migration, with an account."""

    def __init__(self, urls: Urls, owner: asyncpg.Connection) -> None:
        self.urls = urls
        self.owner = owner
        self.organization = uuid4()
        self.account = uuid4()

    async def furnish(self) -> None:
        await self.owner.execute(
            """
                INSERT INTO organizations (id, provider, external_id, name)
                VALUES ($1, 'local', 'x', 'x')
            """,
            self.organization,
        )
        await self.owner.execute(
            "INSERT INTO accounts (id, organization_id, name, broker, environment)"
            " VALUES ($1, $2, 'a', 'paper', 'paper')",
            self.account,
            self.organization,
        )
        await self.owner.execute(
            "INSERT INTO account_heads (account_id, organization_id) VALUES ($1, $2)",
            self.account,
            self.organization,
        )

    async def add_orders(
        self,
        connection: asyncpg.Connection,
        seq: int,
        side: str,
        quantity: str,
        count: int = 1,
        **more: object,
    ) -> None:
        columns = [*more]
        values = [*more.values()]
        await connection.execute(
            f"""
            INSERT INTO orders (order_id, account_id, organization_id, environment, broker,
                create_seq, command_seq,
                                symbol, order_type, order_side, time_in_force, route_strategy,
                                    quantity, received_at,
                                created_at, updated_at {"".join(f", {name}" for name in columns)})
            SELECT gen_random_uuid(), $1, $2, 'paper', 'paper', $3 + n, $3 + n, 'AAPL', 'MARKET',
                $4, 'DAY', 'SMART',
                   $5::text::numeric, now(), now(),
                       now() {"".join(f", ${at}" for at in range(7, 7 + len(values)))}
            FROM generate_series(1, $6) AS n
            """,
            self.account,
            self.organization,
            seq,
            side,
            quantity,
            count,
            *values,
            timeout=120,
        )

    async def add_exposure(self, symbol: str, orders: int) -> None:
        await self.owner.execute(
            "INSERT INTO exposures VALUES ($1, $2, $3, $4, 1, 1)",
            self.account,
            symbol,
            self.organization,
            orders,
        )

    async def migrate(self) -> list[str]:
        return await migrate(self.urls.owner, self.urls.login, LOG)

    async def sums(self) -> dict[tuple[UUID, str], tuple[int, Decimal, Decimal]]:
        rows = await self.owner.fetch(
            "SELECT account_id, symbol, open_orders, open_buy, open_sell FROM exposures"
        )
        return {(row["account_id"], row["symbol"]): tuple(row)[2:] for row in rows}


@pytest.fixture
async def old(empty: Urls, tmp_path: Path) -> AsyncIterator[OldDatabase]:
    for path in sorted(FOLDER.glob("*.sql")):
        if NAME in path.name:
            break
        shutil.copy(path, tmp_path)
    await migrate(empty.owner, empty.login, LOG, tmp_path)
    owner = await asyncpg.connect(empty.owner.reveal())
    database = OldDatabase(empty, owner)
    await database.furnish()
    yield database
    await owner.close()


async def test_open_orders_are_counted_once_whatever_was_counted_before(old: OldDatabase) -> None:
    await old.owner.execute(
        """
            INSERT INTO actions (account_id, seq, intent_id, organization_id, action_type,
                created_at, record, hash)
        """
        """ VALUES ($1, 900, gen_random_uuid(), $2, 'REPLACE', now(), '{"quantity": "30"}', repeat('0', 64))""",
        old.account,
        old.organization,
    )
    await old.add_orders(old.owner, 100, "BUY", "10", filled_quantity=4)
    await old.add_orders(old.owner, 200, "BUY", "10", filled_quantity=1, pending_replace_seq=900)
    await old.add_orders(old.owner, 300, "SELL", "2.5", counted=True)
    await old.add_orders(old.owner, 400, "SELL_SHORT", "1")
    await old.owner.execute(
        "UPDATE orders SET finished_at = now(), order_status = 'CANCELLED' WHERE create_seq = 401"
    )
    await old.add_exposure("AAPL", 7)
    await old.add_exposure("", 7)
    assert await old.migrate()
    assert await old.sums() == {(old.account, "AAPL"): (3, Decimal(35), Decimal("2.5"))}
    for stops in (
        "UPDATE account_heads SET tracked = false",
        "INSERT INTO account_heads VALUES ($1, $1, 0, '', false)",
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await old.owner.execute(stops, *([old.account] if "$1" in stops else []))


async def test_an_order_that_commits_while_the_migration_waits_is_counted(old: OldDatabase) -> None:
    """By a process of the version before, which holds the account's head and knows it as not
    counted."""
    writer = await asyncpg.connect(old.urls.owner.reveal())
    async with writer.transaction():
        await writer.execute(
            "SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", old.account
        )
        migrating = asyncio.create_task(old.migrate())

        async def is_waiting() -> bool:
            return bool(await old.owner.fetchval(COUNT_BLOCKED))

        await eventually_async(is_waiting, WAIT_SECONDS)
        await old.add_orders(writer, 100, "BUY", "10", counted=False)
    await writer.close()
    assert await migrating
    assert await old.sums() == {(old.account, "AAPL"): (1, Decimal(10), Decimal(0))}


@pytest.mark.parametrize("count", [1_000, pytest.param(MANY, marks=pytest.mark.chaos)])
async def test_many_open_orders_are_counted(old: OldDatabase, count: int) -> None:
    await old.add_orders(old.owner, 1, "BUY", "1", count)
    assert await old.migrate()
    assert await old.sums() == {(old.account, "AAPL"): (count, Decimal(count), Decimal(0))}
