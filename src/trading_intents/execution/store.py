"""Sent commands and look-ups in the database, one function per statement. Never decides. Times are
the database's."""

from collections.abc import Collection, Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from trading_intents.brokers.port import SentOrder
from trading_intents.controls.store import was_halted
from trading_intents.execution.claims import IS_CLAIMED, SHOWN_KINDS
from trading_intents.execution.model import UnresolvedCommands
from trading_intents.ids import OrganizationId
from trading_intents.orders.facts import client_order_id
from trading_intents.orders.ledger.store import WITH_LINKED
from trading_intents.storage.database import Tx
from trading_intents.storage.pipeline import Statement, array_text
from trading_intents.trading import ORDER_KINDS, FrozenStruct, OrderSide, Symbol

SWEEP_ROWS = 100


class LockedOrder(FrozenStruct):
    order_id: UUID
    lookup_due_at: datetime | None


async def lock_unresolved(tx: Tx, order_ids: Collection[UUID]) -> list[LockedOrder]:
    """With those that are linked to them, as a recording locks them."""
    rows = await tx.fetch(_LOCK_LINKED, sorted(order_ids))
    return [LockedOrder(**row) for row in rows]


_LOCK_LINKED = f"""
    SELECT order_id, lookup_due_at FROM orders WHERE order_id
        = ANY (ARRAY ({WITH_LINKED.format(named="SELECT unnest($1::uuid[])")}))
    ORDER BY order_id FOR UPDATE
"""  # noqa: S608 - our own constants


def unmarking_sent(commands: Sequence[tuple[UUID, str]]) -> Statement:
    """Takes marks back, by account and client order id: the broker provably received nothing."""
    sql = f"""
        UPDATE commands c SET sent_at = NULL, unclear_at = NULL {_BY_NAME}
    """  # noqa: S608 - our own
    return Statement(sql, _names(commands))


def setting_unclear(commands: Sequence[tuple[UUID, str]]) -> Statement:
    """Notes that the answers of commands were lost, by account and client order id."""
    sql = f"""
        UPDATE commands c SET unclear_at = clock_timestamp(),
            sent_at = coalesce(sent_at, clock_timestamp())
        {_BY_NAME} AND unclear_at IS NULL
    """  # noqa: S608 - our own
    return Statement(sql, _names(commands))


_BY_NAME = """
    FROM unnest($1::text::uuid[], $2::text::text[]) AS n (account_id, name)
    WHERE c.account_id = n.account_id AND c.client_order_id = n.name
      AND c.account_id = ANY ($1::text::uuid[]) AND c.client_order_id = ANY ($2::text::text[])
"""


def _names(commands: Sequence[tuple[UUID, str]]) -> tuple[str, str]:
    account_ids, names = zip(*commands, strict=True)
    return array_text(map(str, account_ids)), array_text(names)


def looking_up(
    order_ids: Collection[UUID],
    seconds: float,
    is_sent: bool = True,
) -> Statement:
    """Starts look-ups of these orders, or starts them again. What was found absent may have arrived
    since, if something was sent."""
    sql = """
        UPDATE orders
        SET lookup_due_at = clock_timestamp() + make_interval(secs => $2::text::float8),
            lookups = 0, absent_at = CASE WHEN NOT $3::text::boolean THEN absent_at END
        WHERE order_id = ANY ($1::text::uuid[])
    """
    return Statement(sql, (array_text(map(str, order_ids)), str(seconds), str(is_sent)))


