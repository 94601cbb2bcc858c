"""The FIX adapter plays every card that is meant for it, against a venue of the suite's own, in
both versions."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.brokers.fix.conftest import staging
from tests.brokers.fix.venue import FixStage
from tests.conftest import Urls
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import Card, play


@pytest.fixture(params=["generic44", "generic42"])
async def versions(
    request: pytest.FixtureRequest, tenants_database: Urls, tmp_path: Path
) -> AsyncIterator[FixStage]:
    async with staging(tenants_database, tmp_path, request.param) as stage:
        yield stage


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
async def test_fix_plays_the_card(versions: FixStage, card: Card) -> None:
    if not card.needs(versions.capabilities):
        pytest.skip("not meant for it")
    await play(card, versions)
