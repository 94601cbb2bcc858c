"""Decides whether a claimed command is sent, what a look-up says of an unclear one, and how much a
session may send. Pure: no I/O, no clock; times and ages are arguments."""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from trading_intents.brokers import port
from trading_intents.controls.case import HALTS, Case, judge
from trading_intents.loops import pause_after
from trading_intents.orders.facts import CommandKind, FactKind
from trading_intents.orders.ledger.matching import PlatformFact
from trading_intents.orders.model import FINAL_STATUSES, OrderState, OrderView
from trading_intents.trading import ActionType, FrozenStruct, amount_text

HOLD_SECONDS = 3.0  # a CANCEL waits no longer for the acknowledgement of its order
HOLD_PAUSES_SECONDS = (0.1, 1.0)  # until HOLD_SECONDS, and after
# So that look-ups happen 0.25, 1, 3, 10 and 30 s after the answer was lost, then every minute.
LOOKUP_PAUSES_SECONDS = (0.25, 0.75, 2.0, 7.0, 20.0, 60.0)
PROOF_SECONDS = 10.0  # between the two times that a command is found not to have arrived
ALERT_LOOKUPS = 5
# A command that the broker accepted and has not carried out by then is looked up.
ANSWER_SECONDS = 10.0
RECONCILE_SHARES = 1_000  # of the interval, among which accounts are spread
BREAKER_FAILURES = 5
BREAKER_SECONDS = 30.0
CANCEL_SHARE = 5  # one in so many requests of a budget is kept for CANCELs

# The reason of an order's end that only a look-up showed.
ENDED_BY_BROKER = "ended_by_broker"
# The detail of commands that are given up for it.
RESTORED = "it was in a restored backup and had not arrived"

COMMANDS = {
    ActionType.CREATE: CommandKind.SUBMIT,
    ActionType.REPLACE: CommandKind.REPLACE,
    ActionType.CANCEL: CommandKind.CANCEL,
}


class CommandState(FrozenStruct, kw_only=True):
    """A command and its order, read under the order's lock. Ages are by the database's clock."""

    now: datetime
    age_seconds: float
    order_status: str
    acknowledged: bool
    cancel_requested: bool
    is_resend: bool  # a CREATE that was marked before, and proved never to have arrived
    lookups: int
    is_leg: bool = False
    halt_stands: bool | None = None  # of the halt that made it; None: no halt did


class SendContext(CommandState, kw_only=True):
    """All that decides whether a command is sent."""

    command: CommandKind
    order_id: UUID
    ticket: port.OrderTicket  # for a CANCEL, with the order's current terms
    is_sent: bool  # marked as sent, and its outcome is not recorded
    case: Case
    account_disabled: bool
    max_age_seconds: float
    kept_by: str | None = None  # what has kept it from being sent so far


class Send(FrozenStruct):
    """The command is marked and sent. It is stale after `left_seconds`."""

    ticket: port.OrderTicket
    left_seconds: float | None


class EndCommand(FrozenStruct):
    """The command ends without a call. `unclear`: it was sent before, and is looked up."""

    own: tuple[PlatformFact, ...] = ()
    unclear: bool = False


class Hold(FrozenStruct):
    """The command is claimed again after this many seconds."""

    after_seconds: float


SendDecision = Send | EndCommand | Hold


def decide_send(context: SendContext) -> SendDecision:
    if context.order_status in FINAL_STATUSES:
        return EndCommand()
    if context.is_sent:
        return EndCommand((_fact(context, FactKind.UNCERTAIN),), unclear=True)
    if context.command is CommandKind.SUBMIT and context.acknowledged:
        # Not marked, and yet it arrived: a worker that was paused before its call has resumed.
        return EndCommand(unclear=True)
    if context.command is CommandKind.CANCEL:
        # A leg that its broker has not named yet cannot be cancelled: it is named, or ends with its
        # entry.
        may_wait = context.is_leg or (not context.lookups and context.age_seconds < HOLD_SECONDS)
        if may_wait and not context.acknowledged:
            return _hold(context)
        return Send(context.ticket, None)
    if given_up := _given_up(context):
        return EndCommand((given_up,))
    if context.command is CommandKind.REPLACE and not context.acknowledged:
        return _hold(context)
    return Send(context.ticket, max_age_seconds(context) - context.age_seconds)


