"""A broker's updates by WebSocket. Follows no redirect, loses no frame, and never reconnects by
itself."""

from collections import deque
from collections.abc import Callable, Mapping
from ssl import SSLContext
from typing import Any, TypeVar

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from trading_intents.brokers.port import BrokerUnavailable
from trading_intents.brokers.sanitizing import cause_of, host_of

# A venue may be slow to answer a ping while it has much to send.
OPTIONS: dict[str, Any] = {
    "ping_interval": 10.0,
    "ping_timeout": 60.0,
    "close_timeout": 1.0,
    "proxy": None,
}
MAX_EARLY = 1_000

T = TypeVar("T")


class _Connect(connect):  # follows no redirect: the credential is for the broker alone
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class WebSocketClient:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._early: deque[str | bytes] = deque()  # frames that came before an answer

    @classmethod
    async def open(cls, url: str, headers: Mapping[str, str], tls: SSLContext) -> "WebSocketClient":
        """The URL of the REST interface's host, with http or https."""
        ssl = tls if url.startswith("https:") else None
        try:
            url = f"ws{url.removeprefix('http')}"
            return cls(await _Connect(url, additional_headers=headers, ssl=ssl, **OPTIONS))
        except InvalidStatus as error:
            text = f"the update stream of {host_of(url)} answers {error.response.status_code}"
            raise BrokerUnavailable(text) from None
        except (WebSocketException, OSError) as error:
            raise BrokerUnavailable(
                f"no update stream from {host_of(url)}: {cause_of(error)}"
            ) from None

    async def ask(
        self, message: Mapping[str, object], answer_of: Callable[[str | bytes], T | None]
    ) -> T:
        """Sends a message and waits for its answer. What comes before it is received later: it may
        be an update."""
        try:
            await self._connection.send(msgspec.json.encode(message).decode())
            while len(self._early) < MAX_EARLY:
                frame = await self._connection.recv()
                if (answer := answer_of(frame)) is not None:
                    return answer
                self._early.append(frame)
        except (WebSocketException, OSError, msgspec.MsgspecError) as error:
            raise BrokerUnavailable(f"no update stream: {type(error).__name__}") from None
        raise BrokerUnavailable("the update stream does not answer")

    async def receive(self) -> str | bytes:
        """The next frame. BrokerUnavailable: the stream has ended."""
        try:
            return self._early.popleft() if self._early else await self._connection.recv()
        except WebSocketException as error:
            raise BrokerUnavailable(f"the update stream ended: {type(error).__name__}") from None

    def abort(self) -> None:
        self._connection.transport.abort()

    async def close(self) -> None:
        await self._connection.close()
