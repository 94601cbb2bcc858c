"""The paper broker's reads of a grown journal: by key or index, bounded by what they give."""

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.brokers.paper.venue import Venue
from tests.execution.explained_statements import StatementCost
from trading_intents.brokers.paper import store
from trading_intents.brokers.paper.store import CommandTarget
from trading_intents.brokers.paper.venue.store import find_commands
from trading_intents.storage.pipeline import Statement

ROWS = 20_000
FEW = 40  # rows, far more than any of these gives
# As many orders, of which every second has a later row.
GROW = """
    INSERT INTO paper_journal (account_id, seq, number, at, command, client_order_id, duplicate,
        events, ended)
    SELECT j.account_id, n, greatest(n - n % 2, 1), j.at - interval '1 day', j.command, 'old' || n,
        false, j.events, j.ended
    FROM paper_journal j CROSS JOIN generate_series(1, $2::bigint) AS n
    WHERE account_id = $1
"""


async def explained(venue: Venue, statement: Statement) -> StatementCost:
    found = await venue.owner.fetchval(
        f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement.sql}", *statement.arguments
    )
    cost = StatementCost()
    reported: dict[str, Any] = json.loads(found)[0]
    cost.add(reported)
    return cost


@pytest.mark.parametrize("plan", ["force_generic_plan", "force_custom_plan"])
async def test_reads_of_a_grown_journal_are_bounded(venue: Venue, plan: str) -> None:
    account = uuid4()
    await venue.post("99x10 101x10")
    session = await venue.open_session(account)
    await session.submit("one", "buy 1 market")
    await session.broker.close()
    await venue.owner.execute(GROW.replace("n, greatest", "n + 10, 10 + greatest"), account, ROWS)
    await venue.owner.execute(
        "UPDATE paper_accounts SET events = events + 2000000 WHERE account_id = $1", account
    )
    session = await venue.open_session(account)
    await session.submit("two", "buy 1 limit 90")
    now = await venue.value("SELECT clock_timestamp()")
    await session.replace("three", "two", "buy 1 limit 91")
    number = await venue.value("SELECT number FROM paper_working WHERE account_id = $1", account)
    target = CommandTarget(account, None, number)
    await venue.owner.execute(f"SET plan_cache_mode = {plan}")
    for statement, least in (
        (store.find_orders([CommandTarget(account, "three")]), 3),
        (store.find_orders([CommandTarget(account, "one")]), 1),
        (store.find_orders([CommandTarget(account, "nobody"), target]), 2),
        (store.list_rows(account, number), 1),
        (store.last_before(account, now), 1),
        (store.last_before(account, now - timedelta(hours=1)), 1),
        (store.list_working([account]), 1),
        (store.list_holdings([account]), 1),
        (find_commands([(account, "three"), (account, "nobody")]), 1),
    ):
        cost = await explained(venue, statement)
        assert least <= cost.rows < FEW, (statement.sql, cost.plan)
        assert cost.blocks < FEW, (statement.sql, cost.plan)
