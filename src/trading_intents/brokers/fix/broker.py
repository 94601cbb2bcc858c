"""One account's session with a FIX venue. Translates; the session stores and numbers every message."""

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from trading_intents.brokers import port
from trading_intents.brokers.fix import wire
from trading_intents.brokers.fix.messages import (
    FixMessage,
    NotStored,
    Numbers,
    ReceivedMessage,
    SessionEnded,
    SessionRules,
    SessionTaken,
    StoreUnclear,
    parse,
)
from trading_intents.brokers.fix.profile import Venue, read_venue
from trading_intents.brokers.fix.session import FixSession
from trading_intents.brokers.fix.store import FixStore
from trading_intents.brokers.port import AuthFailed, BrokerEvent, BrokerUnavailable, CommandResult, OrderTicket, Outcome
from trading_intents.brokers.sanitizing import cause_of
from trading_intents.errors import PlatformError
from trading_intents.loops import Pacer
from trading_intents.telemetry import FixIncident

LOGON_SECONDS = 8.0
CLOSE_SECONDS = 1.0  # for the venue's answer to the logout
PRUNE_SECONDS = 60.0
MAX_EVENTS = 10_000  # that nobody has taken yet
MAX_NAMED = 1_000
DOWN = "the session is down"
_EXPECTED = re.compile(r"expect\w*\s+(?:MsgSeqNum\s*)?(\d{1,18})", re.IGNORECASE)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
# Incidents after which a snapshot tells what no message did.
_TOLD_BY_SNAPSHOT: Mapping[FixIncident, str] = {
    "reset": "the venue has reset its numbers",
    "skipped": "commands were too old to be sent again",
}


@dataclass(slots=True)
class _Command:
    """A command that waits for its answer. `result`: of the first report of it, with the events of those that came with
    it."""

    msg_type: str
    orig_client_order_id: str | None
    answer: "asyncio.Future[CommandResult]"
    result: CommandResult | None = None


