"""Each venue of the table plays every card that is meant for it, against its simulator."""

import pytest
from stage import CcxtStage

from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import Card, play

# Stops; ids that are refused for ever; busts; replaces; balances; a stream; linked orders.
NOT_PLAYED = {16, 17, 26, 28, *range(30, 36), 52, 64, 74, *range(80, 89)}


def test_the_venues_play_what_spot_orders_by_polling_can(stage: CcxtStage) -> None:
    meant = [card for card in CARDS if card.needs(stage.capabilities)]
    played = {card.number for card in meant if card.fault in (None, *stage.faults)}
    assert {card.number for card in CARDS} - played == NOT_PLAYED


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
async def test_the_venue_plays_the_card(card: Card, stage: CcxtStage) -> None:
    if not card.needs(stage.capabilities):
        pytest.skip("not meant for it")
    if card.fault and card.fault not in stage.faults:
        pytest.skip("the venue has no such channel")
    await play(card, stage)
