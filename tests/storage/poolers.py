"""Poolers before PostgreSQL: PgBouncer, and one of our own that pools by transaction."""

import asyncio
import contextlib
import os
import pwd
import shutil
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.free_port import free_port
from tests.open_folder import open_folder
from tests.proxy import proxied
from trading_intents.secret import Secret

IDLE = b"I"
ENDS_ROUND = (b"Q", b"S")  # a query, and Sync: one ReadyForQuery answers all up to it
TERMINATE = b"X"
# A password in MD5, SASL and its continuation.
ASKS_CLIENT = [struct.pack("!i", number) for number in (5, 10, 11)]
Server = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _through(url: Secret, port: int) -> Secret:
    direct = urlsplit(url.reveal())
    through = direct._replace(netloc=f"{direct.netloc}127.0.0.1:{port}", query="sslmode=disable")
    return Secret(through.geturl())


def _folder(url: Secret) -> str:
    (folder,) = parse_qs(urlsplit(url.reveal()).query)["host"]
    return folder


@contextlib.contextmanager
def pgbouncer(url: Secret, mode: str) -> Iterator[Secret]:
    """An embedded server's URL through PgBouncer. Skips the test where that is not installed."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("needs PgBouncer: apt-get install pgbouncer")
    direct = urlsplit(url.reveal())
    port = free_port()
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    # Another user cannot enter the folder of the server's socket.
    with open_folder() as folder, proxied(url) as (proxy, _):
        os.chown(folder, user.pw_uid, user.pw_gid)
        (folder / "pgbouncer.ini").write_text(
            f"""
            [databases]
            * = host=127.0.0.1 port={proxy.port} user={direct.username} password={direct.password}
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = {port}
            unix_socket_dir =
            auth_type = any
            pool_mode = {mode}
            """
        )
        with subprocess.Popen(
            [program, str(folder / "pgbouncer.ini")],
            user=user.pw_uid,
            group=user.pw_gid,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stderr is not None
            try:
                said = b""
                while b"process up" not in said:
                    said = process.stderr.readline()
                    assert said, "it has ended"
                yield _through(url, port)
            finally:
                process.terminate()


class TransactionPooler:
    """Each client logs in at a server session, and then each of its transactions gets the one that
    was used last."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._idle: list[Server] = []
        self._ends: list[asyncio.StreamWriter] = []

    async def serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        server = await asyncio.open_unix_connection(self._socket)
        self._ends += [server[1], answers]
        try:
            size = await client.readexactly(4)
            rest = await client.readexactly(struct.unpack("!i", size)[0] - 4)
            server[1].write(size + rest)
            ready = await _answer(server, answers, client)
            self._idle.append(server)
            answers.write(ready)
            while True:
                await self._pass_transaction(client, answers)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has left
        finally:
            answers.close()

    async def _pass_transaction(
        self, client: asyncio.StreamReader, answers: asyncio.StreamWriter
    ) -> None:
        kind, message = await _read_message(client)
        server = self._idle.pop()
        answering = asyncio.create_task(_answer(server, answers))
        try:
            while True:
                if kind == TERMINATE:
                    raise ConnectionResetError
                server[1].write(message)
                if kind in ENDS_ROUND:
                    ready = await answering
                    if ready[-1:] == IDLE:
                        break
                    answers.write(ready)
                    answering = asyncio.create_task(_answer(server, answers))
                kind, message = await _read_message(client)
        finally:
            answering.cancel()
            self._idle.append(server)
        answers.write(ready)  # now that the session is another's

    async def close(self) -> None:
        for end in self._ends:
            end.close()
        ends = (end.wait_closed() for end in self._ends)
        await asyncio.gather(*ends, return_exceptions=True)


async def _read_message(stream: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await stream.readexactly(5)
    (size,) = struct.unpack("!i", head[1:])
    return head[:1], head + await stream.readexactly(size - 4)


async def _answer(
    server: Server, answers: asyncio.StreamWriter, client: asyncio.StreamReader | None = None
) -> bytes:
    """Passes answers on up to ReadyForQuery, which it gives, and the client's words where a login
    asks for them."""
    while True:
        kind, message = await _read_message(server[0])
        if kind == b"Z":
            return message
        answers.write(message)
        if client and kind == b"R" and message[5:9] in ASKS_CLIENT:
            _, word = await _read_message(client)
            server[1].write(word)


@contextlib.asynccontextmanager
async def pooled_by_transaction(url: Secret) -> AsyncIterator[Secret]:
    """An embedded server's URL through a pooler that gives each transaction another session."""
    pooler = TransactionPooler(Path(_folder(url), ".s.PGSQL.5432"))
    listener = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    async with listener:
        try:
            yield _through(url, listener.sockets[0].getsockname()[1])
        finally:
            await pooler.close()
