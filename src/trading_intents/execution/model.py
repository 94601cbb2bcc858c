"""What becomes of a command when its turn comes, when an unclear one is looked up, and what a link may send. Pure: no
I/O, no clock; times and ages are handed in."""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from uuid import UUID

from trading_intents.brokers.port import (
    Absent,
    EventKind,
    Lookup,
    LookupKind,
    LookupUnknown,
    OrderSnapshot,
    OrderTicket,
)
from trading_intents.controls.model import Controls, evaluate
from trading_intents.orders.amounts import ZERO
from trading_intents.orders.facts import CommandKind, FactKind
from trading_intents.orders.ledger.matching import OwnFact
from trading_intents.trading import FrozenStruct, OrderKind, OrderSide, RouteStrategy, Symbol, TimeInForce

CALL_SECONDS = 3.5  # from the claim: the handler's four, less the time to write the answer down
SEND_SECONDS = 2.0  # from the claim: what waited longer for its turn is claimed again
HOLD_SECONDS = 3.0  # a CANCEL waits no longer for the acknowledgement of its order
HOLD_PAUSES_SECONDS = (0.1, 1.0)  # until HOLD_SECONDS, and after
# So that look-ups happen 0.25, 1, 3, 10 and 30 s after the answer was lost, then every minute.
LOOKUP_PAUSES_SECONDS = (0.25, 0.75, 2.0, 7.0, 20.0, 60.0)
PROOF_SECONDS = 10.0  # between the two times that a command is found not to have arrived
ALERT_LOOKUPS = 5
ANSWER_SECONDS = 10.0  # a command that was taken and has not happened by then is looked up
RECONCILE_SHARES = 1_000  # of the interval, among which accounts are spread
BREAKER_FAILURES = 5
BREAKER_SECONDS = 30.0
CANCEL_SHARE = 5  # one in so many requests of a budget is kept for CANCELs

FINAL_STATUSES = frozenset({"FILLED", "CANCELLED", "EXPIRED", "REJECTED"})
CREATE = "intent.create"
COMMANDS = {
    CREATE: CommandKind.SUBMIT,
    "intent.replace": CommandKind.REPLACE,
    "intent.cancel": CommandKind.CANCEL,
}


class Terms(FrozenStruct, frozen=True):
    """The order as a command wants it; of a CANCEL, as it stands."""

    symbol: Symbol
    side: OrderSide
    kind: OrderKind
    quantity: Decimal
    limit_price: Decimal | None
    stop_price: Decimal | None
    time_in_force: TimeInForce
    route: RouteStrategy


class Scene(FrozenStruct, frozen=True, kw_only=True):
    """What a command meets, read under its order's lock. Ages are by the database's clock."""

    command: CommandKind
    order_id: UUID
    client_order_id: str
    confirmed_id: str  # of the version that the broker last confirmed
    broker_order_id: str | None
    terms: Terms
    now: datetime
    age_seconds: float
    claim_seconds: float
    order_status: str
    acknowledged: bool
    cancel_requested: bool
    is_sent: bool  # it is marked, and nobody wrote down what came of it
    is_resend: bool  # a CREATE that was marked before, and proved never to have arrived
    lookups: int
    account_disabled: bool
    controls: Controls
    most_age_seconds: float


class Send(FrozenStruct, frozen=True):
    """To be marked, and then called. It is stale after `left_seconds`; the call is over after `call_seconds`."""

    ticket: OrderTicket
    left_seconds: float | None
    call_seconds: float


class Settle(FrozenStruct, frozen=True):
    """Over without a call. `unclear`: it was sent before, and is to be looked up."""

    own: tuple[OwnFact, ...] = ()
    unclear: bool = False


class Hold(FrozenStruct, frozen=True):
    """Not yet."""

    after_seconds: float


Decision = Send | Settle | Hold


def decide(scene: Scene) -> Decision:
    if scene.order_status in FINAL_STATUSES:
        return Settle()
    if scene.is_sent:
        return Settle((_fact(scene, FactKind.UNCERTAIN),), unclear=True)
    if scene.command is CommandKind.SUBMIT and scene.acknowledged:
        # Not marked, and yet it arrived: a worker that was paused before its call has woken up.
        return Settle(unclear=True)
    if scene.command is CommandKind.CANCEL:
        waits = not scene.acknowledged and not scene.lookups and scene.age_seconds < HOLD_SECONDS
        return _hold(scene) if waits else _send(scene, None)
    if given_up := _given_up(scene):
        return Settle((given_up,))
    if scene.command is CommandKind.REPLACE and not scene.acknowledged:
        return _hold(scene)
    return _send(scene, most_age_seconds(scene) - scene.age_seconds)


