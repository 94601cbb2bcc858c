"""A TCP connection to a socket or port that can fail: refuse, reset, stall, end at any byte or
message. Has a thread."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from trading_intents.secret import Secret

CHUNK_BYTES = 65536
CALL_LIMIT_SECONDS = 20
LAST_WORDS = (
    b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to unexpected postmaster exit\0\0"
)
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
END_ON_CLOSE = struct.pack("ii", 0, 0)


class Verdict(Enum):
    """The proxy's treatment of data that a client sends."""

    PASS = "it passes"
    HOLD = "it is held, and so is everything else, until the proxy works again"
    CUT_UNSENT = "the connection ends before it"
    CUT_SENT = "the connection ends right after it"
    CUT_UNANSWERED = "the connection ends when its answer comes"


# Bytes are answered instead of the target's, and the connection ends. After a number of bytes the
# rest is held.
Watch = Callable[[bytes], Verdict | bytes | int]


class FaultProxy:
    """Works until a fault is set; each fault replaces the one before it. `watch` sees all that
    clients send.

    The target is PostgreSQL's socket, or a port of this machine.
    """

    def __init__(self, target: Path | int, watch: Watch = lambda _: Verdict.PASS) -> None:
        self._target = target
        self._watch = watch
        self.connect_delay_seconds = 0.0
        self.held = threading.Event()
        # Uvloop has sockets of its own, whose ends it does not leave to us.
        self._loop = asyncio.SelectorEventLoop()
        self._connections: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._listener: socket.socket | None = None
        self._resetting = False
        self._budget: int | None = None
        self._gently = False
        self._open = asyncio.Event()
        self._open.set()
        # Bound but never listening: the port stays ours while every connection is refused.
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._holder.bind(("127.0.0.1", 0))
        self.port: int = self._holder.getsockname()[1]

    def work(self) -> None:
        self._call(self._set())

    def refuse(self) -> None:
        """Nobody listens; connections that were there are reset."""
        self._call(self._set(listening=False))

    def reset(self) -> None:
        """Every connection is reset, new ones as soon as they are made."""
        self._call(self._set(resetting=True))

    def stall(self) -> None:
        """Nothing passes any more, and nothing is closed."""
        self._call(self._set(stalled=True))

    def cut_after(self, answer_bytes: int, gently: bool = False) -> None:
        """Every connection is reset once so many more bytes of answers have passed, all connections
        taken together.

        Gently: ended as by a server that dies, so that what has passed is read.
        """
        self._call(self._set(budget=answer_bytes, gently=gently))

    def send_last_words(self) -> None:
        """Every client gets the message that PostgreSQL was killed, but no connection ends yet."""

        async def send() -> None:
            rest = struct.pack("!i", 4 + len(LAST_WORDS)) + LAST_WORDS
            for client in self._clients:
                # As a notice first, which a test can listen for.
                client.write(b"N" + rest + b"E" + rest)

        self._call(send())

    async def _set(
        self,
        listening: bool = True,
        resetting: bool = False,
        stalled: bool = False,
        budget: int | None = None,
        gently: bool = False,
    ) -> None:
        self._resetting = resetting
        self._budget = budget
        self._gently = gently
        if stalled:
            self._open.clear()
        else:
            self._open.set()
        if not listening and self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        if resetting or not listening:
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
        if listening and self._listener is None:
            self._listen()

    def _listen(self) -> None:
        """By hand: asyncio's server and its sock_accept lose a connection that comes while they are
        ended."""
        self._listener = socket.create_server(("127.0.0.1", self.port), reuse_port=True)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        connection = self._loop.create_task(self._serve(client))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        # Here too, as a connection that is cancelled before its first step closes nothing.
        connection.add_done_callback(lambda _: client.close())

    async def _serve(self, client: socket.socket) -> None:
        ends: list[asyncio.StreamWriter] = []
        try:
            if self._resetting:
                return
            asks, writer = await asyncio.open_connection(sock=client)
            ends.append(writer)
            self._clients.add(writer)
            await asyncio.sleep(self.connect_delay_seconds)
            answers, upstream = await self._connect()
            ends.append(upstream)
            mute = asyncio.Event()
            both = (self._ask(asks, upstream, writer, mute), self._answer(answers, writer, mute))
            ways = {asyncio.create_task(way) for way in both}
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the target is away, or the connection is being ended
        finally:
            self._clients.difference_update(ends)
            for end in ends:
                end.transport.abort()
            await asyncio.sleep(0)  # an aborted transport closes its socket in the loop's next turn

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, int):
            return await asyncio.open_connection("127.0.0.1", self._target)
        return await asyncio.open_unix_connection(self._target)

    async def _ask(
        self,
        client: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        mute: asyncio.Event,
    ) -> None:
        while data := await client.read(CHUNK_BYTES):
            verdict = self._watch(data)
            if isinstance(verdict, bytes):
                back.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, END_ON_CLOSE
                )
                back.write(verdict)
                await back.drain()
                return
            if isinstance(verdict, int):
                server.write(data[:verdict])
                await server.drain()
                data = data[verdict:]
                verdict = Verdict.HOLD
            if verdict is Verdict.HOLD:
                self._open.clear()
                self.held.set()
            await self._open.wait()
            if verdict is Verdict.CUT_UNSENT:
                return
            if verdict is Verdict.CUT_UNANSWERED:
                mute.set()
            server.write(data)
            await server.drain()
            if verdict is Verdict.CUT_SENT:
                return

    async def _answer(
        self, server: asyncio.StreamReader, client: asyncio.StreamWriter, mute: asyncio.Event
    ) -> None:
        while data := await server.read(CHUNK_BYTES):
            await self._open.wait()
            if mute.is_set():
                return
            if self._budget is not None:
                data = data[: self._budget]
                self._budget -= len(data)
            client.write(data)
            await client.drain()
            if self._budget == 0:
                if self._gently:
                    client.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, END_ON_CLOSE
                    )
                return

    def _call(self, step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(CALL_LIMIT_SECONDS)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        self.work()
        try:
            yield
        finally:
            self.refuse()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(CALL_LIMIT_SECONDS)
            self._loop.close()
            self._holder.close()


@contextlib.contextmanager
def proxied(
    url: Secret, watch: Watch = lambda _: Verdict.PASS
) -> Iterator[tuple[FaultProxy, Secret]]:
    """A proxy before an embedded server's URL, and the URL that goes through it."""
    direct = urlsplit(url.reveal())
    (folder,) = parse_qs(direct.query)["host"]
    proxy = FaultProxy(Path(folder, ".s.PGSQL.5432"), watch)
    with proxy.running():
        through = direct._replace(
            netloc=f"{direct.netloc}127.0.0.1:{proxy.port}", query="sslmode=disable"
        )
        yield proxy, Secret(through.geturl())
