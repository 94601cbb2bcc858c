"""Statements of the FIX sessions' tables: numbers, and every message before it is written or
delivered."""

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
from msgspec.structs import asdict, replace

from trading_intents.brokers.fix.messages import (
    Numbers,
    ReceivedMessage,
    RefusedMessage,
    SentMessage,
    SessionTaken,
    masked,
    parse,
)
from trading_intents.brokers.fix.session import ADMIN, HEARTBEAT, REJECT, TEST_REQUEST
from trading_intents.brokers.fix.wire import BUSINESS_REJECT, answered_id, order_of
from trading_intents.brokers.port import AuthFailed, BrokerUnavailable, IntegrationContext
from trading_intents.errors import NotFound
from trading_intents.storage.database import Row, Tx
from trading_intents.storage.grouped import GroupCommit
from trading_intents.storage.pipeline import Statement, json_text
from trading_intents.trading import FrozenStruct

MAX_REPEATED = 500  # in a page
MAX_PRUNED = 5_000
KEPT_DAYS = 90
_UNKEPT = frozenset({HEARTBEAT, TEST_REQUEST})  # they are many, and nobody reads them


class StoredSession(FrozenStruct, kw_only=True):
    broker: str
    begin_string: str
    sender: str
    target: str
    epoch: int
    next_in: int
    next_out: int
    reset_at: datetime

    @property
    def names(self) -> tuple[str, ...]:
        return self.broker, self.begin_string, self.sender, self.target

    @property
    def remark(self) -> str:
        """Names the session and its numbers, for operators."""
        numbers = f"next in {self.next_in}, next out {self.next_out}, epoch {self.epoch}"
        return f"{self.begin_string} {self.sender} to {self.target}: {numbers}"


class SkippedCommand(FrozenStruct):
    epoch: int
    number: int
    type: str
    client_order_id: str


class LoggedMessage(FrozenStruct, kw_only=True):
    at: datetime
    direction: str
    epoch: int
    number: int
    raw: bytes
    skipped_at: datetime | None


class _ReceivedRow(FrozenStruct, kw_only=True):
    """`type`, `client_order_id`: of the message of ours that it rejects."""

    at: datetime
    epoch: int
    number: int
    raw: bytes
    type: str | None
    client_order_id: str | None

    @property
    def received(self) -> ReceivedMessage:
        refused = None
        if self.type and self.client_order_id:
            refused = RefusedMessage(self.type, self.client_order_id)
        return ReceivedMessage(self.epoch, self.number, parse(self.raw), refused)


class _NewNumbers(FrozenStruct):
    index: int
    account_id: UUID
    token: int
    was: Numbers
    now: Numbers


class _NewSent(SentMessage, kw_only=True):
    account_id: UUID
    seconds_left: float | None


class _NewReceived(FrozenStruct, kw_only=True):
    account_id: UUID
    epoch: int
    number: int
    type: str
    raw: bytes
    refused_number: int | None
    client_order_id: str | None
    order_id: str | None
    is_open: bool


class _Write(FrozenStruct, kw_only=True):
    """`before`: the numbers as the session knows them. If they are others, another session has
    written meanwhile."""

    account_id: UUID
    token: int
    before: Numbers
    after: Numbers
    received: Sequence[ReceivedMessage]
    sent: Sequence[SentMessage]


def _write_in_groups(context: IntegrationContext) -> GroupCommit[_Write, None]:
    """Writes the messages of all sessions of a process; what waits together, in one transaction."""
    transactions = context.open_transactions()
    clock = context.clock

    async def work(writes: list[_Write]) -> list[SessionTaken | None]:
        """A session that is no longer its writer's is taken."""
        rows = list[_NewNumbers]()
        for index, each in enumerate(writes):
            rows.append(_NewNumbers(index, each.account_id, each.token, each.before, each.after))
        rows.sort(key=lambda row: row.account_id)  # the order of the locks
        async with transactions.transaction() as tx:
            (counted,) = await tx.run([Statement(COUNT, (json_text(rows),))])
            own = {int(index) for (index,) in counted.texts()}
            stored = [writes[index] for index in sorted(own)]
            # How old a command is counts now: the wait for the sessions' locks is over.
            await tx.commit(_insert_messages(stored, clock.monotonic()))
        return [None if index in own else SessionTaken() for index in range(len(writes))]

    return GroupCommit(work, lambda each: 1 + len(each.received) + len(each.sent))


def _insert_messages(writes: Sequence[_Write], now: float) -> list[Statement]:
    sent = list[_NewSent]()
    received = list[_NewReceived]()
    for write in writes:
        sent += _list_sent(write, now)
        received += _list_received(write)
    statements = list[Statement]()
    if sent:
        statements.append(Statement(INSERT_SENT, (json_text(sent),)))
    if received:
        statements.append(Statement(INSERT_RECEIVED, (json_text(received),)))
    return statements


