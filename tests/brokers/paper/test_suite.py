"""The paper broker plays every card that is meant for it."""

import itertools
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from tests.brokers.paper.venue import Venue
from trading_intents.brokers.paper.broker import PaperBroker
from trading_intents.brokers.paper.model import CAPABILITIES, Prices
from trading_intents.brokers.paper.quotes import Quotes
from trading_intents.brokers.port import Capabilities
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import Card, StageFault, play
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
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def client_order_id(self) -> str:
        return f"c{next(self._numbers)}"

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


MEANT = [card for card in CARDS if card.needs(CAPABILITIES)]


def test_every_card_is_meant_for_the_paper_broker_but_those_of_other_venues() -> None:
    assert [card.number for card in CARDS if card not in MEANT] == [28, 73, 74]
    numbers = [card.number for card in CARDS]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("card", MEANT, ids=lambda card: card.name)
async def test_the_paper_broker_plays_the_card(venue: Venue, card: Card) -> None:
    await play(card, PaperStage(venue=venue))
