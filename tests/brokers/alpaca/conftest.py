"""A simulator of Alpaca for each test, and a stage on it; with the fault proxy between where a test
wants it."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.brokers.alpaca.simulator import Simulator, simulating
from tests.brokers.alpaca.stage import AlpacaStage, CutRequests
from tests.execution.conftest import soon
from tests.proxy import FaultProxy

__all__ = ["cuts", "simulator", "soon", "stage"]


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with simulating() as running:
        yield running


@pytest.fixture
async def stage(simulator: Simulator) -> AlpacaStage:
    return AlpacaStage(simulator, simulator.add())


@pytest.fixture
async def cuts() -> AsyncIterator[tuple[AlpacaStage, CutRequests, FaultProxy]]:
    """A stage behind the proxy, and the requests that the proxy cuts."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "s")
        async with simulating(socket) as simulator:
            cut = CutRequests()
            proxy = FaultProxy(socket, cut)
            with proxy.running():
                yield (
                    AlpacaStage(simulator, simulator.add(), url=f"http://127.0.0.1:{proxy.port}"),
                    cut,
                    proxy,
                )
