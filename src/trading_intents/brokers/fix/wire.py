"""The meaning of FIX messages at a venue: its profile, an order's commands as fields, and reports
as broker events. Pure: no I/O, no clock."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import replace

from trading_intents import trading
from trading_intents.brokers import port
from trading_intents.brokers.fix.messages import (
    Fields,
    FixMessage,
    ReceivedMessage,
    RefusedMessage,
    parse_time,
    time_text,
)
from trading_intents.brokers.port import (
    BrokerEvent,
    Capabilities,
    CommandResult,
    EventKind,
    OrderSnapshot,
    OrderTicket,
    SentOrder,
)
from trading_intents.trading import OrderKind, OrderSide, TimeInForce, amount_text

NEW_ORDER = "D"
CANCEL = "F"
REPLACE = "G"
STATUS_REQUEST = "H"
REPORT = "8"
CANCEL_REJECT = "9"
BUSINESS_REJECT = "j"
Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]

MAX_ID_CHARS = 128  # no venue's id is as long; an index holds no more than some thousand

_E = EventKind
_T = TimeInForce
_SIDES = {OrderSide.BUY: "1", OrderSide.SELL: "2", OrderSide.SELL_SHORT: "5"}
_REPORTED_SIDES = {code: side for side, code in _SIDES.items()} | {"6": OrderSide.SELL_SHORT}
_KINDS = {
    OrderKind.MARKET: "1",
    OrderKind.LIMIT: "2",
    OrderKind.STOP: "3",
    OrderKind.STOP_LIMIT: "4",
}
TIMES = {
    _T.DAY: "0",
    _T.GOOD_TILL_CANCEL: "1",
    _T.AT_OPEN: "2",
    _T.IMMEDIATE_OR_CANCEL: "3",
    _T.FILL_OR_KILL: "4",
    _T.AT_CLOSE: "7",
}
# ExecType (150) decides; others are a status. A (pending new) says nothing but the order's id, 3
# (done for the day) is the end of an order that is for the day.
_REPORTED_KINDS: Mapping[str, EventKind] = {
    "0": _E.ACCEPTED,
    "1": _E.FILL,  # 1 and 2 in FIX 4.2
    "2": _E.FILL,
    "F": _E.FILL,
    "4": _E.CANCELLED,
    "5": _E.REPLACED,
    "6": _E.PENDING_CANCEL,
    "8": _E.REJECTED,
    "C": _E.EXPIRED,
    "E": _E.PENDING_REPLACE,
    "G": _E.FILL_CORRECT,
    "H": _E.FILL_BUST,
    "L": _E.TRIGGERED,
}
_TRANSACTIONS = {"1": _E.FILL_BUST, "2": _E.FILL_CORRECT}  # ExecTransType (20) of FIX 4.2
_ENDS = {"4": _E.CANCELLED, "C": _E.EXPIRED, "8": _E.REJECTED}  # OrdStatus (39)
_FILLED = "2"
_REFUSED = {NEW_ORDER: _E.REJECTED, REPLACE: _E.REPLACE_REJECTED, CANCEL: _E.CANCEL_REJECTED}
_EXECUTIONS = frozenset({_E.FILL, _E.FILL_BUST, _E.FILL_CORRECT})
_EXPLAINED = frozenset({*_REFUSED.values(), *_ENDS.values()})  # by Text (58)
_REFUSALS = {
    "0": "too_late",
    "1": "unknown_order",
    "2": "broker_option",
    "3": "already_pending",
    "6": "duplicate_id",
}
_UNKNOWN_ORDER = "5"
_DUPLICATE = "6"  # OrdRejReason (103)
_NO_ORDER = frozenset({"", "NONE", "None", "UNKNOWN", "0"})
_COMP_IDS = ("sender_comp_id", "target_comp_id")
_LOGIN = ("username", "password")


class Venue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A venue as data: the profiles explain every entry."""

    host: str
    port: int
    begin_string: str
    environments: tuple[trading.Environment, ...]
    times_in_force: dict[OrderKind, tuple[TimeInForce, ...]]
    native_replace: bool
    # None: every logon begins at 1; else each sends again what the other missed.
    recovery: Literal["resend", "none"]
    lookup: Literal["none", "status"]  # by OrderStatusRequest (H)
    extends: str = ""
    tls: bool = True
    tls_ca_file: str = ""
    tls_cert_file: str = ""  # of our own, where the venue wants to see one
    tls_key_file: str = ""
    heartbeat_seconds: int = 30
    max_skew_seconds: float = 120.0
    reset: Literal["never", "daily", "weekly"] = "never"
    reset_time: str = "00:00"
    reset_day: Day = "sunday"
    has_reset_flag: bool = True
    time_zone: str = "UTC"
    has_password: bool = False
    # Parts of a Logout's text that mean that the credential is wrong.
    refused_logon: tuple[str, ...] = ()
    unique_order_ids: bool = False
    quantity_step: Decimal | None = None
    requests_per_minute: int | None = None
    calls_at_once: int = 10
    # By message type and tag: further ones, or "" for one to be left out.
    fields: dict[str, dict[int, str]] = {}

    def __post_init__(self) -> None:
        time.fromisoformat(self.reset_time)
        ZoneInfo(self.time_zone)
        if self.heartbeat_seconds < 1:
            raise ValueError("heartbeat_seconds is at least 1")
        if self.begin_string not in ("FIX.4.2", "FIX.4.4"):
            raise ValueError(f"begin_string {self.begin_string!r} is neither FIX.4.2 nor FIX.4.4")

    def complete(self, msg_type: str, fields: Fields) -> Fields:
        changed = dict(fields) | self.fields.get(msg_type, {})
        return [(tag, value) for tag, value in changed.items() if value]

    def capabilities(self, name: str) -> Capabilities:
        return Capabilities(
            name=name,
            environments=self.environments,
            times_in_force=self.times_in_force,
            routes=(trading.RouteStrategy.SMART,),
            native_replace=self.native_replace,
            credential_fields=_COMP_IDS + _LOGIN if self.has_password else _COMP_IDS,
            quantity_step=self.quantity_step,
            lookup=port.LookupKind.NONE if self.lookup == "none" else port.LookupKind.OPEN_ONLY,
            unique_order_ids=self.unique_order_ids,
            requests_per_minute=self.requests_per_minute,
            calls_at_once=self.calls_at_once,
        )

    def last_reset(self, now: datetime) -> datetime | None:
        """The time when the numbers last began at 1, by the venue's schedule."""
        if self.reset == "never":
            return None
        zone = ZoneInfo(self.time_zone)
        for days in range(8):
            day = (now.astimezone(zone) - timedelta(days=days)).date()
            at = datetime.combine(day, time.fromisoformat(self.reset_time), zone).astimezone(UTC)
            if at <= now and (
                self.reset == "daily" or day.weekday() == get_args(Day).index(self.reset_day)
            ):
                return at
        return None


