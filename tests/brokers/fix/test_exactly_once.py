"""An order leaves once, under one number: whatever is lost, asked for again, taken over or too
slow."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.brokers.fix.counterparty import Counterparty, Fields
from tests.brokers.fix.orders import a_ticket, end, opened, submit
from tests.brokers.fix.venue import Connector
from tests.brokers.sought import sought
from trading_intents.brokers.fix.broker import FixBroker
from trading_intents.brokers.port import (
    Absent,
    AccountSnapshot,
    EventKind,
    LookupUnknown,
    OrderSnapshot,
    OrderTicket,
    Outcome,
)

LONG_AGO = timedelta(hours=1)


async def reopened(
    connector: Connector, other: Counterparty, first: int
) -> tuple[FixBroker, list[Fields]]:
    """Another worker's session, with a venue that asks again for everything from this number on:
    what it is sent."""
    broker = connector.connect()
    opening = asyncio.create_task(broker.open())
    await other.accept()
    logon = await other.read()
    other.send("A", [(98, "0"), (108, "30")])
    test = await other.read()
    other.send("2", [(7, str(first)), (16, "0")])
    sent = [await other.read()]
    while sent[-1][35] != "4" or int(sent[-1][36]) <= int(test[34]):
        sent.append(await other.read())
    # The first test request had a number that is filled by now: like QuickFIX, the venue answers
    # the next one.
    test_again = await other.expect("1")
    other.send("0", [(112, test_again[112])])
    await opening
    assert int(logon[34]) + 1 == int(test[34])
    return broker, sent


async def until_too_old(ticket: OrderTicket) -> None:
    assert ticket.not_after is not None
    # The loop's clock counts milliseconds.
    while (left_seconds := ticket.not_after - time.monotonic()) >= 0:
        await asyncio.sleep(left_seconds)


async def snapshot(broker: FixBroker) -> AccountSnapshot:
    return await broker.snapshot(datetime.now(UTC) - LONG_AGO, ())


async def stored(connector: Connector, query: str) -> Any:
    async with connector.pool.transaction(read_only=True) as tx:
        return await tx.fetchval(query, connector.account_id)


async def test_an_order_whose_connection_broke_is_sent_again_under_its_number(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    ticket = a_ticket()
    sending = submit(broker, ticket)
    first = await other.expect("D")
    other.writer.transport.abort()
    assert (await sending).outcome is Outcome.UNKNOWN
    await end(broker, other)
    broker, sent = await reopened(connector, other, int(first[34]))
    assert [(each[35], each[34], each[43]) for each in sent] == [
        ("D", first[34], "Y"),
        ("4", str(int(first[34]) + 1), "Y"),
    ]
    assert (sent[0][11], sent[0][122]) == (ticket.client_order_id, first[52])
    await end(broker, other)


async def test_an_order_that_was_answered_is_never_sent_again(
    connector: Connector, other: Counterparty
) -> None:
    """A venue that has lost its numbers may ask for all of them: it would execute the order a
    second time."""
    broker = await opened(connector, other)
    sending = submit(broker, a_ticket())
    other.report(await other.expect("D"))
    assert (await sending).outcome is Outcome.ACKED
    await end(broker, other)
    broker, sent = await reopened(connector, other, 1)
    assert [each[35] for each in sent] == ["4"]
    await end(broker, other)


@pytest.mark.parametrize("refusal", ["3", "j"])
async def test_a_refused_message_is_a_refused_command_and_never_sent_again(
    connector: Connector, other: Counterparty, refusal: str
) -> None:
    broker = await opened(connector, other)
    ticket = a_ticket()
    sending = submit(broker, ticket)
    order = await other.expect("D")
    other.send(
        refusal,
        [
            (45, order[34]),
            (58, "no such symbol"),
            (372, "D"),
            (380 if refusal == "j" else 373, "5"),
        ],
    )
    result = await sending
    assert (result.outcome, result.message) == (Outcome.REJECTED, "no such symbol")
    await end(broker, other)
    broker, sent = await reopened(connector, other, 1)
    assert [each[35] for each in sent] == ["4"]
    reported = [
        (e.kind, e.client_order_id, e.reason, e.detail) for e in (await snapshot(broker)).executions
    ]
    assert reported == [(EventKind.REJECTED, ticket.client_order_id, "5", "no such symbol")]
    await end(broker, other)


async def test_an_order_that_is_too_old_when_it_is_asked_for_is_skipped_for_good(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    ticket = a_ticket(seconds=0.3)
    sending = submit(broker, ticket)
    first = await other.expect("D")
    other.writer.transport.abort()
    assert (await sending).outcome is Outcome.UNKNOWN
    await end(broker, other)
    await until_too_old(ticket)
    broker, sent = await reopened(connector, other, int(first[34]))
    assert [each[35] for each in sent] == ["4"]
    reported = (await snapshot(broker)).executions
    assert [(each.kind, each.client_order_id, each.reason) for each in reported] == [
        (EventKind.REJECTED, ticket.client_order_id, "not_delivered")
    ]
    assert (
        connector.metrics.registry.get_sample_value(
            "ti_fix_incidents_total", {"incident": "skipped"}
        )
        == 1
    )
    await end(broker, other)
    broker, sent = await reopened(connector, other, int(first[34]))
    assert [each[35] for each in sent] == ["4"]
    await end(broker, other)


async def test_a_cancel_is_sent_again_however_old(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    ticket = a_ticket(seconds=None)
    cancelling = asyncio.create_task(broker.cancel(ticket, time.monotonic() + 5))
    first = await other.expect("F")
    other.writer.transport.abort()
    await cancelling
    await end(broker, other)
    broker, sent = await reopened(connector, other, int(first[34]))
    assert [each[35] for each in sent] == ["F", "4"]
    await end(broker, other)


async def test_an_order_whose_commit_took_too_long_is_not_written(
    connector: Connector, other: Counterparty
) -> None:
    """The venue never gets it: when it misses the number, that is filled."""
    broker = await opened(connector, other)
    async with connector.pool.transaction() as tx:
        await tx.fetchval(
            "SELECT true FROM fix_sessions WHERE account_id = $1 FOR UPDATE", connector.account_id
        )
        ticket = a_ticket(seconds=0.2)
        sending = submit(broker, ticket)
        await until_too_old(ticket)
    cancelling = asyncio.create_task(broker.cancel(a_ticket(None), time.monotonic() + 5))
    cancel = await other.expect("F")
    missing = int(cancel[34]) - 1
    other.send("2", [(7, str(missing)), (16, "0")])
    assert [(await other.expect("4"))[36]] == [cancel[34]]
    await other.expect("F", t43="Y")
    other.send("9", [(37, "NONE"), (11, cancel[11]), (41, "x"), (39, "8"), (434, "1"), (102, "1")])
    assert (await cancelling).outcome is Outcome.REJECTED
    await end(broker, other)
    await sending
    assert b"35=D" not in other.read_bytes


async def test_a_worker_that_lost_the_account_writes_nothing_more(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    numbers = "SELECT (epoch, next_in, next_out)::text FROM fix_sessions WHERE account_id = $1"
    before = await stored(connector, numbers)
    other.read_bytes = b""
    later = connector.connect()
    await later._store.open(later.name, "FIX.4.4", connector.client, "VENUE")
    result = await broker.submit(a_ticket(), time.monotonic() + 5)
    assert result.outcome is Outcome.NOT_SENT
    await other.expect_end()
    assert other.read_bytes == b""
    assert await stored(connector, numbers) == before
    await end(broker, other)


async def test_a_worker_that_lost_the_account_sends_nothing_again(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    sending = submit(broker, a_ticket())
    order = await other.expect("D")
    later = connector.connect()
    await later._store.open(later.name, "FIX.4.4", connector.client, "VENUE")
    other.read_bytes = b""
    other.send("2", [(7, order[34]), (16, "0")])
    await other.expect_end()
    assert other.read_bytes == b""
    assert (await sending).outcome is Outcome.UNKNOWN
    await end(broker, other)


async def test_two_sessions_of_one_worker_use_no_number_twice(
    connector: Connector, other: Counterparty
) -> None:
    """One that ends late may write after the next was opened: only the one that knows the numbers
    does."""
    broker = await opened(connector, other)
    connector.token -= 1
    second = connector.connect()
    await asyncio.gather(second.open(), other.log_on())
    assert (await broker.submit(a_ticket(), time.monotonic() + 5)).outcome is Outcome.NOT_SENT
    sending = submit(second, a_ticket())
    other.report(await other.expect("D"))
    assert (await sending).outcome is Outcome.ACKED
    await end(broker, other)
    await end(second, other)


async def test_another_worker_goes_on_with_the_same_numbers(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    sending = submit(broker, a_ticket())
    order = await other.expect("D")
    other.report(order)
    await sending
    closing = asyncio.create_task(broker.close())
    await other.expect("5")
    other.send("5")
    await closing
    later = connector.connect()
    _, logon = await asyncio.gather(later.open(), other.log_on())
    assert int(logon[34]) == int(order[34]) + 2  # after the logout
    assert logon.get(141) is None
    await end(later, other)


async def test_a_venue_that_counts_further_than_we_is_followed(
    connector: Connector, other: Counterparty
) -> None:
    """As after a restore of the database from a backup."""
    broker = connector.connect()
    opening = asyncio.create_task(broker.open())
    await other.accept()
    await other.expect("A", t34="1")
    other.send("5", [(58, "MsgSeqNum too low, expecting 17 but received 1")])
    with pytest.raises(Exception, match="expecting 17"):
        await opening
    await end(broker, other)
    later = connector.connect()
    _, logon = await asyncio.gather(later.open(), other.log_on())
    assert logon[34] == "17"
    await end(later, other)


async def test_reports_from_while_no_worker_ran_are_delivered(
    connector: Connector, other: Counterparty
) -> None:
    """The venue's messages of the meantime are asked for; a fill among them is in the next
    snapshot."""
    broker = await opened(connector, other)
    sending = submit(broker, a_ticket())
    order = await other.expect("D")
    other.report(order)
    await sending
    await end(broker, other)
    missed = other.next_out
    other.next_out += 1
    later = connector.connect()
    opening = asyncio.create_task(later.open())
    await other.log_on()
    asked = await other.expect("2")
    assert (asked[7], asked[16]) == (str(missed), "0")
    fill = [
        (37, "V1"),
        (11, order[11]),
        (17, "X1"),
        (150, "F"),
        (39, "2"),
        (55, "ACME"),
        (54, "1"),
        (38, "10"),
    ]
    amounts = [(32, "10"), (31, "99.5"), (151, "0"), (14, "10"), (6, "99.5")]
    other.send("8", [*fill, *amounts], number=missed, is_again=True)
    other.send("4", [(123, "Y"), (36, str(other.next_out))], number=missed + 1, is_again=True)
    await opening
    fills = [each for each in (await snapshot(later)).executions if each.kind is EventKind.FILL]
    assert [(each.exec_id, each.quantity, each.price) for each in fills] == [
        ("X1", Decimal(10), Decimal("99.5"))
    ]
    await end(later, other)


async def test_old_messages_are_deleted_but_for_those_of_working_orders(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    for status in ("0", "8"):
        sending = submit(broker, a_ticket())
        other.report(await other.expect("D"), exec_type=status, status=status)
        await sending
    count = """
        SELECT (SELECT count(*) FROM fix_out WHERE account_id = $1) + count(*) FROM fix_in
        WHERE account_id = $1
    """
    before = await stored(connector, count)
    await broker._store.prune()
    assert await stored(connector, count) == before
    async with connector.pool.transaction() as tx:
        for table in ("fix_in", "fix_out"):
            age = f"UPDATE {table} SET at = at - interval '91 days' WHERE account_id = $1"
            await tx.execute(age, connector.account_id)
    await broker._store.prune()
    assert await stored(connector, count) == 1
    assert len((await snapshot(broker)).open_orders) == 1
    await end(broker, other)


async def test_orders_that_a_venue_without_recovery_never_reports_are_looked_up(
    connector: Connector, other: Counterparty
) -> None:
    """Every logon begins at 1, and nothing is sent again: an order that was open may be filled by
    now."""
    connector.extends = "no_resend44"
    broker = connector.connect()
    _, logon = await asyncio.gather(broker.open(), other.log_on())
    assert (logon[34], logon[141], logon[553], logon[554]) == ("1", "Y", "ada", "hidden")
    ticket = a_ticket()
    sending = submit(broker, ticket)
    other.report(await other.expect("D"))
    assert (await sending).outcome is Outcome.ACKED
    assert [order.client_order_id for order in (await snapshot(broker)).open_orders] == [
        ticket.client_order_id
    ]
    await end(broker, other)
    later = connector.connect()
    _, logon = await asyncio.gather(later.open(), other.log_on())
    assert (logon[34], logon[141]) == ("1", "Y")
    assert (await snapshot(later)).open_orders == ()
    looking = asyncio.create_task(
        later.lookup(sought(ticket.client_order_id), time.monotonic() + 5)
    )
    asked = await other.expect("H", t11=ticket.client_order_id, t55="ACME", t54="1")
    other.report({**asked, 38: "10"}, "I", "2", {151: "0", 14: "10", 6: "99"})
    found = await looking
    assert isinstance(found, OrderSnapshot)
    assert [event.cum_quantity for event in found.events if event.kind is EventKind.STATUS] == [
        Decimal(10)
    ]
    await end(later, other)


async def test_numbers_begin_anew_when_the_schedule_says_so(
    connector: Connector, other: Counterparty
) -> None:
    connector.more |= {"reset": "daily", "reset_time": "00:00", "has_reset_flag": False}
    broker = await opened(connector, other)
    await end(broker, other)
    later = connector.connect()
    _, logon = await asyncio.gather(later.open(), other.log_on())
    assert int(logon[34]) > 2, "not yet"
    await end(later, other)
    async with connector.pool.transaction() as tx:
        query = (
            "UPDATE fix_sessions SET reset_at = reset_at - interval '1 day' WHERE account_id = $1"
        )
        await tx.execute(query, connector.account_id)
    last = connector.connect()
    opening = asyncio.create_task(last.open())
    other.next_out = 1
    logon = await other.log_on()
    await opening
    assert (logon[34], logon.get(141)) == ("1", None)
    assert await stored(connector, "SELECT epoch FROM fix_sessions WHERE account_id = $1") == 2
    await end(last, other)


async def test_an_order_that_was_never_stored_was_never_sent(
    connector: Connector, other: Counterparty
) -> None:
    connector.more["lookup"] = "none"
    broker = await opened(connector, other)
    assert await broker.lookup(sought("o-never"), time.monotonic() + 5) == Absent(never_sent=True)
    ticket = a_ticket()
    sending = submit(broker, ticket)
    order = await other.expect("D")
    assert isinstance(
        await broker.lookup(sought(ticket.client_order_id), time.monotonic() + 5), LookupUnknown
    )
    other.report(order)
    await sending
    await end(broker, other)


async def test_a_lookup_at_a_session_that_is_over_is_answered_at_once(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    await end(broker, other)
    found = await broker.lookup(sought("o-never"), time.monotonic() + 60)
    assert found == LookupUnknown("the session is down")


async def test_an_order_on_its_way_into_the_table_is_not_absent(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    async with connector.pool.transaction() as tx:
        await tx.fetchval(
            "SELECT true FROM fix_sessions WHERE account_id = $1 FOR UPDATE", connector.account_id
        )
        ticket = a_ticket()
        sending = submit(broker, ticket, seconds=0.2)
        assert (await sending).outcome is Outcome.UNKNOWN
        assert isinstance(
            await broker.lookup(sought(ticket.client_order_id), time.monotonic() + 0.2),
            LookupUnknown,
        )
    assert (await other.expect("D"))[11] == ticket.client_order_id
    await end(broker, other)
