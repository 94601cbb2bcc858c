"""The reads and writes by which limits are judged in the transaction that appends an action, as
statements of a pipeline. Arguments are texts: see `pack_array`."""

from collections.abc import Collection, Iterable, Sequence

from msgspec.json import encode

from trading_intents.controls.limits.model import RATE_SECONDS
from trading_intents.controls.limits.state.budgets import KeyUse
from trading_intents.controls.limits.state.recent import MAX_READ_ACTIONS, RecentRequest
from trading_intents.prices.store import KNOWN_PRICES, MARKET, PRICE_JOINS
from trading_intents.storage.database import pack_array
from trading_intents.storage.pipeline import RowParameters, Statement

# One statement: a position must be seen with the opening that it was set by. LATERAL with LIMIT
# allows only look-ups by key. An account is summed once, however many of its symbols are asked for:
# it may have thousands, and other accounts' commands wait meanwhile.
_ASKED = """
    unnest(from_column($1)::uuid[], from_column($2)::uuid[], from_column($3))
        AS asked (organization_id, account_id, symbol)
"""
# A `LimitState` as JSON, of an account whose open orders are `total`.
_STATE = """
    json_build_object(
        'account_open_orders', coalesce(total, 0), 'open_orders', coalesce(h.open_orders, 0),
        'open_buy', coalesce(h.open_buy, 0), 'open_sell', coalesce(h.open_sell, 0),
        'position', coalesce(h.quantity, 0), 'is_position_known', EXISTS (
            SELECT FROM position_openings WHERE account_id = asked.account_id OFFSET 0
        )
    )::text
"""
_READ = f"""
    WITH asked AS MATERIALIZED (SELECT * FROM {_ASKED}), totals AS MATERIALIZED (
        SELECT account_id, (
            SELECT sum(open_orders) FROM holdings
            WHERE organization_id = accounts.organization_id AND account_id = accounts.account_id
        ) AS total
        FROM (SELECT DISTINCT organization_id, account_id FROM asked) AS accounts
    )
    SELECT asked.account_id::text, asked.symbol, {_STATE}
    FROM asked JOIN totals ON totals.account_id = asked.account_id
    LEFT JOIN LATERAL (
        SELECT * FROM holdings
        WHERE organization_id = asked.organization_id AND account_id = asked.account_id
            AND symbol = asked.symbol
        LIMIT 1
    ) AS h ON true
"""  # noqa: S608 - our own constants
# Of accounts that are asked for one symbol each, as most are: in one pass, which takes a fifth
# less.
_READ_SINGLE = f"""
    SELECT asked.account_id::text, asked.symbol, {_STATE}
    FROM {_ASKED}
    CROSS JOIN LATERAL (
        SELECT sum(open_orders) AS total, sum(open_orders)
            FILTER (WHERE symbol = asked.symbol) AS open_orders,
               sum(open_buy) FILTER (WHERE symbol = asked.symbol) AS open_buy,
               sum(open_sell) FILTER (WHERE symbol = asked.symbol) AS open_sell,
               sum(quantity) FILTER (WHERE symbol = asked.symbol) AS quantity
        FROM holdings
        WHERE organization_id = asked.organization_id AND account_id = asked.account_id
    ) AS h
"""  # noqa: S608 - our own constants


def read_limit_state(asked: Collection[tuple[str, str, str]]) -> Statement:
    """By organization, account and symbol: the account's open orders, what is open of the symbol,
    the position, and whether the account's opening positions are set."""
    is_single = len({account_id for _, account_id, _ in asked}) == len(asked)
    columns = map(pack_array, zip(*asked, strict=True))
    return Statement(_READ_SINGLE if is_single else _READ, tuple(columns))


