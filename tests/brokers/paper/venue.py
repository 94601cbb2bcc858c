"""The paper broker on a real database: organizations, accounts, sessions, quotes, and what its
tables hold."""

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from tests.brokers.paper.market import ACME, named, terms
from tests.kept_connections import make_pipeline, open_owner, open_pools
from trading_intents.brokers.paper.broker import PaperBroker
from trading_intents.brokers.paper.model import Prices, Quote
from trading_intents.brokers.paper.quotes import Quotes
from trading_intents.brokers.port import (
    BrokerAccount,
    BrokerBalance,
    BrokerEvent,
    CommandResult,
    EventKind,
    IntegrationContext,
    StreamGap,
)
from trading_intents.clock import SystemClock
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.storage.database import WORKER_ROLE, Database
from trading_intents.storage.grouped import GroupTransactions
from trading_intents.storage.signals import Signals, open_signals
from trading_intents.telemetry import Metrics, make_log
from trading_intents.trading import Environment, Symbol, amount_text

CANCEL = terms("buy 1 market")
CALL_SECONDS = 3.0
WAIT_SECONDS = 20.0  # a busy machine takes long
SETTINGS = {"PAPER_CASH": "1000000", "PAPER_SEED": "7", "PAPER_MAX_OPEN_ORDERS": "1000"}


def said(event: BrokerEvent | StreamGap) -> str:
    assert isinstance(event, BrokerEvent)
    if event.kind is not EventKind.FILL:
        return " ".join(filter(None, (event.kind.lower(), event.reason)))
    assert event.quantity is not None
    assert event.price is not None
    return f"fill {amount_text(event.quantity)}@{amount_text(event.price)}"


@dataclass
class PaperSession:
    broker: PaperBroker
    balances: list[BrokerBalance] = field(default_factory=list)
    _events: asyncio.Queue[BrokerEvent | StreamGap | None] = field(default_factory=asyncio.Queue)

    async def follow(self) -> None:
        async for event in self.broker.events():
            if isinstance(event, BrokerBalance):
                self.balances.append(event)
            else:
                self._events.put_nowait(event)
        self._events.put_nowait(None)

    async def submit(
        self, client_order_id: str, text: str, symbol: Symbol = ACME, **more: Any
    ) -> CommandResult:
        return await self.broker.submit(
            named(terms(text, symbol), client_order_id, **more), deadline()
        )

    async def replace(
        self, client_order_id: str, orig: str, text: str, symbol: Symbol = ACME
    ) -> CommandResult:
        asked = named(terms(text, symbol), client_order_id, orig_client_order_id=orig)
        return await self.broker.replace(asked, deadline())

    async def cancel(self, client_order_id: str, orig: str | None, **more: Any) -> CommandResult:
        asked = named(CANCEL, client_order_id, orig_client_order_id=orig, **more)
        return await self.broker.cancel(asked, deadline())

    async def event(self) -> BrokerEvent | StreamGap | None:
        """The next one; None when the session has ended."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await self._events.get()

    async def events(self, count: int) -> list[str]:
        return [said(event) for event in [await self.event() for _ in range(count)] if event]

    def has_no_event(self) -> bool:
        return self._events.empty()


def deadline(seconds: float = CALL_SECONDS) -> float:
    return SystemClock().monotonic() + seconds


@dataclass(kw_only=True)
class Venue:
    database: Database
    signals: Signals
    owner: asyncpg.Connection
    organization: OrganizationId
    stack: contextlib.AsyncExitStack
    login: Secret
    shared: dict[str, object] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)

    async def open_session(
        self, account_id: UUID, organization: OrganizationId | None = None
    ) -> PaperSession:
        """Open until the test ends, unless it is closed before."""
        session = PaperSession(
            PaperBroker(self.context(account_id, organization or self.organization))
        )
        await session.broker.open()
        following = asyncio.create_task(session.follow())
        self.stack.push_async_callback(asyncio.wait, [following])
        self.stack.push_async_callback(session.broker.close)
        return session

    def context(self, account_id: UUID, organization: OrganizationId) -> IntegrationContext:
        account = BrokerAccount(account_id, organization, Environment.PAPER, None)
        return IntegrationContext(
            account=account,
            secrets={},
            clock=SystemClock(),
            settings=SETTINGS,
            database=self.database.worker,
            signals=self.signals,
            open_transactions=self.open_transactions,
            shared=self.shared,
            metrics=self.metrics,
        )

    def open_transactions(self) -> GroupTransactions:
        return self.stack.enter_context(
            contextlib.closing(GroupTransactions(make_pipeline(self.login, WORKER_ROLE)))
        )

    async def post(
        self, text: str, symbol: Symbol = ACME, organization: OrganizationId | None = None
    ) -> Quote:
        """Such as `99x5 101x7 100x3`, through the service's own pool."""
        bid, ask, *trade = (
            [Decimal(number) for number in part.split("x")] for part in text.split()
        )
        last = [*trade[0], None][:2] if trade else (None, None)
        prices = Prices(
            bid=bid[0],
            bid_size=bid[1],
            ask=ask[0],
            ask_size=ask[1],
            last=last[0],
            last_size=last[1],
        )
        return await Quotes(self.database.service, self.signals, 1).post(
            organization or self.organization, symbol, prices
        )

    async def fault(self, account_id: UUID, kind: str, **fields: Any) -> None:
        await self.owner.execute("DELETE FROM paper_faults WHERE account_id = $1", account_id)
        names = ["account_id", "kind", *fields]
        markers = ", ".join(f"${n}" for n in range(1, len(names) + 1))
        await self.owner.execute(
            f"INSERT INTO paper_faults ({', '.join(names)}) VALUES ({markers})",
            account_id,
            kind,
            *fields.values(),
        )

    async def journal(self, account_id: UUID) -> list[str]:
        rows = await self.owner.fetch(
            "SELECT * FROM paper_journal WHERE account_id = $1 AND command <> '' ORDER BY seq",
            account_id,
        )
        return [f"{row['command']} {row['client_order_id']}" for row in rows]

    async def value(self, query: str, *arguments: object) -> Any:
        return await self.owner.fetchval(query, *arguments)


