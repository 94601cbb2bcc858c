"""Orders that are not what they were shown as: refused by Alpaca and working, or filled and
busted."""

from decimal import Decimal

import pytest

from tests.brokers.alpaca.book import Account
from tests.brokers.alpaca.in_process import integration, open_alpaca
from tests.brokers.alpaca.order import Order, Refused
from tests.brokers.alpaca.simulator import Fault, simulating
from tests.conftest import Urls
from tests.execution.in_process_execution import executing


async def test_an_order_that_was_refused_and_works_is_cancelled(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = Account.find_by_client_id
    is_early = [True]

    def find_later(self: Account, client_order_id: str) -> Order:
        if is_early and is_early.pop():
            raise Refused(404, 40410000, "order not found")
        return find(self, client_order_id)

    monkeypatch.setattr(Account, "find_by_client_id", find_later)
    async with (
        simulating() as simulator,
        open_alpaca(urls, simulator) as it,
        executing(it.in_process, integration=integration(simulator)),
    ):
        await it.until_connected()
        simulator.faults.append(Fault("refuse", takes=True, methods=("POST",)))
        intent = await it.in_process.create()
        row = await it.in_process.until_status(intent, "CANCELLED")
        assert (row["flags"], (await it.order(intent)).json["status"]) == (
            ["resurrected"],
            "canceled",
        )


async def test_a_busted_order_stays_filled_and_its_position_falls(urls: Urls) -> None:
    async with (
        simulating() as simulator,
        open_alpaca(urls, simulator) as it,
        executing(it.in_process, integration=integration(simulator)),
    ):
        await it.until_connected()
        intent = await it.work_order()
        execution = it.account.fill(await it.order(intent), Decimal(10), Decimal(99))
        await it.in_process.until_status(intent, "FILLED")
        it.account.bust(execution)

        async def is_flat() -> bool:
            return bool(
                await it.in_process.in_process_writer.owner.fetchval(
                    "SELECT quantity FROM holdings"
                )
                == 0
            )

        await it.in_process.until(is_flat)
        row = await it.in_process.order(intent)
        assert (row["order_status"], row["filled_quantity"]) == ("FILLED", 0)
        assert row["flags"] == ["conflicting_execution"]
