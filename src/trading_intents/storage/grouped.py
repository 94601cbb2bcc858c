"""Group commits: items that wait are written in one transaction, in two round trips. Asks how a
commit ended whose answer was lost. Knows no table."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar
from uuid import UUID

import asyncpg

from trading_intents.errors import OutcomeUnknown, PlatformError, Unavailable
from trading_intents.loops import stop_tasks
from trading_intents.storage.database import Pool, Row, Tx
from trading_intents.storage.pipeline import (
    ConnectionDropped,
    ConnectionLost,
    Pipeline,
    PipelineConnection,
    Reply,
    Statement,
    StatementRefused,
)
from trading_intents.telemetry import Log

MAX_BATCH = 256
OUTCOME_PAUSE_SECONDS = 0.05
Item = TypeVar("Item")
Result = TypeVar("Result")

BEGIN = Statement("BEGIN")
COMMIT = Statement("COMMIT")
ROLLBACK = Statement("ROLLBACK")
# NULL before the first write.
TRANSACTION_ID = Statement("SELECT pg_current_xact_id_if_assigned()::text")


class StatementRunner(Protocol):
    """An open transaction that runs statements. A statement for every kind of it returns texts
    only."""

    async def run(self, statements: Sequence[Statement]) -> list[Reply]: ...


class PoolTransaction:
    """A pool's transaction as a StatementRunner. Parameters are cast from text in the
    statements."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def run(self, statements: Sequence[Statement]) -> list[Reply]:
        replies = []
        for sql, arguments in statements:
            rows = await self._tx.fetch(sql, *arguments)
            replies.append(Reply("", [_encode_row(row) for row in rows]))
        return replies


def _encode_row(row: Row) -> tuple[bytes | None, ...]:
    return tuple(map(_encode_value, row.values()))


def _encode_value(value: object) -> bytes | None:
    return None if value is None else str(value).encode()


class PipelinedTransaction:
    def __init__(self, connection: PipelineConnection) -> None:
        self.connection = connection
        self.has_begun = self.has_ended = False

    async def run(self, statements: Sequence[Statement]) -> list[Reply]:
        """Runs statements in one round trip. StatementRefused: the transaction is over, and nothing
        was recorded."""
        try:
            if self.has_begun:
                return await self.connection.run(statements)
            self.has_begun = True
            return (await self.connection.run([BEGIN, *statements]))[1:]
        except ConnectionLost:
            raise Unavailable(
                "the connection to the database was lost; nothing was recorded"
            ) from None

    async def commit(self, statements: Sequence[Statement] = ()) -> list[Reply]:
        """Runs the last statements and COMMIT. OutcomeUnknown: the connection was lost, perhaps
        after the commit."""
        if self.connection.lost:
            raise Unavailable("the connection to the database was lost; nothing was recorded")
        begin = () if self.has_begun else (BEGIN,)
        self.has_begun = True
        try:
            replies = await self.connection.run([*begin, *statements, COMMIT])
        except ConnectionLost:
            raise OutcomeUnknown from None
        assert replies[-1].tag == "COMMIT", (
            "an error was swallowed inside a transaction, which then rolled back"
        )
        self.has_ended = True
        return replies[len(begin) : -1]


class GroupTransactions:
    """Runs one transaction at a time on its own connection."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[PipelinedTransaction]:
        """Rolls back unless it was committed. Unavailable: nothing was recorded."""
        async with self._lock:
            connection = await self._pipeline.connect()
            transaction = PipelinedTransaction(connection)
            try:
                yield transaction
                if transaction.has_begun and not transaction.has_ended:
                    await connection.run([ROLLBACK])
            except StatementRefused:
                with contextlib.suppress(StatementRefused, ConnectionLost):
                    await connection.run([ROLLBACK])
                raise
            except BaseException:
                connection.close(ConnectionDropped())  # the transaction ends with it
                raise

    def close(self) -> None:
        self._pipeline.close()


async def has_committed(
    pool: Pool,
    organizations: Sequence[UUID],
    transaction_id: str,
    proof: Statement | None,
    limit_seconds: float,
    log: Log,
) -> bool | None:
    """Asks for so long how a transaction ended whose COMMIT was not answered. None: the server did
    not say. `proof` finds rows that only this transaction can have written: a server that crashed
    may use transaction ids again that it had not yet saved."""

    async def ask() -> bool | None:
        try:
            async with pool.transaction(organizations, read_only=True) as tx:
                status = await tx.fetchval("SELECT pg_xact_status($1::text::xid8)", transaction_id)
                if status == "committed":
                    return proof is None or bool(await tx.fetch(proof.sql, *proof.arguments))
                # Else in progress, or too old for the server to know.
                return False if status == "aborted" else None
        except asyncpg.InvalidParameterValueError:
            return False  # the id is in the future: the server crashed and has forgotten it
        except (PlatformError, TimeoutError):
            return None
        except Exception as error:  # somebody waits for the outcome, whatever the error is
            log.error("commit outcome not read", exc_info=error)
            return None

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_seconds):
            while True:
                outcome = await ask()
                if outcome is not None:
                    return outcome
                await asyncio.sleep(OUTCOME_PAUSE_SECONDS)
    return None


class GroupCommit(Generic[Item, Result]):
    """Collects items while a batch is written. A batch that fails is retried item by item, so that
    a bad item fails alone, and on a new connection, without its prepared statements. It is not
    retried when the database is unavailable or the commit's outcome unknown. Its size is bounded by
    its callers, each of which waits."""

    def __init__(
        self,
        work: Callable[[list[Item]], Awaitable[Sequence[Result | Exception]]],
        weigh: Callable[[Item], int] = lambda _: 1,
    ) -> None:
        """A batch is full when its items weigh MAX_BATCH."""
        self._work = work
        self._weigh = weigh
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def put(self, item: Item) -> Result:
        written: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, written))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await written

    async def close(self) -> None:
        await stop_tasks(self._task)

    async def _run(self) -> None:
        while self._waiting:
            batch = []
            weight = 0
            while self._waiting and weight < MAX_BATCH:
                batch.append(self._waiting.popleft())
                weight += self._weigh(batch[-1][0])
            await self._write(batch)

    async def _write(
        self, batch: list[tuple[Item, asyncio.Future[Result]]], is_second: bool = False
    ) -> None:
        batch = [each for each in batch if not each[1].done()]
        if not batch:
            return
        try:
            results = await self._work([item for item, _ in batch])
        except Exception as error:
            if not is_second and not isinstance(error, PlatformError):
                for each in batch:
                    await self._write([each], is_second=True)
                return
            results = [error] * len(batch)
        for (_, written), result in zip(batch, results, strict=True):
            if written.done():  # its caller was cancelled
                continue
            if isinstance(result, Exception):
                written.set_exception(result)
            else:
                written.set_result(result)
