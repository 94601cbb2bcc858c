"""Alpaca's integration plays every card that is meant for it, against the simulator."""

import pytest

from tests.brokers.alpaca.simulator import Simulator
from tests.brokers.alpaca.stage import MEANT, AlpacaStage
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import Card, play


def test_every_card_is_meant_for_alpaca() -> None:
    assert list(CARDS) == MEANT


@pytest.mark.parametrize("card", MEANT, ids=lambda card: card.name)
async def test_alpaca_plays_the_card(simulator: Simulator, card: Card) -> None:
    await play(card, AlpacaStage(simulator, simulator.add()))
