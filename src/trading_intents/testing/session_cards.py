"""The cards about the session itself: it closes, works again after a restart, and reports lost
events."""

from trading_intents.brokers import port
from trading_intents.brokers.port import BrokerBalance, Outcome
from trading_intents.testing import broker_suite as suite
from trading_intents.testing.broker_suite import (
    TAKES_LIMIT,
    TAKES_MARKET,
    Card,
    CardRun,
    StageFault,
    deadline,
    total,
)
from trading_intents.trading import OrderSide

_E = port.EventKind
_F = StageFault


async def closes(run: CardRun) -> None:
    await run.close()
    assert run.has_ended
    result = await run.broker.submit(run.ticket(OrderSide.BUY, "1"), deadline())
    assert result.outcome is Outcome.NOT_SENT


async def opens_again(run: CardRun) -> None:
    await run.quote("99", "100")
    await run.connect_again()
    await run.expect([_E.ACCEPTED, _E.FILL], await run.buy("1"))


async def reports_missed_fills(run: CardRun) -> None:
    await run.quote("99", "101")
    sent = await run.buy("5", "100")
    await run.close()
    await run.quote("98", "99")
    await run.connect_again()
    snapshot = await run.snapshot()
    reported = {event.dedupe_key: event for event in (*snapshot.executions, *run.fills(sent))}
    assert total(reported.values()) == 5


async def goes_on_after_a_restart(run: CardRun) -> None:
    """Keys and ids of the venue are not used again, and earlier commands are still known."""
    await run.quote("99", "100")
    first = await run.buy("1", "100")
    before = await run.expect([_E.ACCEPTED, _E.FILL], first)
    await run.connect_again()
    await run.quote("99", "100")
    second = await run.buy("2", "100")
    after = await run.expect([_E.ACCEPTED, _E.FILL], second)
    keys = {event.dedupe_key for event in (*before, *after)}
    assert len(keys) == len(before) + len(after), "a key came again"
    assert first.result.broker_order_id != second.result.broker_order_id
    snapshot = await run.snapshot()
    assert total(snapshot.executions) == 3


async def survives_a_lost_answer(run: CardRun) -> None:
    await run.quote("99", "101")
    await run.stage.fault(_F.DROP_ANSWER)
    sent = await run.send(run.ticket(OrderSide.BUY, "1", "90"))
    assert sent.result.outcome is Outcome.UNKNOWN
    if not (await run.snapshot()).open_orders:
        await run.connect_again()  # a venue may report it only then
    assert len((await run.snapshot()).open_orders) == 1


async def doubts_a_lost_command(run: CardRun) -> None:
    await run.quote("99", "101")
    await run.stage.fault(_F.LOSE_COMMAND)
    sent = await run.send(run.ticket(OrderSide.BUY, "1", "90"))
    assert sent.result.outcome is Outcome.UNKNOWN
    assert not (await run.snapshot()).open_orders


async def reports_a_lost_connection(run: CardRun) -> None:
    await run.quote("99", "101")
    await run.stage.fault(_F.BREAK_LINK)
    await run.send(run.ticket(OrderSide.BUY, "1", "90"))
    await run.expect_end()


async def works_without_updates(run: CardRun) -> None:
    """A venue may refuse a stream for minutes, while it takes an earlier one for alive."""
    await run.quote("99", "100")
    await run.stage.fault(_F.REFUSE_UPDATES)
    await run.connect_again()
    assert run.missing, "nothing says that updates are missing"
    filled = await run.buy("1", "100")
    cancelled = await run.buy("2", "90")
    assert (await run.cancel(cancelled)).result.outcome is Outcome.ACKED
    await run.found(cancelled)
    await run.expect([_E.ACCEPTED, _E.FILL], filled)
    await run.expect([_E.ACCEPTED, _E.CANCELLED], cancelled)


async def leaves_out_unreadable(run: CardRun) -> None:
    """The others are reported, before and after; the session goes on, and a snapshot or the stream
    says what is left out."""
    await run.quote("99", "100")
    await run.expect_filled("1", await run.buy("1", "100"))
    await run.stage.fault(_F.GARBLE)
    await run.buy("2", "100")
    await run.expect_filled("3", await run.buy("3", "100"))
    await run.connect_again()
    snapshot = await run.snapshot()
    assert total(snapshot.executions) == 4
    assert snapshot.unreadable, "nothing says that a row is left out"
    await run.expect_filled("4", await run.buy("4", "100"))


async def reports_balance(run: CardRun) -> None:
    """A purchase leaves the cash at once; a holding counts in the equity."""
    before = await _balance(run)
    assert before.currency
    await run.quote("100", "100")
    await run.expect_filled("7", await run.buy("7"))
    after = await _balance(run)
    assert before.cash is not None
    assert after.cash == before.cash - 700
    if before.equity is not None and after.equity is not None:
        assert after.equity == before.equity
    assert after.as_of >= before.as_of


async def _balance(run: CardRun) -> BrokerBalance:
    balance = (await run.snapshot()).balance
    assert balance is not None, "the capabilities say that it reports balances"
    return balance


SESSION_CARDS = (
    Card(1, "a closed session sends nothing, and its stream has ended", closes),
    Card(2, "a session can be opened again", opens_again, TAKES_MARKET),
    Card(
        62,
        "fills from while the session was closed are reported",
        reports_missed_fills,
        TAKES_LIMIT,
    ),
    Card(
        63,
        "after a restart no key comes again, and nothing is forgotten",
        goes_on_after_a_restart,
        TAKES_LIMIT,
    ),
    Card(
        64,
        "a snapshot has the balance, which moves with the fills",
        reports_balance,
        suite.REPORTS_BALANCES,
    ),
    Card(70, "a lost answer is unknown", survives_a_lost_answer, TAKES_LIMIT, _F.DROP_ANSWER),
    Card(71, "a lost command is unknown", doubts_a_lost_command, TAKES_LIMIT, _F.LOSE_COMMAND),
    Card(
        72,
        "a lost connection ends the stream, or is a gap",
        reports_a_lost_connection,
        fault=_F.BREAK_LINK,
    ),
    Card(
        73,
        "a row that cannot be read ends no session",
        leaves_out_unreadable,
        suite.HAS_OWN_VENUE,
        _F.GARBLE,
    ),
    Card(
        74,
        "commands are sent without updates",
        works_without_updates,
        suite.HAS_OTHER_SOURCES,
        _F.REFUSE_UPDATES,
    ),
)