def _list_sent(write: _Write, now: float) -> Iterator[_NewSent]:
    for each in write.sent:
        if each.type in _UNKEPT:
            continue
        kept = replace(each, raw=masked(each.raw)) if each.type in ADMIN else each
        left = None if each.not_after is None else each.not_after - now
        yield _NewSent(**asdict(kept), account_id=write.account_id, seconds_left=left)


def _list_received(write: _Write) -> list[_NewReceived]:
    rows = list[_NewReceived]()
    last = dict[str | None, int]()  # the number of each order's last report
    for each in write.received:
        message = each.message
        if message.type in _UNKEPT:
            continue
        order_id, is_open = order_of(message)
        last[order_id] = each.number
        row = _NewReceived(
            account_id=write.account_id,
            epoch=each.epoch,
            number=each.number,
            type=message.type,
            raw=message.raw,
            refused_number=_refused_number(each),
            client_order_id=each.refused.client_order_id if each.refused else answered_id(message),
            order_id=order_id,
            is_open=is_open,
        )
        rows.append(row)
    # Of an order only the last report says whether it works.
    return [replace(row, is_open=row.is_open and last[row.order_id] == row.number) for row in rows]


def _refused_number(received: ReceivedMessage) -> int | None:
    """The number of our message that a reject names."""
    message = received.message
    return message.number(45) if message.type in (REJECT, BUSINESS_REJECT) else None


# Rows are found one by one, by a key, whatever the planner knows of the tables (decision 0039), and
# written where they were found: nobody else changes them while the session's row is locked, and it
# is lost if that has changed.
COUNT = """
    UPDATE fix_sessions s SET
        reset_at = CASE WHEN epoch = (n.now->>'epoch')::bigint THEN reset_at
            ELSE clock_timestamp() END,
        epoch = (n.now->>'epoch')::bigint,
        next_in = (n.now->>'next_in')::bigint,
        next_out = (n.now->>'next_out')::bigint
    FROM json_to_recordset($1::text::json) AS n (index int, account_id uuid, token bigint, was json,
        now json)
    CROSS JOIN LATERAL (SELECT ctid AS tuple_id FROM fix_sessions
        WHERE account_id = n.account_id OFFSET 0) AS found
    WHERE s.ctid = found.tuple_id AND s.token = n.token AND (epoch, next_in, next_out) =
        ((n.was->>'epoch')::bigint, (n.was->>'next_in')::bigint, (n.was->>'next_out')::bigint)
    RETURNING n.index
"""
INSERT_SENT = """
    INSERT INTO fix_out (account_id, epoch, number, type, raw, client_order_id, is_answered,
        not_after)
    SELECT account_id, epoch, number, type, decode(raw, 'base64'), client_order_id,
        client_order_id IS NULL,
        clock_timestamp() + make_interval(secs => seconds_left)
    FROM json_to_recordset($1::text::json) AS n (
        account_id uuid, epoch bigint, number bigint, type text, raw text, client_order_id text,
            seconds_left float8
    )
"""
# Besides, earlier reports of the same orders are no longer the last, and the commands are answered.
INSERT_RECEIVED = """
    WITH n AS MATERIALIZED (
        SELECT * FROM json_to_recordset($1::text::json) AS n (
            account_id uuid, epoch bigint, number bigint, type text, raw text,
                refused_number bigint, order_id text,
            is_open bool, client_order_id text
        )
    ), closed AS (
        UPDATE fix_in i SET is_open = false
        FROM n CROSS JOIN LATERAL (
            SELECT ctid AS tuple_id FROM fix_in
            WHERE account_id = n.account_id AND order_id BETWEEN n.order_id AND n.order_id
                AND is_open
            ORDER BY order_id OFFSET 0
        ) AS found
        WHERE i.ctid = found.tuple_id
    ), answered AS (
        UPDATE fix_out o SET is_answered = true
        FROM n CROSS JOIN LATERAL (
            SELECT ctid AS tuple_id FROM fix_out
            WHERE client_order_id BETWEEN n.client_order_id AND n.client_order_id
                AND account_id = n.account_id
            ORDER BY client_order_id, account_id OFFSET 0
        ) AS found
        WHERE o.ctid = found.tuple_id AND NOT o.is_answered
    )
    INSERT INTO fix_in (account_id, epoch, number, type, raw, refused_number, order_id, is_open)
    SELECT account_id, epoch, number, type, decode(raw, 'base64'), refused_number, order_id, is_open
    FROM n
"""


