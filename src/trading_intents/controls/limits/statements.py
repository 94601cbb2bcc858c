"""What the judging of limits reads and writes in the transaction that appends an action, as statements for a pipeline.
Arguments are texts: see `pack_array`."""

from collections.abc import Sequence
from typing import NamedTuple

from trading_intents.controls.limits.model import MAX_COUNT, MAX_WINDOW_MILLIS, RATE_SECONDS
from trading_intents.prices.store import KNOWN_PRICES, PRICE_JOINS
from trading_intents.storage.database import pack_array
from trading_intents.storage.pipeline import Statement


class LimitReads(NamedTuple):
    """A symbol of an account, and the terms of a CREATE, or none."""

    account_id: str
    symbol: str
    terms: str


_TERMS = """
    concat_ws('|', r ->> 'symbol', r ->> 'order_side', r ->> 'order_type', r ->> 'quantity',
              coalesce(r ->> 'limit_price', ''), coalesce(r ->> 'stop_price', ''))
"""
# LATERAL with LIMIT allows only look-ups by key. One statement: a fill moves a quantity from an order to a position,
# which must be seen in both or in neither.
_READ = f"""
    WITH asked (account_id, symbol, terms) AS MATERIALIZED (
        SELECT * FROM unnest(from_column($1)::uuid[], from_column($2), from_column($3))
    ), symbols AS MATERIALIZED (SELECT DISTINCT account_id, symbol FROM asked),
    accounts_asked AS MATERIALIZED (SELECT DISTINCT account_id FROM asked)
    SELECT 'exposure', s.account_id::text, s.symbol, e.open_orders::text, e.open_buy::text, e.open_sell::text
    FROM symbols s CROSS JOIN LATERAL (
        SELECT * FROM exposures WHERE account_id = s.account_id AND symbol = s.symbol LIMIT 1
    ) e
    UNION ALL
    SELECT 'open_orders', a.account_id::text, '', e.orders::text, NULL, NULL
    FROM accounts_asked a CROSS JOIN LATERAL (
        SELECT coalesce(sum(open_orders), 0) AS orders FROM exposures
        WHERE account_id = a.account_id AND symbol <> ''  -- which an earlier version kept
    ) e
    UNION ALL
    SELECT 'position', s.account_id::text, s.symbol, p.quantity::text, NULL, NULL
    FROM symbols s CROSS JOIN LATERAL (
        SELECT quantity FROM positions WHERE account_id = s.account_id AND symbol = s.symbol LIMIT 1
    ) p
    UNION ALL
    SELECT 'rate', a.account_id::text, '', r.orders::text, NULL, NULL
    FROM accounts_asked a CROSS JOIN LATERAL (
        SELECT sum(orders) AS orders FROM order_rates
        WHERE account_id = a.account_id
          AND second > date_trunc('second', clock_timestamp()) - interval '{RATE_SECONDS} seconds'
    ) r
    WHERE r.orders IS NOT NULL
    UNION ALL
    SELECT 'recent', a.account_id::text, a.terms, c.accepted_at::text, NULL, NULL
    FROM asked a CROSS JOIN LATERAL (
        SELECT accepted_at FROM recent_creates WHERE account_id = a.account_id AND terms = a.terms LIMIT 1
    ) c
    WHERE a.terms <> ''
"""  # noqa: S608 - our own constants


def read_limit_state(asked: Sequence[LimitReads]) -> Statement:
    """Rows of texts: what it tells of, the account, a symbol or terms, then what it has."""
    return Statement(_READ, tuple(map(pack_array, zip(*asked, strict=True))))


