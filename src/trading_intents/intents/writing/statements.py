"""The statements by which a batch locks and reads, for a pipeline. Arguments are texts: see
`pack_array`."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trading_intents.controls.store import HALT_LOCK
from trading_intents.storage.database import pack_array
from trading_intents.storage.pipeline import Statement, array_text

_BEGIN = Statement("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
COMMIT = Statement("COMMIT")
ROLLBACK = Statement("ROLLBACK")

# On the writer's own connection, where every other command waits meanwhile.
LOCK_LIMIT_SECONDS = 0.02


class Locking(NamedTuple):
    """The treatment of account heads that another transaction has locked, how long to wait for any
    lock, and whether reads may take long: those of a log of which nothing is known."""

    clause: str
    timeout: str = ""  # empty: the session's
    may_take_long: bool = False


SKIP = Locking("SKIP LOCKED")  # the batch leaves their accounts out
SKIP_AT_ONCE = Locking("SKIP LOCKED", "1ms")
WAIT = Locking("", "100ms", may_take_long=True)


def begin(organization_ids: Iterable[str], locking: Locking) -> list[Statement]:
    seen = array_text(organization_ids)
    timeout = (
        [Statement(f"SET LOCAL lock_timeout = '{locking.timeout}'")] if locking.timeout else ()
    )
    return [
        _BEGIN,
        Statement("SELECT set_config('trading_intents.organizations', $1, true)", (seen,)),
        *timeout,
    ]


def wait_for_budgets(organization_ids: Iterable[str], key_ids: Iterable[str]) -> list[Statement]:
    """A transaction of its own: it holds no account while it waits, and nothing afterwards."""
    wait = "SELECT FROM key_budgets WHERE key_id = ANY ($1::uuid[]) ORDER BY key_id FOR KEY SHARE"
    return [*begin(organization_ids, WAIT), Statement(wait, (array_text(key_ids),)), COMMIT]


def share_halt_locks(organization_ids: Iterable[str]) -> Statement:
    """Until the end of the transaction no halt of these organizations begins or ends."""
    sql = """
        SELECT pg_advisory_xact_lock_shared($1::int, hashtext(id)) FROM unnest($2::text[]) AS id
        ORDER BY id
    """
    return Statement(sql, (str(HALT_LOCK), array_text(organization_ids)))


def lock_heads(account_ids: Sequence[str], locking: Locking) -> Statement:
    """Locks the heads in the order of their ids, as every transaction does."""
    if len(account_ids) == 1:
        return Statement(f"{_LOCK_HEAD} {locking.clause}", tuple(account_ids))
    return Statement(f"{_LOCK_HEADS} {locking.clause}", (array_text(account_ids),))


_LOCK_HEAD = (
    "SELECT account_id, seq, hash FROM account_heads WHERE account_id = $1::uuid FOR UPDATE"
)
_LOCK_HEADS = """
    SELECT account_id, seq, hash FROM account_heads
    WHERE account_id = ANY ($1::uuid[]) ORDER BY account_id FOR UPDATE
"""


def read_versions(organization_ids: Iterable[str]) -> Statement:
    """Reads the clock, the transaction's id, and the versions of the organizations' rules. It runs
    after the heads are locked, so a change that was answered before is seen."""
    return Statement(_READ_VERSIONS, (array_text(organization_ids),))


_READ_VERSIONS = """
    SELECT 'clock', clock_timestamp()::text, pg_current_xact_id()::text
    UNION ALL
    SELECT organization_id::text, version::text, NULL FROM rule_versions
    WHERE organization_id = ANY ($1::uuid[])
"""


def read_earlier(keyed: Sequence[tuple[str, str]]) -> Statement:
    """Reads the actions of the last 400 days that have these keys of these accounts: each with an
    `EarlierAction` as JSON."""
    sql = """
        SELECT a.account_id, a.idempotency_key, json_build_object(
            'body_digest', encode(a.body_digest, 'hex'), 'intent_id', a.intent_id, 'seq', a.seq,
            'legs', coalesce((
                SELECT json_agg(placed) FROM (
                    SELECT leg, order_id AS intent_id, create_seq AS seq FROM orders
                    WHERE a.action_type = 'CREATE' AND account_id = a.account_id
                      AND parent_order_id BETWEEN a.intent_id AND a.intent_id
                      ORDER BY parent_order_id, create_seq LIMIT 2
                ) AS placed
            ), '[]')
        )::text
        FROM unnest(from_column($1)::uuid[], from_column($2)) AS wanted (account_id, key)
        CROSS JOIN LATERAL (
            SELECT * FROM actions WHERE account_id = wanted.account_id
              AND idempotency_key BETWEEN wanted.key AND wanted.key
              AND created_at > (SELECT clock_timestamp()) - interval '9600 hours'
              ORDER BY idempotency_key LIMIT 1
        ) AS a
    """
    return Statement(sql, tuple(map(pack_array, zip(*keyed, strict=True))))


def lock_orders(order_ids: Sequence[str]) -> Statement:
    sql = """
        SELECT row_to_json(o)::text FROM orders o WHERE order_id = ANY ($1::uuid[])
        ORDER BY order_id FOR UPDATE
    """
    return Statement(sql, (array_text(order_ids),))
