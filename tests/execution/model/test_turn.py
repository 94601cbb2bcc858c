"""A worker's turn of two trips holds in every interleaving, and each mistake in it is caught."""

import pytest

from tests.execution.model.cases import ALTERNATIVES, LARGE, MISTAKES, QUICK, WHOLE, Design
from tests.execution.model.search import explore
from tests.execution.model.turn import Model

SIZED = [pytest.param(name, marks=pytest.mark.chaos if name in LARGE else ()) for name in QUICK]
LONG = ("a lease is given back with calls under way",)


@pytest.mark.parametrize("name", SIZED)
def test_a_turn_holds_in_every_interleaving(name: str) -> None:
    result = explore(Model(Design(), QUICK[name]))
    assert not result.violation, result
    assert result.states > 100


@pytest.mark.chaos
@pytest.mark.parametrize("name", WHOLE)
def test_a_turn_holds_in_every_interleaving_of_several_faults(name: str) -> None:
    result = explore(Model(Design(), WHOLE[name]))
    assert not result.violation, result


@pytest.mark.chaos
@pytest.mark.parametrize("name", ALTERNATIVES)
def test_what_the_design_might_say_too_holds(name: str) -> None:
    for config in QUICK.values():
        result = explore(Model(ALTERNATIVES[name], config))
        assert not result.violation, result


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(name, marks=pytest.mark.chaos if name in LONG else ()) for name in MISTAKES],
)
def test_each_mistake_in_a_turn_is_caught(mistake: str) -> None:
    design, config = MISTAKES[mistake]
    assert explore(Model(design, QUICK[config])).violation