# What an account's log and orders say of it, in the columns of the tables that count it.
_EXPOSURES = """
    SELECT account_id, symbol, organization_id, count(*) AS open_orders,
           coalesce(sum(unfilled) FILTER (WHERE is_buy), 0) AS open_buy,
           coalesce(sum(unfilled) FILTER (WHERE NOT is_buy), 0) AS open_sell
    FROM (
        SELECT o.account_id, o.symbol, o.organization_id, o.order_side = 'BUY' AS is_buy, greatest(
            o.quantity - o.filled_quantity,
            (SELECT (a.record::json ->> 'quantity')::numeric FROM actions a
             WHERE a.account_id = o.account_id AND a.seq = o.pending_replace_seq) - o.filled_quantity,
            0
        ) AS unfilled
        FROM orders o WHERE o.account_id = ANY (from_column($1)::uuid[]) AND o.finished_at IS NULL
    ) AS open
    GROUP BY 1, 2, 3
"""
_RECENT_ACTIONS = f"""
    unnest(from_column($1)::uuid[]) AS asked (id) CROSS JOIN LATERAL (
        SELECT * FROM actions WHERE account_id = asked.id ORDER BY seq DESC LIMIT {MAX_COUNT}
    ) a
"""  # noqa: S608 - our own constants
_RATES = f"""
    SELECT a.account_id, date_trunc('second', a.created_at) AS second, a.organization_id, count(*) AS orders
    FROM {_RECENT_ACTIONS}
    WHERE a.created_at > clock_timestamp() - interval '{RATE_SECONDS + 1} seconds' AND a.action_type <> 'CANCEL'
    GROUP BY 1, 2, 3
"""  # noqa: S608 - our own constants
_CREATES = f"""
    SELECT account_id, {_TERMS} AS terms, organization_id, max(created_at) AS accepted_at
    FROM (
        SELECT a.account_id, a.organization_id, a.created_at, a.record::json AS r FROM {_RECENT_ACTIONS}
        WHERE a.created_at > clock_timestamp() - interval '{MAX_WINDOW_MILLIS} ms' AND a.action_type = 'CREATE'
    ) AS created
    GROUP BY 1, 2, 3
"""  # noqa: S608 - our own constants


def start_tracking(account_ids: Sequence[str]) -> list[Statement]:
    """Counts what is open and what was accepted lately, and has it counted from now on. The heads are held."""
    # What is counted is read after the orders are locked: it sees what those committed that the lock waited for.
    statements = (
        """
        SELECT order_id FROM orders WHERE account_id = ANY (from_column($1)::uuid[]) AND finished_at IS NULL
        ORDER BY order_id FOR UPDATE
        """,
        """
        UPDATE orders SET counted = true WHERE account_id = ANY (from_column($1)::uuid[]) AND finished_at IS NULL
        """,
        f"""
        INSERT INTO exposures (account_id, symbol, organization_id, open_orders, open_buy, open_sell) {_EXPOSURES}
        ON CONFLICT (account_id, symbol) DO UPDATE
        SET open_orders = excluded.open_orders, open_buy = excluded.open_buy, open_sell = excluded.open_sell
        """,  # noqa: S608 - our own constants
        f"""
        INSERT INTO order_rates (account_id, second, organization_id, orders) {_RATES}
        ON CONFLICT (account_id, second) DO UPDATE SET orders = excluded.orders
        """,
        f"""
        INSERT INTO recent_creates (account_id, terms, organization_id, accepted_at) {_CREATES}
        ON CONFLICT (account_id, terms) DO UPDATE SET accepted_at = excluded.accepted_at
        """,
        "UPDATE account_heads SET tracked = true WHERE account_id = ANY (from_column($1)::uuid[])",
    )
    return [Statement(sql, (pack_array(account_ids),)) for sql in statements]


