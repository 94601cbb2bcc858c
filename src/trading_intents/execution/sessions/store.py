"""Leases and sessions in the database, one function per statement. Never decides. Times are the
database's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from trading_intents.accounts.model import ConnectionState
from trading_intents.brokers.port import SentOrder
from trading_intents.controls.store import was_halted
from trading_intents.execution.claims import IS_CLAIMED
from trading_intents.execution.store import SentRow
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Tx
from trading_intents.trading import FrozenStruct

LEASE_SECONDS = 5.0
MAX_REPORTED = 100  # orders that wait too long
TAKING_LOCK = 7469010  # an advisory lock
JUST_SENT_SECONDS = 5.0


async def enlist(tx: Tx, worker_id: UUID, old_id: UUID) -> None:
    """Enlists the worker, and frees what it had leased under its old id."""
    await retire(tx, old_id)
    query = """
        INSERT INTO workers (id, expires_at)
        VALUES ($1, clock_timestamp() + make_interval(secs => $2))
        ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at
    """
    await tx.execute(query, worker_id, LEASE_SECONDS)


async def renew(tx: Tx, worker_id: UUID) -> bool:
    """False: the worker's leases have expired."""
    query = """
        UPDATE workers SET expires_at = clock_timestamp() + make_interval(secs => $2)
        WHERE id = $1 AND expires_at > clock_timestamp()
    """
    tag = await tx.execute(query, worker_id, LEASE_SECONDS)
    return tag == "UPDATE 1"


async def remove_expired(tx: Tx) -> None:
    """Removes workers that have expired, which frees their leases; not one whose renewal is about
    to commit."""
    await tx.execute(
        """
        DELETE FROM workers WHERE id = ANY (ARRAY (
            SELECT id FROM workers WHERE expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED
        ))
        """
    )


class Survey(FrozenStruct):
    accounts: int
    workers: int
    held: int
    expires_seconds: float | None


async def survey(tx: Tx, worker_id: UUID) -> Survey:
    """Counts accounts that need a worker, workers and this worker's leases, and says when the first
    worker may expire."""
    query = """
        SELECT (
                   SELECT count(*) FROM accounts a
                   WHERE closed_at IS NULL OR EXISTS (SELECT FROM leases WHERE account_id = a.id)
               ) AS accounts,
               count(*) AS workers,
               (SELECT count(*) FROM leases WHERE worker_id = $1) AS held,
               extract(epoch FROM min(expires_at) - clock_timestamp())::float8 AS expires_seconds
        FROM workers
    """
    [row] = await tx.fetch(query, worker_id)
    return Survey(**row)


async def take(tx: Tx, worker_id: UUID, most: int) -> list[UUID] | None:
    """Takes free leases of accounts that are open or have rows left; gives the accounts, busy ones
    first. None: another worker is taking leases now."""
    if not await tx.fetchval("SELECT pg_try_advisory_xact_lock($1)", TAKING_LOCK):
        return None
    query = """
        WITH free AS MATERIALIZED (
            SELECT a.id, a.organization_id, EXISTS (
                SELECT FROM outbox WHERE lane = a.id AND finished_at IS NULL
            ) AS busy
            FROM accounts a LEFT JOIN leases l ON l.account_id = a.id
            WHERE (a.closed_at IS NULL OR l.account_id IS NOT NULL)
              AND NOT EXISTS (SELECT FROM workers w WHERE w.id = l.worker_id)
            ORDER BY busy DESC, a.id LIMIT $2  -- sessions are opened a few at a time
        ), taken AS (
            INSERT INTO leases AS l (account_id, organization_id, worker_id)
            SELECT id, organization_id, $1 FROM free
            ON CONFLICT (account_id) DO UPDATE
            SET worker_id = excluded.worker_id, token = l.token + 1
            RETURNING account_id
        )
        SELECT ARRAY (
            SELECT free.id FROM taken JOIN free ON free.id = taken.account_id
            ORDER BY free.busy DESC
        )
    """
    account_ids: list[UUID] = await tx.fetchval(query, worker_id, most)
    # What the last holder showed is not so any more. One whose account is locked is corrected by
    # the next balance.
    query = """
        UPDATE accounts SET connection = 'disconnected' WHERE id = ANY (ARRAY (
            SELECT id FROM accounts
            WHERE id = ANY ($1::uuid[]) AND connection IN ('connected', 'connecting')
            FOR NO KEY UPDATE SKIP LOCKED
        ))
    """
    await tx.execute(query, account_ids)
    return account_ids


