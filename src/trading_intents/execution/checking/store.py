"""Statements that find what must never be. By key or index only, over the accounts that are named;
each sees one moment. Never decides."""

from collections.abc import Sequence
from uuid import UUID

from trading_intents.storage.database import Tx
from trading_intents.trading import FrozenStruct


class ForgottenOrder(FrozenStruct):
    order_id: UUID
    account_id: UUID
    order_status: str


async def find_forgotten(tx: Tx, account_ids: Sequence[UUID]) -> list[ForgottenOrder]:
    """Open orders that nobody works on, though something of them is not answered: PENDING_NEW,
    UNKNOWN, or with a REPLACE or CANCEL that no broker took. Each must have a command in the queue,
    or a look-up due. An exit waits for its entry, which is checked itself; what the broker took is
    looked up if it does not happen (`look_up_unanswered`)."""
    query = """
        SELECT o.order_id, o.account_id, o.order_status::text
        FROM orders o
        WHERE o.account_id = ANY ($1::uuid[]) AND o.finished_at IS NULL AND o.lookup_due_at IS NULL
          AND (
            o.order_status IN ('PENDING_NEW', 'UNKNOWN')
                AND (o.leg IS NULL OR o.order_status = 'UNKNOWN' AND NOT EXISTS (
                    SELECT FROM orders entry
                    WHERE entry.order_id = o.parent_order_id AND entry.lookup_due_at IS NOT NULL
                    OFFSET 0
                ))
            OR o.cancel_requested AND NOT EXISTS (
                SELECT FROM sent_commands c
                WHERE c.order_id = o.order_id AND c.action_type = 'CANCEL'
                    AND c.sent_at IS NOT NULL AND c.unclear_at IS NULL
                OFFSET 0
            )
            OR o.pending_replace_seq IS NOT NULL AND NOT EXISTS (
                SELECT FROM sent_commands c
                WHERE c.order_id = o.order_id AND c.seq = o.pending_replace_seq
                    AND c.sent_at IS NOT NULL AND c.unclear_at IS NULL
                OFFSET 0
            )
          )
          AND NOT EXISTS (
            SELECT FROM commands c
            WHERE c.order_id IN (o.order_id, o.parent_order_id) AND c.failed_at IS NULL
            OFFSET 0
          )
        ORDER BY o.order_id
    """
    return [ForgottenOrder(**row) for row in await tx.fetch(query, account_ids)]
