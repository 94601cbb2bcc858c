"""A session whose commands are REST requests and whose updates come by WebSocket: how it ends."""

import asyncio

from trading_intents.brokers.port import BrokerUnavailable
from trading_intents.brokers.rest_client import RestClient
from trading_intents.brokers.websocket_client import WebSocketClient


class StreamedSession:
    def __init__(self, client: RestClient) -> None:
        self._client = client
        self._stream: WebSocketClient | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_closed = False
        self.ended: Exception | None = None  # why the link is down

    async def close(self) -> None:
        self._is_closed, self.ended = True, self.ended or BrokerUnavailable("the link is closed")
        try:
            if self._watching:
                self._watching.cancel()
                await asyncio.gather(self._watching, return_exceptions=True)
            if self._stream:
                await self._stream.close()
        finally:
            await self._client.close()

    def end(self, reason: Exception) -> None:
        self.ended = self.ended or reason
        if self._stream:
            self._stream.abort()
