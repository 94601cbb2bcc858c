"""A broker is handed all that a venue may want to hear of an order before it finds it."""

from decimal import Decimal

import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import executing, open_in_process
from tests.fakes import Act
from trading_intents.brokers.port import SentOrder
from trading_intents.trading import OrderKind, OrderSide, Symbol


def as_known(client_order_id: str, broker_order_id: str | None, quantity: str = "10") -> SentOrder:
    return SentOrder(
        client_order_id=client_order_id,
        broker_order_id=broker_order_id,
        symbol=Symbol("AAPL"),
        side=OrderSide.BUY,
        kind=OrderKind.LIMIT,
        quantity=Decimal(quantity),
    )


@pytest.mark.usefixtures("soon")
async def test_an_order_whose_answer_was_lost_is_looked_up_by_its_terms(urls: Urls) -> None:
    async with open_in_process(urls) as it, executing(it):
        it.venue.acts.append(Act.DROP)
        it.venue.is_mute = True
        intent = await it.create("10")
        await it.until_status(intent, "NEW")
        assert it.venue.sought[0] == as_known(await it.coid(intent), None)


async def test_a_snapshot_is_asked_for_with_the_open_orders(urls: Urls) -> None:
    async with open_in_process(urls) as it:
        async with executing(it):
            filled = await it.create("3")
            await it.until_status(filled, "NEW")
            it.fill(await it.coid(filled), "3")
            await it.until_status(filled, "FILLED")
            intent = await it.create("10")
            await it.until_status(intent, "NEW")
        asked = it.venue.snapshots
        async with executing(it):
            await it.until_true(lambda: it.venue.snapshots > asked)
            number = it.venue.orders[await it.coid(intent)].number
            assert it.venue.known_open == (as_known(await it.coid(intent), number),)