def command(msg_type: str, ticket: OrderTicket, now: datetime, account: str | None) -> Fields:
    """The fields of a new order, a replace or a cancel; one that is empty is not sent."""
    fields = list[tuple[int, str]]()
    if msg_type != NEW_ORDER:
        fields = [(41, ticket.orig_client_order_id or ""), (37, ticket.broker_order_id or "")]
    fields += [
        (11, ticket.client_order_id),
        (1, account or ""),
        (55, ticket.symbol),
        (54, _SIDES[ticket.side]),
        (60, time_text(now)),
        (38, amount_text(ticket.quantity)),
    ]
    if msg_type != CANCEL:
        fields += [(40, _KINDS[ticket.kind]), (59, TIMES[ticket.time_in_force])]
        if ticket.limit_price is not None:
            fields.append((44, amount_text(ticket.limit_price)))
        if ticket.stop_price is not None:
            fields.append((99, amount_text(ticket.stop_price)))
    return fields


def status_request(order: SentOrder, account: str | None) -> Fields:
    return [
        (11, order.client_order_id),
        (37, order.broker_order_id or ""),
        (1, account or ""),
        (55, order.symbol),
        (54, _SIDES[order.side]),
    ]


def order_of(message: FixMessage) -> tuple[str | None, bool]:
    """The venue's id of the order that a report is about, if any, and whether it works on."""
    order_id = message.get(37)[:MAX_ID_CHARS]
    is_end = message.get(39) == _FILLED or _end_of(message) is not None
    is_about_order = message.type == REPORT or (message.type == CANCEL_REJECT and is_end)
    if not is_about_order or order_id in _NO_ORDER:
        return None, False
    return order_id, not is_end


def answered_id(message: FixMessage) -> str | None:
    """The client order id of the command that the venue thereby has, and need not get again."""
    is_answer = message.type in (REPORT, CANCEL_REJECT) and not is_absent(message)
    return message.find(11) if is_answer else None


def is_status(message: FixMessage) -> bool:
    """Whether a report answers a status request: it reports no event, but a state."""
    return message.type == REPORT and (message.get(150) == "I" or message.get(20) == "3")


def is_absent(message: FixMessage) -> bool:
    is_unknown = message.get(103) == _UNKNOWN_ORDER or message.get(37) in _NO_ORDER
    return is_status(message) and message.get(39) == "8" and is_unknown


