"""The REST client that integrations share, against the simulator: what it leaves open, and what is
no clock."""

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from tests.brokers.alpaca.simulator import Fault
from tests.brokers.alpaca.stage import AlpacaStage
from tests.waiting import eventually_async
from trading_intents.brokers.alpaca.rest import AlpacaRest
from trading_intents.brokers.port import Outcome
from trading_intents.brokers.rest_client import MAX_RETRY_AFTER_SECONDS, RequestBudget
from trading_intents.testing.broker_suite import deadline
from trading_intents.trading import OrderSide

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


NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize("status", [429, 418, 503])
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20", 20),
        (format_datetime(NOON + timedelta(seconds=20), usegmt=True), 20),
        (format_datetime(NOON - timedelta(seconds=20), usegmt=True), 0),
        ("9" * 400, MAX_RETRY_AFTER_SECONDS),
        ("0", 0),
        ("-20", 0),
        ("soon", 0),
        ("", 0),
    ],
)
def test_a_retry_after_bars_every_request_until_then(
    status: int, text: str, seconds: float
) -> None:
    # A limit that does not say until when is over after a second.
    wait = max(seconds, 0 if status == 503 else 1)
    for is_cancel in (True, False):
        budget = RequestBudget(60_000)
        budget.learn(status, {"retry-after": text}, 100.0, NOON.timestamp())
        assert budget.take(is_cancel, 100.0) == wait
        assert budget.take(is_cancel, 100.0 + wait) == 0


def test_a_shorter_retry_after_ends_no_longer_one() -> None:
    budget = RequestBudget(60_000)
    budget.learn(429, {"retry-after": "20"}, 200.0, NOON.timestamp())
    budget.learn(503, {"retry-after": "5"}, 201.0, NOON.timestamp())
    assert budget.take(True, 202.0) == 18


def test_an_answer_of_another_status_bars_nothing() -> None:
    budget = RequestBudget(60_000)
    budget.learn(201, {"retry-after": "20"}, 100.0, NOON.timestamp())
    assert budget.take(False, 100.0) == 0


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(429, Outcome.NOT_SENT), (418, Outcome.NOT_SENT), (503, Outcome.UNKNOWN)],
)
async def test_nobody_asks_a_broker_that_wants_to_be_left_alone(
    stage: AlpacaStage, status: int, outcome: Outcome
) -> None:
    run = await stage.open_session()
    other = await stage.open_session()
    resting = await run.buy("1", "50")
    fault = Fault("status", takes=False, status=status, retry_after="20")
    stage.simulator.faults.append(fault)
    first = await run.broker.submit(run.ticket(OrderSide.BUY, "1", "50"), deadline())
    assert first.outcome is outcome
    asked = len(stage.simulator.exchanges)
    for each in (run, other):  # of one credential
        again = await each.broker.submit(each.ticket(OrderSide.BUY, "1", "50"), deadline())
        cancel = (await each.cancel(resting)).result
        for result in (again, cancel):
            assert result.outcome is Outcome.NOT_SENT
            assert result.retry_after_seconds in range(17, 21)
    assert len(stage.simulator.exchanges) == asked
    await run.close()
    await other.close()
