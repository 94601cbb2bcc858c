"""Statements of the intents queue for group commits: rows are claimed in turn over the accounts,
and locked again."""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from trading_intents.outbox.model import CLAIM_SECONDS, ClaimedRow
from trading_intents.storage.pipeline import Reply, Statement, array_text

FIRST_LANE = str(UUID(int=0))
# Of each lane as many as it has free slots, urgent ones first, and in turn over the lanes: when
# there are more than a batch takes, each has an equal share, and when there are more lanes, those
# behind the last one come first. Only lanes with unfinished rows are visited, by one look into the
# index each.
_CLAIM_BY_LANE = """
    WITH RECURSIVE busy AS (
        (SELECT lane FROM outbox WHERE finished_at IS NULL AND lane IS NOT NULL ORDER BY lane
            LIMIT 1)
        UNION ALL
        SELECT (
            SELECT lane FROM outbox
            WHERE finished_at IS NULL AND lane IS NOT NULL AND lane > busy.lane ORDER BY lane
            LIMIT 1
        )
        FROM busy WHERE busy.lane IS NOT NULL
    ), sharing AS MATERIALIZED (
        SELECT lane, least(free, greatest($3::bigint / count(*) OVER (), 1)) AS share
        FROM busy JOIN unnest($1::uuid[], $2::bigint[]) AS free (lane, free) USING (lane)
        ORDER BY lane <= $6::uuid, lane LIMIT $3::bigint
    ), candidates AS MATERIALIZED (
        SELECT found.id, sharing.share
        FROM sharing CROSS JOIN LATERAL (
            SELECT id FROM outbox AS candidate
            WHERE lane = sharing.lane
              AND event_type IN ('intent.create', 'intent.replace', 'intent.cancel')
              AND attempts < $4::bigint
              AND finished_at IS NULL
              AND (
                (status = 'pending' AND due_at <= (SELECT clock_timestamp()))
                OR (status = 'processing' AND id <> ALL ($7::bigint[])
                    AND claimed_at < (SELECT clock_timestamp()) - interval '{seconds} s')
              )
              AND NOT EXISTS (
                SELECT FROM outbox AS earlier
                WHERE earlier.order_key = candidate.order_key
                  AND earlier.queue = 'intents'
                  AND earlier.id < candidate.id
                  AND earlier.finished_at IS NULL
                OFFSET 0
              )
              AND ({where})
            ORDER BY urgent DESC, id
            LIMIT sharing.share
            FOR UPDATE SKIP LOCKED
        ) AS found
    ), claimed AS (
        UPDATE outbox
        SET status = 'processing', attempts = attempts + 1, claimed_at = clock_timestamp(),
            claim_token = $5::uuid
        FROM candidates
        WHERE outbox.id = candidates.id AND outbox.id = ANY (ARRAY (SELECT id FROM candidates))
        RETURNING outbox.id, lane, share
    ), noted AS MATERIALIZED (
        SELECT set_config('trading_intents.claimed', array_agg(id)::text, true) FROM claimed
    )
    SELECT lane, share FROM claimed CROSS JOIN noted
"""
# The ids that this transaction has claimed. No index has the token, so that a claim changes none.
CLAIMED_IDS = "nullif(current_setting('trading_intents.claimed', true), '')::bigint[]"


def claim_by_lane(
    free_slots: Mapping[str, int],
    where: str,
    limit: int,
    attempt_limit: int,
    token: UUID,
    after_lane: str = FIRST_LANE,
    held: Collection[int] = (),
) -> Statement:
    """Claims at most `limit` rows of these lanes under one token; lanes behind `after_lane` come
    first if there are more lanes than that. `held` are rows that the asker has claimed before:
    while it has the lanes' leases, no claim of its own expires. `where` is our own SQL about the
    row `candidate`. `parse_shares` reads the reply."""
    lanes = array_text(free_slots)
    slots = array_text(map(str, free_slots.values()))
    own = array_text(map(str, held))
    arguments = (lanes, slots, str(limit), str(attempt_limit), str(token), after_lane, own)
    return Statement(_CLAIM_BY_LANE.format(seconds=CLAIM_SECONDS, where=where), arguments)


def parse_shares(reply: Reply) -> dict[str, int]:
    """The lanes of the claimed rows, each with the number of rows that it might have had."""
    return {lane: int(share) for lane, share in reply.texts()}


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