def _hold(scene: Scene) -> Hold:
    return Hold(HOLD_PAUSES_SECONDS[scene.age_seconds > HOLD_SECONDS])


def most_age_seconds(scene: Scene) -> float:
    stale_millis = scene.controls.time.stale_order_millis if scene.controls.time else None
    return scene.most_age_seconds if stale_millis is None else min(scene.most_age_seconds, stale_millis / 1000)


def _given_up(scene: Scene) -> OwnFact | None:
    """Why a CREATE or REPLACE that never arrived is not to be sent."""
    is_create = scene.command is CommandKind.SUBMIT
    if scene.cancel_requested:
        if is_create:
            return _fact(scene, FactKind.CANCELLED_BEFORE_SEND)
        return _fact(scene, FactKind.REPLACE_DROPPED, "cancel_requested")
    if scene.age_seconds > most_age_seconds(scene):
        if scene.is_resend:
            return used_up(scene.command, scene.order_id, scene.client_order_id)
        return _fact(scene, FactKind.STALE if is_create else FactKind.REPLACE_DROPPED, "stale")
    refused = "account_disabled" if scene.account_disabled else None
    if triggered := evaluate(scene.controls, scene.terms.symbol, scene.now):
        refused = triggered[0].reason
    return _fact(scene, FactKind.REFUSED if is_create else FactKind.REPLACE_DROPPED, refused) if refused else None


def used_up(command: CommandKind, order_id: UUID, client_order_id: str) -> OwnFact:
    """What a command comes to whose attempts are used up and that was never sent."""
    kind, reason = {
        CommandKind.SUBMIT: (FactKind.NOT_DELIVERED, None),
        CommandKind.REPLACE: (FactKind.REPLACE_DROPPED, "not_delivered"),
        CommandKind.CANCEL: (FactKind.CANCEL_DROPPED, None),
    }[command]
    return OwnFact(order_id, kind, client_order_id, reason)


def _fact(scene: Scene, kind: FactKind, reason: str | None = None) -> OwnFact:
    return OwnFact(scene.order_id, kind, scene.client_order_id, reason)


def _send(scene: Scene, left_seconds: float | None) -> Decision:
    if scene.claim_seconds > SEND_SECONDS:
        return Hold(0.0)
    terms, is_create = scene.terms, scene.command is CommandKind.SUBMIT
    ticket = OrderTicket(
        client_order_id=scene.client_order_id,
        broker_order_id=None if is_create else scene.broker_order_id,
        orig_client_order_id=None if is_create else scene.confirmed_id,
        symbol=terms.symbol,
        side=terms.side,
        kind=terms.kind,
        quantity=terms.quantity,
        limit_price=terms.limit_price,
        stop_price=terms.stop_price,
        time_in_force=terms.time_in_force,
        extended_hours=terms.time_in_force is TimeInForce.EXT,
        route=terms.route,
    )
    return Send(ticket, left_seconds, CALL_SECONDS - scene.claim_seconds)


class Doubt(FrozenStruct, frozen=True):
    """An order of which something is not known: whether the broker has it, or a command of it whose answer was lost."""

    order_status: str
    flags: tuple[str, ...]
    acknowledged: bool
    is_sent: bool  # its CREATE is marked
    is_restored: bool  # the CREATE or REPLACE in doubt is from a restored backup
    was_cancelled: bool  # a CANCEL was asked for, whatever came of it
    replace_id: str | None  # client order ids of unanswered commands
    cancel_id: str | None
    is_pending: bool  # a command is taken and has not happened
    lookups: int
    absent_seconds: float | None  # since a command was first found not to have arrived

    @property
    def is_resurrected(self) -> bool:
        return self.order_status in FINAL_STATUSES and "resurrected" in self.flags


class Finding(StrEnum):
    """What a look-up comes to, once what was found is written down."""

    KNOWN = "known"
    MISSING = "missing"  # the command in doubt is not there
    WAITING = "waiting"  # the broker has not done yet what it took
    LOST = "lost"  # the broker has no order that it had
    ALIVE = "alive"  # the broker works an order that was given up
    UNKNOWN = "unknown"