# Each asks in the order of the index that is meant.
SKIP = """
    UPDATE fix_out o SET skipped_at = clock_timestamp()
    FROM (
        SELECT tuple_id FROM (
            SELECT ctid AS tuple_id, * FROM fix_out WHERE account_id = $1 AND NOT is_answered
            ORDER BY at OFFSET 0
        ) AS unanswered
        WHERE epoch = $2 AND number BETWEEN $3 AND $4 AND skipped_at IS NULL
            AND not_after < clock_timestamp()
        OFFSET 0
    ) AS found
    WHERE o.ctid = found.tuple_id
    RETURNING true
"""
RESEND = """
    SELECT epoch, number, type, raw FROM (
        SELECT * FROM fix_out WHERE account_id = $1 AND NOT is_answered ORDER BY at OFFSET 0
    ) AS found
    WHERE epoch = $2 AND number BETWEEN $3 AND $4 AND skipped_at IS NULL ORDER BY number LIMIT 200
"""
FIND_REFUSED = (
    "SELECT type, client_order_id FROM fix_out WHERE account_id = $1 AND epoch = $2 AND number = $3"
)
WAS_SENT = "SELECT true FROM fix_out WHERE account_id = $1 AND client_order_id = $2 LIMIT 1"
_RECEIVED = """
    SELECT i.at, i.epoch, i.number, i.raw, o.type, o.client_order_id
    FROM fix_in i LEFT JOIN fix_out o
        ON (o.account_id, o.epoch, o.number) = (i.account_id, i.epoch, i.refused_number)
    WHERE i.account_id = $1
"""
LIST_OPEN = f"{_RECEIVED} AND i.is_open AND i.epoch >= $2 ORDER BY i.order_id"
LIST_RECEIVED = f"""
    {_RECEIVED} AND (i.at, i.epoch, i.number) > ($2, $3, $4)
    ORDER BY i.at, i.epoch, i.number LIMIT {MAX_REPEATED}
"""
LIST_SKIPPED = """
    SELECT epoch, number, type, client_order_id FROM fix_out
    WHERE account_id = $1 AND skipped_at >= $2 ORDER BY skipped_at
"""


_SESSION = ", ".join(StoredSession.__struct_fields__)
FIND_SESSION = f"SELECT {_SESSION} FROM fix_sessions WHERE account_id = $1"  # noqa: S608 - our own
TAKE = f"""
    INSERT INTO fix_sessions AS s
        (account_id, broker, begin_string, sender, target, organization_id, token)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (account_id) DO UPDATE SET token = excluded.token
    WHERE s.token <= excluded.token
    RETURNING {_SESSION}
"""  # noqa: S608 - our own constants
RESET = """
    UPDATE fix_sessions SET epoch = epoch + 1, next_in = 1, next_out = 1,
        reset_at = clock_timestamp()
"""
# Other names are another session, whose numbers begin at 1.
RENAME = f"""
    {RESET}, broker = $2, begin_string = $3, sender = $4, target = $5
    WHERE account_id = $1 RETURNING {_SESSION}
"""


