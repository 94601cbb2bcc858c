"""The value of an account as its session reports it: after fills, after others' quotes, and after
another process."""

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from tests.brokers.paper.market import ACME
from tests.brokers.paper.venue import WAIT_SECONDS, PaperSession, Venue
from tests.waiting import eventually_async
from trading_intents.brokers.paper import broker
from trading_intents.brokers.paper.model import PaperAccount, Quote, Source
from trading_intents.brokers.paper.prices import tick_number, walk_middle_cents
from trading_intents.brokers.paper.venue.valuation import Valuation
from trading_intents.brokers.port import BrokerBalance
from trading_intents.trading import Symbol

NOW = datetime(2026, 3, 4, 15, 30, tzinfo=UTC)
CASH = Decimal(1_000_000)
D = Decimal


async def snapshot_balance(session: PaperSession) -> BrokerBalance:
    balance = (await session.broker.snapshot(NOW)).balance
    assert balance is not None
    return balance


async def reported(session: PaperSession, cash: str, equity: str) -> None:
    """Until the stream's last balance is this one."""

    async def reached() -> bool:
        return bool(session.balances) and (
            session.balances[-1].cash,
            session.balances[-1].equity,
        ) == (
            D(cash),
            D(equity),
        )

    await eventually_async(reached, WAIT_SECONDS)


async def open_session(venue: Venue, account: UUID | None = None) -> PaperSession:
    """With the snapshot that every session begins with."""
    session = await venue.open_session(account or uuid4())
    await snapshot_balance(session)
    return session


async def test_the_stream_has_the_balance_after_the_fills(venue: Venue) -> None:
    await venue.post("9x100 11x100")
    session = await open_session(venue)
    await session.submit("one", "buy 10 market")
    await reported(session, "999890", "999990")  # 110 paid for what is worth 100
    count = len(session.balances)
    await session.submit("two", "buy 1000001 limit 1")  # refused
    assert len(session.balances) == count
    assert (await snapshot_balance(session)).equity == D("999990")


async def test_the_stream_has_no_balance_before_the_positions_were_read(venue: Venue) -> None:
    await venue.post("9x100 11x100")
    session = await venue.open_session(uuid4())
    for client_order_id in ("one", "two"):
        await session.submit(client_order_id, "buy 10 market")
        await session.events(2)
    assert session.balances == []
    await snapshot_balance(session)
    await session.submit("three", "sell 20 market")
    await reported(session, "999960", "999960")


async def test_a_quote_that_fills_nobody_moves_the_equity_at_the_next_look(
    venue: Venue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await venue.post("9x100 11x100")
    session = await open_session(venue)
    await session.submit("one", "buy 10 market")
    await reported(session, "999890", "999990")
    monkeypatch.setattr(broker, "CHECK_SECONDS", 0.05)
    session.broker._market.wake()
    await venue.post("19x100 21x100")
    await reported(session, "999890", "1000090")


async def test_a_new_session_knows_the_positions_of_the_one_before(venue: Venue) -> None:
    account = uuid4()
    await venue.post("9x100 11x100")
    before = await open_session(venue, account)
    await before.submit("one", "buy 10 market")
    await before.broker.close()
    after = await venue.open_session(account)
    balance = await snapshot_balance(after)
    assert (balance.currency, balance.cash, balance.equity) == ("USD", D("999890"), D("999990"))
    await after.submit("two", "sell 10 market")
    await reported(after, "999980", "999980")


def quote(bid: str, ask: str) -> Quote:
    size = D(1)
    return Quote(
        source=Source.POSTED, number=1, at=NOW, bid=D(bid), ask=D(ask), bid_size=size, ask_size=size
    )


def test_positions_are_valued_at_the_middle_and_none_are_unknown() -> None:
    valuation = Valuation(seed=1)
    account = PaperAccount(cash=CASH, reserved=D(5), short_value=D(10))
    balance = valuation.balance(account, {}, NOW)
    assert (balance.cash, balance.buying_power, balance.equity) == (CASH, D(999975), CASH)
    other = Symbol("OTHER")
    held = {ACME: D(2), other: D(-3), Symbol("GONE"): D(0)}
    valuation.load({ACME: quote("10", "11")})
    walk = D(walk_middle_cents(1, other, tick_number(NOW))) / 100
    assert valuation.balance(account, held, NOW).equity == CASH + 21 - 3 * walk