def events_of(received: ReceivedMessage) -> Iterator[BrokerEvent]:
    """The events that a message reports. ValueError, AssertionError: it lacks what makes it one
    event and no other."""
    message = received.message
    epoch = received.epoch
    if refused := received.refused:
        name = f"{epoch}:refused:{received.number}"
        yield refusal_event(name, refused, refusal_code(message), message.find(58))
    elif message.type == CANCEL_REJECT:
        kind = _E.REPLACE_REJECTED if message.get(434) == "2" else _E.CANCEL_REJECTED
        yield _event(message, epoch, kind, **_counts(message, kind))
        if message.get(37) not in _NO_ORDER:
            yield from _ends_of(message, epoch)
    elif is_absent(message):
        return
    elif is_status(message):
        yield from _state(message, epoch)
    elif message.type == REPORT and message.get(150) != "A":
        event = _reported(message, epoch)
        yield event
        if event.kind not in _ENDS.values():
            yield from _ends_of(message, epoch)


def _reported(message: FixMessage, epoch: int) -> BrokerEvent:
    exec_type = message.get(150)
    kind = _TRANSACTIONS.get(message.get(20)) or _REPORTED_KINDS.get(exec_type, _E.STATUS)
    if exec_type == "3":
        kind = _end_of(message) or kind
    if exec_type == "D" and _amount(message, 38):
        return _restated(message, epoch)
    if kind is _E.FILL and not _amount(message, 32):
        kind = _E.STATUS
    if kind in _EXECUTIONS:
        return _execution(message, epoch, kind)
    name = message.get(17) if kind is _E.STATUS else ""
    replaced = message.find(41) if kind is _E.REPLACED else None
    return _event(message, epoch, kind, name, replaces=replaced, **_counts(message, kind))


def refusal_event(
    name: str, refused: RefusedMessage, reason: str, detail: str | None = None
) -> BrokerEvent:
    """A command is refused that is not in an order's reports."""
    return BrokerEvent(
        kind=_REFUSED[refused.type],
        dedupe_key=f"fix:{name}",
        client_order_id=refused.client_order_id,
        reason=reason,
        detail=detail,
    )


def _restated(message: FixMessage, epoch: int) -> BrokerEvent:
    """The order with the terms that the venue itself gave it."""
    price = _amount(message, 44) or _amount(message, 99)
    return _changed(
        message,
        epoch,
        name=f"restated:{message.get(17)}",
        quantity=_amount(message, 38),
        price=None if message.get(40) == "1" else price or None,
    )


def _changed(message: FixMessage, epoch: int, name: str, **own: Any) -> BrokerEvent:
    counts = _counts(message, _E.REPLACED)
    event = _event(message, epoch, _E.REPLACED, name, **counts, **own)
    return replace(event, reason=port.REPLACED_BY_BROKER)


def _end_of(message: FixMessage) -> EventKind | None:
    """The end of an order that was not filled. The end of the day ends an order that is for the
    day, as one without a TimeInForce is. A cancel reject has none, and status 8 for no order."""
    status = message.get(39)
    if message.type == CANCEL_REJECT and status in ("3", "8"):
        return None
    is_over_today = status == "3" and message.get(59) in ("", "0")
    return _E.EXPIRED if is_over_today else _ENDS.get(status)


def _ends_of(message: FixMessage, epoch: int) -> Iterator[BrokerEvent]:
    """The end that a message of something else shows by its OrdStatus, under the key of the venue's
    own report of it. One that is filled with less than its quantity works no more than that."""
    if end := _end_of(message):
        # A REJECTED would say that the venue never worked it.
        kind = _E.CANCELLED if end is _E.REJECTED else end
        yield _event(message, epoch, kind, **_counts(message, kind))
    filled = _amount(message, 14)
    is_short = filled is not None and 0 < filled < (_amount(message, 38) or 0)
    is_execution = message.get(150) not in ("G", "H") and message.get(20) not in _TRANSACTIONS
    if message.get(39) == _FILLED and is_short and is_execution:
        yield _changed(message, epoch, f"filled_short:{message.get(14)}", quantity=filled)


def _state(message: FixMessage, epoch: int) -> Iterator[BrokerEvent]:
    """The events that lead to an order's state, under the keys that the stream gives."""
    if message.get(39) not in ("8", "A"):
        yield _event(message, epoch, _E.ACCEPTED)
        if _amount(message, 14):
            name = f"filled:{message.get(14)}"
            yield _event(message, epoch, _E.STATUS, name, **_counts(message, _E.STATUS))
    if message.get(39) == "8":
        yield _event(message, epoch, _E.REJECTED, **_counts(message, _E.REJECTED))
    else:
        yield from _ends_of(message, epoch)


