"""The event log: transactions append their events to it, the hub reads it. An event is never
changed."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from uuid import UUID

from trading_intents.errors import InvalidCursor
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Pool, Tx, pack_array
from trading_intents.storage.pipeline import Statement, json_text
from trading_intents.stream.model import Event, cursor_field
from trading_intents.stream.text import Message
from trading_intents.trading import FrozenStruct

KEEP_DAYS = 7
DAYS_AHEAD = 3
KEEP_LIMIT_SECONDS = 30.0
CURSOR_CHARACTERS = 32
_NO_CURSOR = "this is not a cursor of the stream; subscribe without it"
MAX_SEQ = 2**63 - 1
FEW = 4


async def append(tx: Tx, events: Sequence[Event]) -> None:
    """Appends events in this order. It must be the transaction's last statement: it locks the
    organizations' heads until the commit."""
    statement = appending(events)
    await tx.execute(statement.sql, *statement.arguments)


def appending(events: Sequence[Event]) -> Statement:
    """Like `append`, as a statement for a pipeline."""
    if len(events) <= FEW and len({event.account_id for event in events}) == 1:
        return _appending_few(events)
    counts, accounts, packed = _pack_numbers(events)
    payloads = [event.payload for event in events]
    lengths = [len(payload) for payload in payloads]
    return Statement(
        _APPEND,
        (
            pack_array(list(counts)),
            _pack_integers(counts.values()),
            pack_array([first.organization_id for first in accounts]),
            pack_array([first.account_id for first in accounts]),
            pack_array([first.environment for first in accounts]),
            _pack_integers(packed),
            pack_array([event.symbol for event in events]),
            b"".join(payloads),
            _pack_integers(accumulate(lengths[:-1], initial=1)),
            _pack_integers(lengths),
        ),
    )


def _pack_integers(values: Iterable[int]) -> str:
    return pack_array(list(map(str, values)))


def _appending_few(events: Sequence[Event]) -> Statement:
    """For events of one account: plain values, which take the server half the time."""
    first = events[0]
    count = len(events)
    rows = list[str]()
    values: list[str | bytes] = [first.organization_id, first.account_id, first.environment]
    for event in events:
        below = count - 1 - len(rows)
        at = len(values) + 1
        rows.append(f"({below}, ${at}::text::smallint, ${at + 1}::text, ${at + 2}::bytea)")
        values += (str(int(event.kind)), event.symbol, event.payload)
    sql = f"""
        WITH heads AS (
            INSERT INTO stream_heads AS head (organization_id, seq) VALUES ($1::text::uuid, {count})
            ON CONFLICT (organization_id) DO UPDATE SET seq = head.seq + excluded.seq
            RETURNING organization_id, seq
        )
        INSERT INTO stream_events (organization_id, seq, account_id, environment, kind, symbol,
            payload)
        SELECT organization_id, seq - below, $2::text::uuid, $3::text, kind, symbol, payload
        FROM heads, (VALUES {", ".join(rows)}) AS new (below, kind, symbol, payload)
    """  # noqa: S608 - numbers of our own
    return Statement(sql, tuple(values))


_APPEND = """
    WITH heads AS (
        INSERT INTO stream_heads AS head (organization_id, seq)
        SELECT organization_id, count
        FROM unnest(from_column($1)::uuid[], from_column($2)::bigint[]) AS new (organization_id,
            count)
        ORDER BY organization_id  -- as everywhere, so that transactions never wait for each other
        ON CONFLICT (organization_id) DO UPDATE SET seq = head.seq + excluded.seq
        RETURNING organization_id, seq
    )
    INSERT INTO stream_events (organization_id, seq, account_id, environment, kind, symbol, payload)
    SELECT organization_id, heads.seq - (packed >> 8 & 4294967295), account_id, environment,
        packed & 255,
           symbol, payload
    FROM (
        SELECT packed, symbol, substring($8::bytea FROM start::int FOR length::int) AS payload
        FROM unnest(
            from_column($6)::bigint[], from_column($7), from_column($9)::bigint[],
                from_column($10)::bigint[]
        ) AS new (packed, symbol, start, length)
    ) AS new
    JOIN unnest(from_column($3)::uuid[], from_column($4)::uuid[], from_column($5))
         WITH ORDINALITY AS account (organization_id, account_id, environment, number)
             ON number = packed >> 40
    JOIN heads USING (organization_id)
"""


