"""One account's session with a FIX venue. Translates; the session stores and numbers every
message."""

import asyncio
import contextlib
import re
import ssl
import tomllib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from trading_intents.brokers.fix import messages, wire
from trading_intents.brokers.fix.messages import FixMessage, ReceivedMessage, SessionEnded
from trading_intents.brokers.fix.session import FixSession
from trading_intents.brokers.fix.store import FixStore
from trading_intents.brokers.fix.wire import Venue
from trading_intents.brokers.port import (
    Absent,
    AccountSnapshot,
    AuthFailed,
    BrokerBalance,
    BrokerEvent,
    BrokerUnavailable,
    Capabilities,
    CommandResult,
    Integration,
    IntegrationContext,
    Integrations,
    Lookup,
    LookupUnknown,
    OrderSnapshot,
    OrderTicket,
    Outcome,
    SentOrder,
    Setting,
    StreamGap,
    UnreadableEvent,
)
from trading_intents.brokers.sanitizing import cause_of
from trading_intents.errors import OutcomeUnknown, PlatformError
from trading_intents.loops import Pacer, repeat, stop_tasks
from trading_intents.telemetry import FixIncident

T = TypeVar("T")
PROFILES = Path(__file__).parent / "profiles"
LOGON_SECONDS = 8.0
CLOSE_SECONDS = 1.0  # for the venue's answer to the logout
PRUNE_SECONDS = 60.0
MAX_EVENTS = 10_000  # that nobody has taken yet
MAX_NAMED = 1_000  # messages that cannot be read
DOWN = "the session is down"
_EXPECTED = re.compile(r"expect\w*\s+(?:MsgSeqNum\s*)?(\d{1,18})", re.IGNORECASE)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
# Incidents after which a snapshot reports what no message did.
_REPORTED_BY_SNAPSHOT: Mapping[FixIncident, str] = {
    "reset": "the venue has reset its numbers",
    "skipped": "commands were too old to be sent again",
}


@dataclass(frozen=True, slots=True)
class _Command:
    """A command that waits for its answer: the first report of it. `events`: of all that were
    stored together.
    `cancelled_id`: of the order that it cancels."""

    cancelled_id: str | None
    answer: "asyncio.Future[FixMessage]"
    events: list[BrokerEvent] = field(default_factory=list)


