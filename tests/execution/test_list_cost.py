"""The cost of a page of a long list: every filter in every order reads little more than it
returns."""

import asyncio
import contextlib
import dataclasses
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from random import Random
from typing import Any

import asyncpg
import pytest

from tests.conftest import Databases, Urls
from tests.execution.listed_history import History, Listed, random_orders, random_trades
from trading_intents.accounts.model import Account
from trading_intents.accounts.store import find_account
from trading_intents.brokers.paper.venue.simulation import PaperSimulation
from trading_intents.brokers.registry import Registry
from trading_intents.clock import TimeRange
from trading_intents.ids import OrganizationId
from trading_intents.intents.service import Intents
from trading_intents.orders.model import OrderFlag, OrderState, OrderStatus
from trading_intents.orders.service import Orders
from trading_intents.orders.store import OrderFilter
from trading_intents.prices.model import PriceRules
from trading_intents.storage.database import Database, open_database
from trading_intents.telemetry import Metrics, make_log
from trading_intents.web.paging import Page

STEP_SECONDS = 5.0
LIMIT = 50
RARE_EVERY = 1_000
OPEN_ROWS = 20
MAX_SEARCHED = 2 * 2 * 20  # two bounds, by halves; the log's ends; what is around a bound
MAX_BLOCKS_PER_ROW = 8  # of an index and of the table, for a row that is read
PRICES = PriceRules(900, PaperSimulation(1))
S = OrderStatus


@dataclass
class Cost:
    rows: int = 0
    blocks: int = 0
    plans: list[str] = field(default_factory=list)

    def add(self, plan: dict[str, Any]) -> None:
        """Rows that its scans read, those that filters removed among them."""
        if "Relation Name" in plan:
            removed = plan.get("Rows Removed by Filter", 0) + plan.get(
                "Rows Removed by Index Recheck", 0
            )
            self.rows += (plan["Actual Rows"] + removed) * plan["Actual Loops"]
        for part in plan.get("Plans", ()):
            self.add(part)


class ExplainingTx:
    """Explains every statement before it is run, planned as the transaction plans."""

    def __init__(self, tx: Any, cost: Cost) -> None:
        self._tx = tx
        self._cost = cost

    async def _explain(self, query: str, *args: Any) -> None:
        await self._tx.execute(f"PREPARE explained AS {query}")
        values = f"({', '.join(map(literal, args))})" if args else ""
        explain = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE explained"
        text = await self._tx.fetchval(explain + values)
        await self._tx.execute("DEALLOCATE explained")
        (reported,) = json.loads(text)
        self._cost.add(reported["Plan"])
        self._cost.blocks += (
            reported["Plan"]["Shared Hit Blocks"] + reported["Plan"]["Shared Read Blocks"]
        )
        self._cost.plans.append(text)

    async def fetch(self, query: str, *args: Any) -> Any:
        await self._explain(query, *args)
        return await self._tx.fetch(query, *args)

    async def fetchval(self, query: str, *args: Any) -> Any:
        await self._explain(query, *args)
        return await self._tx.fetchval(query, *args)

    async def fetchrow(self, query: str, *args: Any) -> Any:
        await self._explain(query, *args)
        return await self._tx.fetchrow(query, *args)


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return f"'{{{','.join(map(str, value))}}}'"
    return str(value) if isinstance(value, int) else f"'{value}'"


class ExplainingPool:
    def __init__(self, database: Database) -> None:
        self._pool = database.service
        self.cost = Cost()

    @contextlib.asynccontextmanager
    async def transaction(self, *args: Any, **more: Any) -> AsyncIterator[ExplainingTx]:
        async with self._pool.transaction(*args, **more) as tx:
            yield ExplainingTx(tx, self.cost)


