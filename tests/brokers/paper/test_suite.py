"""The paper broker plays every card that is meant for it."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from uuid import UUID, uuid4

import msgspec
import pytest

from tests.brokers.paper.venue import Venue
from trading_intents.brokers.paper.broker import PaperBroker
from trading_intents.brokers.paper.model import CAPABILITIES, PaperOrder, PaperOrderStatus, Prices
from trading_intents.brokers.paper.quotes import Quotes
from trading_intents.brokers.port import Capabilities
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import BookedFill, BookedOrder, Card, StageFault, play
from trading_intents.trading import Symbol

FAULTS = {
    StageFault.DROP_ANSWER: "drop_answer",
    StageFault.LOSE_COMMAND: "lose",
    StageFault.BREAK_LINK: "disconnect",
}


@dataclass(kw_only=True)
class PaperStage:
    venue: Venue
    account: UUID = field(default_factory=uuid4)
    symbol: Symbol = Symbol("ACME")
    capabilities: Capabilities = CAPABILITIES
    faults: frozenset[StageFault] = frozenset(FAULTS)

    async def connect(self) -> PaperBroker:
        return PaperBroker(
            replace(self.venue.context(self.account, self.venue.organization), shared={})
        )

    async def now(self) -> datetime:
        now: datetime = await self.venue.value("SELECT clock_timestamp()")
        return now

    async def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        prices = Prices(bid=bid, ask=ask, bid_size=size, ask_size=size)
        await Quotes(self.venue.database.service, self.venue.signals, 1).post(
            self.venue.organization, self.symbol, prices
        )

    async def fault(self, fault: StageFault) -> None:
        await self.venue.fault(self.account, FAULTS[fault], remaining=1)

    async def book(self) -> list[BookedOrder]:
        fetch = self.venue.owner.fetch
        rows = await fetch(JOURNAL, self.account)
        orders = [
            msgspec.json.decode(row[0], type=PaperOrder)
            for row in await fetch(ORDERS, self.account)
        ]
        booked = []
        for order in orders:
            events = [row["events"] for row in rows if row["number"] == order.number]
            if order.leg is None and order.status is not PaperOrderStatus.REJECTED:
                booked.append(_booked(order, [each for run in events for each in decode(run)]))
        return booked


JOURNAL = "SELECT number, events::text FROM paper_journal WHERE account_id = $1 ORDER BY seq"
ORDERS = """
    SELECT state::text FROM paper_working WHERE account_id = $1
    UNION ALL
    SELECT ended::text FROM paper_journal WHERE account_id = $1 AND ended IS NOT NULL
"""


class StoredEvent(msgspec.Struct, kw_only=True):
    kind: str
    client_order_id: str | None = None
    quantity: Decimal | None = None
    price: Decimal | None = None


def decode(run: str) -> list[StoredEvent]:
    return msgspec.json.decode(run, type=list[StoredEvent])


def _booked(order: PaperOrder, events: list[StoredEvent]) -> BookedOrder:
    begun = [each.client_order_id for each in events if each.kind in ("ACCEPTED", "REPLACED")]
    fills = []
    for each in events:
        if each.kind == "FILL":
            assert each.quantity is not None
            assert each.price is not None
            fills.append(BookedFill(each.quantity, each.price))
    return BookedOrder(
        client_order_ids=tuple(dict.fromkeys(name for name in begun if name)),
        side=order.side,
        kind=order.kind,
        quantity=order.quantity,
        limit_price=order.limit_price,
        stop_price=order.stop_price,
        time_in_force=order.time_in_force,
        fills=tuple(fills),
    )


MEANT = [card for card in CARDS if card.needs(CAPABILITIES)]


def test_every_card_is_meant_for_the_paper_broker_but_those_of_other_venues() -> None:
    assert [card.number for card in CARDS if card not in MEANT] == [28, 54, 55, 73, 74]
    numbers = [card.number for card in CARDS]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("card", MEANT, ids=lambda card: card.name)
async def test_the_paper_broker_plays_the_card(venue: Venue, card: Card) -> None:
    await play(card, PaperStage(venue=venue))
