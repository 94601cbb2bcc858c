"""One connection whose statements leave together and are answered together: libpq's pipeline mode on our loop.

For the writer, which would else wait for the server seven times a batch. Knows no table; decides nothing.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import psycopg
from psycopg import pq

from trading_intents.errors import Unavailable
from trading_intents.secret import Secret
from trading_intents.storage.database import SERVICE_ROLE, WORKER_ROLE

CONNECT_LIMIT_SECONDS = 2.0
RUN_LIMIT_SECONDS = 2.5
KNOCK_PAUSE_SECONDS = 0.1

# Plans that go by keys alone are made once, and through indexes whatever the tables' size.
_SESSION = ("SET TimeZone = 'UTC'", "SET plan_cache_mode = force_generic_plan", "SET enable_seqscan = off")
SERVICE_SESSION = (f"SET ROLE {SERVICE_ROLE}", *_SESSION)
WORKER_SESSION = (f"SET ROLE {WORKER_ROLE}", *_SESSION)

_TEXT, _BINARY = 0, 1

# What the server says with these is the last that it says: it went away, or becomes something else.
_LAST_WORDS = ("57P", "08")


class Statement(NamedTuple):
    """Prepared when it is first run. Texts go as texts, bytes as bytea."""

    sql: str
    arguments: tuple[str | bytes | None, ...] = ()


Rows = list[tuple[bytes | None, ...]]  # as texts


class Reply(NamedTuple):
    tag: str  # such as COMMIT
    rows: Rows


class Refused(Exception):
    """The server answered with an error; neither that statement nor what follows it was run."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code


class LinkLost(Exception):
    """The connection ended, or was ended since no answer came in time: what was sent may have been run."""


class Pipeline:
    """Opened by its first use, and again after every loss. For one caller at a time."""

    def __init__(self, url: Secret, session: Sequence[str]) -> None:
        """`session` is run once on every new connection."""
        self._url, self._session = url, session
        self._link: _Link | None = None
        self._away_until_seconds = 0.0

    async def run(self, statements: Sequence[Statement]) -> list[Reply]:
        """One round trip. Unavailable: none of them left. Refused and LinkLost: as these say."""
        link = self._link
        if link is None or link.closed:
            link = self._link = await self._open()
        return await link.run(statements)

    def close(self) -> None:
        if self._link:
            self._link.close()

    async def _open(self) -> "_Link":
        loop = asyncio.get_running_loop()
        if loop.time() < self._away_until_seconds:
            raise Unavailable("the database is away")
        link = None
        try:
            async with asyncio.timeout(CONNECT_LIMIT_SECONDS):
                connection = await psycopg.AsyncConnection.connect(self._url.reveal(), autocommit=True)
                link = _Link(connection)
                await link.run([Statement(text) for text in self._session])
        except (psycopg.Error, OSError, TimeoutError, Refused, LinkLost) as error:
            if link:
                link.close()
            # A crowd that knocks without pause keeps a recovering server from its work.
            self._away_until_seconds = loop.time() + KNOCK_PAUSE_SECONDS
            raise Unavailable("the database is away") from error
        return link


class _Link:
    def __init__(self, connection: "psycopg.AsyncConnection[tuple[object, ...]]") -> None:
        self._owner = connection  # it ends the link when it is forgotten
        self._link = connection.pgconn
        self._link.nonblocking = 1
        self._link.enter_pipeline_mode()
        self._fd = connection.pgconn.socket  # libpq forgets it with the connection
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._receive)
        self._names: dict[str, bytes] = {}
        self._prepared = 0
        self._answered: asyncio.Future[None] | None = None
        self._replies: list[Reply] = []
        self._error: Exception | None = None
        self.closed = False

    async def run(self, statements: Sequence[Statement]) -> list[Reply]:
        known = dict(self._names)
        self._replies, self._error = [], None
        self._answered = self._loop.create_future()
        timer = self._loop.call_later(RUN_LIMIT_SECONDS, self.close)
        try:
            self._send(statements)
            await self._answered
        except Refused:
            # Who knows which were prepared: those that were new get other names.
            self._names = known
            raise
        except psycopg.Error as error:
            self.close()
            raise LinkLost from error
        except BaseException:
            self.close()  # else this answer would be taken for the next one's
            raise
        finally:
            timer.cancel()
            self._answered = None
        return self._replies

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._link.finish()
        self._end(LinkLost())

    def _send(self, statements: Sequence[Statement]) -> None:
        link = self._link
        for sql, arguments in statements:
            name = self._names.get(sql)
            if name is None:
                self._prepared += 1
                # The first word is for whoever reads the server's log.
                name = self._names[sql] = f"{sql.split(maxsplit=1)[0].lower()}_{self._prepared}".encode()
                link.send_prepare(name, sql.encode())
            if arguments:
                values = [each.encode() if isinstance(each, str) else each for each in arguments]
                link.send_query_prepared(
                    name, values, [_BINARY if type(each) is bytes else _TEXT for each in arguments]
                )
            else:
                link.send_query_prepared(name, None)
        link.pipeline_sync()
        self._flush()

    def _flush(self) -> None:
        """What the socket does not take at once leaves when it can."""
        if self._link.flush():
            self._loop.add_writer(self._fd, self._flush_more)

    def _flush_more(self) -> None:
        try:
            if not self._link.flush():
                self._loop.remove_writer(self._fd)
        except psycopg.Error:
            self.close()

    def _receive(self) -> None:
        link = self._link
        try:
            link.consume_input()
            at_end = False
            while self._answered and not link.is_busy():
                result = link.get_result()
                if result is None:
                    if at_end:
                        raise psycopg.OperationalError  # nothing more will come: the link is gone
                    at_end = True  # of one statement's results
                    continue
                at_end = False
                if result.status == pq.ExecStatus.PIPELINE_SYNC:
                    self._end(self._error)
                    return
                self._keep(result)
            if not self._answered:
                raise psycopg.OperationalError  # nothing was asked: it is the end of the link that is told
        except psycopg.Error:
            self.close()

    def _keep(self, result: pq.abc.PGresult) -> None:
        match result.status:
            case pq.ExecStatus.TUPLES_OK:
                columns = range(result.nfields)
                rows = [tuple([result.get_value(row, c) for c in columns]) for row in range(result.ntuples)]
                self._replies.append(Reply("", rows))
            case pq.ExecStatus.COMMAND_OK:
                # A statement that was prepared gives one of these without a tag.
                if tag := result.command_status:
                    self._replies.append(Reply(tag.decode(), []))
            case pq.ExecStatus.FATAL_ERROR if self._error is None:
                code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
                message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
                # Without a code it is not the server who says it: the link is gone.
                is_last = not code or code.startswith(_LAST_WORDS)
                self._error = LinkLost() if is_last else Refused(code, message)
                if is_last:
                    self.close()

    def _end(self, error: Exception | None) -> None:
        if self._answered is None or self._answered.done():
            return
        if error:
            self._answered.set_exception(error)
        else:
            self._answered.set_result(None)
