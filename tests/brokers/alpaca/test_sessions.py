"""What a session says of its connection: nothing but Alpaca's own word ends it for good, and CANCELs pass while it
lasts."""

import pytest

from tests.brokers.alpaca.simulator import Fault
from tests.brokers.alpaca.stage import AlpacaStage
from trading_intents.brokers.port import BrokerUnavailable, Outcome
from trading_intents.trading import OrderSide


async def test_a_stream_that_has_an_error_does_not_refuse_the_credential(stage: AlpacaStage) -> None:
    """AuthFailed would end the account's session until somebody stores another credential."""
    stage.simulator.has_stream_errors = True
    with pytest.raises(BrokerUnavailable):
        await stage.link()


async def test_a_page_that_is_not_alpacas_does_not_refuse_the_credential(stage: AlpacaStage) -> None:
    stage.simulator.faults.append(Fault("page", takes=False, methods=("GET",), status=403))
    with pytest.raises(BrokerUnavailable):
        await stage.link()


async def test_a_cancel_by_client_order_id_takes_from_what_is_kept_for_cancels(stage: AlpacaStage) -> None:
    stage.simulator.limit_per_minute = 30
    run = await stage.link()
    resting = await run.buy("1", "50")
    outcomes = [(await run.send(run.ticket(OrderSide.BUY, "1", "50"))).result.outcome for _ in range(30)]
    assert outcomes[-1] is Outcome.NOT_SENT
    assert (await run.cancel(resting, with_broker_id=False)).result.outcome is Outcome.ACKED
    await run.close()


async def test_a_refusal_is_unknown_if_its_look_up_is_unauthorized(stage: AlpacaStage) -> None:
    run = await stage.link()
    unauthorized = Fault("status", takes=False, methods=("GET",), status=401)
    stage.simulator.faults += [Fault("refuse", takes=True), unauthorized]
    sent = await run.send(run.ticket(OrderSide.BUY, "1", "50"))
    assert (sent.result.outcome, len(stage.account.arrived)) == (Outcome.UNKNOWN, 1)
    await run.close()
