"""One connection whose statements are sent together and answered together: libpq's pipeline mode on
asyncio. Without it the writer would wait for the server seven times a batch."""

import asyncio
import traceback
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from types import UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import psycopg
from psycopg import pq

from trading_intents.errors import DiskFailed, PlatformError, Unavailable
from trading_intents.ids import IdText
from trading_intents.secret import Secret
from trading_intents.storage.connections import READ_POSITION, READ_SERVER, WalHistory
from trading_intents.storage.database import (
    ACQUIRE_LIMIT_SECONDS,
    CONNECT_LIMIT_SECONDS,
    LOCK_LIMIT_SECONDS,
    pack_array,
    session_setup,
    state_role,
)

RUN_LIMIT_SECONDS = TRANSACTION_LIMIT_SECONDS = 2.5
TRANSACTION_TIMEOUT_VERSION = 170_000  # the first server version that has it
RECONNECT_PAUSE_SECONDS = 0.1

_TIMEZONE = "SET TimeZone = 'UTC'"
_TEXT = 0
_BINARY = 1

# The server ends the connection with these: it stops, changes its role, or a limit was reached
# (25P03: idle in a transaction, 25P04: the transaction's time).
FATAL_SQLSTATES = ("57P", "08", "25P03", "25P04")
_LACKS_RESOURCES = "53"
_DISK_FAILED = ("53100", "58")  # classes of errors, and disk_full
# lock_not_available, deadlock_detected, serialization_failure: the next attempt may succeed on the
# same connection.
_CONTENTION = ("55P03", "40P01", "40001")


class Statement(NamedTuple):
    """A statement, prepared when it is first run. Texts are sent as texts, bytes as bytea."""

    sql: str
    arguments: tuple[str | bytes | None, ...] = ()


def array_text(values: Iterable[str]) -> str:
    """An array parameter of numbers, ids or words, none of which needs quoting."""
    return f"{{{','.join(values)}}}"


def json_text(rows: object) -> str:
    """A parameter that the statement makes rows of again."""
    return msgspec.json.encode(rows).decode()


_TYPES: Mapping[object, str] = {
    IdText: "uuid",
    int: "bigint",
    float: "float8",
    Decimal: "numeric",
    bool: "boolean",
    datetime: "timestamptz",
    date: "date",
}


def column_types(struct: type[msgspec.Struct], *left_out: str) -> dict[str, str]:
    """The type of the column in which each field is stored; tuples are of texts without commas."""
    hints = get_type_hints(struct)
    types = {}
    for name in struct.__struct_fields__:
        if name not in left_out:
            types[name] = _column_type(hints[name])
    return types


def _column_type(hint: object) -> str:
    kind = get_args(hint)[0] if isinstance(hint, UnionType) else hint
    return "text[]" if get_origin(kind) is tuple else _TYPES.get(kind, "text")


class RowParameters:
    """Parameters of many rows: an array for each column, which PostgreSQL parses faster than
    JSON."""

    def __init__(self, types: Mapping[str, str], first: int = 1) -> None:
        """`rows` goes into FROM: it has these columns, and `ordinality`. Parameters are numbered
        from `first`."""
        self._types = list(types.values())
        self.columns = ", ".join(types)
        self._casts: dict[str, str] = {}
        self._arrays: dict[str, str] = {}
        values = []
        for number, (name, kind) in enumerate(types.items(), first):
            is_array = kind == "text[]"  # sent as a text
            self._casts[name] = "::text[]" if is_array else f"::{kind}[]"
            self._arrays[name] = f"from_column(${number}){self._casts[name]}"
            values.append(f"string_to_array({name}, ',') AS {name}" if is_array else name)
        arrays = ", ".join(self._arrays.values())
        unnested = f"unnest({arrays}) WITH ORDINALITY AS sent ({self.columns}, ordinality)"
        texts = ", ".join(values)
        self.rows = f"(SELECT {texts}, ordinality FROM {unnested})"  # noqa: S608 - our own

    def any_of(self, alias: str, *names: str) -> str:
        """The condition that an UPDATE names beside its join, so that its rows are probed, whatever
        the planner thinks of the table's size. An array is read once, not for each row."""
        conditions = []
        for name in names:
            array = f"(SELECT {self._arrays[name]}){self._casts[name]}"
            conditions.append(f"{alias}.{name} = ANY ({array})")
        return " AND ".join(conditions)

    def pack(self, rows: Iterable[Sequence[Any]]) -> tuple[str | None, ...]:
        """The parameters. Without a row each is NULL, of which unnest makes none."""
        columns = list(zip(*rows, strict=True)) or [()] * len(self._types)
        kinds = zip(self._types, columns, strict=True)
        return tuple([_pack(kind, values) for kind, values in kinds])