def _pack_numbers(events: Sequence[Event]) -> tuple[dict[str, int], list[Event], list[int]]:
    """Gives how many events each organization gets, an event of each account, and each event as one
    packed number.

    The number is its account's (from 1) << 40, how far its seq is below the new head << 8, and its
    kind. With it an event is three values to encode instead of seven, which halves the cost of a
    batch.
    """
    counts: dict[str, int] = {}
    numbers: dict[str, int] = {}
    accounts: list[Event] = []
    packed: list[int] = []
    for event in reversed(events):
        number = numbers.get(event.account_id)
        if number is None:
            accounts.append(event)
            number = numbers[event.account_id] = len(accounts)
        below = counts.get(event.organization_id, 0)
        counts[event.organization_id] = below + 1
        packed.append(number << 40 | below << 8 | event.kind)
    packed.reverse()
    return counts, accounts, packed


class LoggedEvent(FrozenStruct, kw_only=True):
    """An event of the log, ready to be sent: the same object for every subscriber. Without an
    account it is of the organization itself and goes to every scope and environment. `kind` is an
    EventType, or one of a later version."""

    seq: int
    account_id: UUID | None
    environment: str
    kind: int
    symbol: str
    message: Message


class EventRow(FrozenStruct, kw_only=True):
    """An event of an organization that has other ones than its reader. `seq` 0: none of them is
    kept, and what an event has is missing. Without an organization, the epoch alone."""

    epoch: UUID
    organization_id: OrganizationId | None
    seq: int
    account_id: UUID | None
    environment: str
    kind: int
    symbol: str
    payload: bytes

    def logged(self) -> LoggedEvent:
        cursor = make_cursor(self.epoch, self.seq)
        return LoggedEvent(
            seq=self.seq,
            account_id=self.account_id,
            environment=self.environment,
            kind=self.kind,
            symbol=self.symbol,
            message=Message(self.payload + cursor_field(cursor)),
        )


async def read_after(
    reader: Tx | Pool, after: Mapping[OrganizationId, int], limit: int, max_pages: int = 1
) -> tuple[UUID, dict[OrganizationId, list[LoggedEvent]]]:
    """Gives the epoch, and the events that follow those seqs, of the first so many organizations
    whose last seq is another. Where there is a gap, events are no longer kept, or lost.

    One statement, which names the organizations that it may see until its own end, so that the hub
    needs no transaction and one round trip to read what a commit brought.
    """
    # Rows are looked for by what set_config returned, so the policies are asked after it. Seqs are
    # dense, so a range of them is a page, and no plan can read more.
    query = """
        WITH named AS MATERIALIZED (
            SELECT set_config('trading_intents.organizations', $1::uuid[]::text, true)::uuid[]
                AS ids
        ),
        behind AS MATERIALIZED (
            SELECT organization_id, after
            FROM named CROSS JOIN LATERAL (
                SELECT organization_id, seq,
                    ($2::jsonb ->> organization_id::text)::bigint AS after
                FROM stream_heads WHERE organization_id = ANY (ids) OFFSET 0
            ) AS head
            WHERE seq <> after ORDER BY array_position(ids, organization_id) LIMIT $3
        )
        SELECT epoch, organization_id, coalesce(seq, 0) AS seq,
            nullif(account_id, organization_id) AS account_id, environment, kind, symbol, payload
        FROM stream_epoch LEFT JOIN (
            behind LEFT JOIN LATERAL (
                SELECT seq, account_id, environment, kind, symbol, payload FROM stream_events e
                WHERE e.organization_id = behind.organization_id
                    AND seq > after AND seq <= least(after, $5) + $4
                ORDER BY seq
            ) AS event ON true
        ) ON true
    """
    seqs = json_text({str(organization_id): seq for organization_id, seq in after.items()})
    found = await reader.fetch(query, list(after), seqs, max_pages, limit, MAX_SEQ - limit)
    rows = [EventRow(**row) for row in found]
    pages: dict[OrganizationId, list[LoggedEvent]] = {}
    for row in rows:
        if row.organization_id:
            page = pages.setdefault(row.organization_id, [])
            if row.seq:
                page.append(row.logged())
    return rows[0].epoch, pages


