"""A FIX session, for either side of it: numbers, logon, heartbeats, gaps, resends. Every message is
stored before it is written or delivered. Knows no order."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from trading_intents.brokers.fix.messages import (
    ENDING,
    REASONS,
    Fields,
    FixMessage,
    Framer,
    MessageStore,
    NotStored,
    Numbers,
    ReceivedMessage,
    SentMessage,
    SessionEnded,
    SessionRules,
    SessionTaken,
    find_fault,
    time_text,
)
from trading_intents.clock import Clock
from trading_intents.errors import OutcomeUnknown, PlatformError
from trading_intents.telemetry import FixIncident

HEARTBEAT = "0"
TEST_REQUEST = "1"
RESEND_REQUEST = "2"
REJECT = "3"
SEQUENCE_RESET = "4"
LOGOUT = "5"
LOGON = "A"
ADMIN = frozenset({HEARTBEAT, TEST_REQUEST, RESEND_REQUEST, REJECT, SEQUENCE_RESET, LOGOUT, LOGON})
_UNDELIVERED = ADMIN - {REJECT}
TEST_ID = "TEST"
READ_BYTES = 65_536
WRITE_SECONDS = 10.0  # a counterparty that does not read for so long is left
LOGOUT_SECONDS = 2.0
CLOSE_SECONDS = 1.0  # for its answer, and for the last bytes to leave
SILENCE = 1.2  # heartbeats, until a test request is sent; one more, and the connection is dropped
# Messages that wait for a gap to be filled; those after them are sent again anyway.
MAX_QUEUED = 500


@dataclass
class _Batch:
    """Messages that are stored together, then delivered, written and answered. `resend`: the first
    and last number that the counterparty wants again."""

    received: list[ReceivedMessage] = field(default_factory=list)
    sent: list[SentMessage] = field(default_factory=list)
    resend: tuple[int, int] | None = None
    waiters: "list[asyncio.Future[Exception | None]]" = field(default_factory=list)

    def release(self, failure: Exception | None) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(failure)


class FixSession:
    """One connection's. `deliver` gets the application's messages, and the rejects of ours, once
    they are stored: those that were stored together at once."""

    def __init__(
        self,
        rules: SessionRules,
        numbers: Numbers,
        store: MessageStore,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        clock: Clock,
        deliver: Callable[[Sequence[ReceivedMessage]], None],
        on_incident: Callable[[FixIncident], None] = lambda _: None,
    ) -> None:
        self._rules = rules
        self._store = store
        self._clock = clock
        self._deliver = deliver
        self._on_incident = on_incident
        self._reader, self._writer = streams
        self.numbers = numbers
        self.logged_on = asyncio.Event()
        self.in_step = asyncio.Event()  # both sides have what the other sent before the logon
        self.ended: SessionEnded | None = None
        self._heartbeat_seconds = rules.heartbeat_seconds
        self._pending = _Batch()
        self._work = asyncio.Event()
        self._queued: dict[int, FixMessage] = {}
        # The last number that a resend was asked for: until it has come there is a gap.
        self._asked_until = 0
        self._asked_seconds = 0.0
        # A logout was sent, and the connection is dropped then.
        self._close_seconds: float | None = None
        self._sent_seconds = self._received_seconds = clock.monotonic()
        self._is_tested = self._is_test_answered = False
        # It ends when all before is stored and written.
        self._over: SessionEnded | None = None

    async def run(self) -> None:
        works = (self._read(), self._write(), self._watch())
        loops = [asyncio.create_task(each) for each in works]
        if self._rules.is_initiator:
            if self._rules.resets:
                self._reset()
            self._log_on(self._rules.resets and self._rules.has_reset_flag)
        try:
            for each in (await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED))[0]:
                each.result()
        except SessionEnded as error:
            self.ended = error
        except (OSError, TimeoutError, SessionTaken, PlatformError) as error:
            self.ended = SessionEnded(
                f"the connection, the lease or the database was lost: {type(error).__name__}"
            )
        finally:
            self.ended = self.ended or SessionEnded("it was closed, or failed")
            for each in loops:
                each.cancel()
            self._writer.close()
            self._pending.release(NotStored(str(self.ended)))
            self.logged_on.set()  # whoever waits looks at `ended`
            self.in_step.set()
            await asyncio.gather(*loops, return_exceptions=True)
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._writer.wait_closed()
            except (OSError, TimeoutError):
                self._writer.transport.abort()

    async def send(
        self,
        msg_type: str,
        fields: Fields,
        client_order_id: str | None = None,
        not_after: float | None = None,
    ) -> None:
        """Returns when the message is stored and written. NotStored; OutcomeUnknown: it was perhaps
        stored, and may be sent when the session is resumed."""
        if self.ended or not self.logged_on.is_set() or self._close_seconds is not None:
            raise NotStored("the session is down")
        self._put(msg_type, fields, client_order_id, not_after)
        await self.flush()

    async def flush(self) -> None:
        """Returns when all that was sent until now is stored and written. Raises as `send` does."""
        if self.ended:
            raise NotStored("the session is down")
        if failure := await self._flushed():
            raise failure

    async def log_out(self) -> None:
        """Says goodbye. The session ends with the answer, or a moment later."""
        if self.ended is None and self.logged_on.is_set() and self._close_seconds is None:
            self._log_out()
            await self._flushed()

    def _put(
        self,
        msg_type: str,
        fields: Fields = (),
        client_order_id: str | None = None,
        not_after: float | None = None,
    ) -> None:
        numbers = self.numbers
        raw = self._rules.encode(msg_type, numbers.next_out, fields, self._clock.now())
        sent = SentMessage(
            epoch=numbers.epoch,
            number=numbers.next_out,
            type=msg_type,
            raw=raw,
            client_order_id=client_order_id,
            not_after=not_after,
        )
        self._pending.sent.append(sent)
        self.numbers = replace(numbers, next_out=numbers.next_out + 1)
        self._sent_seconds = self._clock.monotonic()
        self._work.set()

    def _flushed(self) -> "asyncio.Future[Exception | None]":
        """Gives why nothing was stored, or may not have been."""
        waiter: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._pending.waiters.append(waiter)
        self._work.set()
        return waiter

    async def _write(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            batch = self._pending
            self._pending = _Batch()
            try:
                received = await self._store.write(self.numbers, batch.received, batch.sent)
            except BaseException as error:
                is_unclear = isinstance(error, OutcomeUnknown | asyncio.CancelledError)
                batch.release(OutcomeUnknown() if is_unclear else NotStored("not stored"))
                raise
            try:
                self._deliver([each for each in received if each.message.type not in _UNDELIVERED])
                # One that is too old by now leaves a gap, as if it were lost: it is skipped when it
                # is asked for.
                now = self._clock.monotonic()
                fresh = [each.raw for each in batch.sent if (each.not_after or now) >= now]
                self._writer.writelines(fresh)
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._writer.drain()
                if batch.resend:
                    await self._resend(*batch.resend)
            finally:
                batch.release(None)
            if self._over:
                raise self._over

    async def _resend(self, first: int, last: int) -> None:
        """Sends commands that have no answer again; a gap fill stands for all other messages."""
        self._on_incident("resend")
        found: Sequence[SentMessage] | None = None
        while found is None or found:
            found, skipped = await self._store.take_resend(self.numbers.epoch, first, last)
            if skipped:
                self._on_incident("skipped")
            for each in found:
                self._fill(first, each.number)
                self._writer.write(self._rules.encode_again(each, self._clock.now()))
                first = each.number + 1
            async with asyncio.timeout(WRITE_SECONDS):
                await self._writer.drain()
        self._fill(first, last + 1)
        if self._rules.is_initiator and not self.in_step.is_set():
            # The one after the logon is among those that were filled.
            self._put(TEST_REQUEST, [(112, TEST_ID)])

    def _fill(self, number: int, up_to: int) -> None:
        if number < up_to:
            now = self._clock.now()
            fields = [(36, str(up_to)), (123, "Y")]
            time = time_text(now)
            self._writer.write(self._rules.encode(SEQUENCE_RESET, number, fields, now, time))

    def _log_on(self, resets: bool) -> None:
        fields = [(98, "0"), (108, str(self._heartbeat_seconds))]
        if resets:
            fields.append((141, "Y"))
        self._put(LOGON, [*fields, *self._rules.logon_fields])

    def _reset(self) -> None:
        """Begins a new epoch. Messages that wait for their commit would have numbers of the old
        one: they fail."""
        self.numbers = Numbers(self.numbers.epoch + 1)
        self._queued.clear()
        self._asked_until = 0
        self._pending.release(NotStored("the numbers were reset"))
        self._pending = _Batch(received=self._pending.received)

    def _log_out(self, text: str = "") -> None:
        self._close_seconds = self._clock.monotonic() + LOGOUT_SECONDS
        self._put(LOGOUT, [(58, text)] if text else [])

    def _leave(self, reason: str, text: str = "") -> None:
        """Ends the session for what the counterparty did, once all before is stored and written."""
        self._over = self._over or SessionEnded(reason)
        self._log_out(text)

    @property
    def _has_gap(self) -> bool:
        return self.numbers.next_in <= self._asked_until

    async def _read(self) -> None:
        framer = Framer()
        while data := await self._reader.read(READ_BYTES):
            for message in framer.feed(data):
                self._received_seconds = self._clock.monotonic()
                self._is_tested = False
                if message is not None:
                    self._receive(message)
                elif self.logged_on.is_set():
                    self._on_incident("garbled")
                else:
                    raise SessionEnded("no logon, but bytes that are no message")
            # So that a counterparty cannot send faster than its messages are stored.
            await self._flushed()
            if self._is_test_answered and not self._has_gap:
                self.in_step.set()
        raise SessionEnded("the counterparty closed the connection")

    def _receive(self, message: FixMessage) -> None:
        if not self.logged_on.is_set() and message.type not in (LOGON, LOGOUT):
            raise SessionEnded(f"no logon, but a message of type {message.type}")
        if not self._is_sound(message):
            return
        number = message.number(34) or 0
        self._is_test_answered |= message.type == HEARTBEAT and message.get(112) == TEST_ID
        if message.type == LOGON and message.get(141) == "Y":
            self._on_reset_logon()
        expected = self.numbers.next_in
        if message.type == RESEND_REQUEST and number != expected:
            # At once: the gap may never be filled if each waits for the other.
            self._on_resend_request(message)
            if number > expected:
                self._ask_again(number)
            return
        self._take_in_order(message, number)
        while (queued := self._queued.pop(self.numbers.next_in, None)) is not None:
            self._take(queued)

    def _take_in_order(self, message: FixMessage, number: int) -> None:
        expected = self.numbers.next_in
        is_reset = message.type == SEQUENCE_RESET and message.get(123) != "Y"
        # The numbers of those say nothing.
        if number == expected or message.type == LOGOUT or is_reset:
            self._take(message)
        elif number > expected:
            self._on_gap(message, number)
        elif message.get(43) != "Y":
            text = f"MsgSeqNum too low, expecting {expected} but received {number}"
            self._leave(text, text)

    def _is_sound(self, message: FixMessage) -> bool:
        """Answers what the standard says, if the message cannot be taken."""
        if (fault := find_fault(message, self._rules, self._clock.now())) is None:
            return True
        reason, tag = fault
        if reason not in ENDING:
            is_counted = message.type != SEQUENCE_RESET  # it is no message of a number of its own
            if is_counted and message.number(34) == self.numbers.next_in:
                # It is kept: a report of an execution counts, whatever its header lacks.
                self._count(message)
            self._reject(message, reason, tag)
        elif not self.logged_on.is_set() and not self._rules.is_initiator:
            raise SessionEnded(REASONS[reason])  # no logon is worth an answer
        elif reason < 0:
            self._leave(REASONS[reason], REASONS[reason])
        else:  # it is not counted: after the next logon it is asked for again
            self._reject(message, reason)
            self._leave(REASONS[reason])
        return False

    def _reject(self, message: FixMessage, reason: int, tag: int | None = None) -> None:
        self._on_incident("reject")
        fields = [(45, message.get(34)), (58, REASONS[reason])]
        if tag:
            fields.append((371, str(tag)))
        fields += [(372, message.type), (373, str(reason))]
        self._put(REJECT, fields)

    def _count(self, message: FixMessage) -> None:
        numbers = self.numbers
        received = ReceivedMessage(numbers.epoch, numbers.next_in, message)
        self._pending.received.append(received)
        self.numbers = replace(numbers, next_in=numbers.next_in + 1)

    def _on_gap(self, message: FixMessage, number: int) -> None:
        if message.type == LOGON:
            self._on_logon(message)
        elif len(self._queued) < MAX_QUEUED:
            self._queued.setdefault(number, message)
        self._ask_again(number)

    def _ask_again(self, number: int) -> None:
        """One request for a gap: until it is filled, what is missing further on was asked for
        too."""
        if not self._has_gap:
            self._on_incident("gap")
            self._asked_until = number
            self._asked_seconds = self._clock.monotonic()
            self._put(RESEND_REQUEST, [(7, str(self.numbers.next_in)), (16, "0")])

    def _take(self, message: FixMessage) -> None:
        if message.type not in (SEQUENCE_RESET, LOGOUT):
            self._count(message)
        match message.type:
            case "A":
                self._on_logon(message)
            case "1":
                self._put(HEARTBEAT, [(112, message.get(112))])
            case "2":
                self._on_resend_request(message)
            case "4":
                self._on_sequence_reset(message)
            case "5":
                self._on_logout(message)

    def _on_logon(self, message: FixMessage) -> None:
        resets = message.get(141) == "Y"
        is_first = not self.logged_on.is_set()
        if self._rules.is_initiator and is_first:
            # Its answer comes after all that the counterparty had to ask, and to send again.
            self._put(TEST_REQUEST, [(112, TEST_ID)])
        elif resets or is_first:
            self._heartbeat_seconds = message.number(108) or self._heartbeat_seconds
            self._log_on(resets)
        self.logged_on.set()

    def _on_reset_logon(self) -> None:
        """The counterparty begins anew. If it answers our logon with it, what we have sent still
        counts."""
        is_answer = self._rules.is_initiator and not self.logged_on.is_set()
        if is_answer and self._rules.resets:
            return
        next_out = self.numbers.next_out
        self._on_incident("reset")
        self._reset()
        if is_answer:
            self.numbers = replace(self.numbers, next_out=next_out)

    def _on_resend_request(self, message: FixMessage) -> None:
        first = message.number(7)
        last = message.number(16)
        if first is None or last is None:
            self._reject(message, 1, 7 if first is None else 16)
            return
        newest = self.numbers.next_out - 1
        last = newest if last == 0 else min(last, newest)
        asked = self._pending.resend or (first, last)
        first = max(first, 1)
        if first <= last:  # many requests at once are answered together
            self._pending.resend = min(first, asked[0]), max(last, asked[1])
            self._work.set()

    def _on_sequence_reset(self, message: FixMessage) -> None:
        new = message.number(36)
        is_fill = message.get(123) == "Y"
        if new is not None and new >= self.numbers.next_in + is_fill:
            self.numbers = replace(self.numbers, next_in=new)
            self._queued = {number: each for number, each in self._queued.items() if number >= new}
        elif new is None:
            self._reject(message, 1, 36)
        else:
            self._reject(message, 5)

    def _on_logout(self, message: FixMessage) -> None:
        if message.number(34) == self.numbers.next_in:
            self._count(message)
        text = message.get(58)
        if self.logged_on.is_set():
            reason = f"logged out: {text}" if text else "logged out"
            self._over = self._over or SessionEnded(reason, text)
            if self._close_seconds is None:
                self._log_out()
        else:
            reason = f"the logon was refused: {text or 'no reason given'}"
            self._over = SessionEnded(reason, text)
        self._work.set()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._heartbeat_seconds / 10))
            now = self._clock.monotonic()
            beat = self._heartbeat_seconds
            if self._close_seconds is not None and now >= self._close_seconds:
                raise self._over or SessionEnded("logged out, without an answer")
            if not self.logged_on.is_set() or self._close_seconds is not None:
                continue
            silent = now - self._received_seconds
            if silent > beat * (SILENCE + 1):
                raise SessionEnded("the counterparty is silent")
            if self._has_gap and now - self._asked_seconds > 2 * beat:
                raise SessionEnded("the counterparty does not send again what is missing")
            if silent > beat * SILENCE and not self._is_tested:
                self._is_tested = True
                self._put(TEST_REQUEST, [(112, TEST_ID)])
            elif now - self._sent_seconds >= beat:
                self._put(HEARTBEAT)