class FixStore:
    """An account's session. Once another worker has a later lease, nothing more is written."""

    def __init__(self, context: IntegrationContext) -> None:
        self._pool = context.database
        self._context = context
        self._account_id = context.account.id
        self._token = context.lease_token
        self.numbers = Numbers()  # as they are stored

    async def open(self, *names: str) -> datetime:
        """Takes the session of this broker, begin string, sender and target for the lease. Gives
        when its numbers began at 1. AuthFailed, BrokerUnavailable."""
        owner = self._context.account.organization_id
        try:
            async with self._pool.transaction() as tx:
                row = await tx.fetchrow(TAKE, self._account_id, *names, owner, self._token)
                if row and StoredSession(**row).names != names:
                    row = await tx.fetchrow(RENAME, self._account_id, *names)
        except asyncpg.UniqueViolationError:
            raise AuthFailed(
                "another account has this sender_comp_id and target_comp_id: a session is one "
                "account's"
            ) from None
        if row is None:
            raise BrokerUnavailable("another worker has the session")
        session = StoredSession(**row)
        self.numbers = Numbers(session.epoch, session.next_in, session.next_out)
        return session.reset_at

    async def prune(self) -> None:
        """Deletes some of the oldest messages, if they are too old; never the last report of an
        order that works."""
        for table, keeps in (("fix_in", "is_open"), ("fix_out", "false")):
            forget = f"""
                DELETE FROM {table} WHERE (account_id, epoch, number) IN (
                    SELECT account_id, epoch, number FROM {table}
                    WHERE account_id = $1 AND NOT {keeps} ORDER BY epoch, number LIMIT $3
                ) AND at < now() - make_interval(days => $2)
            """  # noqa: S608 - our own constants
            async with self._pool.transaction() as tx:
                await tx.execute(forget, self._account_id, KEPT_DAYS, MAX_PRUNED)

    async def write(
        self, numbers: Numbers, received: Sequence[ReceivedMessage], sent: Sequence[SentMessage]
    ) -> Sequence[ReceivedMessage]:
        if numbers == self.numbers and not received and not sent:
            return received
        group = self._context.share("writer", lambda: _write_in_groups(self._context))
        received = [await self._name_refused(each) for each in received]
        await group.put(
            _Write(
                account_id=self._account_id,
                token=self._token,
                before=self.numbers,
                after=numbers,
                received=received,
                sent=sent,
            )
        )
        self.numbers = numbers
        return received

    async def _name_refused(self, received: ReceivedMessage) -> ReceivedMessage:
        if (number := _refused_number(received)) is None:
            return received
        for row in await self._fetch(FIND_REFUSED, received.epoch, number):
            refused = RefusedMessage(**row)
            if refused.client_order_id:  # others are no commands, such as status requests
                return replace(received, refused=refused)
        return received

    async def take_resend(self, epoch: int, first: int, last: int) -> tuple[list[SentMessage], int]:
        account_id = self._account_id
        async with self._pool.transaction() as tx:
            own = """
                SELECT true FROM fix_sessions WHERE account_id = $1 AND token = $2 AND epoch = $3
                FOR UPDATE
            """
            if not await tx.fetchval(own, account_id, self._token, epoch):
                raise SessionTaken
            skipped = await tx.fetch(SKIP, account_id, epoch, first, last)
            rows = await tx.fetch(RESEND, account_id, epoch, first, last)
        return [SentMessage(**row) for row in rows], len(skipped)

    async def was_sent(self, client_order_id: str) -> bool:
        return bool(await self._fetch(WAS_SENT, client_order_id))

    async def list_open(self, epoch: int) -> list[ReceivedMessage]:
        return [_ReceivedRow(**row).received for row in await self._fetch(LIST_OPEN, epoch)]

    async def list_received(self, since: datetime) -> AsyncIterator[ReceivedMessage]:
        at = since
        epoch = 0
        number = 0
        while rows := await self._fetch(LIST_RECEIVED, at, epoch, number):
            for row in rows:
                found = _ReceivedRow(**row)
                yield found.received
                at = found.at
                epoch = found.epoch
                number = found.number

    async def list_skipped(self, since: datetime) -> list[SkippedCommand]:
        return [SkippedCommand(**row) for row in await self._fetch(LIST_SKIPPED, since)]

    async def read(self) -> StoredSession | None:
        rows = await self._fetch(FIND_SESSION)
        return StoredSession(**rows[0]) if rows else None

    async def _fetch(self, sql: str, *arguments: object) -> list[Row]:
        async with self._pool.transaction(read_only=True) as tx:
            return await tx.fetch(sql, self._account_id, *arguments)


async def list_log(tx: Tx, account_id: UUID, limit: int) -> list[LoggedMessage]:
    """The newest messages of both directions, oldest first."""
    query = """
        SELECT at, direction, epoch, number, raw, skipped_at FROM (
            (SELECT at, 'in' AS direction, epoch, number, raw, NULL::timestamptz AS skipped_at
                FROM fix_in
             WHERE account_id = $1 ORDER BY epoch DESC, number DESC LIMIT $2)
            UNION ALL
            (SELECT at, 'out', epoch, number, raw, skipped_at FROM fix_out
             WHERE account_id = $1 ORDER BY epoch DESC, number DESC LIMIT $2)
            ORDER BY at DESC LIMIT $2
        ) AS newest ORDER BY at
    """
    return [LoggedMessage(**row) for row in await tx.fetch(query, account_id, limit)]


async def reset_numbers(tx: Tx, account_id: UUID, note: str) -> tuple[int, int]:
    """Begins an epoch whose number 0 out is the note; a session that is open can store nothing
    more. Gives the epoch, and how many commands of the one before have no answer. NotFound: the
    account has no session."""
    epoch = await tx.fetchval(f"{RESET} WHERE account_id = $1 RETURNING epoch", account_id)
    if epoch is None:
        raise NotFound("the account has no FIX session")
    insert = """
        INSERT INTO fix_out (account_id, epoch, number, type, raw, is_answered)
        VALUES ($1, $2, 0, 'reset', $3, true)
    """
    await tx.execute(insert, account_id, epoch, note.encode())
    count = """
        SELECT count(*) FROM fix_out WHERE account_id = $1 AND epoch = $2 AND NOT is_answered
            AND skipped_at IS NULL
    """
    return epoch, await tx.fetchval(count, account_id, epoch - 1)
