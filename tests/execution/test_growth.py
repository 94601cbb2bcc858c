"""Writing an order costs the same however many came before it."""

import pytest

from tests.conftest import Urls
from tests.execution.recorded_orders import Books, fill, ours, record_account, reported
from trading_intents.brokers.port import EventKind as E
from trading_intents.orders.facts import FactKind as F

ROWS = 5_000


@pytest.fixture
def urls(new_urls: Urls) -> Urls:
    """Counts rows that are read: with statistics of other tests' rows the plans are not those of a
    new database."""
    return new_urls


ROWS_READ = """
    SELECT coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)
    FROM pg_stat_xact_user_tables
"""
GROW = (
    """
    INSERT INTO orders (order_id, account_id, organization_id, environment, broker, create_seq,
        command_seq, symbol,
                        order_type, order_side, time_in_force, route_strategy, quantity,
                            received_at, created_at,
                        updated_at)
    SELECT gen_random_uuid(), $1, $2, 'paper', 'paper', 1000000 + n, 1000000 + n, 'AAPL', 'MARKET',
        'BUY', 'DAY',
           'SMART', 1, now(), now(), now()
    FROM generate_series(1, $3::bigint) AS n
    """,
    """
    INSERT INTO reports (organization_id, seq, count, day, account_id, order_id, at, symbol,
        environment, facts, events)
    SELECT $2, 1000000 + n, 1, now(), $1, CASE WHEN n % 2 = 0 THEN gen_random_uuid() END, now(),
        'AAPL', 'paper',
        json_build_array(json_build_object(
            'key', 'old' || n, 'kind', 'ACCEPTED', 'broker_order_id', 'old' || n
        )), ''
    FROM generate_series(1, $3::bigint) AS n
    """,
    """
    INSERT INTO commands (account_id, client_order_id, organization_id, order_id, seq, action_type,
        sent_at)
    SELECT $1, 'old' || n, $2, gen_random_uuid(), 1000000 + n, 'CREATE', now()
    FROM generate_series(1, $3::bigint) AS n
    """,
    """
    INSERT INTO trades (trade_id, account_id, organization_id, seq, order_id, exec_id, symbol, side,
        quantity, price,
                        cumulative_quantity, leaves_quantity, command_seq, received_at)
    SELECT gen_random_uuid(), $1, $2, 1000000 + n, gen_random_uuid(), 'old', 'AAPL', 'BUY', 1, 1, 1,
        0, 1, now()
    FROM generate_series(1, $3::bigint) AS n
    """,
    """
    INSERT INTO holdings (account_id, organization_id, symbol, received_at)
    SELECT $1, $2, 'OLD' || n, now() FROM generate_series(1, $3::bigint) AS n
    """,
)


async def rows_read(books: Books, name: str) -> int:
    """By the transaction that records an order's acknowledgement and fill."""
    sent = await books.create("10")
    events = [
        reported(E.ACCEPTED, sent, f"a{name}", broker_order_id=name),
        fill(sent, name, "10", broker_order_id=name),
    ]
    async with books.database.worker.transaction(plans="by_key") as tx:
        before: int = await tx.fetchval(ROWS_READ)
        await record_account(
            tx, books.trading_client(), events, [ours(sent, F.ACCEPTED, broker_order_id=name)]
        )
        after: int = await tx.fetchval(ROWS_READ)
    return after - before


async def test_a_report_reads_no_more_rows_in_a_large_ledger(books: Books) -> None:
    small = [await rows_read(books, f"small{number}") for number in range(3)]
    for statement in GROW:
        await books.owner.execute(statement, books.accounts[0], books.organization, ROWS)
    large = [await rows_read(books, f"large{number}") for number in range(3)]
    assert max(large) <= 2 * max(small)
    # They were made by nobody, and the books could not be true with them.
    await books.owner.execute(
        """
        DELETE FROM orders WHERE create_seq > 1000000;
        DELETE FROM reports WHERE seq > 1000000;
        DELETE FROM trades WHERE exec_id = 'old';
        DELETE FROM holdings WHERE symbol LIKE 'OLD%';
        """
    )
