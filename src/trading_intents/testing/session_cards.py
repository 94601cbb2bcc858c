"""The cards about the session itself: that it closes, comes back after a restart, and tells when something was lost."""

from datetime import timedelta

from trading_intents.brokers import port
from trading_intents.brokers.port import BrokerEvent, Outcome
from trading_intents.testing.broker_suite import CardRun, StageFault, deadline, total
from trading_intents.trading import OrderSide

_E = port.EventKind
_DAY = timedelta(days=1)


async def closes(scene: CardRun) -> None:
    await scene.close()
    assert scene.has_ended
    result = await scene.broker.submit(scene.ticket(OrderSide.BUY, "1"), deadline())
    assert result.outcome is Outcome.NOT_SENT


async def opens_again(scene: CardRun) -> None:
    await scene.quote("99", "100")
    await scene.connect_again()
    await scene.expect([_E.ACCEPTED, _E.FILL], await scene.buy("1"))


async def tells_what_happened_meanwhile(scene: CardRun) -> None:
    await scene.quote("99", "101")
    before = await scene.stage.now()
    sent = await scene.buy("5", "100")
    await scene.close()
    await scene.quote("98", "99")
    await scene.connect_again()
    seen: list[BrokerEvent] = []
    if not scene.fills(sent):
        snapshot = await scene.broker.snapshot(before - _DAY)
        seen = [event for event in snapshot.executions if event.kind is _E.FILL]
    assert total(seen or scene.fills(sent)) == 5


async def goes_on_after_a_restart(scene: CardRun) -> None:
    """The venue's keys and ids are not used again, and what was sent before is still known."""
    await scene.quote("99", "100")
    first = await scene.buy("1", "100")
    before = await scene.expect([_E.ACCEPTED, _E.FILL], first)
    await scene.connect_again()
    await scene.quote("99", "100")
    second = await scene.buy("2", "100")
    after = await scene.expect([_E.ACCEPTED, _E.FILL], second)
    assert {event.dedupe_key for event in before}.isdisjoint(event.dedupe_key for event in after), "a key came again"
    assert first.result.broker_order_id != second.result.broker_order_id
    snapshot = await scene.broker.snapshot(await scene.stage.now() - _DAY)
    assert total(event for event in snapshot.executions if event.kind is _E.FILL) == 3


async def survives_a_lost_answer(scene: CardRun) -> None:
    await scene.quote("99", "101")
    await scene.stage.fault(StageFault.DROP_ANSWER)
    sent = await scene.send(scene.ticket(OrderSide.BUY, "1", "90"))
    assert sent.result.outcome is Outcome.UNKNOWN
    assert len((await scene.broker.snapshot(await scene.stage.now() - _DAY)).open_orders) == 1


async def doubts_a_lost_command(scene: CardRun) -> None:
    await scene.quote("99", "101")
    await scene.stage.fault(StageFault.LOSE_COMMAND)
    sent = await scene.send(scene.ticket(OrderSide.BUY, "1", "90"))
    assert sent.result.outcome is Outcome.UNKNOWN
    assert not (await scene.broker.snapshot(await scene.stage.now() - _DAY)).open_orders


async def tells_of_a_broken_link(scene: CardRun) -> None:
    await scene.quote("99", "101")
    await scene.stage.fault(StageFault.BREAK_LINK)
    await scene.send(scene.ticket(OrderSide.BUY, "1", "90"))
    await scene.expect_end()