class FixBroker:
    def __init__(self, context: port.IntegrationContext, venue: Venue, capabilities: port.Capabilities) -> None:
        self.name, self.capabilities = capabilities.name, capabilities
        self._context, self._venue = context, venue
        self._store = FixStore(context)
        self._session: FixSession | None = None
        self._running: asyncio.Task[None] | None = None
        self._is_closed = False
        self._events: asyncio.Queue[BrokerEvent | port.StreamGap | None] = asyncio.Queue(MAX_EVENTS)
        self._commands: dict[str, _Command] = {}
        self._lookups: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._told: list[BrokerEvent | port.StreamGap] = []  # by messages that were stored together
        self._unreadable: set[tuple[int, int]] = set()  # named already

    async def open(self) -> None:
        pair = self._secret("sender_comp_id"), self._secret("target_comp_id")
        try:
            row = await self._store.open(self.name, self._venue.begin_string, *pair)
        except SessionTaken:
            raise BrokerUnavailable("another worker has the session") from None
        except PlatformError as error:
            raise BrokerUnavailable(error.detail) from None
        last_reset = self._venue.last_reset(self._context.clock.now())
        resets = self._venue.recovery == "none" or (last_reset is not None and row["reset_at"] < last_reset)
        session = self._session = FixSession(
            self._rules(*pair, resets),
            Numbers(row["epoch"], row["next_in"], row["next_out"]),
            self._store,
            await self._connect(),
            self._context.clock,
            self._on_message,
            self._on_incident,
        )
        self._running = asyncio.create_task(self._run(session))
        try:
            async with asyncio.timeout(LOGON_SECONDS):
                await session.logged_on.wait()
                await session.in_step.wait()
        except TimeoutError:
            raise BrokerUnavailable("the venue does not answer the logon") from None
        if session.ended:
            await self._explain_refusal(session, session.ended)

    def _rules(self, sender: str, target: str, resets: bool) -> SessionRules:
        names = {553: "username", 554: "password"} if self._venue.has_password else {}
        return SessionRules(
            begin_string=self._venue.begin_string,
            sender=sender,
            target=target,
            is_initiator=True,
            heartbeat_seconds=self._venue.heartbeat_seconds,
            resets=resets,
            has_reset_flag=self._venue.has_reset_flag,
            logon_fields=self._venue.complete("A", [(tag, self._secret(name)) for tag, name in names.items()]),
            max_skew_seconds=self._venue.max_skew_seconds,
        )

    def _secret(self, name: str) -> str:
        return self._context.secrets[name].reveal()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        venue = self._venue
        try:
            async with asyncio.timeout(LOGON_SECONDS):
                tls = await asyncio.to_thread(_read_certificates, venue) if venue.tls else None
                return await asyncio.open_connection(venue.host, venue.port, ssl=tls)
        except (OSError, TimeoutError) as error:
            address = f"{venue.host}:{venue.port}"
            raise BrokerUnavailable(f"the venue at {address} cannot be reached: {cause_of(error)}") from None

    async def _explain_refusal(self, session: FixSession, ended: SessionEnded) -> None:
        """Why there is no session. A venue that expects a higher number than ours, as after a restore of the database,
        gets it with the next logon."""
        if any(part in ended.logout.lower() for part in self._venue.refused_logon):
            raise AuthFailed(str(ended))
        found, numbers = _EXPECTED.search(ended.logout), session.numbers
        if found and int(found[1]) > numbers.next_out:
            with contextlib.suppress(PlatformError, SessionTaken):
                await self._store.write(Numbers(numbers.epoch, numbers.next_in, int(found[1])), (), ())
        raise BrokerUnavailable(str(ended))

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_SECONDS)
            with contextlib.suppress(PlatformError):
                await self._store.prune()

    async def _run(self, session: FixSession) -> None:
        pruning = asyncio.create_task(self._prune())
        try:
            await session.run()
        finally:
            pruning.cancel()
            self._tell_all()
            for command in self._commands.values():
                if not command.answer.done():
                    command.answer.set_result(CommandResult(outcome=Outcome.UNKNOWN, message=str(session.ended)))
            while self._events.full():
                self._events.get_nowait()
            self._events.put_nowait(None)

    async def close(self) -> None:
        self._is_closed = True
        if self._running and self._session:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._session.log_out()
                    await asyncio.wait({self._running})
            except TimeoutError:
                pass
            finally:
                self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    # Commands.

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._command(wire.NEW_ORDER, ticket, deadline)

    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._command(wire.REPLACE, ticket, deadline)

    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._command(wire.CANCEL, ticket, deadline)

    async def _command(self, msg_type: str, ticket: OrderTicket, deadline: float) -> CommandResult:
        clock, session, name = self._context.clock, self._session, ticket.client_order_id
        now = clock.monotonic()
        if session is None or session.ended or self._is_closed or now >= deadline:
            return CommandResult(outcome=Outcome.NOT_SENT, message=DOWN)
        if ticket.not_after is not None and now > ticket.not_after:
            return CommandResult(outcome=Outcome.NOT_SENT, message="it is too old")
        account = self._context.account.external_account_id
        fields = self._venue.complete(msg_type, wire.command(msg_type, ticket, clock.now(), account))
        answer: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        self._commands[name] = _Command(msg_type, ticket.orig_client_order_id, answer)
        try:
            async with asyncio.timeout(deadline - now):
                await session.send(msg_type, fields, name, ticket.not_after)
                return await answer
        except NotStored as error:
            return CommandResult(outcome=Outcome.NOT_SENT, message=str(error))
        except (StoreUnclear, TimeoutError) as error:
            return CommandResult(outcome=Outcome.UNKNOWN, message=str(error) or "no answer in time")
        finally:
            del self._commands[name]

    async def lookup(self, client_order_id: str, broker_order_id: str | None, deadline: float) -> port.Lookup:
        session = self._session
        if session is None:  # another process has it: what the venue told last
            return await self._find_told(client_order_id)
        if session.ended:
            return port.LookupUnknown(DOWN)
        answer = self._lookups.setdefault(client_order_id, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(deadline - self._context.clock.monotonic()):
                await session.flush()  # it may just be on its way into the table
                raw = await self._store.find_sent(client_order_id)
                if raw is None:
                    return port.Absent(never_sent=True)
                if self._venue.lookup == "none":
                    return port.LookupUnknown("the venue answers no status requests")
                about = [(tag, parse(raw).get(tag)) for tag in (1, 55, 54)]
                fields = [(11, client_order_id), (37, broker_order_id or ""), *about]
                await session.send(wire.STATUS_REQUEST, self._venue.complete(wire.STATUS_REQUEST, fields))
                received = await asyncio.shield(answer)
            return port.Absent() if wire.is_absent(received.message) else wire.snapshot_of(received)
        except (NotStored, StoreUnclear, PlatformError, TimeoutError, ValueError, AssertionError) as error:
            return port.LookupUnknown(str(error) or "no answer in time")
        finally:
            self._lookups.pop(client_order_id, None)

    async def _find_told(self, client_order_id: str) -> port.Lookup:
        try:
            told = await self._store.list_open(0)
            found = [each for each in told if each.message.get(11) == client_order_id]
            return wire.snapshot_of(found[-1]) if found else port.LookupUnknown(DOWN)
        except (PlatformError, ValueError, AssertionError) as error:
            return port.LookupUnknown(str(error))

    # What the venue says.

    async def events(self) -> AsyncIterator[BrokerEvent | port.BrokerBalance | port.StreamGap]:
        while (event := await self._events.get()) is not None:
            yield event
        if self._session and self._session.ended and not self._is_closed:
            raise BrokerUnavailable(str(self._session.ended))

    def _tell(self, *events: BrokerEvent | port.StreamGap) -> None:
        """When all messages that were stored together are read: an order that is filled at once is answered so."""
        if not self._told:
            asyncio.get_running_loop().call_soon(self._tell_all)
        self._told += events

    def _tell_all(self) -> None:
        """Answers come before events, which repeat them. A snapshot retells what has no room."""
        for command in self._commands.values():
            if command.result and not command.answer.done():
                command.answer.set_result(command.result)
        told, self._told = self._told, []
        for event in told:
            if self._events.full():
                while not self._events.empty():
                    self._events.get_nowait()
                event = port.StreamGap("events were not taken in time")
            self._events.put_nowait(event)

    def _on_incident(self, incident: FixIncident) -> None:
        self._context.metrics.fix_incidents.labels(incident).inc()
        if reason := _TOLD_BY_SNAPSHOT.get(incident):
            self._tell(port.StreamGap(reason))

    def _on_message(self, received: ReceivedMessage) -> None:
        message, events, unreadable = received.message, list[BrokerEvent](), list[str]()
        with self._leaving_out(received, unreadable):
            events += wire.events_of(received)
        if wire.is_status(message):
            lookup = self._lookups.get(message.get(11))
            if lookup and not lookup.done():
                lookup.set_result(received)
        else:
            self._answer(received.refused[1] if received.refused else message.get(11), message, events)
        self._tell(*map(port.UnreadableEvent, unreadable), *events)

    def _answer(self, client_order_id: str, message: FixMessage, events: Sequence[BrokerEvent]) -> None:
        command = self._commands.get(client_order_id)
        if command is None and message.get(150) in ("4", "6"):  # a venue may report a CANCEL under the order's own id
            named = (each for each in self._commands.values() if each.msg_type == wire.CANCEL)
            command = next((each for each in named if each.orig_client_order_id == client_order_id), None)
        if command is None or message.get(150) == "A":
            return
        if command.result:
            command.result = replace(command.result, updates=(*command.result.updates, *events))
            return
        if message.type != wire.REPORT or message.get(150) == "8":
            code = wire.refusal_code(message)
            outcome = Outcome.UNKNOWN if code == port.DUPLICATE_ID else Outcome.REJECTED
            command.result = CommandResult(outcome=outcome, code=code, message=message.get(58))
        else:
            order_id = message.get(37) or None
            command.result = CommandResult(outcome=Outcome.ACKED, broker_order_id=order_id, updates=tuple(events))

    async def snapshot(self, since: datetime) -> port.AccountSnapshot:
        """Retells what the venue has told: the session misses nothing. Works without a connection. Open orders of
        before a reset are left out where each can be looked up: what happened between may never be told."""
        taken_at = self._context.clock.now()
        events, orders, unreadable = list[BrokerEvent](), list[port.OrderSnapshot](), list[str]()
        try:
            row = await self._store.read()
            epoch = row["epoch"] if row and self._venue.lookup != "none" else 0
            for received in await self._store.list_open(epoch):
                with self._leaving_out(received, unreadable):
                    orders.append(wire.snapshot_of(received))
            skipped = await self._store.list_skipped(since)
            pacer = Pacer()
            async for received in self._store.list_received(since):
                with self._leaving_out(received, unreadable):
                    events += wire.events_of(received)
                await pacer.pause_if_due()
        except PlatformError as error:
            raise BrokerUnavailable(error.detail) from None
        for each in skipped:
            name = f"{each['epoch']}:skipped:{each['number']}"
            events.append(wire.refusal_event(name, each["type"], each["client_order_id"], "not_delivered"))
        numbers = "{begin_string} {sender} to {target}: next in {next_in}, next out {next_out}, epoch {epoch}"
        remarks = (numbers.format_map(row),) if row else ()
        return port.AccountSnapshot(
            taken_at, tuple(orders), tuple(events), None, unreadable=tuple(unreadable), remarks=remarks
        )

    @contextlib.contextmanager
    def _leaving_out(self, received: ReceivedMessage, unreadable: list[str]) -> Iterator[None]:
        """Names a message that cannot be read, once."""
        try:
            yield
        except (ValueError, AssertionError) as error:
            place, order = (received.epoch, received.number), received.message.get(11) or "?"
            if place not in self._unreadable and len(self._unreadable) < MAX_NAMED:
                self._unreadable.add(place)
                unreadable.append(f"message {received.number} of epoch {received.epoch}, order {order}: {error}")


def _read_certificates(venue: Venue) -> ssl.SSLContext:
    tls = ssl.create_default_context(cafile=venue.tls_ca_file or None)
    if venue.tls_cert_file:
        tls.load_cert_chain(venue.tls_cert_file, venue.tls_key_file or None)
    return tls


def venues(settings: Mapping[str, str]) -> Iterator[port.Integration]:
    """The venues in the folder FIX_VENUES: a file NAME.toml is the broker NAME. ValueError, after all others, says
    which files are wrong."""
    folder, wrong = settings.get("FIX_VENUES", ""), list[str]()
    for path in sorted(Path(folder).glob("*.toml")) if folder else ():
        try:
            venue = read_venue(path)
            if not _NAME.fullmatch(path.stem):
                raise ValueError(f"{path.name}: the name of a broker has small letters, digits and _")
        except ValueError as error:
            wrong.append(str(error))
            continue
        capabilities = venue.capabilities(path.stem)
        yield port.Integration(path.stem, capabilities, partial(FixBroker, venue=venue, capabilities=capabilities))
    if wrong:
        raise ValueError("; ".join(wrong))
