"""Statements of the queue of intents, `commands`, for group commits. Only the worker that has an
account's lease runs them: the lease is the claim."""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from trading_intents.outbox.lanes import LaneRequest, SeenRow
from trading_intents.outbox.model import scrub
from trading_intents.storage.pipeline import (
    Reply,
    RowParameters,
    Statement,
    array_text,
    column_types,
)
from trading_intents.trading import FrozenStruct

FIRST_LANE = str(UUID(int=0))
# What is marked, and not held by its worker, is unclear.
_IS_DUE = """
    candidate.id <> ALL ($5::bigint[])
    AND (candidate.sent_at IS NOT NULL OR candidate.due_at <= (SELECT clock_timestamp()))
"""
# With a condition a lane is read as a whole, and only what can be claimed is seen.
_READY = f"""
    {_IS_DUE} AND NOT EXISTS (
        SELECT FROM commands AS earlier
        WHERE earlier.order_id = candidate.order_id
          AND earlier.id < candidate.id
          AND earlier.failed_at IS NULL
        OFFSET 0
    )
"""
# Of each lane as many as it has free slots are seen behind its position, urgent ones and others,
# and what waits before it. Of the order of each the first row is claimed, so that a CANCEL takes
# what it makes urgent with it, urgent ones first, and in turn over the lanes: when there are more
# than a batch takes, each has an equal share, and when there are more lanes, those behind the last
# one come first.
_CLAIM_BY_LANE = f"""
    WITH asked AS MATERIALIZED (
        SELECT * FROM unnest($1::uuid[], $2::bigint[], $6::bigint[], $7::bigint[])
            AS asked (lane, free, urgent_after, other_after)
    ), seen AS MATERIALIZED (
        SELECT asked.lane, found.*
        FROM asked CROSS JOIN LATERAL (
            (SELECT id, order_id, urgent FROM commands AS candidate
            WHERE account_id = asked.lane AND urgent AND id > asked.urgent_after
                AND failed_at IS NULL AND id <> ALL ($9::bigint[]) AND ({{where}})
            ORDER BY id LIMIT asked.free)
            UNION ALL
            (SELECT id, order_id, urgent FROM commands AS candidate
            WHERE account_id = asked.lane AND NOT urgent AND id > asked.other_after
                AND failed_at IS NULL AND id <> ALL ($9::bigint[]) AND ({{where}})
            ORDER BY id LIMIT asked.free)
        ) AS found
        UNION
        SELECT account_id, id, order_id, urgent FROM commands WHERE id = ANY ($8::bigint[])
    ), firsts AS MATERIALIZED (
        SELECT seen.*, candidate.id AS first_id, candidate.urgent AS is_first_urgent,
            ({{where}}) AND {_IS_DUE} AS is_due,
            CASE WHEN candidate.id = seen.id THEN
                extract(epoch FROM candidate.due_at - clock_timestamp()) ELSE 1 END AS wait
        FROM seen CROSS JOIN LATERAL (
            SELECT * FROM commands
            WHERE order_id = seen.order_id AND failed_at IS NULL
            ORDER BY id LIMIT 1
        ) AS candidate
    ), ranked AS MATERIALIZED (
        SELECT first_id, lane,
            row_number() OVER (PARTITION BY lane ORDER BY is_first_urgent DESC, first_id) AS rank
        FROM (SELECT DISTINCT lane, first_id, is_first_urgent FROM firsts WHERE is_due) AS due
    ), sharing AS MATERIALIZED (
        SELECT lane, least(free, greatest($3::bigint / count(*) OVER (), 1)) AS share
        FROM asked WHERE lane IN (SELECT lane FROM ranked)
        ORDER BY lane <= $4::uuid, lane LIMIT $3::bigint
    ), chosen AS MATERIALIZED (
        SELECT first_id FROM ranked JOIN sharing USING (lane) WHERE rank <= share
    ), claimed AS MATERIALIZED (
        SELECT id FROM commands AS candidate
        WHERE id = ANY (ARRAY (SELECT first_id FROM chosen)) AND {_IS_DUE}
        FOR UPDATE SKIP LOCKED
    ), noted AS MATERIALIZED (
        SELECT set_config('trading_intents.claimed', array_agg(id)::text, true) FROM claimed
    )
    SELECT json_build_object(
        'lane', lane, 'id', id, 'is_urgent', urgent, 'order_id', order_id,
        'is_claimed', id IN (SELECT id FROM claimed),
        'is_left', is_due AND first_id NOT IN (SELECT first_id FROM chosen),
        'wait_seconds', greatest(0, wait)
    )::text
    FROM firsts CROSS JOIN noted
"""  # noqa: S608 - our own constants
# The ids that this transaction has claimed, whose rows it holds.
CLAIMED_IDS = "nullif(current_setting('trading_intents.claimed', true), '')::bigint[]"