def _hold(context: SendContext) -> Hold:
    return Hold(HOLD_PAUSES_SECONDS[context.age_seconds > HOLD_SECONDS])


def max_age_seconds(context: SendContext) -> float:
    window = context.case.controls.time
    stale_millis = window.stale_order_millis if window else None
    return (
        context.max_age_seconds
        if stale_millis is None
        else min(context.max_age_seconds, stale_millis / 1000)
    )


def _given_up(context: SendContext) -> PlatformFact | None:
    """The reason why a CREATE or REPLACE that never arrived is not sent."""
    is_create = context.command is CommandKind.SUBMIT
    triggered = judge(context.case)
    if any(each.reason in HALTS for each in triggered):
        return (
            _fact(context, FactKind.HALTED)
            if is_create
            else _fact(context, FactKind.REPLACE_DROPPED, "halted")
        )
    if context.halt_stands is False:
        return _fact(context, FactKind.CANCELLED_BEFORE_SEND, "resumed")
    if context.cancel_requested:
        if is_create:
            return _fact(context, FactKind.CANCELLED_BEFORE_SEND)
        return _fact(context, FactKind.REPLACE_DROPPED, "cancel_requested")
    if context.age_seconds > max_age_seconds(context):
        if context.is_resend:
            return used_up(
                context.command, context.order_id, context.ticket.client_order_id, context.kept_by
            )
        return _fact(
            context,
            FactKind.STALE if is_create else FactKind.REPLACE_DROPPED,
            "stale",
            context.kept_by,
        )
    kind = FactKind.REFUSED if is_create else FactKind.REPLACE_DROPPED
    if triggered:
        return _fact(context, kind, triggered[0].reason, triggered[0].detail)
    return (
        _fact(context, kind, "account_disabled")
        if context.account_disabled and not context.halt_stands
        else None
    )


def used_up(
    command: CommandKind, order_id: UUID, client_order_id: str, detail: str | None = None
) -> PlatformFact:
    """The fact that ends a command without an attempt left that was never sent. `detail`: what kept
    it."""
    kind, reason = {
        CommandKind.SUBMIT: (FactKind.NOT_DELIVERED, None),
        CommandKind.REPLACE: (FactKind.REPLACE_DROPPED, "not_delivered"),
        CommandKind.CANCEL: (FactKind.CANCEL_DROPPED, None),
    }[command]
    return PlatformFact(
        order_id=order_id, kind=kind, client_order_id=client_order_id, reason=reason, detail=detail
    )


def _fact(
    context: SendContext, kind: FactKind, reason: str | None = None, detail: str | None = None
) -> PlatformFact:
    return PlatformFact(
        order_id=context.order_id,
        kind=kind,
        client_order_id=context.ticket.client_order_id,
        reason=reason,
        detail=detail,
    )


class UnresolvedCommands(FrozenStruct, kw_only=True):
    """The commands of an order that the broker may or may not have."""

    is_sent: bool  # its CREATE is marked
    was_cancelled: bool  # a CANCEL was asked for, whatever its outcome
    replace_id: str | None  # client order ids of unanswered commands
    cancel_id: str | None
    is_pending: bool  # the broker accepted a command and has not carried it out
    lookups: int
    absent_seconds: float | None  # since a command was first found not to have arrived
    is_entry_acknowledged: bool | None = None  # of a leg
    was_halted: bool = False  # a halt came since it was accepted
    is_cancelling: bool = False  # a CANCEL is queued, or was sent lately


class UnresolvedOrder(UnresolvedCommands, kw_only=True):
    """An order that the broker may or may not have, or that has a command whose answer was lost."""

    order_status: str
    is_unwanted: bool  # the broker may work it though we ended it
    acknowledged: bool
    is_restored: bool  # the CREATE or REPLACE in doubt is from a restored backup
    may_grow: bool = False  # an exit whose entry may still fill


