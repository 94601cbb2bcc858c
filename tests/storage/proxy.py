"""A link to PostgreSQL that can be watched, stalled and cut, at an exact message if need be."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from trading_intents.secret import Secret

CHUNK_BYTES = 65536


class Link:
    """Every connection passes through `queries`, the simple ones sent so far; set the rest to make faults."""

    def __init__(self) -> None:
        self.queries: list[bytes] = []
        self.cut_before = b"\0never"
        self.cut_after = b"\0never"
        self.hold_at = b"\0never"
        self.held = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def upstream(self, data: bytes) -> bool:
        """Look at what the client sends; whether its answer may come back."""
        if data[:1] == b"Q":
            self.queries.append(data[5:].rstrip(b"\0"))
        if self.hold_at in data:
            self.open.clear()
            self.held.set()
        await self.open.wait()
        if self.cut_before in data:
            raise ConnectionResetError
        return self.cut_after not in data


async def _pass(link: Link, client: asyncio.StreamReader, server: asyncio.StreamWriter, mute: asyncio.Event) -> None:
    while data := await client.read(CHUNK_BYTES):
        if not await link.upstream(data):
            mute.set()
        server.write(data)
        await server.drain()


async def _return(link: Link, server: asyncio.StreamReader, client: asyncio.StreamWriter, mute: asyncio.Event) -> None:
    while data := await server.read(CHUNK_BYTES):
        await link.open.wait()
        if mute.is_set():
            return
        client.write(data)
        await client.drain()


@contextlib.asynccontextmanager
async def linked(url: Secret, folder: Path) -> AsyncIterator[tuple[Link, Secret]]:
    """A link, and the URL that goes through it."""
    address, _, socket_folder = url.reveal().partition("host=")
    link = Link()
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        to_server = None
        try:
            from_server, to_server = await asyncio.open_unix_connection(f"{socket_folder}/.s.PGSQL.5432")
            mute = asyncio.Event()
            ways = [_pass(link, reader, to_server, mute), _return(link, from_server, writer, mute)]
            tasks = [asyncio.create_task(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in tasks:
                    one.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            pass  # the end of the test
        finally:
            for end in (writer, to_server):
                if end is not None:
                    end.transport.abort()
            connections.discard(task)

    server = await asyncio.start_unix_server(serve, folder / ".s.PGSQL.5432")
    try:
        yield link, Secret(f"{address}host={folder}")
    finally:
        link.open.set()
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
