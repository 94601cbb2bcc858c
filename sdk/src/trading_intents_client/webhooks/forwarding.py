"""Delivers an account's events to a target: one at a time, in order, until each is taken. Skips
none that is kept."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from urllib.parse import quote

import msgspec

from trading_intents_client.asynchronous.client import AsyncTradingClient
from trading_intents_client.stream.events import (
    Event,
    GapEvent,
    PrimedEvent,
    StatusMessage,
    read_event,
)
from trading_intents_client.stream.following import AsyncEventStream
from trading_intents_client.stream.sources import POSITIONS
from trading_intents_client.stream.sse import follow_http
from trading_intents_client.webhooks.cursor_file import CursorFile
from trading_intents_client.webhooks.target import WebhookTarget

DEFAULT_KINDS = ("intent_action", "broker_order", "broker_trade", "broker_position")
KINDS = (*DEFAULT_KINDS, "balance", "halt")
FIRST_PAUSE_SECONDS = 1
MAX_PAUSE_SECONDS = 60

Say = Callable[[str], None]
Sleep = Callable[[float], Awaitable[None]]


class ForwardedEvent(Event, frozen=True, kw_only=True):
    """An event of the log. Without a body it is of a kind that was not asked for, and only its
    cursor counts."""

    body: bytes | None


def follow_bodies(
    client: AsyncTradingClient, account_id: str, kinds: Collection[str], after: str | None
) -> AsyncEventStream:
    """The account's events as the server writes them, resumed after every break."""
    path = f"/v1/accounts/{quote(account_id, safe='')}/events"
    # With positions the server answers a cursor at once, so that a first start misses nothing.
    params = {"kinds": ",".join(sorted({*kinds, POSITIONS}))}

    def read(text: bytes) -> Event | StatusMessage | None:
        data = json.loads(text)
        event = read_event(data)
        if event is None or isinstance(event, StatusMessage | PrimedEvent) or event.cursor is None:
            return event
        is_wanted = POSITIONS not in data or POSITIONS in kinds
        return ForwardedEvent(cursor=event.cursor, body=text if is_wanted else None)

    def connect(cursor: str | None) -> AsyncIterator[Event | StatusMessage]:
        return follow_http(client._transport, path, params, cursor, read)

    async def gap(cursor: str | None) -> GapEvent:
        return GapEvent(orders=(), positions=(), cursor=cursor)

    return AsyncEventStream(connect, gap, after, client._transport.options.max_retries)


class Forwarder:
    """Follows one account until an error that will not go away."""

    def __init__(
        self, target: WebhookTarget, file: CursorFile, say: Say, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._target = target
        self._file = file
        self._say = say
        self._sleep = sleep

    async def run(
        self, client: AsyncTradingClient, account_id: str, kinds: Collection[str]
    ) -> None:
        delivered = self._file.read()
        where = f"after {delivered}" if delivered else "from now on"
        async with follow_bodies(client, account_id, kinds, delivered) as stream:
            self._say(f"forwarding events of account {account_id} to {self._target.host}, {where}")
            async for event in stream:
                if event.cursor is None:  # what there was when the stream began
                    continue
                if isinstance(event, GapEvent):
                    await self.deliver(event.cursor, self._gap_body(delivered, event.cursor))
                elif isinstance(event, ForwardedEvent) and event.body is not None:
                    await self.deliver(event.cursor, event.body)
                self._file.write(event.cursor)
                delivered = event.cursor

    def _gap_body(self, after: str | None, cursor: str) -> bytes:
        self._say(
            f"fallen behind: events after {after} are no longer kept (7 days), so some may be "
            "missing; "
            f"the target is sent a `gap`, and forwarding goes on after {cursor}"
        )
        return msgspec.json.encode({"gap": {"after": after}, "cursor": cursor})

    async def deliver(self, event_id: str, body: bytes) -> None:
        """Returns when the target has taken it."""
        pause = FIRST_PAUSE_SECONDS
        while (failure := await self._target.post(event_id, body)) is not None:
            self._say(f"event {event_id} {failure} from {self._target.host}; again in {pause} s")
            await self._sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