def claim_by_lane(
    lanes: Sequence[LaneRequest],
    limit: int,
    *,
    where: str = "",
    after_lane: str = FIRST_LANE,
    held: Collection[int] = (),
) -> Statement:
    """Claims at most `limit` rows of these lanes; lanes behind `after_lane` come first if there are
    more lanes than that. `held` are rows that are under way. `where` is our own SQL about the row
    `candidate`. `parse_seen` reads the reply."""
    due: list[int] = []
    known = [*held]
    for each in lanes:
        due += each.due
        known += each.waiting
    condition = f"({where}) AND {_READY}" if where else "true"
    arguments = (
        array_text(each.lane for each in lanes),
        array_text(str(each.slots) for each in lanes),
        str(limit),
        after_lane,
        array_text(map(str, held)),
        array_text(str(each.urgent_after) for each in lanes),
        array_text(str(each.other_after) for each in lanes),
        array_text(map(str, due)),
        array_text(map(str, known)),
    )
    return Statement(_CLAIM_BY_LANE.format(where=condition), arguments)


def parse_seen(reply: Reply) -> list[SeenRow]:
    return reply.parse(SeenRow)


def marking(ids: Collection[int]) -> Statement:
    """Marks commands as sent: once this has committed, they may have been."""
    sql = """
        UPDATE commands SET sent_at = clock_timestamp(), attempts = attempts + 1
        WHERE id = ANY ($1::bigint[])
    """
    return Statement(sql, (array_text(map(str, ids)),))


def find_marked(row_id: int) -> Statement:
    sql = "SELECT FROM commands WHERE id = $1::text::bigint AND sent_at IS NOT NULL"
    return Statement(sql, (str(row_id),))


def holding(delays_seconds: Mapping[int, float]) -> Statement:
    """Claimed commands are due again after their delay."""
    sql = """
        UPDATE commands SET due_at = clock_timestamp() + make_interval(secs => delay)
        FROM unnest($1::bigint[], $2::float8[]) AS held (row_id, delay)
        WHERE id = row_id AND id = ANY ($1::bigint[])
    """
    ids = array_text(map(str, delays_seconds))
    return Statement(sql, (ids, array_text(map(str, delays_seconds.values()))))


def ending(ids: Collection[int]) -> Statement:
    """Deletes commands with their outcome, in its transaction."""
    sql = "DELETE FROM commands WHERE id = ANY ($1::bigint[])"
    return Statement(sql, (array_text(map(str, ids)),))


class AttemptFailure(FrozenStruct, kw_only=True):
    """A command that is not over: why, how many attempts count, and when the next one is due.
    Without a next one it has failed."""

    id: int
    attempts: int
    delay: float
    reason: str
    is_urgent: bool = False
    has_failed: bool


_FAILED_ATTEMPTS = RowParameters(column_types(AttemptFailure))
_PUT_BACK = f"""
    UPDATE commands c
    SET sent_at = NULL, attempts = n.attempts, urgent = urgent OR n.is_urgent,
        due_at = clock_timestamp() + make_interval(secs => n.delay),
        failed_at = CASE WHEN n.has_failed THEN clock_timestamp() END, last_error = n.reason
    FROM {_FAILED_ATTEMPTS.rows} AS n WHERE c.id = n.id AND {_FAILED_ATTEMPTS.any_of("c", "id")}
"""  # noqa: S608 - our own constants


def putting_back(failed_attempts: Sequence[AttemptFailure]) -> Statement:
    rows = [
        (each.id, each.attempts, each.delay, scrub(each.reason), each.is_urgent, each.has_failed)
        for each in failed_attempts
    ]
    return Statement(_PUT_BACK, _FAILED_ATTEMPTS.pack(rows))
