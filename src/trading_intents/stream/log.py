"""The event log: transactions append their events to it, the hub reads it. An event is never
changed."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from uuid import UUID

from trading_intents.errors import InvalidCursor
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Tx, pack_array
from trading_intents.storage.pipeline import Statement
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


class EventRow(FrozenStruct, kw_only=True):
    seq: int
    account_id: UUID | None
    environment: str
    kind: int
    symbol: str
    payload: bytes


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


async def read_after(
    tx: Tx, epoch: UUID, organization_id: OrganizationId, seq: int, limit: int
) -> list[LoggedEvent]:
    """Reads the events that follow that seq. If there is a gap, events are no longer kept, or lost.
    The epoch is part of their cursors.

    The service's role sees the organizations that its transaction names.
    """
    # Seqs are dense, so a range of them is a page, and no plan can read more. With ORDER BY and
    # LIMIT, a plan made for a young partition read and sorted all that followed, for every page.
    query = """
        SELECT seq, nullif(account_id, organization_id) AS account_id, environment, kind, symbol,
            payload
        FROM stream_events
        WHERE organization_id = $1 AND seq > $2 AND seq <= $3
        ORDER BY seq
    """
    events = []
    for found in await tx.fetch(query, organization_id, seq, min(seq + limit, MAX_SEQ)):
        row = EventRow(**found)
        message = Message(row.payload + cursor_field(make_cursor(epoch, row.seq)))
        events.append(
            LoggedEvent(
                seq=row.seq,
                account_id=row.account_id,
                environment=row.environment,
                kind=row.kind,
                symbol=row.symbol,
                message=message,
            )
        )
    return events


def is_dense(page: Sequence[LoggedEvent], after: int) -> bool:
    """Whether the page begins right after that seq and leaves none out: an organization's seqs have
    no holes."""
    return bool(page) and all(event.seq == seq for seq, event in enumerate(page, after + 1))


class HeadRow(FrozenStruct):
    """The epoch, with an organization's last seq if one of those that were named has events."""

    epoch: UUID
    organization_id: OrganizationId | None
    seq: int | None


async def read_heads(
    tx: Tx, organizations: Sequence[OrganizationId]
) -> tuple[UUID, Mapping[OrganizationId, int]]:
    """Gives the epoch, and each organization's last seq; organizations without an event are left
    out."""
    query = """
        SELECT epoch, organization_id, seq
        FROM stream_epoch LEFT JOIN stream_heads ON organization_id = ANY ($1::uuid[])
    """
    rows = [HeadRow(**row) for row in await tx.fetch(query, organizations)]
    heads = {}
    for row in rows:
        if row.organization_id and row.seq:
            heads[row.organization_id] = row.seq
    return rows[0].epoch, heads


async def read_head(tx: Tx, organization_id: OrganizationId) -> tuple[UUID, int]:
    """Gives the epoch and the organization's last seq; 0 before its first event."""
    epoch, heads = await read_heads(tx, [organization_id])
    return epoch, heads.get(organization_id, 0)


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
