"""Orders: placed, replaced, cancelled and waited for, by the stream."""

import asyncio
from decimal import Decimal

import httpx
import pytest

from tests.tenants import Tenants
from tests.waiting import eventually_async
from trading_intents_client import (
    FILLED,
    Account,
    AsyncAccount,
    AsyncTradingClient,
    OrderStatus,
    TimeInForce,
    TradingClient,
    errors,
)

WAITING_SECONDS = 20


def test_a_market_order_is_waited_for_until_it_is_filled(account: Account) -> None:
    order = account.buy("AAPL", 10, client_reference_id="mine").wait(until=FILLED, timeout=30)
    assert order.filled_quantity == 10
    assert order.client_reference_id == "mine"
    assert account.sell("AAPL", 4).wait().is_final
    assert account.short("MSFT", 2).wait().is_final
    assert {p.symbol: p.quantity for p in account.positions()} == {
        "AAPL": Decimal(6),
        "MSFT": Decimal(-2),
    }


def test_an_order_is_replaced_in_what_is_given_and_cancelled(account: Account) -> None:
    placed = account.buy("ACME", 10, limit=1, time_in_force=TimeInForce.GOOD_TILL_CANCEL)
    order = placed.wait(until=OrderStatus.NEW)
    assert order.replace(limit="1.5").intent_id == placed.intent_id
    changed = order.wait(until="NEW")
    assert (changed.quantity, changed.limit_price) == (Decimal(10), Decimal("1.5"))
    order.replace(quantity=8)
    changed = order.wait(until="NEW")
    assert (changed.quantity, changed.limit_price, changed.time_in_force) == (
        Decimal(8),
        Decimal("1.5"),
        TimeInForce.GOOD_TILL_CANCEL,
    )
    changed.cancel()
    assert changed.wait().order_status == "CANCELLED"
    assert [action.action_type for action in account.actions(placed.intent_id)] == [
        "CREATE",
        "REPLACE",
        "REPLACE",
        "CANCEL",
    ]


def test_a_wait_that_is_in_vain_says_so(account: Account) -> None:
    order = account.buy("ACME", 10, limit=1)
    with pytest.raises(errors.WaitTimeout) as late:
        order.wait(until=FILLED, timeout=2)
    assert isinstance(late.value, TimeoutError)
    assert late.value.order is not None
    assert late.value.order.intent_id == order.intent_id
    order.cancel()
    with pytest.raises(errors.OrderEnded) as ended:
        order.wait(until=FILLED)
    assert ended.value.order.order_status == "CANCELLED"


def test_a_wait_for_no_order_of_the_account_fails(account: Account, client: TradingClient) -> None:
    order = account.buy("ACME", 1, limit=1)
    other = client.account(client.create_account("other", "paper", "paper").id)
    with pytest.raises(errors.NotFound):
        other.order(order.intent_id)


class CountingTransport(httpx.AsyncHTTPTransport):
    """Counts the streams that are opened, and the orders that were read. The server's own count of
    streams falls only some time after one was closed."""

    streams = 0
    reads = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.streams += request.url.path.endswith("/events")
        answer = await super().handle_async_request(request)
        self.reads += "/orders/" in request.url.path
        return answer


@pytest.mark.parametrize("orders", [25, pytest.param(120, marks=pytest.mark.chaos)])
async def test_many_who_wait_share_one_stream(
    tenants: Tenants, api_key: str, async_account: AsyncAccount, orders: int
) -> None:
    transport = CountingTransport(limits=httpx.Limits())
    async with AsyncTradingClient(
        tenants.platform.url, api_key=api_key, transport=transport
    ) as client:
        account = client.account(async_account.id)
        placed = await asyncio.gather(*(account.buy("QUOTED", 1, limit=20) for _ in range(orders)))
        waiting = [asyncio.ensure_future(order.wait(until=FILLED)) for order in placed]
        await placed[0].wait(until="NEW")
        for _ in range(3):
            await client.market.post_quote("QUOTED", bid="19", ask="20", bid_size=500, ask_size=500)
        assert {order.order_status for order in await asyncio.gather(*waiting)} == {FILLED}
    assert transport.streams == 1


async def test_a_wait_sees_a_status_that_passes_quickly(
    tenants: Tenants, api_key: str, async_account: AsyncAccount
) -> None:
    """By polling PENDING_CANCEL would be missed; the stream has it."""
    transport = CountingTransport(limits=httpx.Limits())
    async with AsyncTradingClient(
        tenants.platform.url, api_key=api_key, transport=transport
    ) as client:
        order = await client.account(async_account.id).buy("ACME", 1, limit=1)
        await order.wait(until="NEW")
        before = transport.reads
        passing = asyncio.ensure_future(order.wait(until=OrderStatus.PENDING_CANCEL))

        async def is_waiting() -> bool:
            return transport.reads > before

        await eventually_async(is_waiting, WAITING_SECONDS)
        await order.cancel()
        assert (await passing).order_status in (OrderStatus.PENDING_CANCEL, OrderStatus.CANCELLED)
