"""The paper broker plays every card that is meant for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.brokers.paper.venue import Venue
from trading_intents.brokers.paper.broker import PaperBroker
from trading_intents.brokers.paper.model import CAPABILITIES, Prices
from trading_intents.brokers.paper.quotes import Quotes
from trading_intents.brokers.port import Capabilities
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import BookedFill, BookedOrder, Card, StageFault, play
from trading_intents.trading import OrderKind, OrderSide, Symbol, TimeInForce

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
        owner = self.venue.owner
        query = "SELECT * FROM paper_events WHERE account_id = $1 ORDER BY seq"
        events = await owner.fetch(query, self.account)
        query = """
            SELECT * FROM paper_orders
            WHERE account_id = $1 AND leg IS NULL AND status <> 'REJECTED' ORDER BY number
        """
        return [_booked(row, events) for row in await owner.fetch(query, self.account)]


def _booked(row: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> BookedOrder:
    own = [event for event in events if event["number"] == row["number"]]
    begun = [each for each in own if each["kind"] == "ACCEPTED" or each["replaces"]]
    fills = [each for each in own if each["kind"] == "FILL"]
    return BookedOrder(
        client_order_ids=tuple(dict.fromkeys(each["client_order_id"] for each in begun)),
        side=OrderSide(row["side"]),
        kind=OrderKind(row["kind"]),
        quantity=row["quantity"],
        limit_price=row["limit_price"],
        stop_price=row["stop_price"],
        time_in_force=TimeInForce(row["time_in_force"]),
        fills=tuple(BookedFill(each["quantity"], each["price"]) for each in fills),
    )


MEANT = [card for card in CARDS if card.needs(CAPABILITIES)]


def test_every_card_is_meant_for_the_paper_broker_but_those_of_other_venues() -> None:
    assert [card.number for card in CARDS if card not in MEANT] == [28, 54, 55, 73, 74]
    numbers = [card.number for card in CARDS]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("card", MEANT, ids=lambda card: card.name)
async def test_the_paper_broker_plays_the_card(venue: Venue, card: Card) -> None:
    await play(card, PaperStage(venue=venue))
