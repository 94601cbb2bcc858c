"""The example of a broker is one: it plays the cards that are meant for it, and an entry point adds it."""

import importlib.util
import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest

from trading_intents.brokers.port import (
    Broker,
    BrokerAccount,
    Capabilities,
    Integration,
    IntegrationContext,
)
from trading_intents.clock import SystemClock
from trading_intents.ids import OrganizationId
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import Card, StageFault, is_meant_for, play
from trading_intents.trading import Environment, Symbol

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_broker.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("my_broker", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULE: Any = load()


@dataclass
class Stage:
    capabilities: Capabilities = MODULE.CAPABILITIES
    symbol: Symbol = Symbol("ACME")
    faults: frozenset[StageFault] = frozenset()
    venue: Any = field(default_factory=MODULE.Venue)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def client_order_id(self) -> str:
        return f"c{next(self._numbers)}"

    async def connect(self) -> Broker:
        account = BrokerAccount(uuid4(), OrganizationId(uuid4()), Environment.PAPER, None)
        nothing: Any = None
        link: Broker = MODULE.MyBroker(
            IntegrationContext(account, {}, SystemClock(), {}, nothing, nothing, nothing, {}), self.venue
        )
        return link

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        self.venue.quote(bid, ask, size)

    async def fault(self, fault: StageFault) -> None:
        raise NotImplementedError


MEANT = [card for card in CARDS if is_meant_for(card, MODULE.CAPABILITIES) and card.fault is None]


@pytest.mark.parametrize("card", MEANT, ids=lambda card: card.name)
async def test_the_example_plays_the_card(card: Card) -> None:
    await play(card, Stage())


def test_the_example_is_an_integration() -> None:
    assert isinstance(MODULE.INTEGRATION, Integration)
    assert 'my_broker = "my_broker:INTEGRATION"' in EXAMPLE.read_text()
