"""Other people's FIX engines, as programs beside our session."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.brokers.fix import in_namespace
from tests.brokers.fix.conftest import connecting
from tests.brokers.fix.venue import Connector
from tests.conftest import Urls
from trading_intents.brokers.fix.broker import FixBroker
from trading_intents.brokers.port import BrokerEvent

QUICKFIX = Path(__file__).parents[3] / ".venv" / "quickfix"
MISSING = "not here: `make quickfix` gets QuickFIX from Debian's archive, and jspurefix from npm"
VERSIONS = {"fix42": "FIX.4.2", "fix44": "FIX.4.4"}
PORT = 5_001
WAIT_SECONDS = 60.0
APART = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
CONFIG = """
[DEFAULT]
ConnectionType=acceptor
SocketAcceptPort={port}
SocketReuseAddress=Y
StartTime=00:00:00
EndTime=00:00:00
FileStorePath={folder}/store
FileLogPath={folder}/log
UseDataDictionary=Y
DataDictionary={dictionary}
"""
SESSION = """
[SESSION]
BeginString={begin_string}
SenderCompID=VENUE
TargetCompID={client}
"""


@dataclass
class Counterpart:
    """One of QuickFIX's programs, and adapters that trade there."""

    program: tuple[str, ...]
    folder: Path
    connector: Connector
    socket: Path
    process: "asyncio.subprocess.Process | None" = None

    async def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        inside = (sys.executable, in_namespace.__file__, str(self.socket), str(PORT))
        self.process = await asyncio.create_subprocess_exec(
            *(*APART, *inside),
            *(*self.program, str(self.folder / "session.cfg")),
            env={
                **os.environ,
                "PYTHONPATH": str(QUICKFIX / "python"),
                "NODE_PATH": str(QUICKFIX / "js/node_modules"),
            },
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await until(self.socket.exists)

    async def kill(self) -> None:
        if self.process and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def open(self) -> tuple[FixBroker, list[BrokerEvent]]:
        """An adapter, and the events that it reports."""
        broker = self.connector.connect()
        await broker.open()
        reported: list[BrokerEvent] = []

        async def follow() -> None:
            with contextlib.suppress(Exception):
                async for event in broker.events():
                    if isinstance(event, BrokerEvent):
                        reported.append(event)

        broker.following = asyncio.create_task(follow())  # type: ignore[attr-defined] # kept from being collected
        return broker, reported


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(in_namespace.PAUSE_SECONDS)


@contextlib.asynccontextmanager
async def counterpart(
    name: str, version: str, urls: Urls, folder: Path, others: tuple[str, ...] = ()
) -> AsyncIterator[Counterpart]:
    """`others`: further clients that it knows."""
    here = Path(__file__).parent
    needed, program = {
        "quickfix-py": (
            QUICKFIX / "python/quickfix.py",
            (sys.executable, str(here / "quickfix_venue.py")),
        ),
        "jspurefix": (
            QUICKFIX / "js/node_modules/jspurefix",
            ("node", str(here / "jspurefix_venue.cjs")),
        ),
    }.get(name) or (QUICKFIX / "bin" / name, (str(QUICKFIX / "bin" / name),))
    if not needed.exists():
        pytest.skip(f"{name}: {MISSING}")
    if (
        not shutil.which("unshare")
        or subprocess.run([*APART, "true"], capture_output=True).returncode
    ):
        pytest.skip(
            "its program listens on all interfaces, and this machine gives it no network of "
            "its own (unshare)"
        )
    client = f"US-{folder.name}"
    dictionary = QUICKFIX / "spec" / f"{version.upper()}.xml"
    text = CONFIG.format(port=PORT, folder=folder, dictionary=dictionary)
    text += "".join(
        SESSION.format(begin_string=VERSIONS[version], client=each) for each in (client, *others)
    )
    (folder / "session.cfg").write_text(text)
    with tempfile.TemporaryDirectory() as short:  # a socket's path has at most 107 bytes
        socket = Path(short, "s")

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                to_reader, to_writer = await asyncio.open_unix_connection(socket)
            except OSError:
                writer.close()
                return
            await asyncio.gather(
                in_namespace.copy(reader, to_writer), in_namespace.copy(to_reader, writer)
            )

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        profile = f"generic{version.removeprefix('fix')}"
        try:
            async with connecting(urls, folder, client, port, profile) as connector:
                made = Counterpart(program, folder, connector, socket)
                try:
                    await made.start()
                    yield made
                finally:
                    await made.kill()
        finally:
            server.close()


def soon(seconds: float = 5) -> float:
    return time.monotonic() + seconds
