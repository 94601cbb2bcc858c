"""The REST client that integrations share, against the simulator: what it leaves open, and what is
no clock."""

import asyncio
from typing import Any

import pytest

from tests.brokers.alpaca.stage import AlpacaStage
from tests.waiting import eventually_async
from trading_intents.brokers.alpaca.rest import AlpacaRest

SLOW_SECONDS = 2.5


@pytest.mark.parametrize("steps", range(8))
async def test_a_request_that_is_cancelled_twice_leaves_no_connection_open(
    stage: AlpacaStage, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    rest = AlpacaRest(stage.context())
    arrived = asyncio.Event()
    release = asyncio.Event()
    await asyncio.gather(*(rest.read_account(rest.deadline()) for _ in range(3)))
    answer = stage.simulator._answer

    async def answer_later(*asked: Any) -> Any:
        arrived.set()
        await release.wait()
        return await answer(*asked)

    monkeypatch.setattr(stage.simulator, "_answer", answer_later)
    asking = asyncio.create_task(rest.read_account(rest.deadline()))
    await arrived.wait()
    await rest.close()
    transport: Any = rest._client._transport
    opened = list(transport._pool.connections)
    asking.cancel()
    for _ in range(steps):  # so many turns of the loop later it is cancelled again
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    async def all_closed() -> bool:
        return all(each.is_closed() for each in opened)

    await eventually_async(all_closed, 10)
    release.set()


async def test_a_slow_answer_is_no_clock_that_is_off(
    stage: AlpacaStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = AlpacaRest(stage.context())
    answer = stage.simulator._answer

    class SlowWriter:
        """Its answers arrive long after they were written."""

        def __init__(self, writer: asyncio.StreamWriter) -> None:
            self._writer = writer
            self._data = b""

        def is_closing(self) -> bool:
            return self._writer.is_closing()

        def write(self, data: bytes) -> None:
            self._data += data

        async def drain(self) -> None:
            await asyncio.sleep(SLOW_SECONDS)
            self._writer.write(self._data)
            await self._writer.drain()

    async def answer_slowly(writer: asyncio.StreamWriter, *asked: Any) -> Any:
        slow: Any = SlowWriter(writer)
        return await answer(slow, *asked)

    monkeypatch.setattr(stage.simulator, "_answer", answer_slowly)
    account = await rest.read_account(rest.deadline(4 * SLOW_SECONDS))
    await rest.close()
    assert account.notices(rest.skew) == ()