def snapshot_of(received: ReceivedMessage) -> OrderSnapshot:
    """An order as one of its reports shows it. ValueError, AssertionError."""
    message = received.message
    quantity = _amount(message, 38)
    filled = _amount(message, 14) or Decimal(0)
    if not quantity or (message.get(39) == _FILLED and filled):
        quantity = filled + (_amount(message, 151) or Decimal(0))
    return OrderSnapshot(
        client_order_id=_version(message) or None,
        broker_order_id=message.get(37),
        symbol=_symbol(message),
        side=_REPORTED_SIDES.get(message.get(54), OrderSide.BUY),
        quantity=quantity,
        events=tuple(_state(message, received.epoch)),
    )


def result_of(message: FixMessage, events: Sequence[BrokerEvent]) -> CommandResult:
    """A command's result by the first report of it; the events of those that came with it."""
    if message.type == REPORT and message.get(150) != "8":
        return CommandResult(
            outcome=port.Outcome.ACKED,
            broker_order_id=message.find(37),
            updates=tuple(events),
        )
    code = refusal_code(message)
    outcome = port.Outcome.UNKNOWN if code == port.DUPLICATE_ID else port.Outcome.REJECTED
    return CommandResult(outcome=outcome, code=code, message=message.get(58))


def refusal_code(message: FixMessage) -> str:
    if message.type == CANCEL_REJECT:
        return _REFUSALS.get(message.get(102), "refused")
    if message.get(103) == _DUPLICATE:
        return port.DUPLICATE_ID
    return message.get(103) or message.get(380) or message.get(373) or "refused"


def _version(message: FixMessage) -> str:
    """The client order id of the version that a report is about. A CANCEL's own id is no
    version's."""
    is_of_another = message.get(150) in ("4", "6") or message.type == CANCEL_REJECT
    return message.get(41) if is_of_another and message.has(41) else message.get(11)


def _execution(message: FixMessage, epoch: int, kind: EventKind) -> BrokerEvent:
    exec_id = message.get(17)
    if not exec_id or (kind is not _E.FILL and not message.get(19)):
        raise ValueError(f"an execution without its id: {kind}")
    own = _counts(message, kind)
    if kind is not _E.FILL:
        own["replaces"] = message.get(19)
    if kind is not _E.FILL_BUST:
        own["quantity"] = quantity = _amount(message, 32)
        own["price"] = price = _amount(message, 31)
        if quantity is None or price is None:
            raise ValueError(f"an execution without its numbers: {kind}")
        if message.get(13) == "3":
            own["fee"] = _amount(message, 12)
    return _event(message, epoch, kind, exec_id, exec_id=exec_id, **own)


def _counts(message: FixMessage, kind: EventKind) -> dict[str, Any]:
    """Gives what of the order is filled and left. A bust's own count is not used."""
    return {
        "cum_quantity": None if kind is _E.FILL_BUST else _amount(message, 14),
        "leaves_quantity": _amount(message, 151),
        "average_price": _amount(message, 6) or None,
    }


def _event(
    message: FixMessage, epoch: int, kind: EventKind, name: str = "", **own: Any
) -> BrokerEvent:
    """Keys have the epoch: a venue that was reset may use its ids again, for other orders. `own` is
    what this event has beside what any report of an order has."""
    order_id = message.get(37)
    # Refused is the command itself, and not the version that it is about.
    is_refusal = message.type == CANCEL_REJECT and kind in _REFUSED.values()
    client_id = message.get(11) if is_refusal else _version(message)
    return BrokerEvent(
        kind=kind,
        dedupe_key=f"fix:{epoch}:{order_id}:{name or f'{kind.lower()}:{client_id}'}",
        client_order_id=client_id or None,
        broker_order_id=None if order_id in _NO_ORDER else order_id,
        symbol=_symbol(message) if message.has(55) else None,
        side=_REPORTED_SIDES.get(message.get(54)),
        broker_status=message.find(39),
        venue_time=parse_time(message.get(60)),
        reason=refusal_code(message) if kind in _REFUSED.values() else None,
        detail=message.find(58) if kind in _EXPLAINED else None,
        **own,
    )


def _symbol(message: FixMessage) -> trading.Symbol:
    symbol = trading.parse_symbol(message.get(55))
    if symbol is None:
        raise ValueError("a symbol that is none")
    return symbol


def _amount(message: FixMessage, tag: int) -> Decimal | None:
    if not (text := message.get(tag)):
        return None
    try:
        amount = Decimal(text if len(text) <= port.MAX_DIGITS else "NaN")
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise ValueError(f"tag {tag} is no number")
    return amount
