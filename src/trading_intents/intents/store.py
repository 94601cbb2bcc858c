"""Statements of the intents' tables: pages of the log, what proves a commit, and what an audit
compares. Never decides."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, TypedDict
from uuid import UUID

import msgspec
from msgspec.structs import replace

from trading_intents.clock import TimeRange
from trading_intents.intents.model import KnownOrder, LinkedOrder, Spec
from trading_intents.orders.store import OrderRow
from trading_intents.storage.database import Tx, pack_array
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.storage.pages import PageRequest, SeqLog, direction_of, find_range
from trading_intents.storage.pipeline import Statement
from trading_intents.trading import (
    ORDER_KINDS,
    AccountSymbol,
    FrozenStruct,
    RouteStrategy,
    Symbol,
    amount_text,
    maybe_text,
)

PRUNE_ROWS = 5_000


class ActionRef(NamedTuple):
    """Names an action by its seq in its account's log, and by its hash, which no other action
    has."""

    account_id: str
    seq: int
    hash: str


class ActionRow(FrozenStruct):
    """An action's record, which is answered as it was hashed."""

    seq: int
    record: str
    hash: str


class ChainHead(FrozenStruct):
    account_id: UUID
    seq: int
    hash: str


class JournalSpan(FrozenStruct):
    """Stands for so many messages of the organization's stream, of which it names the last."""

    seq: int
    count: int


class WholeAction(FrozenStruct, kw_only=True):
    account_id: str
    seq: int
    intent_id: str
    organization_id: str
    action_type: str
    created_at: datetime
    record: str
    hash: str
    events: bytes | None


class CreatedOrder(FrozenStruct):
    create_seq: int
    order_id: str
    symbol: str
    order_side: str
    latest: int  # the highest seq that the order names


def find_action(ref: ActionRef) -> Statement:
    sql = """
        SELECT FROM actions WHERE account_id = $1::text::uuid AND seq = $2::text::bigint
            AND hash = $3
    """
    return Statement(sql, (ref.account_id, str(ref.seq), ref.hash))


ACTIONS = SeqLog("actions", "seq", "created_at")
_LIST_ACTIONS = """
    SELECT seq, record, hash FROM actions
    WHERE account_id = $1 AND seq >= $2 AND seq < $3
      AND ($5::timestamptz IS NULL OR created_at >= $5)
          AND ($6::timestamptz IS NULL OR created_at < $6)
    ORDER BY seq {direction} LIMIT $4
"""
# The account is looked at afterwards: else a plan might go through its whole log.
_LIST_ACTIONS_OF_INTENT = """
    SELECT seq, record, hash FROM (
        SELECT * FROM actions
        WHERE intent_id = $7 AND seq >= $2 AND seq < $3
          AND ($5::timestamptz IS NULL OR created_at >= $5)
              AND ($6::timestamptz IS NULL OR created_at < $6)
        ORDER BY seq {direction} LIMIT $4
    ) AS own
    WHERE account_id = $1 ORDER BY seq {direction}
"""


async def list_actions(
    tx: Tx, account_id: UUID, times: TimeRange, page: PageRequest, intent_id: UUID | None = None
) -> list[ActionRow]:
    """All of the account's, or the intent's."""
    seqs = await find_range(tx, ACTIONS, account_id, times, page)
    direction = direction_of(page)
    most = page.limit + 1
    if intent_id is None:
        query = _LIST_ACTIONS.format(direction=direction)
        rows = await tx.fetch(query, account_id, *seqs, most, *times)
    else:
        query = _LIST_ACTIONS_OF_INTENT.format(direction=direction)
        rows = await tx.fetch(query, account_id, *seqs, most, *times, intent_id)
    return [ActionRow(**row) for row in rows]