@contextlib.asynccontextmanager
async def open_venue(login: Secret, owner_url: Secret) -> AsyncIterator[Venue]:
    log = make_log("critical")
    async with (
        open_owner(owner_url) as owner,
        open_pools(login, 5, Metrics()) as database,
        open_signals(login, log) as signals,
        contextlib.AsyncExitStack() as stack,
    ):
        yield Venue(
            database=database,
            signals=signals,
            owner=owner,
            organization=await add_organization(owner),
            stack=stack,
            login=login,
        )


async def add_organization(owner: asyncpg.Connection) -> OrganizationId:
    organization = uuid4()
    await owner.execute(
        "INSERT INTO organizations (id, provider, external_id, name) VALUES ($1, 'local', $2, 'x')",
        organization,
        str(organization),
    )
    return OrganizationId(organization)


# Every order at the venue: as it works, or as it ended.
ORDERS = """
    SELECT o.account_id, number, coalesce(status, 'WORKING') AS status, coalesce(filled, 0) AS filled,
        broker_order_id, quantity, limit_price, stop_price, coalesce(is_held, false) AS is_held
    FROM (
        SELECT account_id, state FROM paper_working
        UNION ALL
        SELECT account_id, ended FROM paper_journal WHERE ended IS NOT NULL
    ) AS o
    CROSS JOIN LATERAL json_to_record(o.state) AS s (number bigint, status text, filled numeric,
        broker_order_id text, quantity numeric, limit_price numeric, stop_price numeric,
        is_held boolean)
"""
# Every event, with the number of its order.
EVENTS = """
    SELECT j.account_id, j.seq + n - 1 AS seq, j.number, e ->> 'kind' AS kind,
        e ->> 'symbol' AS symbol, e ->> 'side' AS side, e ->> 'exec_id' AS exec_id,
        (e ->> 'quantity')::numeric AS quantity, (e ->> 'price')::numeric AS price
    FROM paper_journal j CROSS JOIN LATERAL json_array_elements(j.events) WITH ORDINALITY AS s (e, n)
"""


async def assert_books_balance(owner: asyncpg.Connection, account_id: UUID) -> None:
    """Cash, positions and orders are the sums of the fills; no number is given twice."""
    row = await owner.fetchrow("SELECT * FROM paper_accounts WHERE account_id = $1", account_id)
    events = await owner.fetch(
        f"SELECT * FROM ({EVENTS}) AS e WHERE account_id = $1 ORDER BY seq", account_id
    )
    cash = Decimal(SETTINGS["PAPER_CASH"])
    positions: dict[str, Decimal] = defaultdict(Decimal)
    filled: dict[int, Decimal] = defaultdict(Decimal)
    for fill in events:
        if fill["kind"] == "FILL":
            sign = 1 if fill["side"] == "BUY" else -1
            cash -= sign * fill["quantity"] * fill["price"]
            positions[fill["symbol"]] += sign * fill["quantity"]
            filled[fill["number"]] += fill["quantity"]
    assert row["cash"] == cash
    holdings = await owner.fetch("SELECT * FROM paper_holdings WHERE account_id = $1", account_id)
    assert {h["symbol"]: h["position"] for h in holdings if h["position"]} == {
        s: q for s, q in positions.items() if q
    }
    orders = await owner.fetch(
        f"SELECT * FROM ({ORDERS}) AS o WHERE account_id = $1 ORDER BY number", account_id
    )
    assert {o["number"]: o["filled"] for o in orders if o["filled"]} == filled
    numbers = [o["number"] for o in orders]
    assert len(numbers) == len(set(numbers))
    assert set(numbers) == {e["number"] for e in events if e["number"]}
    rows = await owner.fetch(
        "SELECT * FROM paper_journal WHERE account_id = $1 ORDER BY seq", account_id
    )
    given = list[int]()
    for each in rows:
        given += range(each["seq"], each["seq"] + max(1, len(json.loads(each["events"]))))
    assert given == sorted(set(given))
    assert given[-1] <= row["events"]
