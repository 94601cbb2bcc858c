"""An order that Alpaca refused and works: its index of client order ids shows it only later."""

import pytest

from tests.brokers.alpaca.book import Account, Order, Refused
from tests.brokers.alpaca.in_process import integration, open_alpaca
from tests.brokers.alpaca.simulator import Fault, simulating
from tests.conftest import Urls
from tests.execution.in_process_execution import executing


async def test_an_order_that_was_refused_and_works_is_cancelled(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> None:
    find, is_early = Account.find_by_client_id, [True]

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
        assert (row["flags"], (await it.order(intent)).json["status"]) == (["resurrected"], "canceled")