class Verdict(StrEnum):
    """The result of a look-up, once the events that it found are recorded."""

    KNOWN = "known"
    MISSING = "missing"  # the broker does not know the unresolved command
    WAITING = "waiting"  # the broker has not yet carried out what it accepted
    LOST = "lost"  # the broker no longer knows an order that it had
    ALIVE = "alive"  # the broker has an order that we ended
    UNKNOWN = "unknown"


def classify_lookup(
    unresolved: UnresolvedOrder,
    order: port.Lookup,
    replaced: port.Lookup | None,
    lookup: port.LookupKind,
) -> Verdict:
    """`unresolved` is the order after recording; `replaced` was found under the id of an unanswered
    REPLACE."""
    if unresolved.order_status in FINAL_STATUSES:
        return Verdict.KNOWN
    if not unresolved.acknowledged:
        return _classify_unacknowledged(unresolved, order, lookup)
    if unresolved.replace_id:
        was_reported = isinstance(order, port.OrderSnapshot) or replaced == port.Absent(
            never_sent=True
        )
        if was_reported:
            return _missing_if(_is_proved_absent(replaced, lookup))
    if unresolved.cancel_id and isinstance(order, port.OrderSnapshot):
        return _missing_if(unresolved.may_grow or order.is_working)
    match order:
        case port.OrderSnapshot() if unresolved.is_unwanted:
            return Verdict.ALIVE
        case port.OrderSnapshot():
            return Verdict.WAITING if unresolved.is_pending else Verdict.KNOWN
        case port.Absent():
            return Verdict.LOST
        case port.LookupUnknown():
            return Verdict.UNKNOWN


def _classify_unacknowledged(
    unresolved: UnresolvedOrder, order: port.Lookup, lookup: port.LookupKind
) -> Verdict:
    if unresolved.is_entry_acknowledged is not None:
        # While its entry is not known either, that one is looked up, and the leg is named or ends
        # with it.
        return Verdict.UNKNOWN if unresolved.is_entry_acknowledged else Verdict.KNOWN
    if not unresolved.is_sent:
        return Verdict.KNOWN  # it is in the queue
    return _missing_if(_is_proved_absent(order, lookup))


def _missing_if(is_missing: bool) -> Verdict:
    return Verdict.MISSING if is_missing else Verdict.UNKNOWN


def _is_proved_absent(found: port.Lookup | None, lookup: port.LookupKind) -> bool:
    return isinstance(found, port.Absent) and (
        found.never_sent or lookup is port.LookupKind.DURABLE
    )


def not_delivered_fact(
    order_id: UUID, create_id: str, unresolved: UnresolvedOrder, unique_order_ids: bool
) -> PlatformFact | None:
    """The fact that ends the unresolved command, which never arrived. None: it is a CREATE that is
    sent again. That is safe only at a broker that refuses a used id for ever, since the first send
    may still be under way. A CREATE from a restored backup is never sent again: its caller may know
    by now that it did not happen."""
    if not unresolved.acknowledged:
        if unresolved.is_restored:
            return PlatformFact(
                order_id=order_id, kind=FactKind.STALE, client_order_id=create_id, detail=RESTORED
            )
        if not unique_order_ids:
            return used_up(CommandKind.SUBMIT, order_id, create_id)
        if not unresolved.was_cancelled:
            return None
        kind = FactKind.HALTED if unresolved.was_halted else FactKind.CANCELLED_BEFORE_SEND
        return PlatformFact(order_id=order_id, kind=kind, client_order_id=create_id)
    if unresolved.replace_id and unresolved.is_restored:
        return PlatformFact(
            order_id=order_id,
            kind=FactKind.REPLACE_DROPPED,
            client_order_id=unresolved.replace_id,
            reason="stale",
            detail=RESTORED,
        )
    if unresolved.replace_id:
        return used_up(CommandKind.REPLACE, order_id, unresolved.replace_id)
    assert unresolved.cancel_id
    return used_up(CommandKind.CANCEL, order_id, unresolved.cancel_id)