def is_dense(page: Sequence[LoggedEvent], after: int) -> bool:
    """Whether the page begins right after that seq and leaves none out: an organization's seqs have
    no holes."""
    return bool(page) and all(event.seq == seq for seq, event in enumerate(page, after + 1))


class HeadRow(FrozenStruct):
    epoch: UUID
    seq: int


async def read_head(tx: Tx, organization_id: OrganizationId) -> tuple[UUID, int]:
    """Gives the epoch and the organization's last seq; 0 before its first event."""
    query = """
        SELECT epoch, coalesce(seq, 0) AS seq
        FROM stream_epoch LEFT JOIN stream_heads ON organization_id = $1
    """
    [row] = [HeadRow(**row) for row in await tx.fetch(query, organization_id)]
    return row.epoch, row.seq


async def is_kept(tx: Tx, organization_id: OrganizationId, seq: int) -> bool:
    query = "SELECT EXISTS (SELECT FROM stream_events WHERE organization_id = $1 AND seq = $2)"
    return bool(await tx.fetchval(query, organization_id, seq))


async def read_epoch(tx: Tx) -> UUID:
    """Gives the epoch, which changes only when a backup is restored."""
    epoch: UUID = await tx.fetchval("SELECT epoch FROM stream_epoch")
    return epoch


async def lock_lost_tail(tx: Tx) -> str | None:
    """Gives what a process reported of a server that has lost committed work, until the epoch is
    renewed."""
    lost: str | None = await tx.fetchval(
        "SELECT lost_tail FROM stream_epoch WHERE lost_tail IS NOT NULL FOR UPDATE"
    )
    return lost


async def renew_epoch(tx: Tx, who: str, reason: str) -> None:
    """Makes all earlier cursors invalid, and records who did it."""
    query = """
        WITH old AS (SELECT epoch FROM stream_epoch FOR UPDATE),
             new AS (UPDATE stream_epoch SET epoch = gen_random_uuid(), lost_tail = NULL
                 RETURNING epoch)
        INSERT INTO stream_epoch_renewals (epoch, before, renewed_by, reason)
        SELECT new.epoch, old.epoch, $1, $2 FROM old, new
    """
    await tx.execute(query, who, reason)


class Cursor(FrozenStruct):
    """A position in the log. A cursor from another epoch than the log's is invalid: its events are
    gone."""

    epoch: UUID
    seq: int


def make_cursor(epoch: UUID, seq: int) -> str:
    return base64.urlsafe_b64encode(epoch.bytes + seq.to_bytes(8)).decode()


def open_cursor(text: str) -> Cursor:
    """Raises InvalidCursor for a text that the platform never made."""
    try:
        raw = base64.urlsafe_b64decode(text[:CURSOR_CHARACTERS])
    except ValueError:
        raise InvalidCursor(_NO_CURSOR) from None
    epoch = UUID(bytes=raw[:16].ljust(16))
    seq = int.from_bytes(raw[16:])
    cursor = Cursor(epoch, min(seq, MAX_SEQ))
    # Decoding accepts several texts for one cursor, so compare with the encoding.
    if make_cursor(cursor.epoch, cursor.seq) != text:
        raise InvalidCursor(_NO_CURSOR)
    return cursor


async def make_partitions(tx: Tx) -> bool:
    """Makes the coming days' partitions. False: something was left to the next call."""
    return not await tx.fetchval(
        "SELECT late FROM stream_make_partitions($1)", DAYS_AHEAD, timeout=KEEP_LIMIT_SECONDS
    )


async def drop_partitions(tx: Tx) -> bool:
    """Drops the days that were kept long enough, in a transaction of its own: see
    make_partitions."""
    return not await tx.fetchval(
        "SELECT late FROM stream_drop_partitions($1)", KEEP_DAYS, timeout=KEEP_LIMIT_SECONDS
    )