def find(doubt: Doubt, order: Lookup, replaced: Lookup | None, lookup: LookupKind) -> Finding:
    """`doubt` is what is left of it; `replaced` was found under the id of an unanswered REPLACE."""
    is_proof = lookup is LookupKind.DURABLE
    if doubt.is_resurrected:
        if isinstance(order, LookupUnknown):
            return Finding.UNKNOWN
        return Finding.ALIVE if isinstance(order, OrderSnapshot) and is_working(order) else Finding.KNOWN
    if doubt.order_status in FINAL_STATUSES:
        return Finding.KNOWN
    if not doubt.acknowledged:
        if not doubt.is_sent:
            return Finding.KNOWN  # it is in the queue
        return Finding.MISSING if isinstance(order, Absent) and is_proof else Finding.UNKNOWN
    if doubt.replace_id:
        absent = isinstance(replaced, Absent) and isinstance(order, OrderSnapshot) and is_proof
        return Finding.MISSING if absent else Finding.UNKNOWN
    if doubt.cancel_id:
        return Finding.MISSING if isinstance(order, OrderSnapshot) and is_working(order) else Finding.UNKNOWN
    if isinstance(order, OrderSnapshot):
        return Finding.WAITING if doubt.is_pending else Finding.KNOWN
    return Finding.LOST if isinstance(order, Absent) else Finding.UNKNOWN


def not_delivered_fact(order_id: UUID, create_id: str, doubt: Doubt, unique_order_ids: bool) -> OwnFact | None:
    """What becomes of the command in doubt, which never arrived. None: it is a CREATE to be sent again, which only a
    broker that refuses a used id for ever makes safe: the first send may still be under way somewhere. One from a
    restored backup is never sent again: whoever asked for it may know by now that it did not happen."""
    if not doubt.acknowledged:
        if doubt.is_restored:
            return OwnFact(order_id, FactKind.STALE, create_id)
        if not unique_order_ids:
            return used_up(CommandKind.SUBMIT, order_id, create_id)
        return OwnFact(order_id, FactKind.CANCELLED_BEFORE_SEND, create_id) if doubt.was_cancelled else None
    if doubt.replace_id and doubt.is_restored:
        return OwnFact(order_id, FactKind.REPLACE_DROPPED, doubt.replace_id, "stale")
    if doubt.replace_id:
        return used_up(CommandKind.REPLACE, order_id, doubt.replace_id)
    assert doubt.cancel_id
    return used_up(CommandKind.CANCEL, order_id, doubt.cancel_id)


def is_working(order: OrderSnapshot) -> bool:
    kinds = {event.kind for event in order.events}
    if kinds & {EventKind.CANCELLED, EventKind.EXPIRED, EventKind.REJECTED}:
        return False
    filled = sum((event.quantity or ZERO for event in order.events if event.kind is EventKind.FILL), ZERO)
    counted = max((event.cum_quantity or ZERO for event in order.events), default=ZERO)
    return max(filled, counted) < order.quantity


def lookup_delay_seconds(finding: Finding, doubt: Doubt) -> float | None:
    """Until the next look-up; None: there is nothing in doubt any more."""
    match finding:
        case Finding.KNOWN:
            return None
        case Finding.WAITING | Finding.LOST:
            return LOOKUP_PAUSES_SECONDS[-1]
        case Finding.MISSING:
            return next_lookup_seconds(doubt.lookups + 1, doubt.absent_seconds or 0)
        case Finding.UNKNOWN | Finding.ALIVE:
            return next_lookup_seconds(doubt.lookups + 1, None)


def next_lookup_seconds(lookups: int, absent_seconds: float | None) -> float:
    """The second proof of absence is not waited for longer than it must."""
    delay = LOOKUP_PAUSES_SECONDS[min(lookups, len(LOOKUP_PAUSES_SECONDS) - 1)]
    if absent_seconds is not None and absent_seconds < PROOF_SECONDS:
        delay = min(delay, PROOF_SECONDS - absent_seconds)
    return delay


def first_reconcile_seconds(account_id: UUID, interval_seconds: float) -> float:
    """When an account that connects now is reconciled, so that those that connect together are spread evenly."""
    return account_id.int % RECONCILE_SHARES * interval_seconds / RECONCILE_SHARES


@dataclass(slots=True)
class Breaker:
    """Opens after BREAKER_FAILURES unclear or unsent commands in BREAKER_SECONDS, until a snapshot succeeds."""

    is_open: bool = False
    _failures: deque[float] = field(default_factory=lambda: deque(maxlen=BREAKER_FAILURES))

    def failed(self, now_seconds: float) -> bool:
        """Whether this one opened it."""
        self._failures.append(now_seconds)
        was_open, recent = self.is_open, now_seconds - self._failures[0] <= BREAKER_SECONDS
        self.is_open = was_open or (len(self._failures) == BREAKER_FAILURES and recent)
        return self.is_open and not was_open

    def reset(self) -> None:
        self.is_open = False
        self._failures.clear()


@dataclass(slots=True)
class Budget:
    """A credential's requests, at most `per_minute` in any minute: a quarter at once, the rest evenly. None: any."""

    per_minute: int | None
    _used: float = 0.0
    _at_seconds: float = 0.0

    def wait_seconds(self, is_cancel: bool, now_seconds: float) -> float:
        """Until one is free; what is kept for CANCELs is not for the others. 0: take it."""
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