_TERMS = """
    concat_ws('|', r ->> 'symbol', r ->> 'order_side', r ->> 'order_type', r ->> 'quantity',
              coalesce(r ->> 'limit_price', ''), coalesce(r ->> 'stop_price', ''),
              coalesce(r ->> 'trail_amount', ''), coalesce(r ->> 'trail_bps', ''))
"""
MAX_DOUBLINGS = 30
# Probes at doubling distances from the log's end find how far back a minute is: what is at or
# before the latest that is too old does not count. Terms count a second longer than asked, since
# the batch looked at the clock before.
_READ_RECENT = f"""
    WITH asked AS MATERIALIZED (
        SELECT wanted.*, head.seq AS head, EXISTS (
            SELECT FROM actions a WHERE a.account_id = wanted.account_id AND a.seq = wanted.seq
                AND a.hash = wanted.hash
        ) AS is_known
        FROM unnest(from_column($1)::uuid[], from_column($2)::bigint[], from_column($3),
            from_column($4)::bigint[])
             AS wanted (account_id, seq, hash, window_millis)
        CROSS JOIN LATERAL (SELECT seq FROM account_heads WHERE account_id = wanted.account_id
            LIMIT 1) AS head
    ), sized AS MATERIALIZED (
        SELECT asked.*, greatest(old.seq, CASE WHEN asked.is_known THEN asked.seq
            ELSE 0 END) AS after
        FROM asked CROSS JOIN LATERAL (
            SELECT coalesce(max(a.seq), 0) AS seq
            FROM generate_series(0, {MAX_DOUBLINGS}) AS doubling
            CROSS JOIN LATERAL (
                SELECT * FROM actions WHERE account_id = asked.account_id
                    AND seq = asked.head - (1 << doubling) LIMIT 1
            ) AS a
            WHERE 1 << doubling < asked.head
              AND a.created_at < clock_timestamp() - interval '{RATE_SECONDS + 1} seconds'
        ) AS old
    ), chosen AS MATERIALIZED (
        SELECT sized.*, sum(head - after) OVER (ORDER BY head - after,
            account_id) <= $5::text::bigint AS is_read
        FROM sized
    ), recent AS MATERIALIZED (
        SELECT a.account_id, a.action_type, a.created_at, a.record, chosen.window_millis
        FROM chosen CROSS JOIN LATERAL (
            SELECT * FROM actions WHERE account_id = chosen.account_id AND seq > chosen.after
            ORDER BY seq
        ) AS a
        WHERE chosen.is_read AND a.action_type <> 'CANCEL'
          AND a.record NOT LIKE '%"leg":"%'  -- legs never count
          AND a.created_at >= clock_timestamp() - interval '{RATE_SECONDS + 1} seconds'
    )
    SELECT json_build_object('account_id', account_id, 'is_known', is_known)::text
    FROM chosen WHERE is_read
    UNION ALL
    SELECT json_build_object('account_id', account_id, 'second', second, 'orders', count(*))::text
    FROM (
        SELECT account_id, floor(extract(epoch FROM created_at))::bigint AS second FROM recent
    ) AS counted
    GROUP BY account_id, second
    UNION ALL
    SELECT json_build_object(
        'account_id', account_id, 'terms', terms, 'accepted_at', max(created_at)
    )::text
    FROM (
        SELECT account_id, created_at, {_TERMS} AS terms
        FROM (SELECT account_id, created_at, record::json AS r FROM recent
            WHERE action_type = 'CREATE' AND window_millis > 0
              AND created_at > clock_timestamp() - make_interval(secs => window_millis / 1000.0 + 1)
        ) AS parsed
    ) AS created
    GROUP BY account_id, terms
"""  # noqa: S608 - our own constants
_NO_MAX = 2**62


def read_recent(reads: Sequence[RecentRequest], *, may_take_long: bool) -> Statement:
    """A `RecentRow` as JSON for each: whether a log has what is known of it, then what came after
    that, or all of the last minute; if it may not take long, of the shortest only, MAX_READ_ACTIONS
    together."""
    rows: list[tuple[str, ...]] = []
    for each in reads:
        seq, digest = each.head
        rows.append((each.account_id, str(seq), digest, str(each.window_millis)))
    max_actions = str(_NO_MAX if may_take_long else MAX_READ_ACTIONS)
    return Statement(_READ_RECENT, (*map(pack_array, zip(*rows, strict=True)), max_actions))