def read_untracked_state(account_id: str) -> Statement:
    """What `read_limit_state` would read if the account were tracked, but for positions: for one that only asks."""
    return Statement(
        f"""
        SELECT 'exposure', account_id::text, symbol, open_orders::text, open_buy::text, open_sell::text
        FROM ({_EXPOSURES}) AS e
        UNION ALL
        SELECT 'open_orders', account_id::text, '', sum(open_orders)::text, NULL, NULL
        FROM ({_EXPOSURES}) AS e GROUP BY account_id
        UNION ALL
        SELECT 'rate', account_id::text, '', sum(orders)::text, NULL, NULL FROM ({_RATES}) AS r
        WHERE second > date_trunc('second', clock_timestamp()) - interval '{RATE_SECONDS} seconds' GROUP BY account_id
        UNION ALL
        SELECT 'recent', account_id::text, terms, accepted_at::text, NULL, NULL FROM ({_CREATES}) AS c
        """,  # noqa: S608 - our own constants
        (account_id,),
    )


_RESULTS = f"""
    SELECT 'result', asked.account_id::text, asked.broker, json_build_object(
        'quantity', asked.quantity, 'uncosted_quantity', asked.uncosted_quantity, 'open_cost', asked.open_cost,
        'realized_pnl', asked.realized_pnl
    )::text, {KNOWN_PRICES}, NULL
    FROM (
        SELECT p.*, a.environment, a.broker FROM positions p JOIN accounts a ON a.id = p.account_id
        WHERE p.account_id = ANY (from_column($1)::uuid[])
    ) AS asked {PRICE_JOINS}
    UNION ALL
    SELECT 'baseline', account_id::text, day::text, timezone, result::text, halted::text
    FROM daily_baselines WHERE account_id = ANY (from_column($1)::uuid[])
"""  # noqa: S608 - our own constants


def read_results(account_ids: Sequence[str]) -> Statement:
    """What each position made and is worth, and each account's baseline: rows for `AccountResults`."""
    return Statement(_RESULTS, (pack_array(account_ids),))


def record_baselines(rows: Sequence[tuple[str, str, str, str, str]]) -> Statement:
    """Each: account, organization, day, time zone, result. The first of a day stays."""
    return Statement(
        """
        INSERT INTO daily_baselines AS b (account_id, organization_id, day, timezone, result)
        SELECT * FROM unnest(
            from_column($1)::uuid[], from_column($2)::uuid[], from_column($3)::date[], from_column($4),
            from_column($5)::numeric[]
        )
        ON CONFLICT (account_id) DO UPDATE
        SET day = excluded.day, timezone = excluded.timezone, result = excluded.result, halted = false,
            recorded_at = clock_timestamp()
        WHERE (b.day, b.timezone) IS DISTINCT FROM (excluded.day, excluded.timezone)
        """,
        tuple(map(pack_array, zip(*rows, strict=True))),
    )


def count_orders(rows: Sequence[tuple[str, str, str]], second: str) -> Statement:
    """Adds accepted CREATEs and REPLACEs to their second; each: account, organization, how many."""
    return Statement(
        """
        INSERT INTO order_rates AS r (account_id, second, organization_id, orders)
        SELECT account_id, $4::timestamptz, organization_id, orders
        FROM unnest(from_column($1)::uuid[], from_column($2)::uuid[], from_column($3)::bigint[])
             AS new (account_id, organization_id, orders)
        ON CONFLICT (account_id, second) DO UPDATE SET orders = r.orders + excluded.orders
        """,
        (*map(pack_array, zip(*rows, strict=True)), second),
    )


def remember_creates(rows: Sequence[tuple[str, str, str]], now: str) -> Statement:
    """Each: account, organization, the terms of a CREATE that was accepted."""
    return Statement(
        """
        INSERT INTO recent_creates (account_id, terms, organization_id, accepted_at)
        SELECT DISTINCT account_id, terms, organization_id, $4::timestamptz
        FROM unnest(from_column($1)::uuid[], from_column($2)::uuid[], from_column($3))
             AS new (account_id, organization_id, terms)
        ON CONFLICT (account_id, terms) DO UPDATE SET accepted_at = excluded.accepted_at
        """,
        (*map(pack_array, zip(*rows, strict=True)), now),
    )