async def find_order(tx: Tx, account_id: UUID, order_id: UUID) -> KnownOrder | None:
    query = "SELECT row_to_json(o)::text FROM orders o WHERE order_id = $1"
    text = await tx.fetchval(query, order_id)
    row = msgspec.json.decode(text, type=OrderRow) if text else None
    if row is None or row.account_id != str(account_id):
        return None
    if not row.linked:
        return known_order(row)
    (groups,) = await PoolTransaction(tx).run([read_groups([row.order_id])])
    return known_order(row, parse_groups(groups.texts()).get(row.order_id, ()))


def known_order(row: OrderRow, others: Sequence[LinkedOrder] = ()) -> KnownOrder:
    return KnownOrder(
        account_id=row.account_id,
        symbol=Symbol(row.symbol),
        side=row.order_side,
        route=RouteStrategy(row.route_strategy),
        spec=_spec_of(row),
        client_reference_id=row.client_reference_id,
        status=row.order_status,
        cancel_requested=row.cancel_requested,
        replace_pending=row.pending_replace_seq is not None,
        version=row.version,
        command_seq=row.command_seq,
        filled_quantity=row.filled_quantity,
        counted_notional=max([row.counted_notional, *(each.counted_notional for each in others)]),
        is_linked=row.linked,
        leg=row.leg,
        parent_intent_id=row.parent_order_id,
        others=tuple(others),
    )


def _spec_of(row: OrderRow) -> Spec:
    return Spec(
        kind=ORDER_KINDS[row.order_type],
        quantity=amount_text(row.quantity),
        limit_price=maybe_text(row.limit_price),
        stop_price=maybe_text(row.stop_price),
        trail_amount=maybe_text(row.trail_amount),
        trail_bps=row.trail_bps,
        time_in_force=row.time_in_force,
    )


def read_groups(order_ids: Sequence[str]) -> Statement:
    """By these linked orders: those of their groups, each with the record of the REPLACE that is
    pending. LATERAL with LIMIT, and an order that one index alone has, allow only look-ups by
    key."""
    return Statement(_READ_GROUPS, (pack_array(order_ids),))


_READ_GROUPS = """
    SELECT own.order_id::text, row_to_json(other)::text, replacing.record
    FROM orders own
    CROSS JOIN LATERAL (
        (SELECT * FROM orders WHERE order_id = own.parent_order_id LIMIT 1)
        UNION ALL
        (SELECT * FROM orders
         WHERE account_id = own.account_id
             AND parent_order_id BETWEEN coalesce(own.parent_order_id, own.order_id)
           AND coalesce(own.parent_order_id, own.order_id)
         ORDER BY parent_order_id, create_seq LIMIT 2)
    ) AS other
    LEFT JOIN LATERAL (
        SELECT record FROM actions WHERE account_id = other.account_id
            AND seq = other.pending_replace_seq LIMIT 1
    ) AS replacing ON true
    WHERE own.order_id = ANY (from_column($1)::uuid[])
"""


class _AskedPrices(TypedDict):
    """The prices in the record of a REPLACE."""

    limit_price: str | None
    stop_price: str | None


Groups = dict[str, list[LinkedOrder]]  # the others of an order's group


def parse_groups(rows: Iterable[Sequence[str]]) -> Groups:
    """Of the texts that `read_groups` gives: each other order as it is, and as a pending REPLACE
    asks for."""
    found: Groups = {}
    for order_id, text, record in rows:
        row = msgspec.json.decode(text, type=OrderRow)
        if row.order_id == order_id:
            continue
        other = LinkedOrder(
            row.leg,
            _spec_of(row),
            row.filled_quantity > 0,
            order_id=row.order_id,
            counted_notional=row.counted_notional,
            has_ended=row.finished_at is not None,
        )
        group = found.setdefault(order_id, [])
        group.append(other)
        if record:
            asked = msgspec.json.decode(record, type=_AskedPrices)
            group.append(replace(other, spec=replace(other.spec, **asked)))
    return found


async def latest_action(tx: Tx, account_id: UUID, intent_id: UUID) -> ActionRow | None:
    query = """
        SELECT seq, record, hash FROM (
            SELECT * FROM actions WHERE intent_id = $2 ORDER BY seq DESC LIMIT 1
        ) AS latest
        WHERE account_id = $1
    """
    row = await tx.fetchrow(query, account_id, intent_id)
    return ActionRow(**row) if row else None