_RESULTS = f"""
    SELECT asked.account_id::text, json_build_object(
        'quantity', asked.quantity, 'uncosted_quantity', asked.uncosted_quantity,
        'open_cost', asked.open_cost, 'realized_pnl', asked.realized_pnl,
        'opening_quantity', asked.opening_quantity, 'opening_price', asked.opening_price
    )::text, {KNOWN_PRICES}
    FROM (
        SELECT h.*, a.market FROM unnest(from_column($1)::uuid[]) AS named (account_id)
        CROSS JOIN LATERAL (
            SELECT organization_id, {MARKET} AS market FROM accounts WHERE id = named.account_id
            LIMIT 1
        ) AS a
        CROSS JOIN LATERAL (
            SELECT * FROM holdings
            WHERE organization_id = a.organization_id AND account_id = named.account_id
                AND received_at IS NOT NULL OFFSET 0
        ) AS h
    ) AS asked {PRICE_JOINS}
    UNION ALL
    SELECT account_id::text, NULL, json_build_object(
        'day', day, 'timezone', timezone, 'result', result, 'unpriced', unpriced, 'halted', halted
    )::text
    FROM daily_baselines WHERE account_id = ANY (from_column($1)::uuid[])
"""  # noqa: S608 - our own constants


def read_results(account_ids: Sequence[str]) -> Statement:
    """Reads each position's result and prices, and each account's baseline: rows for
    `AccountResults`. One statement, as one transaction sets openings and moves the baseline."""
    return Statement(_RESULTS, (pack_array(account_ids),))


def read_budgets(key_ids: Iterable[str], locking: str) -> Statement:
    """Rows for `parse_use`, in the order of their locks."""
    sql = f"""
        SELECT row_to_json(b)::text FROM key_budgets b
        WHERE key_id = ANY (from_column($1)::uuid[]) ORDER BY key_id {locking}
    """  # noqa: S608 - our own constants
    return Statement(sql, (pack_array(sorted(key_ids)),))


_USED = RowParameters(
    {"key_id": "uuid", "day": "date", "daily_notional": "numeric", "seconds": "jsonb"}
)
_KEEP_BUDGETS = f"""
    UPDATE key_budgets b SET day = u.day, daily_notional = u.daily_notional, seconds = u.seconds
    FROM {_USED.rows} AS u WHERE b.key_id = u.key_id AND b.key_id = ANY (from_column($1)::uuid[])
"""  # noqa: S608 - our own constants


def keep_budgets(used: Iterable[KeyUse]) -> Statement:
    rows: list[tuple[object, ...]] = []
    for each in used:
        seconds = encode(each.seconds).decode()
        rows.append((each.key_id, each.day, each.daily_notional, seconds))
    return Statement(_KEEP_BUDGETS, _USED.pack(rows))


def record_baselines(rows: Sequence[tuple[str, ...]]) -> Statement:
    """Rows of `baseline_rows`. The first of a day stays, and a
    later day does."""
    sql = """
        INSERT INTO daily_baselines AS b (account_id, organization_id, day, timezone, result,
            unpriced)
        SELECT * FROM unnest(
            from_column($1)::uuid[], from_column($2)::uuid[], from_column($3)::date[],
                from_column($4),
            from_column($5)::numeric[], from_column($6)::jsonb[]
        )
        ON CONFLICT (account_id) DO UPDATE
        SET day = excluded.day, timezone = excluded.timezone, result = excluded.result,
            unpriced = excluded.unpriced,
            halted = false, recorded_at = clock_timestamp()
        WHERE b.timezone <> excluded.timezone OR b.day < excluded.day
    """
    return Statement(sql, tuple(map(pack_array, zip(*rows, strict=True))))
