"""Statements of the intents queue for group commits: rows are claimed in turn over the accounts,
and locked again."""

from collections.abc import Collection, Sequence
from uuid import UUID

from trading_intents.outbox.lanes import LaneRequest, SeenRow
from trading_intents.outbox.model import CLAIM_SECONDS, ClaimedRow
from trading_intents.storage.pipeline import Reply, Statement, array_text

FIRST_LANE = str(UUID(int=0))
# By the status: if this named finished_at, the planner could take a partial index for a look-up by
# id, and read all of it.
_IS_DUE = """
    candidate.attempts < $4::bigint
    AND (
        (candidate.status = 'pending' AND candidate.due_at <= (SELECT clock_timestamp()))
        OR (candidate.status = 'processing' AND candidate.id <> ALL ($7::bigint[])
            AND candidate.claimed_at < (SELECT clock_timestamp())
                - make_interval(secs => $12::float8))
    )
"""
# With a condition a lane is read as a whole, and only what can be claimed is seen.
_READY = f"""
    {_IS_DUE} AND NOT EXISTS (
        SELECT FROM outbox AS earlier
        WHERE earlier.order_key = candidate.order_key
          AND earlier.queue = 'intents'
          AND earlier.id < candidate.id
          AND earlier.finished_at IS NULL
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
        SELECT * FROM unnest($1::uuid[], $2::bigint[], $8::bigint[], $9::bigint[])
            AS asked (lane, free, urgent_after, other_after)
    ), seen AS MATERIALIZED (
        SELECT asked.lane, found.*
        FROM asked CROSS JOIN LATERAL (
            (SELECT id, order_key, urgent FROM outbox AS candidate
            WHERE lane = asked.lane AND urgent AND id > asked.urgent_after
                AND finished_at IS NULL AND id <> ALL ($11::bigint[]) AND ({{where}})
            ORDER BY id LIMIT asked.free)
            UNION ALL
            (SELECT id, order_key, urgent FROM outbox AS candidate
            WHERE lane = asked.lane AND NOT urgent AND id > asked.other_after
                AND finished_at IS NULL AND id <> ALL ($11::bigint[]) AND ({{where}})
            ORDER BY id LIMIT asked.free)
        ) AS found
        UNION
        SELECT lane, id, order_key, urgent FROM outbox
        WHERE id = ANY ($10::bigint[]) AND status IN ('pending', 'processing')
    ), firsts AS MATERIALIZED (
        SELECT seen.*, candidate.id AS first_id, candidate.urgent AS is_first_urgent,
            ({{where}}) AND {_IS_DUE} AS is_due,
            CASE WHEN candidate.id = seen.id AND candidate.status = 'pending' THEN
                extract(epoch FROM candidate.due_at - clock_timestamp()) ELSE 1 END AS wait
        FROM seen CROSS JOIN LATERAL (
            SELECT * FROM outbox
            WHERE order_key = seen.order_key AND queue = 'intents' AND finished_at IS NULL
            ORDER BY id LIMIT 1
        ) AS candidate
    ), ranked AS MATERIALIZED (
        SELECT first_id, lane,
            row_number() OVER (PARTITION BY lane ORDER BY is_first_urgent DESC, first_id) AS rank
        FROM (SELECT DISTINCT lane, first_id, is_first_urgent FROM firsts WHERE is_due) AS due
    ), sharing AS MATERIALIZED (
        SELECT lane, least(free, greatest($3::bigint / count(*) OVER (), 1)) AS share
        FROM asked WHERE lane IN (SELECT lane FROM ranked)
        ORDER BY lane <= $6::uuid, lane LIMIT $3::bigint
    ), chosen AS MATERIALIZED (
        SELECT first_id FROM ranked JOIN sharing USING (lane) WHERE rank <= share
    ), candidates AS MATERIALIZED (
        SELECT id FROM outbox AS candidate
        WHERE id = ANY (ARRAY (SELECT first_id FROM chosen)) AND {_IS_DUE}
        FOR UPDATE SKIP LOCKED
    ), claimed AS (
        UPDATE outbox
        SET status = 'processing', attempts = attempts + 1, claimed_at = clock_timestamp(),
            claim_token = $5::uuid
        FROM candidates
        WHERE outbox.id = candidates.id AND outbox.id = ANY (ARRAY (SELECT id FROM candidates))
        RETURNING outbox.id
    ), noted AS MATERIALIZED (
        SELECT set_config('trading_intents.claimed', array_agg(id)::text, true) FROM claimed
    )
    SELECT json_build_object(
        'lane', lane, 'id', id, 'is_urgent', urgent, 'order_key', order_key,
        'is_claimed', id IN (SELECT id FROM claimed),
        'is_left', is_due AND first_id NOT IN (SELECT first_id FROM chosen),
        'wait_seconds', greatest(0, wait)
    )::text
    FROM firsts CROSS JOIN noted
"""  # noqa: S608 - our own constants
# The ids that this transaction has claimed. No index has the token, so that a claim changes none.
CLAIMED_IDS = "nullif(current_setting('trading_intents.claimed', true), '')::bigint[]"


def claim_by_lane(
    lanes: Sequence[LaneRequest],
    limit: int,
    attempt_limit: int,
    token: UUID,
    *,
    where: str = "",
    after_lane: str = FIRST_LANE,
    held: Collection[int] = (),
) -> Statement:
    """Claims at most `limit` rows of these lanes under one token; lanes behind `after_lane` come
    first if there are more lanes than that. `held` are rows that the asker has claimed before:
    while it has the lanes' leases, no claim of its own expires. `where` is our own SQL about the
    row `candidate`. `parse_seen` reads the reply."""
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
        str(attempt_limit),
        str(token),
        after_lane,
        array_text(map(str, held)),
        array_text(str(each.urgent_after) for each in lanes),
        array_text(str(each.other_after) for each in lanes),
        array_text(map(str, due)),
        array_text(map(str, known)),
        str(CLAIM_SECONDS),
    )
    return Statement(_CLAIM_BY_LANE.format(where=condition), arguments)


def parse_seen(reply: Reply) -> list[SeenRow]:
    return reply.parse(SeenRow)


def find_claimed(row_id: str, token: UUID) -> Statement:
    sql = "SELECT FROM outbox WHERE id = $1::text::bigint AND claim_token = $2::text::uuid"
    return Statement(sql, (row_id, str(token)))


def lock_claimed(claims: Sequence[ClaimedRow]) -> Statement:
    """Locks claimed rows by id. `parse_locked` gives the ids and tokens of those that still
    hold."""
    sql = """
        SELECT id, claim_token FROM outbox
        WHERE id = ANY ($1::bigint[]) AND claim_token = ANY ($2::uuid[]) ORDER BY id FOR UPDATE
    """
    ids = array_text(str(row.id) for row in claims)
    return Statement(sql, (ids, array_text({str(row.token) for row in claims})))


def parse_locked(reply: Reply) -> set[tuple[int, UUID]]:
    return {(int(row_id), UUID(token)) for row_id, token in reply.texts()}