async def look_up_unanswered(tx: Tx, account_ids: Sequence[UUID], seconds: float) -> bool:
    """Open orders with a command that the broker took so long ago, and that has not happened, are
    looked up. Whether there is any."""
    query = f"""
        UPDATE orders SET lookup_due_at = clock_timestamp(), lookups = 0, absent_at = NULL
        WHERE order_id = ANY (ARRAY (
            SELECT order_id FROM orders o
            WHERE account_id = ANY ($1::uuid[])
                AND (cancel_requested OR pending_replace_seq IS NOT NULL)
              AND lookup_due_at IS NULL AND EXISTS (
                SELECT FROM commands c
                WHERE c.order_id = o.order_id
                    AND c.sent_at < clock_timestamp() - make_interval(secs => $2)
                  AND (c.seq = o.pending_replace_seq OR c.action_type = 'CANCEL'
                      AND o.cancel_requested)
                OFFSET 0
              ) AND NOT {IS_CLAIMED}
            ORDER BY order_id FOR UPDATE SKIP LOCKED
        ))
    """  # noqa: S608 - our own constants
    tag = await tx.execute(query, account_ids, seconds)
    return tag != "UPDATE 0"


class SentRow(FrozenStruct, kw_only=True):
    action_id: UUID
    external_order_id: str | None
    symbol: Symbol
    order_side: str
    order_type: str
    quantity: Decimal

    @property
    def order(self) -> SentOrder:
        return SentOrder(
            client_order_id=client_order_id(self.action_id),
            broker_order_id=self.external_order_id,
            symbol=self.symbol,
            side=OrderSide(self.order_side),
            kind=ORDER_KINDS[self.order_type],
            quantity=self.quantity,
        )


class UnresolvedRow(UnresolvedCommands, kw_only=True):
    order_id: UUID
    account_id: UUID
    external_order_id: str | None
    lookup_due_at: datetime | None
    create_seq: int
    pending_replace_seq: int | None
    create_action_id: UUID
    confirmed_action_id: UUID
    entry_action_id: UUID | None  # of a leg
    entry_external_id: str | None
    restored_seqs: list[int]
    symbol: Symbol
    order_side: str
    order_type: str
    quantity: Decimal
    entry_side: str | None
    entry_type: str | None
    entry_quantity: Decimal | None

    @property
    def confirmed(self) -> SentOrder:
        """The order by the version that the broker confirmed last."""
        row = SentRow(
            action_id=self.confirmed_action_id,
            external_order_id=self.external_order_id,
            symbol=self.symbol,
            order_side=self.order_side,
            order_type=self.order_type,
            quantity=self.quantity,
        )
        return row.order

    @property
    def entry(self) -> SentOrder:
        """The entry of a leg."""
        assert self.entry_action_id
        assert self.entry_quantity is not None
        row = SentRow(
            action_id=self.entry_action_id,
            external_order_id=self.entry_external_id,
            symbol=self.symbol,
            order_side=self.entry_side or "",
            order_type=self.entry_type or "",
            quantity=self.entry_quantity,
        )
        return row.order