class FixBroker:
    def __init__(
        self, context: IntegrationContext, venue: Venue, capabilities: Capabilities
    ) -> None:
        self.name = capabilities.name
        self.capabilities = capabilities
        self._context = context
        self._venue = venue
        self._store = FixStore(context)
        self._session: FixSession | None = None
        self._running: asyncio.Task[None] | None = None
        self._is_closed = False
        self._events: asyncio.Queue[BrokerEvent | StreamGap | None] = asyncio.Queue(MAX_EVENTS)
        self._commands: dict[str, _Command] = {}
        self._lookups: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._unreadable: set[tuple[int, int]] = set()  # named already

    async def open(self) -> None:
        sender = self._secret("sender_comp_id")
        target = self._secret("target_comp_id")
        begin_string = self._venue.begin_string
        try:
            reset_at = await self._store.open(self.name, begin_string, sender, target)
        except PlatformError as error:
            raise BrokerUnavailable(error.detail) from None
        last_reset = self._venue.last_reset(self._context.clock.now())
        resets = self._venue.recovery == "none" or (
            last_reset is not None and reset_at < last_reset
        )
        session = self._session = FixSession(
            rules=self._rules(sender, target, resets),
            numbers=self._store.numbers,
            store=self._store,
            streams=await self._connect(),
            clock=self._context.clock,
            deliver=self._on_messages,
            on_incident=self._on_incident,
        )
        self._running = asyncio.create_task(self._run(session))
        try:
            async with asyncio.timeout(LOGON_SECONDS):
                await session.in_step.wait()
        except TimeoutError:
            raise BrokerUnavailable("the venue does not answer the logon") from None
        if session.ended:
            await self._explain_refusal(session, session.ended)

    def _rules(self, sender: str, target: str, resets: bool) -> messages.SessionRules:
        login = list[tuple[int, str]]()
        if self._venue.has_password:
            login = [(553, self._secret("username")), (554, self._secret("password"))]
        return messages.SessionRules(
            begin_string=self._venue.begin_string,
            sender=sender,
            target=target,
            is_initiator=True,
            heartbeat_seconds=self._venue.heartbeat_seconds,
            resets=resets,
            has_reset_flag=self._venue.has_reset_flag,
            logon_fields=self._venue.complete("A", login),
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
            raise BrokerUnavailable(
                f"the venue at {address} cannot be reached: {cause_of(error)}"
            ) from None

    async def _explain_refusal(self, session: FixSession, ended: SessionEnded) -> None:
        """Says why there is no session. A venue that expects a higher number than ours, as after a
        restore of the database, gets it with the next logon."""
        if any(part in ended.logout.lower() for part in self._venue.refused_logon):
            raise AuthFailed(str(ended))
        found = _EXPECTED.search(ended.logout)
        numbers = session.numbers
        if found and int(found[1]) > numbers.next_out:
            expected = messages.Numbers(numbers.epoch, numbers.next_in, int(found[1]))
            with contextlib.suppress(PlatformError, messages.SessionTaken):
                await self._store.write(expected, (), ())
        raise BrokerUnavailable(str(ended))

    async def _run(self, session: FixSession) -> None:
        pruning = asyncio.create_task(repeat(self._store.prune, PRUNE_SECONDS, lambda *_: None))
        try:
            await session.run()
        finally:
            pruning.cancel()
            waiting: list[asyncio.Future[Any]] = [each.answer for each in self._commands.values()]
            waiting += self._lookups.values()
            for each in waiting:
                if not each.done():
                    each.set_exception(session.ended or SessionEnded(DOWN))
            if self._events.full():
                self._events.get_nowait()
            self._events.put_nowait(None)

    async def close(self) -> None:
        self._is_closed = True
        if self._running and self._session:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._session.log_out()
                    await asyncio.wait({self._running})
            await stop_tasks(self._running)

    # Commands.

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._command(wire.NEW_ORDER, ticket, deadline)

    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._command(wire.REPLACE, ticket, deadline)

    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._command(wire.CANCEL, ticket, deadline)

    async def _command(self, msg_type: str, ticket: OrderTicket, deadline: float) -> CommandResult:
        clock = self._context.clock
        session = self._session
        name = ticket.client_order_id
        now = clock.monotonic()
        if session is None or session.ended or self._is_closed or now >= deadline:
            return CommandResult(outcome=Outcome.NOT_SENT, message=DOWN)
        if ticket.not_after is not None and now > ticket.not_after:
            return CommandResult(outcome=Outcome.NOT_SENT, message="it is too old")
        account = self._context.account.external_account_id
        fields = wire.command(msg_type, ticket, clock.now(), account)
        fields = self._venue.complete(msg_type, fields)
        cancelled_id = ticket.orig_client_order_id if msg_type == wire.CANCEL else None
        answer = asyncio.get_running_loop().create_future()
        command = self._commands[name] = _Command(cancelled_id, answer)
        try:
            async with asyncio.timeout(deadline - now):
                await session.send(msg_type, fields, name, ticket.not_after)
                return wire.result_of(await command.answer, command.events)
        except messages.NotStored as error:
            return CommandResult(outcome=Outcome.NOT_SENT, message=str(error))
        except (OutcomeUnknown, SessionEnded, TimeoutError) as error:
            return CommandResult(outcome=Outcome.UNKNOWN, message=str(error) or "no answer in time")
        finally:
            del self._commands[name]

    async def lookup(self, order: SentOrder, deadline: float) -> Lookup:
        client_order_id = order.client_order_id
        try:
            async with asyncio.timeout(deadline - self._context.clock.monotonic()):
                if self._session is None:  # another process has it: the venue's last reports
                    reports = await self._store.list_open(0)
                    last = [each for each in reports if each.message.get(11) == client_order_id]
                    return wire.snapshot_of(last[-1]) if last else LookupUnknown(DOWN)
                await self._session.flush()  # it may just be on its way into the table
                if not await self._store.was_sent(client_order_id):
                    return Absent(never_sent=True)
                if self._venue.lookup == "none":
                    return LookupUnknown("the venue answers no status requests")
                received = await self._ask(self._session, order)
            return Absent() if wire.is_absent(received.message) else wire.snapshot_of(received)
        except (
            messages.NotStored,
            SessionEnded,
            PlatformError,
            TimeoutError,
            ValueError,
            AssertionError,
        ) as error:
            return LookupUnknown(str(error) or "no answer in time")

    async def _ask(self, session: FixSession, order: SentOrder) -> ReceivedMessage:
        client_order_id = order.client_order_id
        future = asyncio.get_running_loop().create_future()
        answer = self._lookups.setdefault(client_order_id, future)
        fields = wire.status_request(order, self._context.account.external_account_id)
        completed = self._venue.complete(wire.STATUS_REQUEST, fields)
        try:
            await session.send(wire.STATUS_REQUEST, completed)
            return await asyncio.shield(answer)
        finally:
            self._lookups.pop(client_order_id, None)

    # What the venue says.

    async def events(self) -> AsyncIterator[BrokerEvent | BrokerBalance | StreamGap]:
        while (event := await self._events.get()) is not None:
            yield event
        if self._session and self._session.ended and not self._is_closed:
            raise BrokerUnavailable(str(self._session.ended))

    def _deliver(self, event: BrokerEvent | StreamGap) -> None:
        if self._events.full():  # a snapshot repeats what has no room
            while not self._events.empty():
                self._events.get_nowait()
            event = StreamGap("events were not taken in time")
        self._events.put_nowait(event)

    def _on_incident(self, incident: FixIncident) -> None:
        self._context.metrics.fix_incidents.labels(incident).inc()
        if reason := _REPORTED_BY_SNAPSHOT.get(incident):
            self._deliver(StreamGap(reason))

    def _on_messages(self, batch: Sequence[ReceivedMessage]) -> None:
        """Answers all commands first: the events repeat what their answers have."""
        reported = list[BrokerEvent | StreamGap]()
        unreadable = list[str]()
        for received in batch:
            message = received.message
            events = self._read(received, wire.events_of, unreadable)
            reported += events
            if wire.is_status(message):
                lookup = self._lookups.get(message.get(11))
                if lookup and not lookup.done():
                    lookup.set_result(received)
            elif message.get(150) != "A" and (command := self._find_command(received)):
                command.events.extend(events)
                if not command.answer.done():
                    command.answer.set_result(message)
        for reason in unreadable:
            self._deliver(UnreadableEvent(reason))
        for event in reported:
            self._deliver(event)

    def _find_command(self, received: ReceivedMessage) -> _Command | None:
        refused = received.refused
        name = refused.client_order_id if refused else received.message.get(11)
        if command := self._commands.get(name):
            return command
        if received.message.get(150) in ("4", "6"):
            # A venue may report a CANCEL under the order's own id.
            for each in self._commands.values():
                if each.cancelled_id == name:
                    return each
        return None

    async def snapshot(self, since: datetime, open_orders: Sequence[SentOrder]) -> AccountSnapshot:
        """Repeats the venue's reports: the session misses nothing. Works without a connection. Open
        orders of before a reset are left out where each can be looked up: what happened in between
        may never be reported."""
        taken_at = self._context.clock.now()
        events = list[BrokerEvent]()
        orders = list[OrderSnapshot]()
        unreadable = list[str]()
        try:
            session = await self._store.read()
            epoch = session.epoch if session and self._venue.lookup != "none" else 0
            for received in await self._store.list_open(epoch):
                orders += self._read(received, lambda each: [wire.snapshot_of(each)], unreadable)
            skipped = await self._store.list_skipped(since)
            pacer = Pacer()
            async for received in self._store.list_received(since):
                events += self._read(received, wire.events_of, unreadable)
                await pacer.pause_if_due()
        except PlatformError as error:
            raise BrokerUnavailable(error.detail) from None
        for each in skipped:
            name = f"{each.epoch}:skipped:{each.number}"
            refused = messages.RefusedMessage(each.type, each.client_order_id)
            events.append(wire.refusal_event(name, refused, "not_delivered"))
        return AccountSnapshot(
            taken_at=taken_at,
            open_orders=tuple(orders),
            executions=tuple(events),
            positions=None,
            unreadable=tuple(unreadable),
            remarks=(session.remark,) if session else (),
        )

    def _read(
        self,
        received: ReceivedMessage,
        read: Callable[[ReceivedMessage], Iterable[T]],
        unreadable: list[str],
    ) -> list[T]:
        """Names a message that cannot be read, once."""
        try:
            return list(read(received))
        except (ValueError, AssertionError) as error:
            key = (received.epoch, received.number)
            if key not in self._unreadable and len(self._unreadable) < MAX_NAMED:
                self._unreadable.add(key)
                name = f"message {received.number} of epoch {received.epoch}"
                order = received.message.get(11) or "?"
                unreadable.append(f"{name}, order {order}: {error}")
            return []


def _read_certificates(venue: Venue) -> ssl.SSLContext:
    tls = ssl.create_default_context(cafile=venue.tls_ca_file or None)
    if venue.tls_cert_file:
        tls.load_cert_chain(venue.tls_cert_file, venue.tls_key_file or None)
    return tls


def read_venue(path: Path) -> Venue:
    """ValueError says what is wrong with the file."""
    try:
        own = tomllib.loads(path.read_text())
        base = own.get("extends")
        known = {each.stem for each in PROFILES.glob("*.toml")}
        if base is not None and base not in known:
            raise ValueError(f"extends {base!r}, which is none of {', '.join(sorted(known))}")
        inherited = tomllib.loads((PROFILES / f"{base}.toml").read_text()) if base else {}
        return msgspec.convert(_merged(inherited, own), Venue, str_keys=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name}: {error}") from None


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**base, **own}
    for name, each in own.items():
        if isinstance(each, dict) and name in base:
            merged[name] = _merged(base[name], each)
    return merged


def _make(settings: Mapping[str, str]) -> Iterator[Integration]:
    """The venues in the folder FIX_VENUES: a file NAME.toml is the broker NAME. ValueError, after
    all others, says which files are wrong."""
    folder = settings["FIX_VENUES"]
    wrong = list[str]()
    for path in sorted(Path(folder).glob("*.toml")) if folder else ():
        try:
            venue = read_venue(path)
            if not _NAME.fullmatch(path.stem):
                raise ValueError(
                    f"{path.name}: the name of a broker has small letters, digits and _"
                )
        except ValueError as error:
            wrong.append(str(error))
            continue
        capabilities = venue.capabilities(path.stem)
        connect = partial(FixBroker, venue=venue, capabilities=capabilities)
        yield Integration(path.stem, capabilities, connect)
    if wrong:
        raise ValueError("; ".join(wrong))


venues = Integrations(
    _make,
    settings=(
        Setting(
            name="FIX_VENUES",
            meaning="Folder of FIX venues: each NAME.toml in it is the broker NAME. Empty: none.",
        ),
    ),
)
