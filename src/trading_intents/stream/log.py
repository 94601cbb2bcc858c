"""The event log: transactions append actions and reports to it, the hub reads both under one
sequence. An event is never changed."""

import base64
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from msgspec.structs import astuple

from trading_intents.errors import InvalidCursor
from trading_intents.ids import IdText, OrganizationId
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.pipeline import RowParameters, Statement, column_types, json_text
from trading_intents.stream.model import Event, cursor_field, split_payloads
from trading_intents.stream.text import Message
from trading_intents.trading import FrozenStruct

MAX_COUNT = 100  # messages of a report
CURSOR_CHARACTERS = 32
_NO_CURSOR = "this is not a cursor of the stream; subscribe without it"
MAX_SEQ = 2**63 - 1


async def append(tx: Tx, events: Sequence[Event]) -> None:
    """Appends events in this order. It must be the transaction's last statement: it locks the
    organizations' heads until the commit."""
    statement = appending(events)
    await tx.execute(statement.sql, *statement.arguments)


def appending(events: Sequence[Event]) -> Statement:
    """Like `append`, as a statement for a pipeline."""
    reports: list[list[Event]] = []
    for event in events:
        if not reports or not _is_of(reports[-1], event):
            reports.append([])
        reports[-1].append(event)
    payloads = [event.payload for event in events]
    start = 1 + sum(map(len, payloads))
    later = Counter[str]()  # messages of the organization that come after
    rows = []
    for report in reversed(reports):
        first = report[0]
        size = sum(len(event.payload) for event in report)
        start -= size
        row = _ReportRow(
            organization_id=IdText(first.organization_id),
            account_id=IdText(first.account_id),
            order_id=IdText(first.order_id) if first.order_id else None,
            symbol=first.symbol,
            environment=first.environment,
            count=len(report),
            later=later[first.organization_id],
            start=start,
            size=size,
            facts=first.facts,
            counts=first.counts,
        )
        rows.append(astuple(row))
        later[first.organization_id] += len(report)
    return Statement(_APPEND, (b"".join(payloads), *_ROWS.pack(rows)))


def _is_of(report: Sequence[Event], event: Event) -> bool:
    """Whether the event is of the same order, or goes with it."""
    first = report[0]
    return (
        event.facts is None
        and len(report) < MAX_COUNT
        and event.account_id == first.account_id
        and event.symbol == first.symbol
        and event.order_id in (None, first.order_id)
    )


class _ReportRow(FrozenStruct, kw_only=True):
    """Messages of one order, or of an account or an organization: where they are among all, and how
    many of the organization come after them."""

    organization_id: IdText
    account_id: IdText
    order_id: IdText | None
    symbol: str
    environment: str
    count: int
    later: int
    start: int
    size: int
    facts: str | None
    counts: str | None


_JSON = {"facts": "json", "counts": "json"}
_ROWS = RowParameters(column_types(_ReportRow) | {"order_id": "uuid"} | _JSON, 2)
_APPEND = f"""
    WITH new AS MATERIALIZED (SELECT * FROM {_ROWS.rows} AS sent),
    heads AS (
        INSERT INTO stream_heads AS head (organization_id, seq)
        SELECT organization_id, sum(count)::bigint FROM new
        -- As everywhere, so that transactions never wait for each other.
        GROUP BY organization_id ORDER BY organization_id
        ON CONFLICT (organization_id) DO UPDATE SET seq = head.seq + excluded.seq
        RETURNING organization_id, seq
    )
    INSERT INTO reports (organization_id, seq, count, day, account_id, order_id, at, symbol,
        environment, facts, counts, events)
    SELECT organization_id, seq - later, count, (at AT TIME ZONE 'UTC')::date, account_id, order_id,
        at, symbol, environment, facts, counts, substring($1::bytea FROM start::int FOR size::int)
    FROM new JOIN heads USING (organization_id) CROSS JOIN (SELECT clock_timestamp() AS at) AS clock
"""  # noqa: S608 - our own constants


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