def ending_event(
    view: OrderView,
    order: port.Lookup,
    client_order_id: str,
    now: datetime,
) -> port.BrokerEvent | None:
    """The event that ends an order that is over at its broker, and open here with all that the
    broker says of it: it filled its total there, which is less than ours, or ended."""
    is_known = view.confirmed.client_order_id == client_order_id
    is_open = view.state is OrderState.OPEN and not view.may_grow
    if not isinstance(order, port.OrderSnapshot) or not is_known or not is_open:
        return None
    is_filled = 0 < order.quantity <= view.filled_quantity and not order.has_ended
    if not is_filled and not order.has_ended:
        return None
    kind = port.EventKind.REPLACED if is_filled else port.EventKind.CANCELLED
    times = [each.venue_time for each in order.events if each.venue_time]
    return port.BrokerEvent(
        kind=kind,
        dedupe_key=f"looked_up:{client_order_id}:{kind}:{amount_text(order.quantity)}",
        client_order_id=client_order_id,
        quantity=order.quantity if is_filled else None,
        venue_time=max([now, *times]),  # it is the last report
        reason=port.REPLACED_BY_BROKER if is_filled else ENDED_BY_BROKER,
    )


def lookup_delay_seconds(verdict: Verdict, unresolved: UnresolvedOrder) -> float | None:
    """Seconds until the next look-up; None: nothing is unresolved any more."""
    match verdict:
        case Verdict.KNOWN:
            return None
        case Verdict.WAITING | Verdict.LOST:
            return LOOKUP_PAUSES_SECONDS[-1]
        case Verdict.MISSING:
            return next_lookup_seconds(unresolved.lookups + 1, unresolved.absent_seconds or 0)
        case Verdict.UNKNOWN | Verdict.ALIVE:
            return next_lookup_seconds(unresolved.lookups + 1, None)


def next_lookup_seconds(lookups: int, absent_seconds: float | None) -> float:
    """Puts the second proof of absence as early as it counts."""
    delay = pause_after(LOOKUP_PAUSES_SECONDS, lookups)
    if absent_seconds is not None and absent_seconds < PROOF_SECONDS:
        delay = min(delay, PROOF_SECONDS - absent_seconds)
    return delay


def first_reconcile_seconds(account_id: UUID, interval_seconds: float) -> float:
    """Seconds until an account that connects now is reconciled: accounts that connect together are
    spread evenly."""
    return account_id.int % RECONCILE_SHARES * interval_seconds / RECONCILE_SHARES


@dataclass(slots=True)
class Breaker:
    """Opens after BREAKER_FAILURES unclear or unsent commands in BREAKER_SECONDS, until a snapshot
    succeeds."""

    is_open: bool = False
    _failures: deque[float] = field(default_factory=lambda: deque(maxlen=BREAKER_FAILURES))

    def failed(self, now_seconds: float) -> bool:
        """True: this failure opened the breaker."""
        self._failures.append(now_seconds)
        was_open = self.is_open
        recent = now_seconds - self._failures[0] <= BREAKER_SECONDS
        self.is_open = was_open or (len(self._failures) == BREAKER_FAILURES and recent)
        return self.is_open and not was_open

    def reset(self) -> None:
        self.is_open = False
        self._failures.clear()


@dataclass(slots=True)
class Budget:
    """A credential's requests, at most `per_minute` in any minute: a quarter at once, the rest
    evenly. None: any."""

    per_minute: int | None
    _used: float = 0.0
    _at_seconds: float = 0.0

    def wait_seconds(self, is_cancel: bool, now_seconds: float) -> float:
        """Seconds until a request is free; 0: now. The share for CANCELs is kept from the other
        commands."""
        if self.per_minute is None:
            return 0.0
        burst = max(2, self.per_minute // 4)
        per_second = max(1, self.per_minute - burst) / 60
        self._used = max(0.0, self._used - (now_seconds - self._at_seconds) * per_second)
        self._at_seconds = now_seconds
        most = burst if is_cancel else burst - max(1, burst // CANCEL_SHARE)
        return max(0.0, self._used + 1 - most) / per_second

    def take(self) -> None:
        self._used += 1
