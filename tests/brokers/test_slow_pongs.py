"""A venue that is slow to answer pings keeps its stream: it may have much to send."""

import asyncio
import base64
import contextlib
import hashlib
import re
import ssl
from functools import partial

import pytest

from trading_intents.brokers.websocket_client import WebSocketClient

SILENT_SECONDS = 45.0  # twice what a WebSocket library would wait by itself
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455


async def answer_no_ping(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ended: asyncio.Event
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"(?i)sec-websocket-key: (\S+)", head)
    assert found
    accept = base64.b64encode(hashlib.sha1(found[1] + MAGIC, usedforsecurity=False).digest())
    upgrade = b"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: " + accept
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\n" + upgrade + b"\r\n\r\n")
    await asyncio.sleep(SILENT_SECONDS)  # what is tested, and no wait for a result
    writer.write(b"\x81\x04late")
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    ended.set()


@pytest.mark.chaos
async def test_a_stream_whose_venue_answers_no_ping_for_a_while_goes_on() -> None:
    ended = asyncio.Event()
    async with await asyncio.start_server(
        partial(answer_no_ping, ended=ended), "127.0.0.1", 0
    ) as server:
        port = server.sockets[0].getsockname()[1]
        client = await WebSocketClient.open(
            f"http://127.0.0.1:{port}/stream", {}, ssl.create_default_context()
        )
        try:
            assert await client.receive() == "late"
        finally:
            client.abort()
            await ended.wait()
