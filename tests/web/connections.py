"""Connections to a server, written and read by hand."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

from tests.web.conftest import Site

LIMIT_SECONDS = 10
GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


@contextlib.asynccontextmanager
async def connected(
    site: Site, address: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port, local_addr=(address, 0))
    try:
        yield reader, writer
    finally:
        writer.close()


@contextlib.contextmanager
def dialed(site: Site, address: str, receive_bytes: int = 0) -> Iterator[socket.socket]:
    """A connection that waits to be accepted: nothing of the server runs meanwhile."""
    with socket.socket() as client:
        client.settimeout(LIMIT_SECONDS)
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.bind((address, 0))
        client.connect(("127.0.0.1", site.port))
        client.setblocking(False)
        yield client


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    return (
        int(head[0].split()[1]),
        headers,
        await reader.readexactly(int(headers.get("content-length", 0))),
    )


async def exchange(site: Site, data: bytes) -> tuple[int, dict[str, str], bytes]:
    async with connected(site) as (reader, writer):
        writer.write(data)
        return await read_answer(reader)


THING = b"GET /v1/things/A/time HTTP/1.1\r\nhost: x\r\n\r\n"


def metric(site: Site, name: str, **labels: str) -> float:
    return site.app.metrics.registry.get_sample_value(name, labels) or 0.0
