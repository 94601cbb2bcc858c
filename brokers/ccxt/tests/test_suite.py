"""Each venue of the table plays every card that is meant for it, against its simulator."""

import pytest
from stage import CcxtStage

from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import Card, play


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
async def test_the_venue_plays_the_card(card: Card, stage: CcxtStage) -> None:
    if not card.needs(stage.capabilities):
        pytest.skip("not meant for it")
    if card.fault and card.fault not in stage.faults:
        pytest.skip("the venue has no such channel")
    await play(card, stage)
