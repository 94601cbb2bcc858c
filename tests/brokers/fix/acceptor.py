"""An acceptor made of the platform's own session: numbers in memory, one connection at a time, and
an application that echoes. Whoever plays QuickFIX's acceptance scripts connects to it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from trading_intents.brokers.fix.messages import (
    Fields,
    Numbers,
    ReceivedMessage,
    SentMessage,
    SessionRules,
)
from trading_intents.brokers.fix.session import ADMIN, FixSession
from trading_intents.clock import SystemClock

HEADER = frozenset({8, 34, 35, 43, 49, 52, 56, 122})


@dataclass
class MemoryStore:
    """A session's messages and numbers in memory. It sends all of the application's messages
    again."""

    sent: list[SentMessage] = field(default_factory=list)
    received: list[ReceivedMessage] = field(default_factory=list)
    numbers: Numbers = field(default_factory=Numbers)

    async def write(
        self, numbers: Numbers, received: Sequence[ReceivedMessage], sent: Sequence[SentMessage]
    ) -> Sequence[ReceivedMessage]:
        self.numbers = numbers
        self.received += received
        self.sent += sent
        return received

    async def take_resend(self, epoch: int, first: int, last: int) -> tuple[list[SentMessage], int]:
        wanted = [
            each for each in self.sent if each.epoch == epoch and first <= each.number <= last
        ]
        return [each for each in wanted if each.type not in ADMIN][:100], 0


@dataclass
class EchoAcceptor:
    begin_string: str
    port: int = 0
    _session: FixSession | None = None
    _seen: set[str] = field(default_factory=set)
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._session is not None:  # one connection for an identity
            writer.close()
            return
        rules = SessionRules(
            begin_string=self.begin_string, sender="ISLD", target="TW", is_initiator=False
        )
        session = self._session = FixSession(
            rules=rules,
            numbers=Numbers(),
            store=MemoryStore(),
            streams=(reader, writer),
            clock=SystemClock(),
            deliver=self._echo_all,
        )
        self._seen.clear()
        try:
            await session.run()
        finally:
            self._session = None

    def _echo_all(self, batch: Sequence[ReceivedMessage]) -> None:
        for each in batch:
            self._echo(each)

    def _echo(self, incoming: ReceivedMessage) -> None:
        message = incoming.message
        session = self._session
        if message.type == "3" or not message.type.isalnum() or session is None:
            return
        body: Fields = sorted(
            (each for each in message.fields if each[0] not in HEADER), key=lambda each: each[0]
        )
        routed = [each for each in body if each[0] == 97]
        answer = [*routed, *(each for each in body if each[0] != 97)]
        if message.type == "8":
            refusal = [
                (45, message.get(34)),
                (58, "Unsupported Message Type"),
                (372, message.type),
                (380, "3"),
            ]
            self._send("j", refusal)
        elif message.get(97) != "Y" or message.get(11) not in self._seen:
            self._seen.add(message.get(11))
            self._send(message.type, answer)

    def _send(self, msg_type: str, fields: Fields) -> None:
        assert self._session
        task = asyncio.create_task(_quietly(self._session, msg_type, fields))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _quietly(session: FixSession, msg_type: str, fields: Fields) -> None:
    with suppress(Exception):
        await session.send(msg_type, fields)


@asynccontextmanager
async def echo_acceptor(begin_string: str) -> AsyncIterator[EchoAcceptor]:
    acceptor = EchoAcceptor(begin_string)
    server = await asyncio.start_server(acceptor.serve, "127.0.0.1", 0)
    acceptor.port = server.sockets[0].getsockname()[1]
    try:
        yield acceptor
    finally:
        server.close()