_UNRESOLVED = f"""
    SELECT o.order_id, o.account_id, o.external_order_id, o.lookups, o.lookup_due_at, o.create_seq,
        o.pending_replace_seq, o.symbol, o.order_side, o.order_type, o.quantity,
        extract(epoch FROM clock_timestamp() - o.absent_at)::float8 AS absent_seconds,
        created.action_id AS create_action_id, confirmed.action_id AS confirmed_action_id,
        entry.confirmed_action_id AS entry_action_id,
        entry.external_order_id AS entry_external_id, entry.order_side AS entry_side,
        entry.order_type AS entry_type, entry.quantity AS entry_quantity,
        entry.acknowledged AS is_entry_acknowledged,
        EXISTS (
            SELECT FROM commands c
            WHERE c.order_id = o.order_id AND c.seq = o.create_seq
                AND c.sent_at IS NOT NULL OFFSET 0
        ) AS is_sent,
        ARRAY (
            SELECT seq FROM commands c WHERE c.order_id = o.order_id AND c.restored_at IS NOT NULL
        ) AS restored_seqs,
        EXISTS (SELECT FROM actions WHERE intent_id = o.order_id
            AND action_type = 'CANCEL' OFFSET 0) AS was_cancelled,
        NOT o.closes AND {was_halted("o", "created.created_at")} AS was_halted,
        (
            SELECT client_order_id FROM commands c
            WHERE c.order_id = o.order_id AND c.seq = o.pending_replace_seq
                AND c.unclear_at IS NOT NULL
        ) AS replace_id,
        (
            SELECT client_order_id FROM commands c
            WHERE c.order_id = o.order_id AND c.action_type = 'CANCEL' AND c.unclear_at IS NOT NULL
              AND o.cancel_requested
              AND NOT queued.is_cancel  -- while a row is left the CANCEL is sent again
            ORDER BY c.seq LIMIT 1
        ) AS cancel_id,
        queued.is_cancel OR EXISTS (
            SELECT FROM commands c
            WHERE c.order_id = o.order_id AND c.action_type = 'CANCEL' AND c.unclear_at IS NULL
              AND c.sent_at > clock_timestamp() - interval '10 s'
            OFFSET 0
        ) AS is_cancelling,
        o.cancel_requested OR o.pending_replace_seq IS NOT NULL AS is_pending
    FROM orders o
    CROSS JOIN LATERAL (
        SELECT action_id, created_at FROM actions
        WHERE account_id = o.account_id AND seq = o.create_seq LIMIT 1
    ) AS created
    CROSS JOIN LATERAL (
        SELECT action_id FROM actions WHERE account_id = o.account_id AND seq = o.command_seq
        LIMIT 1
    ) AS confirmed
    LEFT JOIN LATERAL (
        SELECT p.external_order_id, p.order_side, p.order_type, p.quantity, (
            SELECT action_id FROM actions WHERE account_id = p.account_id AND seq = p.command_seq
        ) AS confirmed_action_id, EXISTS (
            SELECT FROM reports r CROSS JOIN json_array_elements(r.facts) AS fact
            WHERE r.order_id = p.order_id AND r.facts IS NOT NULL
                AND fact ->> 'kind' IN ({SHOWN_KINDS}) OFFSET 0
        ) AS acknowledged
        FROM orders p WHERE p.order_id = o.parent_order_id LIMIT 1
    ) AS entry ON true
    CROSS JOIN LATERAL (
        SELECT count(*) > 0 AS is_cancel FROM outbox r
        WHERE r.order_key = o.order_id AND r.queue = 'intents' AND r.event_type = 'intent.cancel'
          AND r.finished_at IS NULL
    ) AS queued
"""  # noqa: S608 - our own constants


async def due_lookups(tx: Tx, account_ids: Sequence[UUID], limit: int) -> list[UnresolvedRow]:
    """The orders of each account that are due first, so many at most."""
    query = f"""
        {_UNRESOLVED} WHERE o.order_id = ANY (ARRAY (
            SELECT due.order_id FROM unnest($1::uuid[]) AS asked (account_id) CROSS JOIN LATERAL (
                SELECT order_id FROM orders
                WHERE account_id = asked.account_id AND lookup_due_at <= (SELECT clock_timestamp())
                ORDER BY lookup_due_at LIMIT $2
            ) AS due
        ))
        ORDER BY o.lookup_due_at
    """  # noqa: S608 - our own constants
    rows = await tx.fetch(query, account_ids, limit)
    return [UnresolvedRow(**row) for row in rows]


async def read_unresolved(tx: Tx, order_id: UUID) -> UnresolvedRow:
    [row] = await tx.fetch(f"{_UNRESOLVED} WHERE o.order_id = $1", order_id)
    return UnresolvedRow(**row)


async def schedule_lookup(
    tx: Tx, order_id: UUID, after_seconds: float | None, is_absent: bool
) -> None:
    """Sets the next look-up (None: none), and whether this one found that the unresolved command
    never arrived."""
    query = """
        UPDATE orders
        SET lookup_due_at = clock_timestamp() + make_interval(secs => $2),
            lookups = CASE WHEN $2::float8 IS NULL THEN 0 ELSE lookups + 1 END,
            absent_at = CASE WHEN $3 THEN coalesce(absent_at, clock_timestamp()) END
        WHERE order_id = $1
    """
    await tx.execute(query, order_id, after_seconds, is_absent)