async def prune_refusals(tx: Tx, keep_days: int) -> bool:
    """Removes the oldest rows, at most PRUNE_ROWS. True: there may be more."""
    query = """
        WITH old AS MATERIALIZED (
            SELECT id FROM refusals
            WHERE created_at < (SELECT clock_timestamp()) - make_interval(days => $1)
            ORDER BY created_at LIMIT $2
        ), removed AS (
            DELETE FROM refusals USING old WHERE refusals.id = old.id RETURNING refusals.id
        )
        SELECT count(*) FROM removed
    """
    removed: int = await tx.fetchval(query, keep_days, PRUNE_ROWS)
    return removed == PRUNE_ROWS


async def find_head(tx: Tx, account_id: UUID) -> ChainHead | None:
    query = "SELECT account_id, seq, hash FROM account_heads WHERE account_id = $1"
    row = await tx.fetchrow(query, account_id)
    return ChainHead(**row) if row else None


async def list_heads(tx: Tx, after: UUID, limit: int) -> list[ChainHead]:
    query = """
        SELECT account_id, seq, hash FROM account_heads WHERE account_id > $1 ORDER BY account_id
        LIMIT $2
    """
    return [ChainHead(**row) for row in await tx.fetch(query, after, limit)]


async def sum_heads(tx: Tx, account_id: UUID | None) -> int:
    query = """
        SELECT coalesce(sum(seq), 0)::bigint FROM account_heads
        WHERE $1::uuid IS NULL OR account_id = $1
    """
    return int(await tx.fetchval(query, account_id))


async def next_account(tx: Tx, after: UUID) -> UUID | None:
    """Finds the next account in every table that names one, since any of them may have been
    changed."""
    query = """
        SELECT least(
            (SELECT id FROM accounts WHERE id > $1 ORDER BY id LIMIT 1),
            (SELECT account_id FROM account_heads WHERE account_id > $1 ORDER BY account_id
                LIMIT 1),
            (SELECT account_id FROM actions WHERE account_id > $1 ORDER BY account_id, seq LIMIT 1),
            (SELECT account_id FROM orders WHERE account_id > $1 ORDER BY account_id, create_seq
                LIMIT 1)
        )
    """
    found: UUID | None = await tx.fetchval(query, after)
    return found


async def next_organization(tx: Tx, after: UUID, account_id: UUID | None) -> UUID | None:
    """Finds the next organization; with an account, only the account's own."""
    query = """
        SELECT id FROM organizations WHERE id > $1
            AND ($2::uuid IS NULL OR id = (SELECT organization_id FROM accounts WHERE id = $2))
        ORDER BY id LIMIT 1
    """
    found: UUID | None = await tx.fetchval(query, after, account_id)
    return found


async def list_journal(tx: Tx, organization_id: UUID, after: int, limit: int) -> list[JournalSpan]:
    """Actions and reports, in the order of their messages."""
    query = """
        (SELECT seq, count FROM reports WHERE organization_id = $1 AND seq > $2
         ORDER BY seq LIMIT $3)
        UNION ALL
        (SELECT stream_seq, 2 FROM actions WHERE organization_id = $1 AND stream_seq > $2
         ORDER BY stream_seq LIMIT $3)
        ORDER BY seq LIMIT $3
    """
    return [JournalSpan(**row) for row in await tx.fetch(query, organization_id, after, limit)]


async def list_whole_actions(tx: Tx, account_id: UUID, after: int, limit: int) -> list[WholeAction]:
    query = """
        SELECT account_id::text, seq, intent_id::text, organization_id::text, action_type,
            created_at, record, hash, events
        FROM actions WHERE account_id = $1 AND seq > $2 ORDER BY seq LIMIT $3
    """
    return [WholeAction(**row) for row in await tx.fetch(query, account_id, after, limit)]