class HeldLease(FrozenStruct, kw_only=True):
    account_id: UUID
    token: int
    organization_id: OrganizationId
    environment: str
    broker: str
    link_generation: int
    connection: str


async def list_held(tx: Tx, worker_id: UUID) -> list[HeldLease]:
    """The worker's leases, with what their sessions are made of."""
    query = """
        SELECT l.account_id, l.token, a.organization_id, a.environment, a.broker, a.link_generation,
            a.connection
        FROM leases l JOIN accounts a ON a.id = l.account_id WHERE l.worker_id = $1
    """
    rows = await tx.fetch(query, worker_id)
    return [HeldLease(**row) for row in rows]


async def give_back(tx: Tx, worker_id: UUID, account_ids: Sequence[UUID]) -> None:
    query = (
        "UPDATE leases SET worker_id = NULL WHERE worker_id = $1 AND account_id = ANY ($2::uuid[])"
    )
    await tx.execute(query, worker_id, account_ids)


async def retire(tx: Tx, worker_id: UUID) -> None:
    """Removes the worker, which frees all its leases."""
    await tx.execute("DELETE FROM workers WHERE id = $1", worker_id)


async def forget_closed(tx: Tx, worker_id: UUID, account_ids: Sequence[UUID]) -> None:
    """Removes the leases of closed accounts that have no row left."""
    query = """
        DELETE FROM leases l
        WHERE worker_id = $1 AND account_id = ANY ($2::uuid[]) AND NOT EXISTS (
            SELECT FROM outbox WHERE lane = l.account_id AND finished_at IS NULL
        )
    """
    await tx.execute(query, worker_id, account_ids)


