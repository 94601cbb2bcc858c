"""Orders through a network and a platform that fail: each is placed once, and its end is seen."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from tests.proxy import FaultProxy
from tests.sdk.faults import FaultyNetwork
from tests.sdk.restarts import RestartedPlatform, hurried_proofs
from tests.seeds import seeded
from trading_intents_client import FILLED, AsyncAccount, AsyncOrder, AsyncTradingClient, errors

pytest_plugins = ("tests.started_dirs",)
pytestmark = pytest.mark.slow

AT_ONCE = 16
WAIT_SECONDS = 300


async def place(account: AsyncAccount, number: int) -> AsyncOrder:
    """As a careful program does it: what has no answer is asked again under its key."""
    key: str | None = None
    while True:
        try:
            placed = await account.buy(
                "AAPL", 1, client_reference_id=f"n{number}", idempotency_key=key
            )
            return await placed.wait(until=FILLED, timeout=WAIT_SECONDS)
        except errors.WaitTimeout:
            raise
        except (
            errors.AnswerLost,
            errors.Unreachable,
            errors.OutcomeUnknown,
            errors.Unavailable,
        ) as error:
            key = error.idempotency_key or key
        except errors.RateLimited as error:
            key = error.idempotency_key or key


# What a killed platform had claimed and leased is the next one's after five seconds.
@pytest.mark.parametrize(
    ("orders", "restarts"),
    [(40, 1), pytest.param(1000, 4, marks=[pytest.mark.chaos, pytest.mark.timeout(900)])],
)
async def test_each_order_is_placed_once_whatever_fails(
    warm: Path, orders: int, restarts: int
) -> None:
    chance = seeded("sdk")
    key = json.loads((warm / "demo.json").read_text())["api_key"]
    platform = RestartedPlatform(
        warm, [chance.random() < 0.5 for _ in range(restarts)], RATE_LIMIT_SUBMITS="60/30"
    )
    network = FaultyNetwork(chance)
    proxy = FaultProxy(platform.port, network)
    done: list[AsyncOrder] = []
    hurry = hurried_proofs(warm) if orders < 100 else contextlib.nullcontext()
    with platform.running(), proxy.running(), hurry:
        async with AsyncTradingClient(
            f"http://127.0.0.1:{proxy.port}", api_key=key, max_retries=6
        ) as client:
            account_id = await find_account(client)
            numbers = iter(range(orders))

            async def work() -> None:
                for number in numbers:
                    done.append(await place(client.account(account_id), number))
                    if len(done) % (orders // (restarts + 1)) == 0:
                        platform.restart()

            await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        async with AsyncTradingClient(
            f"http://127.0.0.1:{platform.port}", api_key=key, max_retries=20
        ) as client:
            await check(client.account(account_id), orders)
    assert len(done) == orders
    assert platform.ended >= restarts
    assert network.faults > orders // 10


async def find_account(client: AsyncTradingClient) -> str:
    while True:
        try:
            return (await client.find_account("sim")).id
        except (errors.AnswerLost, errors.Unreachable):
            continue


async def check(account: AsyncAccount, orders: int) -> None:
    found = [order async for order in account.orders()]
    assert sorted(str(order.client_reference_id) for order in found) == sorted(
        f"n{n}" for n in range(orders)
    )
    assert {order.order_status for order in found} == {FILLED}
    assert [action.action_type async for action in account.intents()] == ["CREATE"] * orders
    trades = [trade async for trade in account.trades()]
    assert sum(trade.quantity for trade in trades) == orders
    assert [position.quantity async for position in account.positions()] == [orders]
