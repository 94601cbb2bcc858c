"""An operator sets the numbers anew while a worker logs on or trades: its session ends, and no
number is used twice."""

import asyncio
import contextlib
import re
import time
from collections import Counter

from tests.brokers.fix.counterparty import Counterparty
from tests.brokers.fix.orders import a_ticket, end, expect_working, opened, submit
from tests.brokers.fix.venue import Connector
from trading_intents.brokers.fix.broker import FixBroker
from trading_intents.brokers.fix.store import reset_numbers
from trading_intents.brokers.port import BrokerUnavailable, Outcome

ROUNDS = 8
MESSAGE = re.compile(rb"8=FIX.*?\x0110=\d{3}\x01", re.DOTALL)


async def reset(connector: Connector) -> None:
    async with connector.pool.transaction() as tx:
        await reset_numbers(tx, connector.account_id, "agreed")


async def test_a_session_sends_nothing_more_once_its_numbers_are_reset(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    other.read_bytes = b""
    await reset(connector)
    assert (await broker.submit(a_ticket(), time.monotonic() + 5)).outcome is Outcome.NOT_SENT
    await other.expect_end()
    assert other.read_bytes == b""
    await end(broker, other)


async def test_a_session_sends_nothing_again_once_its_numbers_are_reset(
    connector: Connector, other: Counterparty
) -> None:
    """The operator gave its commands up: the venue must not get them though it asks in this
    moment."""
    broker = await opened(connector, other)
    sending = submit(broker, a_ticket())
    order = await other.expect("D")
    other.read_bytes = b""
    await reset(connector)
    # Its number says that a gap comes before it: such a request is answered before anything is
    # stored.
    other.send("2", [(7, order[34]), (16, "0")], number=1)
    await other.expect_end()
    assert b"35=D" not in other.read_bytes
    assert (await sending).outcome is Outcome.UNKNOWN
    await end(broker, other)
    other.next_out = 1
    later = connector.connect()
    _, logon = await asyncio.gather(later.open(), other.log_on())
    assert logon[34] == "1"
    await expect_working(later, other)
    await end(later, other)


async def next_out(connector: Connector) -> int:
    async with connector.pool.transaction(read_only=True) as tx:
        query = "SELECT next_out FROM fix_sessions WHERE account_id = $1"
        return int(await tx.fetchval(query, connector.account_id))


async def answer(other: Counterparty) -> None:
    """Takes whatever comes, as a venue that agreed to the reset."""
    await other.accept()
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            found = await other.read()
            if found[35] == "A":
                other.send("A", [(98, "0"), (108, "30")])
            elif found[35] == "1":
                other.send("0", [(112, found[112])])
            elif found[35] == "D":
                other.report(found)


async def log_on_and_trade(broker: FixBroker) -> None:
    with contextlib.suppress(BrokerUnavailable):
        await broker.open()
        await broker.submit(a_ticket(), time.monotonic() + 5)
    await broker.close()


async def test_a_reset_and_a_logon_at_once_use_no_number_twice(
    connector: Connector, other: Counterparty
) -> None:
    """Whichever comes first: all that leaves has a number of its own in its epoch."""
    await end(await opened(connector, other), other)
    await reset(connector)
    for number in range(ROUNDS):
        other.next_out = 1
        answering = asyncio.create_task(answer(other))
        trading = asyncio.create_task(log_on_and_trade(connector.connect()))
        # Before the logon is stored, after it, after the test request, after the order.
        while not trading.done() and await next_out(connector) <= number % 4:
            pass
        await reset(connector)
        await trading
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
    left = Counter(
        raw for raw in MESSAGE.findall(other.read_bytes) if re.search(rb"\x0135=[AD5]\x01", raw)
    )
    async with connector.pool.transaction(read_only=True) as tx:
        rows = await tx.fetch("SELECT raw FROM fix_out WHERE account_id = $1", connector.account_id)
    assert left <= Counter(row["raw"] for row in rows), "something left without a number, or twice"
    assert len([raw for raw in left if b"\x0135=D\x01" in raw]) > 0
    other.next_out = 1
    await end(await opened(connector, other), other)