# What the stream shows of a CREATE, by its record, its broker and the time.
RenderCreate = Callable[[str, str, datetime], bytes]


class LoggedRow(FrozenStruct, kw_only=True):
    """A report or an action of an organization that has other messages than its reader, whose last
    is `after`. `seq` 0: it lacks some of them. Without an organization, the epoch alone."""

    epoch: UUID
    organization_id: OrganizationId | None
    after: int
    seq: int
    count: int
    account_id: UUID | None
    environment: str
    symbol: str
    at: datetime
    events: bytes | None  # None: a CREATE
    record: str
    broker: str

    def logged(self, render: RenderCreate) -> Iterator[LoggedEvent]:
        events = self.events
        if events is None:
            events = render(self.record, self.broker, self.at)
        for seq, (kind, payload) in enumerate(split_payloads(events), self.seq - self.count + 1):
            if seq > self.after:
                yield LoggedEvent(
                    seq=seq,
                    account_id=self.account_id,
                    environment=self.environment,
                    kind=kind,
                    symbol=self.symbol,
                    message=Message(payload + cursor_field(make_cursor(self.epoch, seq))),
                )


async def read_after(
    reader: Tx | Pool,
    render: RenderCreate,
    after: Mapping[OrganizationId, int],
    limit: int,
    max_pages: int = 1,
) -> tuple[UUID, dict[OrganizationId, list[LoggedEvent]]]:
    """Gives the epoch, and the events that follow those seqs, of the first so many organizations
    whose last seq is another. Where there is a gap, events are lost. A row is read whole, so that
    there may be more than the limit.

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
        SELECT epoch, organization_id, after, coalesce(seq, 0) AS seq, count,
            nullif(account_id, organization_id) AS account_id, environment, symbol, at, events,
            record, broker
        FROM stream_epoch LEFT JOIN (
            behind LEFT JOIN LATERAL (
                SELECT seq, count, account_id, environment::text, symbol, at, events, '' AS record,
                    '' AS broker
                FROM reports r
                WHERE r.organization_id = behind.organization_id
                    AND seq > after AND seq < least(after, $5) + $4 + $6
                    AND seq - count < least(after, $5) + $4
                UNION ALL
                SELECT stream_seq, 2, a.account_id, o.environment, o.symbol, a.created_at, events,
                    record, o.broker
                FROM actions a LEFT JOIN orders o ON o.order_id = a.intent_id
                WHERE a.organization_id = behind.organization_id
                    AND stream_seq > after AND stream_seq < least(after, $5) + $4 + 2
                ORDER BY seq
            ) AS entry ON true
        ) ON true
    """
    seqs = json_text({str(organization_id): seq for organization_id, seq in after.items()})
    last = MAX_SEQ - limit - MAX_COUNT
    found = await reader.fetch(query, list(after), seqs, max_pages, limit, last, MAX_COUNT)
    rows = [LoggedRow(**row) for row in found]
    pages: dict[OrganizationId, list[LoggedEvent]] = {}
    for row in rows:
        if row.organization_id:
            page = pages.setdefault(row.organization_id, [])
            if row.seq:
                page += row.logged(render)
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


async def is_kept(tx: Tx, organization_id: OrganizationId, seq: int, keep_days: int) -> bool:
    """Whether an event is there and was appended within these days."""
    query = """
        SELECT seq - count < $2 AND at >= clock_timestamp() - make_interval(days => $3)
        FROM (
            (SELECT seq, count, at FROM reports
             WHERE organization_id = $1 AND seq >= $2 ORDER BY seq LIMIT 1)
            UNION ALL
            (SELECT stream_seq, 2, created_at FROM actions
             WHERE organization_id = $1 AND stream_seq >= $2 ORDER BY stream_seq LIMIT 1)
        ) AS entry ORDER BY seq LIMIT 1
    """
    return bool(await tx.fetchval(query, organization_id, seq, keep_days))


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
