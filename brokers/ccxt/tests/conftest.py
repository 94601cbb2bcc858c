"""A simulator of each venue of the table, and the broker cards' stage there."""

from collections.abc import Iterator

import pytest
from simulators import SIMULATORS
from stage import CcxtStage

from trading_intents_ccxt.venues import VENUES

pytest_plugins = ["tests.conftest"]  # a database for each test that asks for one


@pytest.fixture(params=sorted(VENUES))
def stage(request: pytest.FixtureRequest) -> Iterator[CcxtStage]:
    simulator = SIMULATORS[request.param]()
    with simulator.serving() as url:
        yield CcxtStage(VENUES[request.param], simulator, url)
