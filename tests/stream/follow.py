"""The hub and its streams over a database, without transports: readers that take what they are
given, or do not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from trading_intents.accounts.service import Accounts
from trading_intents.clock import SystemClock
from trading_intents.errors import PlatformError
from trading_intents.identity.access import Gate
from trading_intents.identity.model import Caller, OrganizationRecord, UserPrincipal
from trading_intents.ids import OrganizationId
from trading_intents.intents.writing.record import render_create
from trading_intents.storage.database import Database, Pool, Tx
from trading_intents.stream import trading_pb2
from trading_intents.stream.hub import Hub
from trading_intents.stream.log import append
from trading_intents.stream.model import Event, EventType
from trading_intents.stream.service import Retained, Streams, SubscribeRequest
from trading_intents.stream.text import Message
from trading_intents.telemetry import Metrics, make_log
from trading_intents.trading import Environment
from trading_intents.web.request import Incoming, Request

ACTIONS = frozenset({EventType.INTENT_ACTION})


class OpenGate:
    """Lets every caller in, until a test changes it."""

    error: PlatformError | None = None

    async def identify(self, request: Request) -> None:
        if self.error:
            raise self.error

    def permit(self, request: Request) -> None: ...


def numbered(organization_id: OrganizationId, number: int, size: int = 0) -> Event:
    """An action whose seq is the number."""
    action = trading_pb2.IntentAction(seq=number, symbol="x" * size)
    payload = trading_pb2.TradingEvent(intent_action=action).SerializeToString()
    # Its one account has its id.
    return Event(
        organization_id=str(organization_id),
        account_id=str(organization_id),
        environment=Environment.PAPER,
        symbol="AAPL",
        payload=payload,
    )


def number_of(message: Message) -> int:
    return trading_pb2.TradingEvent.FromString(message.data).intent_action.seq


class Reader:
    """One stream; `reading` False: it takes nothing."""

    def __init__(
        self,
        api_platform: "ApiOnlyPlatform",
        organization_id: OrganizationId,
        reading: bool = True,
        caller: str = "",
    ) -> None:
        self._platform = api_platform
        self._reading = reading
        request = Request(
            Incoming(
                method="GET",
                raw_path=b"",
                query_string=b"",
                headers=[],
                body=b"",
                peer="here",
                keep_alive=True,
            ),
            {},
            "here",
        )
        organization = OrganizationRecord(
            id=organization_id,
            provider="local",
            external_id="o",
            name="o",
            entitlements=frozenset(),
            disabled=False,
            created_at=datetime.now(UTC),
        )
        request.caller = Caller(UserPrincipal(caller or f"{id(self)}", "o", "member"), organization)
        self.messages: list[Message] = []
        self._wakeup = asyncio.Event()
        self.stream = api_platform.streams.open("test", request, self._take)
        self.line = self.stream.subscriber

    async def subscribe(
        self, resume_after: str = "", kinds: frozenset[EventType] = ACTIONS
    ) -> "Reader":
        await self._platform.streams.subscribe(
            self.stream, SubscribeRequest(None, kinds, resume_after=resume_after)
        )
        return self

    def _take(self) -> None:
        while self._reading and (batch := self.line.take()):
            self.messages += batch.messages
            self.line.sent(len(batch.messages), batch.size)
        self._wakeup.set()

    def take_one(self) -> None:
        """A slow reader's step."""
        if batch := self.line.take():
            self.messages += batch.messages
            self.line.sent(len(batch.messages), batch.size)

    async def until(self, is_done: Any) -> None:
        async with asyncio.timeout(30):
            while not is_done(self):
                self._wakeup.clear()
                await self._wakeup.wait()

    async def has(self, last: int) -> "Reader":
        await self.until(
            lambda reader: next(filter(None, map(number_of, reversed(reader.messages))), 0) == last
        )
        return self

    async def ended(self) -> PlatformError:
        await self.until(lambda reader: reader.line.error is not None)
        assert self.line.error is not None
        return self.line.error

    @property
    def numbers(self) -> list[int]:
        """Of the actions; what the hub says of itself has none."""
        return [number for message in self.messages if (number := number_of(message))]

    @property
    def cursors(self) -> dict[int, str]:
        events = [trading_pb2.TradingEvent.FromString(message.data) for message in self.messages]
        return {event.intent_action.seq: event.cursor for event in events if event.cursor}

    def close(self) -> None:
        self._platform.streams.close(self.stream)


class ApiOnlyPlatform:
    def __init__(
        self, database: Database, retained: Retained | None = None, pool: Pool | None = None
    ) -> None:
        self._database = database
        self.gate = OpenGate()
        log = make_log("error")
        self.metrics = Metrics()
        self.hub = Hub(
            pool=pool or database.stream,
            render=render_create,
            max_streams=10_000,
            per_organization=0,
            clock=SystemClock(),
            metrics=self.metrics,
            log=log,
        )
        states = dict.fromkeys(
            (EventType.BROKER_ORDER, EventType.BROKER_POSITION), retained or _nothing
        )
        gate = cast(Gate, self.gate)
        accounts = cast(Accounts, None)
        self.streams = Streams(
            pool=database.stream,
            hub=self.hub,
            accounts=accounts,
            gate=gate,
            retained=states,
            render=render_create,
            cursor_days=7,
            log=log,
        )

    async def append(self, events: Sequence[Event], wake: bool = True) -> None:
        async with self._database.worker.transaction() as tx:
            await append(tx, events)
        if wake:
            self.hub.wake()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["ApiOnlyPlatform"]:
        task = asyncio.create_task(self.hub.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _nothing(
    tx: Tx,
    organization_id: OrganizationId,
    account_id: UUID | None,
    environment: Environment | None,
) -> AsyncIterator[Sequence[Event]]:
    return
    yield