@dataclass
class LongLists:
    database: Database
    history: History
    account: Account

    @property
    def middle(self) -> Listed:
        return self.history.orders[len(self.history.orders) // 2]


# Of each of two accounts. Already the fewer are many times what a page may read.
@pytest.fixture(scope="module", params=[5_000, pytest.param(25_000, marks=pytest.mark.chaos)])
def filled(request: pytest.FixtureRequest, databases: Databases) -> Iterator[tuple[Urls, History]]:
    with databases() as urls:
        yield urls, asyncio.run(fill(urls, request.param))


async def fill(urls: Urls, rows: int) -> History:
    """Mostly filled orders; few are rejected or open; the newest thousands are all expired; another
    account beside."""
    owner = await asyncpg.connect(urls.owner.reveal())
    organization = uuid.uuid4()
    await owner.execute(
        """
            INSERT INTO organizations (id, provider, external_id, name)
            VALUES ($1, 'local', 'x', 'x')
        """,
        organization,
    )
    for account in (uuid.uuid4(), uuid.uuid4()):
        await owner.execute(
            "INSERT INTO accounts (id, organization_id, name, broker, environment)"
            " VALUES ($1, $2, 'a', 'paper', 'paper')",
            account,
            organization,
        )
        await owner.execute("INSERT INTO account_heads VALUES ($1, $2)", account, organization)
        history = History(owner=owner, account=account, organization=organization)
        chance = Random(1)
        made = random_orders(chance, rows, STEP_SECONDS, [S.FILLED, S.FILLED, S.CANCELLED])
        await history.add_orders([_with_status(row, rows) for row in made])
        trades = random_trades(chance, rows, STEP_SECONDS)
        await history.add_trades(trades, lambda row: row.seq % RARE_EVERY == 0)
    await owner.execute("VACUUM ANALYZE orders, actions, trades")
    await owner.close()
    return history


@pytest.fixture
async def long_lists(filled: tuple[Urls, History]) -> AsyncIterator[LongLists]:
    urls, history = filled
    organization = OrganizationId(history.organization)
    async with open_database(urls.login, 2, make_log("warning"), Metrics()) as database:
        async with database.service.transaction([organization]) as tx:
            account = await find_account(tx, organization, history.account)
        assert account is not None
        yield LongLists(database, history, account)


def _with_status(row: Listed, rows: int) -> Listed:
    status = row.status
    if row.seq > rows * 9 // 10:
        status = S.EXPIRED
    if row.seq % RARE_EVERY == 7:
        status = S.REJECTED
    if row.seq % (rows // OPEN_ROWS) == 3:
        status = S.NEW
    return Listed(
        seq=row.seq, at=row.at, id=row.id, symbol=row.symbol, status=status, reference=row.reference
    )


FILTERS = {
    "all": OrderFilter(),
    "filled": OrderFilter(statuses=frozenset({S.FILLED})),
    "rejected": OrderFilter(statuses=frozenset({S.REJECTED})),
    "never": OrderFilter(statuses=frozenset({S.UNKNOWN})),
    "new": OrderFilter(statuses=frozenset({S.NEW})),
    "several": OrderFilter(statuses=frozenset({S.FILLED, S.REJECTED, S.NEW, S.EXPIRED})),
    "closed": OrderFilter(state=OrderState.CLOSED),
    "refused": OrderFilter(state=OrderState.REJECTED),
    "late": OrderFilter(flag=OrderFlag.LATE_FILL),
    "unprotected": OrderFilter(flag=OrderFlag.UNPROTECTED),
}
RANGES = ("newest or oldest", "middle", "bounded", "bounded middle", "far bounds")


def range_of(lists: LongLists, part: str, is_descending: bool) -> tuple[TimeRange, int | None]:
    """Bounds, and a cursor."""
    middle = lists.middle
    hour = timedelta(hours=1)
    return {
        "newest or oldest": (TimeRange(), None),
        "middle": (TimeRange(), middle.seq),
        "bounded": (TimeRange(middle.at - hour, middle.at + hour), None),
        "bounded middle": (TimeRange(middle.at - hour, middle.at + hour), middle.seq),
        "far bounds": (
            TimeRange(middle.at, None) if is_descending else TimeRange(None, middle.at),
            None,
        ),
    }[part]


def check(pool: ExplainingPool, pages: int, name: str) -> None:
    """`pages`: how many are merged."""
    cost = pool.cost
    allowed = pages * (LIMIT + 1) + MAX_SEARCHED
    assert cost.rows <= allowed, f"{name}: {cost.rows} rows\n" + "\n".join(cost.plans)
    assert cost.blocks <= allowed * MAX_BLOCKS_PER_ROW, (
        f"{name}: {cost.blocks} blocks\n" + "\n".join(cost.plans)
    )


EVERYWHERE = [(part, is_descending) for part in RANGES for is_descending in (False, True)]


async def test_a_page_of_orders_reads_little_more_than_it_shows(long_lists: LongLists) -> None:
    for (part, is_descending), (name, asked) in product(EVERYWHERE, FILTERS.items()):
        times, after = range_of(long_lists, part, is_descending)
        pool: Any = ExplainingPool(long_lists.database)
        wanted = dataclasses.replace(asked, created=times)
        await Orders(pool, PRICES).list(
            long_lists.account, wanted, Page("", LIMIT, after, is_descending)
        )
        merged = 1 if wanted.listed is None else max(1, len(wanted.listed.final))
        check(pool, merged, f"{name}, {part}, {is_descending}")


async def test_a_page_of_actions_or_trades_reads_little_more_than_it_shows(
    long_lists: LongLists,
) -> None:
    account = long_lists.account
    intent = long_lists.middle.id
    trades = long_lists.history.trades
    trade = trades[len(trades) // 2]
    for part, is_descending in EVERYWHERE:
        times, after = range_of(long_lists, part, is_descending)
        page = Page("", LIMIT, after, is_descending)
        pool: Any = ExplainingPool(long_lists.database)
        assert await Intents(pool, PRICES, Registry([])).list(account, times, page)
        check(pool, 1, f"actions, {part}, {is_descending}")
        pool = ExplainingPool(long_lists.database)
        await Intents(pool, PRICES, Registry([])).history(account, intent, times, page)
        check(pool, 1, f"actions of an intent, {part}, {is_descending}")
        pool = ExplainingPool(long_lists.database)
        assert await Orders(pool, PRICES).trades(
            account, times, Page("", LIMIT, after and trade.seq, is_descending)
        )
        check(pool, 2, f"trades, {part}, {is_descending}")