async def show_connections(tx: Tx, worker_id: UUID, states: Mapping[UUID, ConnectionState]) -> None:
    """Writes the states of accounts whose lease this worker holds."""
    query = """
        UPDATE accounts a SET connection = s.connection
        FROM unnest($2::uuid[], $3::text[]) AS s (account_id, connection)
        JOIN leases l USING (account_id)
        WHERE a.id = s.account_id AND l.worker_id = $1 AND a.connection <> s.connection
    """
    await tx.execute(query, worker_id, list(states), list(states.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSetup:
    """The values that a session is opened with; when one changes, the session is opened anew."""

    link_generation: int = field(compare=False)
    external_account_id: str | None
    closed: bool
    sealed_id: UUID | None
    credential_id: UUID | None
    sealed: bytes | None = field(compare=False)  # re-wrapping a secret does not change it


async def read_session(tx: Tx, account_id: UUID) -> SessionSetup:
    query = """
        SELECT a.link_generation, a.external_account_id, a.closed_at IS NOT NULL AS closed,
            s.id AS sealed_id, s.credential_id, s.sealed
        FROM accounts a
        LEFT JOIN credentials c ON c.account_id = a.id
        LEFT JOIN sealed_secrets s ON s.credential_id = c.id AND NOT s.discarded
        WHERE a.id = $1
    """
    [row] = await tx.fetch(query, account_id)
    return SessionSetup(**row)


async def read_seen(tx: Tx, account_id: UUID) -> datetime:
    """The time up to which the account's executions are known to be recorded."""
    query = """
        SELECT coalesce(l.seen_at, a.created_at) FROM accounts a
        LEFT JOIN leases l ON l.account_id = a.id
        WHERE a.id = $1
    """
    seen_at: datetime = await tx.fetchval(query, account_id)
    return seen_at


async def write_seen(tx: Tx, worker_id: UUID, account_ids: Sequence[UUID]) -> None:
    query = """
        UPDATE leases SET seen_at = clock_timestamp()
        WHERE worker_id = $1 AND account_id = ANY ($2::uuid[])
    """
    await tx.execute(query, worker_id, account_ids)


def needs_no_broker(max_age_millis: int) -> str:
    """SQL about a claim's candidate: its order is finished, or it is not to be sent any more."""
    return f"""
        EXISTS (
            SELECT FROM orders o
            WHERE o.order_id = candidate.order_key AND (
                o.finished_at IS NOT NULL
                OR candidate.event_type <> 'intent.cancel' AND (
                    o.cancel_requested
                    OR NOT o.closes AND {was_halted("o", "candidate.created_at")}
                    OR candidate.created_at < clock_timestamp()
                        - make_interval(secs => least({max_age_millis}, (
                        SELECT stale_order_millis FROM symbol_times t
                        WHERE t.account_id = o.account_id AND t.symbol = o.symbol
                    )) / 1000.0)
                )
            )
            OFFSET 0
        )
    """  # noqa: S608 - our own constants


async def claim_openings(tx: Tx, account_id: UUID, organization_id: UUID) -> bool:
    """True once for each account: its opening positions are to be set now."""
    query = """
        INSERT INTO position_openings (account_id, organization_id, opened_at)
        VALUES ($1, $2, clock_timestamp())
        ON CONFLICT (account_id) DO NOTHING RETURNING true
    """
    return bool(await tx.fetchval(query, account_id, organization_id))


async def has_open_orders(tx: Tx, account_id: UUID) -> bool:
    query = "SELECT EXISTS (SELECT FROM orders WHERE account_id = $1 AND finished_at IS NULL)"
    return bool(await tx.fetchval(query, account_id))


async def list_open_orders(tx: Tx, account_id: UUID) -> list[SentOrder]:
    """The account's open orders, each by the version that the broker confirmed last."""
    query = """
        SELECT o.external_order_id, o.symbol, o.order_side, o.order_type, o.quantity, a.action_id
        FROM orders o
        CROSS JOIN LATERAL (
            SELECT action_id FROM actions WHERE account_id = o.account_id AND seq = o.command_seq
            LIMIT 1
        ) AS a
        WHERE o.account_id = $1 AND o.finished_at IS NULL
    """
    return [SentRow(**row).order for row in await tx.fetch(query, account_id)]


async def look_up_missing(
    tx: Tx, account_id: UUID, client_order_ids: Sequence[str], numbers: Sequence[str], is_back: bool
) -> None:
    """Open orders that the broker was sent and does not name among its own, neither by client order
    id nor by its own number, are looked up; one that was just sent may not be there yet, and is
    looked up later. So are, at once, those that wait for their next look-up, if the broker is back:
    it can report again. So is none with a command of which the answer is awaited."""
    query = f"""
        WITH missing AS MATERIALIZED (
            SELECT order_id, (SELECT min(sent_at) FROM commands c
                WHERE c.order_id = o.order_id) AS sent_at
            FROM orders o
            WHERE account_id = $1 AND finished_at IS NULL AND (
                $5 AND lookup_due_at > clock_timestamp()
                OR lookup_due_at IS NULL AND NOT {IS_CLAIMED}
                AND EXISTS (SELECT FROM commands c
                    WHERE c.order_id = o.order_id AND c.sent_at IS NOT NULL OFFSET 0)
                AND NOT EXISTS (
                    SELECT FROM commands c
                    WHERE c.order_id = o.order_id
                      AND (c.client_order_id = ANY ($2::text[])
                          OR c.broker_order_id = ANY ($3::text[]))
                    OFFSET 0
                )
            )
            ORDER BY order_id FOR UPDATE
        )
        UPDATE orders o
        SET lookups = 0, lookup_due_at = least(
            lookup_due_at, greatest(clock_timestamp(), missing.sent_at + make_interval(secs => $4))
        )
        FROM missing
        WHERE o.order_id = missing.order_id
            AND o.order_id = ANY (ARRAY (SELECT order_id FROM missing))
    """  # noqa: S608 - our own constants
    await tx.execute(query, account_id, client_order_ids, numbers, JUST_SENT_SECONDS, is_back)


async def pending_too_old(tx: Tx, seconds: float) -> list[UUID]:
    """Orders of whatever account that are PENDING_NEW and whose CREATEs are this old, the oldest
    first."""
    query = """
        SELECT ARRAY (
            SELECT r.order_key FROM outbox r JOIN orders o ON o.order_id = r.order_key
            WHERE r.finished_at IS NULL AND r.lane IS NOT NULL AND r.event_type = 'intent.create'
              AND r.created_at < clock_timestamp() - make_interval(secs => $1)
              AND o.order_status = 'PENDING_NEW'
            ORDER BY r.id LIMIT $2
        )
    """
    return list(await tx.fetchval(query, seconds, MAX_REPORTED))


class DoubtfulOrders(FrozenStruct):
    unknown: int  # nobody knows whether the broker has them
    lost: int  # open, and their brokers do not know them


async def count_doubtful(tx: Tx) -> DoubtfulOrders:
    """Orders of whatever account; each has its look-ups."""
    query = """
        SELECT count(*) FILTER (WHERE order_status = 'UNKNOWN') AS unknown,
            count(absent_at) FILTER (WHERE finished_at IS NULL) AS lost
        FROM orders WHERE lookup_due_at IS NOT NULL
    """
    [row] = await tx.fetch(query)
    return DoubtfulOrders(**row)
