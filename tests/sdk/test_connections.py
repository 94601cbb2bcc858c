"""Connections of the client: reused, bounded in time, and described by the platform's own
messages."""

import asyncio
import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from trading_intents_client import AsyncTradingClient, errors
from trading_intents_client.stream.grpc_source import DESCRIPTION
from trading_intents_client.transport.http import CONNECT_SECONDS, READ_SECONDS

ROOT = Path(__file__).parents[2]
ALIVE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    b'content-length: 18\r\n\r\n{"status":"alive"}'
)
SHORT_SECONDS = 0.2


@contextlib.asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that answers each request with these bytes, or with none, and counts its
    connections."""
    connections: list[int] = []
    ends: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        connections.append(0)
        index = len(connections) - 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                connections[index] += 1
                writer.write(answer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connections
        for end in ends:
            end.close()
            with contextlib.suppress(ConnectionError):
                await end.wait_closed()


async def test_one_connection_serves_calls_that_follow_each_other() -> None:
    async with (
        answering(ALIVE) as (url, connections),
        AsyncTradingClient(url, api_key="k") as client,
    ):
        for _ in range(10):
            assert (await client.platform.liveness()).status == "alive"
    assert connections == [10]


async def test_a_silent_server_is_left_after_the_time_that_was_given() -> None:
    options: dict[str, Any] = {"api_key": "k", "read_seconds": SHORT_SECONDS, "max_retries": 1}
    async with answering(b"") as (url, connections), AsyncTradingClient(url, **options) as client:
        with pytest.raises(errors.AnswerLost):
            await client.platform.liveness()
    assert connections == [1, 1]


async def test_there_are_timeouts_unless_others_are_given() -> None:
    async with AsyncTradingClient("http://127.0.0.1:9", api_key="k") as client:
        timeout = client._transport._http().timeout
    assert (timeout.connect, timeout.read) == (CONNECT_SECONDS, READ_SECONDS) == (2.0, 10.0)


def test_the_streams_messages_are_those_of_the_proto_file(tmp_path: Path) -> None:
    (recipe,) = re.findall(
        r"^\t@\$\(BIN\)/python (.*--include_imports.*)$", (ROOT / "Makefile").read_text(), re.M
    )
    made = tmp_path / "trading.desc"
    arguments = shlex.split(recipe.replace(str(DESCRIPTION.relative_to(ROOT)), str(made)))
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True)
    assert DESCRIPTION.read_bytes() == made.read_bytes(), "run `make proto`"
