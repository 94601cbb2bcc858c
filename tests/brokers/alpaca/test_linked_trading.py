"""Orders that Alpaca links, from the writer to the books: each leg is the intent that was made for
it."""

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tests.brokers.alpaca.in_process import AlpacaExecution, trading
from tests.brokers.alpaca.order import Order
from tests.brokers.alpaca.simulator import Simulator
from tests.conftest import Urls
from trading_intents.intents.model import Create, LinkedSpec, Spec
from trading_intents.trading import Leg, OrderKind, OrderSide, RouteStrategy, Symbol, TimeInForce

D = Decimal
GTC = TimeInForce.GOOD_TILL_CANCEL
PROFIT = LinkedSpec(
    Leg.TAKE_PROFIT, Spec(kind=OrderKind.LIMIT, quantity="10", limit_price="110", time_in_force=GTC)
)
LOSS = LinkedSpec(
    Leg.STOP_LOSS, Spec(kind=OrderKind.STOP, quantity="10", stop_price="90", time_in_force=GTC)
)


async def enter(alpaca: AlpacaExecution) -> dict[str, UUID]:
    """The intents of an entry that Alpaca works, and of its two exits, by leg."""
    spec = Spec(kind=OrderKind.LIMIT, quantity="10", limit_price="100", time_in_force=GTC)
    command = Create(Symbol("AAPL"), OrderSide.BUY, RouteStrategy.SMART, spec, (PROFIT, LOSS))
    in_process = alpaca.in_process
    receipt = await in_process.submit(
        in_process.in_process_writer.command(in_process.account, command)
    )
    intents = {"entry": UUID(receipt.intent_id)} | {
        leg.leg: UUID(leg.intent_id) for leg in receipt.legs
    }
    for intent in intents.values():
        await in_process.until_status(intent, "NEW")
    return intents


def at_alpaca(alpaca: AlpacaExecution, role: str) -> Order:
    return [
        order for order in alpaca.account.orders.values() if order.json.get("group_role") == role
    ][-1]


async def rows(alpaca: AlpacaExecution, intents: dict[str, UUID]) -> dict[str, tuple[Any, ...]]:
    shown = {}
    for name, intent in intents.items():
        row = await alpaca.in_process.order(intent)
        shown[name] = row["order_status"], row["reason"], row["filled_quantity"], row["flags"]
    return shown


@pytest.mark.parametrize("stop_replaces", [False, True], ids=["cancels", "replaces"])
@pytest.mark.parametrize("names_groups", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("closing", [Leg.TAKE_PROFIT, Leg.STOP_LOSS])
async def test_the_exit_that_fills_ends_the_other(
    urls: Urls, simulator: Simulator, closing: Leg, names_groups: bool, stop_replaces: bool
) -> None:
    async with trading(urls, simulator) as alpaca:
        alpaca.account.names_groups = names_groups
        alpaca.account.stop_replaces = stop_replaces
        intents = await enter(alpaca)
        other = Leg.STOP_LOSS if closing is Leg.TAKE_PROFIT else Leg.TAKE_PROFIT
        alpaca.account.fill(await alpaca.order(intents["entry"]), D(10), D(100))
        await alpaca.in_process.until_status(intents["entry"], "FILLED")
        bid = D(111 if closing is Leg.TAKE_PROFIT else 89)
        alpaca.account.quote("AAPL", bid, bid + 1, D(100))
        await alpaca.in_process.until_status(intents[closing], "FILLED")
        await alpaca.in_process.until_status(intents[other], "CANCELLED")
        shown = await rows(alpaca, intents)
        assert {name: (filled, flags) for name, (_, _, filled, flags) in shown.items()} == {
            "entry": (10, []), closing: (10, []), other: (0, []),
        }  # fmt: skip
        assert sum(each.method == "POST" for each in simulator.exchanges) == 1


async def test_an_entry_that_is_cancelled_takes_its_exits_with_it(
    urls: Urls, simulator: Simulator
) -> None:
    async with trading(urls, simulator) as alpaca:
        intents = await enter(alpaca)
        await alpaca.in_process.cancel(intents["entry"])
        for intent in intents.values():
            await alpaca.in_process.until_status(intent, "CANCELLED")
        shown = await rows(alpaca, intents)
        assert all(filled == 0 for _, _, filled, _ in shown.values())


async def test_an_exit_is_cancelled_by_its_own_intent(urls: Urls, simulator: Simulator) -> None:
    async with trading(urls, simulator) as alpaca:
        intents = await enter(alpaca)
        alpaca.account.fill(await alpaca.order(intents["entry"]), D(10), D(100))
        await alpaca.in_process.until_status(intents["entry"], "FILLED")
        await alpaca.in_process.cancel(intents[Leg.STOP_LOSS])
        await alpaca.in_process.until_status(intents[Leg.STOP_LOSS], "CANCELLED")
        assert at_alpaca(alpaca, Leg.STOP_LOSS.value).json["status"] == "canceled"
