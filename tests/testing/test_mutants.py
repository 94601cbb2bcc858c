"""Each mistake that is planted in the example is caught by the card that names it; the documents list
them."""

from pathlib import Path
from types import ModuleType

import pytest

from tests.testing.mutants import MUTANTS, Mutant
from tests.testing.my_venue import EXAMPLE, MyStage, module_of, my_venue
from trading_intents.testing import broker_suite
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import play

DOCUMENT = Path(__file__).parents[2] / "docs" / "brokers.md"
BY_NUMBER = {card.number: card for card in CARDS}
# What a mistake keeps from coming is waited for so long.
WAIT_SECONDS = 0.5


def mutated(mutant: Mutant) -> ModuleType:
    source = EXAMPLE.read_text()
    assert mutant.old in source, "the example has changed: change the mistake too"
    return module_of(source.replace(mutant.old, mutant.new))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.mistake)
async def test_a_mistake_is_caught_by_the_card_that_names_it(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_suite, "WAIT_SECONDS", WAIT_SECONDS)
    card = BY_NUMBER[mutant.card]
    with my_venue() as (venue, url):
        stage = MyStage(module=mutated(mutant), venue=venue, url=url)
        with pytest.raises(AssertionError, match=f"^card {card.number} "):
            await play(card, stage)


def test_the_documents_show_which_card_catches_each_mistake() -> None:
    lines = ["| Mistake | Card |", "|---|---|"]
    lines += [f"| {each.mistake} | {BY_NUMBER[each.card].name} |" for each in MUTANTS]
    assert len({each.mistake for each in MUTANTS}) == len(MUTANTS) == 45
    assert "\n".join(lines) in DOCUMENT.read_text()