async def clear_unclear(tx: Tx, account_id: UUID, client_order_id: str) -> None:
    query = """
        UPDATE commands SET unclear_at = NULL
        WHERE (order_id, seq) = (SELECT order_id, seq FROM commands
            WHERE account_id = $1 AND client_order_id = $2)
    """
    await tx.execute(query, account_id, client_order_id)


async def queue_behind(tx: Tx, order_id: UUID) -> None:
    """Moves the order's other waiting rows behind its CREATE, which was just queued again."""
    query = """
        UPDATE outbox SET id = DEFAULT
        WHERE queue = 'intents' AND order_key = $1 AND finished_at IS NULL
            AND event_type <> 'intent.create'
    """
    await tx.execute(query, order_id)


class OverdueOrder(FrozenStruct):
    order_id: UUID
    account_id: UUID
    organization_id: OrganizationId


async def stale_orders(
    tx: Tx, account_ids: Sequence[UUID], again_seconds: float, limit: int
) -> list[OverdueOrder]:
    """Orders that worked longer than their symbol allows since the action they reflect, without a
    recent CANCEL."""
    query = """
        SELECT o.order_id, o.account_id, o.organization_id
        FROM symbol_times t
        CROSS JOIN LATERAL (
            SELECT * FROM orders
            WHERE account_id = t.account_id AND symbol = t.symbol AND finished_at IS NULL
                AND NOT cancel_requested
              AND order_status IN ('NEW', 'PARTIALLY_FILLED', 'PENDING_REPLACE') AND leg IS NULL
            OFFSET 0
        ) AS o
        CROSS JOIN LATERAL (
            SELECT created_at FROM actions WHERE account_id = o.account_id AND seq = o.command_seq
            LIMIT 1
        ) AS a
        WHERE t.stale_order_millis IS NOT NULL AND t.account_id = ANY ($1::uuid[])
          AND a.created_at < clock_timestamp()
              - make_interval(secs => t.stale_order_millis / 1000.0)
          AND NOT EXISTS (
            SELECT FROM actions c
            WHERE c.intent_id = o.order_id AND c.action_type = 'CANCEL'
              AND c.created_at > clock_timestamp() - make_interval(secs => $2)
            OFFSET 0
          )
        ORDER BY array_position($1::uuid[], o.account_id), o.order_id LIMIT $3
    """
    rows = await tx.fetch(query, account_ids, again_seconds, limit)
    return [OverdueOrder(**row) for row in rows]


class UsedUpRow(FrozenStruct, kw_only=True):
    id: int
    order_key: UUID
    lane: UUID
    event_type: str
    last_error: str | None
    action_id: UUID
    is_sent: bool


async def used_up(
    tx: Tx, lanes: Sequence[UUID], attempt_limit: int, claim_seconds: float
) -> list[UsedUpRow]:
    """Rows that are to fail: no attempt is left, and no worker runs the last one, unless it is the
    asker."""
    query = """
        WITH ended AS MATERIALIZED (
            SELECT * FROM outbox
            WHERE lane = ANY ($1::uuid[]) AND finished_at IS NULL AND attempts >= $2
              AND (status = 'pending'
                  OR claimed_at < (SELECT clock_timestamp()) - make_interval(secs => $3))
        )
        SELECT r.id, r.order_key, r.lane, r.event_type, r.last_error, a.action_id,
               EXISTS (
                   SELECT FROM commands c
                   WHERE c.order_id = r.order_key AND c.seq = a.seq
                       AND c.sent_at IS NOT NULL OFFSET 0
               ) AS is_sent
        FROM ended r CROSS JOIN LATERAL (
            SELECT action_id, seq FROM actions
            WHERE account_id = r.lane AND seq = (r.payload ->> 'seq')::bigint LIMIT 1
        ) AS a
        ORDER BY r.id LIMIT $4
    """
    rows = await tx.fetch(query, lanes, attempt_limit, claim_seconds, SWEEP_ROWS)
    return [UsedUpRow(**row) for row in rows]