def _pack(kind: str, values: Sequence[Any]) -> str | None:
    if not values:
        return None
    if kind == "text[]":
        values = [",".join(each) for each in values]
    elif kind not in ("text", "uuid"):
        values = [None if each is None else str(each) for each in values]
    return pack_array(values)


TextRow = tuple[bytes | None, ...]  # texts


T = TypeVar("T")


class Reply(NamedTuple):
    tag: str  # such as COMMIT
    rows: list[TextRow]

    def texts(self) -> list[list[Any]]:
        """The rows, decoded; each value is a text or None."""
        return [_decode_row(row) for row in self.rows]

    def parse(self, kind: type[T]) -> list[T]:
        """The rows of one text each, which is JSON, without those that are NULL."""
        return [msgspec.json.decode(text, type=kind) for (text,) in self.rows if text]


def _decode_row(row: TextRow) -> list[Any]:
    return [None if value is None else value.decode() for value in row]


class StatementRefused(Exception):
    """The server answered with an error, and ran neither that statement nor those after it.

    The connection is closed, since its prepared statements may be the reason, unless
    `is_contention`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.is_contention = code in _CONTENTION


class ConnectionLost(Exception):
    """The connection ended, or was closed since no answer came in time. What was sent may have been
    run."""


class ConnectionDropped(ConnectionLost):
    """The platform closed the connection itself."""


class PipelineRequest:
    def __init__(self, connection: "PipelineConnection", known: int) -> None:
        """`known` is how many statements the connection had prepared before this request."""
        self.replies: list[Reply] = []
        self.error: Exception | None = None
        self.known = known
        self.open_syncs = 0
        self.is_whole = False
        self.has_begun = False  # the next reply is that of the role
        self.timer: asyncio.TimerHandle | None = None
        self._connection = connection
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def append_statements(self, statements: Sequence[Statement], more: bool = False) -> None:
        """Sends more statements of a request that was sent with `more`.

        If one of its statements was refused, these are refused too, and COMMIT rolls back. But if
        BEGIN itself was refused they are run: send none that must not be.
        """
        self._connection.add(self, statements, more)

    async def all_replies(self) -> list[Reply]:
        """Waits for all answers. Raises StatementRefused, ConnectionLost, or Unavailable when the
        server lacks disk or memory."""
        await self._ended
        if self.error:
            raise self.error
        return self.replies

    def fail(self, error: Exception) -> None:
        self.error = self.error or error

    def finish(self) -> None:
        if self.timer:
            self.timer.cancel()
        if not self._ended.done():
            self._ended.set_result(None)


class Pipeline:
    """A connection that is opened by its first use and again after every loss. For one caller at a
    time."""

    def __init__(
        self,
        url: Secret,
        role: str,
        lock_limit_seconds: float = LOCK_LIMIT_SECONDS,
        history: WalHistory | None = None,
    ) -> None:
        self._url = url
        self._role = role
        self._lock_limit_seconds = lock_limit_seconds
        self._history = history
        self._connection: PipelineConnection | None = None
        self._opening: asyncio.Task[PipelineConnection] | None = None
        self._away_until_seconds = 0.0

    def another(self) -> "Pipeline":
        return Pipeline(self._url, self._role, self._lock_limit_seconds, self._history)

    async def connect(self) -> "PipelineConnection":
        """Gives the open connection, for a transaction to stay on, or opens one, which goes on when
        the caller gives up. Unavailable: the server cannot be reached."""
        return self.open_connection or await self._open()

    @property
    def open_connection(self) -> "PipelineConnection | None":
        """The open connection, for a caller that does not wait for a new one."""
        return self._connection if self._connection and not self._connection.lost else None

    def close(self) -> None:
        if self._opening:
            self._opening.cancel()
            self._opening = None
        if self._connection:
            self._connection.close(ConnectionDropped())

    async def _open(self) -> "PipelineConnection":
        if asyncio.get_running_loop().time() < self._away_until_seconds:
            raise Unavailable("the database cannot be reached")
        if self._opening is None:
            self._opening = asyncio.create_task(self._attempt())
            self._opening.add_done_callback(self._on_attempt)
        attempt = self._opening
        await asyncio.wait([attempt], timeout=ACQUIRE_LIMIT_SECONDS)
        if attempt.done() and not attempt.cancelled():
            return attempt.result()
        raise Unavailable("the database cannot be reached")

    async def _attempt(self) -> "PipelineConnection":
        try:
            async with asyncio.timeout(CONNECT_LIMIT_SECONDS):
                return await self._connected()
        except (psycopg.Error, OSError, TimeoutError, StatementRefused, ConnectionLost) as error:
            # Pause between reconnects so that a recovering server is not flooded.
            away_until_seconds = asyncio.get_running_loop().time() + RECONNECT_PAUSE_SECONDS
            self._away_until_seconds = away_until_seconds
            raise Unavailable("the database cannot be reached") from error

    def _on_attempt(self, attempt: "asyncio.Task[PipelineConnection]") -> None:
        is_wanted = attempt is self._opening
        if is_wanted:
            self._opening = None
        if attempt.cancelled() or attempt.exception():
            return
        if is_wanted:
            self._connection = attempt.result()
        else:
            attempt.result().close()

    async def _connected(self) -> "PipelineConnection":
        connection = None
        try:
            opened = await psycopg.AsyncConnection.connect(self._url.reveal(), autocommit=True)
            connection = PipelineConnection(opened, self._role, self._history)
            has_timeout = opened.pgconn.server_version >= TRANSACTION_TIMEOUT_VERSION
            more_seconds = {"transaction_timeout": TRANSACTION_LIMIT_SECONDS} if has_timeout else {}
            setup = session_setup(self._role, self._lock_limit_seconds, **more_seconds)
            await connection.send([Statement(text) for text in (*setup, _TIMEZONE)]).all_replies()
            if self._history:
                seen = self._history.seen
                [reply] = await connection.run([Statement(READ_SERVER)])
                if not reply.rows or self._history.find_lost_tail(seen, *reply.texts()[0]):
                    raise ConnectionLost  # the pools say why
            return connection
        except BaseException as error:
            if connection:
                connection.close()
            # Whoever keeps the error keeps the driver's frames, and they the socket of an attempt
            # that was given up.
            traceback.clear_frames(error.__traceback__)
            raise


class PipelineConnection:
    def __init__(
        self,
        connection: "psycopg.AsyncConnection[tuple[object, ...]]",
        role: str,
        history: WalHistory | None,
    ) -> None:
        # Kept because the connection closes when it is collected.
        self._owner = connection
        self._state_role = Statement(state_role(role))
        self._history = history
        self._pgconn = connection.pgconn
        self._pgconn.nonblocking = 1
        self._pgconn.enter_pipeline_mode()
        # Kept because libpq forgets it when the connection ends.
        self._fd = connection.pgconn.socket
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._receive)
        self._names: dict[str, bytes] = {}
        self._prepared = 0
        self._requests: deque[PipelineRequest] = deque()
        self.lost: ConnectionLost | None = None

    async def run(self, statements: Sequence[Statement]) -> list[Reply]:
        """Runs statements in one round trip. Raises StatementRefused or ConnectionLost."""
        request = self.send(statements)
        try:
            return await request.all_replies()
        except asyncio.CancelledError:
            self.close(ConnectionDropped())  # it is unknown which statements were run
            raise

    def send(self, statements: Sequence[Statement], more: bool = False) -> PipelineRequest:
        request = PipelineRequest(self, len(self._names))
        if self.lost:
            request.fail(self.lost)
            request.finish()
            return request
        self._requests.append(request)
        request.timer = self._loop.call_later(RUN_LIMIT_SECONDS, self.close)
        self._send_request(request, statements, more)
        return request

    def add(self, request: PipelineRequest, statements: Sequence[Statement], more: bool) -> None:
        if not self.lost:
            assert request is self._requests[-1], "something else was sent behind it"
            if statements or not more:
                self._send_request(request, statements, more)

    def _send_request(
        self, request: PipelineRequest, statements: Sequence[Statement], more: bool
    ) -> None:
        """Sends a Sync at the end: without it the server's limit on idle transactions does not
        apply."""
        request.is_whole = not more
        request.open_syncs += 1
        try:
            for statement in statements:
                if self._history and statement.sql == "COMMIT":
                    self._send(Statement(READ_POSITION))  # whose reply is taken from the others
                    # By itself: where it is refused, as after another refusal, the COMMIT must
                    # still be run.
                    self._pgconn.pipeline_sync()
                    request.open_syncs += 1
                self._send(statement)
                if statement.sql.startswith("BEGIN"):
                    self._send(self._state_role)  # whose reply is taken from the others
            self._pgconn.pipeline_sync()
            self._flush()
        except psycopg.Error:
            self.close()

    def close(self, error: ConnectionLost | None = None) -> None:
        if self.lost:
            return
        self.lost = error or ConnectionLost()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._pgconn.finish()
        while self._requests:
            request = self._requests.popleft()
            request.fail(self.lost)
            request.finish()

    def _send(self, statement: Statement) -> None:
        pgconn = self._pgconn
        sql, arguments = statement
        name = self._names.get(sql)
        if name is None:
            self._prepared += 1
            # The name's first word is for readers of the server's log.
            name = self._names[sql] = (
                f"{sql.split(maxsplit=1)[0].lower()}_{self._prepared}".encode()
            )
            pgconn.send_prepare(name, sql.encode())
        if arguments:
            values = []
            formats = []
            for each in arguments:
                values.append(each.encode() if isinstance(each, str) else each)
                formats.append(_BINARY if type(each) is bytes else _TEXT)
            pgconn.send_query_prepared(name, values, formats)
        else:
            pgconn.send_query_prepared(name, None)

    def _flush(self) -> None:
        if self._pgconn.flush():
            self._loop.add_writer(self._fd, self._flush_more)

    def _flush_more(self) -> None:
        try:
            if not self._pgconn.flush():
                self._loop.remove_writer(self._fd)
        except psycopg.Error:
            self.close()

    def _receive(self) -> None:
        pgconn = self._pgconn
        try:
            pgconn.consume_input()
            if not self._requests:
                # No answer is expected, so this is the end of the connection.
                raise psycopg.OperationalError
            at_end = False
            while self._requests and not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    if at_end:
                        break  # of all that was sent so far
                    at_end = True  # of one statement's results
                    continue
                at_end = False
                if result.status == pq.ExecStatus.PIPELINE_SYNC:
                    self._end_section(self._requests[0])
                else:
                    self._keep(self._requests[0], result)
            if pgconn.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError  # no more answers will come
        except psycopg.Error:
            self.close()

    def _end_section(self, request: PipelineRequest) -> None:
        request.open_syncs -= 1
        if request.is_whole and not request.open_syncs:
            self._requests.popleft()
            if request.error:
                # It is unknown which statements were prepared, so new ones get other names.
                self._names = dict(islice(self._names.items(), request.known))
            request.finish()

    def _keep(self, request: PipelineRequest, result: pq.abc.PGresult) -> None:
        match result.status:
            case pq.ExecStatus.TUPLES_OK:
                request.replies.append(Reply("", _rows_of(result)))
            case pq.ExecStatus.COMMAND_OK:
                # A prepared statement has a result without a tag.
                if tag := result.command_status:
                    is_role = request.has_begun
                    request.has_begun = tag == b"BEGIN"
                    if is_role:
                        return
                    if self._history and tag == b"COMMIT":
                        for (position,) in request.replies.pop().rows:
                            self._history.note(position)
                    request.replies.append(Reply(tag.decode(), []))
            case pq.ExecStatus.FATAL_ERROR if request.error is None:
                self._fail(request, result)

    def _fail(self, request: PipelineRequest, result: pq.abc.PGresult) -> None:
        code = _error_text(result, pq.DiagnosticField.SQLSTATE)
        # An error without a code is not the server's: the connection is lost.
        if not code or code.startswith(FATAL_SQLSTATES):
            request.fail(ConnectionLost())
            self.close()
            return
        message = _error_text(result, pq.DiagnosticField.MESSAGE_PRIMARY)
        refused = StatementRefused(code, message)
        request.fail(_unavailable(refused) or refused)
        if not refused.is_contention:
            self.close(ConnectionDropped())


def _rows_of(result: pq.abc.PGresult) -> list[TextRow]:
    columns = range(result.nfields)
    rows: list[TextRow] = []
    for row in range(result.ntuples):
        rows.append(tuple([result.get_value(row, column) for column in columns]))
    return rows


def _error_text(result: pq.abc.PGresult, field: pq.DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode(errors="replace")


def _unavailable(refused: StatementRefused) -> PlatformError | None:
    """The error of a server without disk or memory, for which the statement is not to blame."""
    if not refused.code.startswith((_LACKS_RESOURCES, *_DISK_FAILED)):
        return None
    error = (
        DiskFailed()
        if refused.code.startswith(_DISK_FAILED)
        else Unavailable("the database lacks resources")
    )
    error.__cause__ = refused
    return error