async def read_orders(
    tx: Tx, account_id: UUID, after: int, until: int, limit: int
) -> dict[int, CreatedOrder]:
    """Reads orders by the seq of their CREATE."""
    query = """
        SELECT create_seq, order_id::text, symbol, order_side::text,
               greatest(command_seq, pending_replace_seq) AS latest
        FROM orders WHERE account_id = $1 AND create_seq > $2 AND create_seq <= $3
        ORDER BY create_seq LIMIT $4
    """
    rows = await tx.fetch(query, account_id, after, until, limit)
    orders = [CreatedOrder(**row) for row in rows]
    return {order.create_seq: order for order in orders}


def read_holdings(asked: Mapping[AccountSymbol[str], int | None]) -> Statement:
    """Positions and the unfilled quantities of open orders, as `open_sums` adds them up: a
    `Holding` as JSON by account and symbol; with the seq that the asker knew as the account's last,
    whether an order of the symbol came after it."""
    seqs = [None if seq is None else str(seq) for seq in asked.values()]
    return Statement(_READ_HOLDINGS, (*map(pack_array, zip(*asked, strict=True)), pack_array(seqs)))


_READ_HOLDINGS = """
    SELECT asked.account_id, asked.symbol, json_build_object(
        'quantity', coalesce(p.quantity, 0), 'selling', o.selling, 'buying', o.buying,
        'open_orders', o.count, 'is_newer', EXISTS (
            SELECT FROM orders n
            WHERE n.account_id = asked.account_id AND n.create_seq > asked.seen_seq
                AND n.symbol = asked.symbol
        )
    )::text
    FROM unnest(from_column($1)::uuid[], from_column($2), from_column($3)::bigint[])
         AS asked (account_id, symbol, seen_seq)
    LEFT JOIN LATERAL (
        SELECT quantity FROM holdings
        WHERE organization_id = (
            SELECT organization_id FROM account_heads WHERE account_id = asked.account_id
        ) AND account_id = asked.account_id AND symbol = asked.symbol
        LIMIT 1
    ) AS p ON true
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(leaves) FILTER (WHERE order_side = 'SELL'), 0) AS selling,
            coalesce(sum(leaves) FILTER (WHERE order_side = 'BUY'), 0) AS buying,
                coalesce(sum(orders), 0) AS count
        FROM (
            SELECT each.order_side, count(*) AS orders,
                max(CASE WHEN each.active THEN greatest(each.quantity, (
                SELECT (a.record::json ->> 'quantity')::numeric FROM actions a
                WHERE a.account_id = each.account_id AND a.seq = each.pending_replace_seq
            )) - each.filled_quantity ELSE 0 END) AS leaves
            FROM orders each
            WHERE each.account_id = asked.account_id AND each.symbol = asked.symbol
                AND each.finished_at IS NULL
            GROUP BY coalesce(each.parent_order_id, each.order_id), each.order_side
        ) AS linked
    ) AS o
"""


class CancellableOrders(FrozenStruct):
    """The first of an account's open orders that nobody cancels yet, and how many are being
    cancelled."""

    order_ids: list[str]
    cancelling: int


async def cancellable_orders(
    tx: Tx, account_id: UUID, symbol: str | None, left_out: Sequence[str], limit: int
) -> CancellableOrders:
    """Orders that are `left_out` count as being cancelled."""
    query = """
        WITH working AS MATERIALIZED (
            SELECT order_id, symbol, create_seq,
                cancel_requested OR order_id = ANY ($3::uuid[]) AS is_cancelled
            FROM orders WHERE account_id = $1 AND finished_at IS NULL
        ), wanted AS (SELECT * FROM working WHERE $2::text IS NULL OR symbol = $2)
        SELECT ARRAY(
            SELECT order_id::text FROM wanted WHERE NOT is_cancelled ORDER BY create_seq LIMIT $4
        ) AS order_ids, (SELECT count(*) FROM wanted WHERE is_cancelled) AS cancelling
    """
    [row] = await tx.fetch(query, account_id, symbol, left_out, limit)
    return CancellableOrders(**row)
