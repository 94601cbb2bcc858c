"""What FIX messages mean: an order's commands as fields, and reports as broker events. Pure: no I/O, no clock."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from decimal import Decimal, InvalidOperation

from trading_intents.brokers import port
from trading_intents.brokers.fix.messages import Fields, FixMessage, ReceivedMessage, parse_time, time_text
from trading_intents.brokers.port import BrokerEvent, EventKind, OrderSnapshot, OrderTicket
from trading_intents.trading import OrderKind, OrderSide, Symbol, TimeInForce, amount_text, parse_symbol

NEW_ORDER, CANCEL, REPLACE, STATUS_REQUEST = "D", "F", "G", "H"
REPORT, CANCEL_REJECT, BUSINESS_REJECT = "8", "9", "j"
MAX_ID_CHARS = 128  # no venue's id is as long; an index holds no more than some thousand

_E, _T = EventKind, TimeInForce
_SIDES = {OrderSide.BUY: "1", OrderSide.SELL: "2", OrderSide.SELL_SHORT: "5"}
_SIDES_TOLD = {code: side for side, code in _SIDES.items()} | {"6": OrderSide.SELL_SHORT}
_KINDS = {OrderKind.MARKET: "1", OrderKind.LIMIT: "2", OrderKind.STOP: "3", OrderKind.STOP_LIMIT: "4"}
TIMES = {
    _T.DAY: "0",
    _T.GOOD_TILL_CANCEL: "1",
    _T.AT_OPEN: "2",
    _T.IMMEDIATE_OR_CANCEL: "3",
    _T.FILL_OR_KILL: "4",
    _T.AT_CLOSE: "7",
}
# ExecType (150) decides; others are a status. A (pending new) says nothing but the order's id, 3 (done for the day) is
# the end of an order that is for the day.
_KINDS_TOLD: Mapping[str, EventKind] = {
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
_REFUSED = {NEW_ORDER: _E.REJECTED, REPLACE: _E.REPLACE_REJECTED, CANCEL: _E.CANCEL_REJECTED}
_EXPLAINED = frozenset({*_REFUSED.values(), *_ENDS.values()})  # by Text (58)
_REFUSALS = {"0": "too_late", "1": "unknown_order", "2": "broker_option", "3": "already_pending", "6": "duplicate_id"}
_UNKNOWN_ORDER, _DUPLICATE = "5", "6"  # OrdRejReason (103)
_NO_ORDER = frozenset({"", "NONE", "None", "UNKNOWN", "0"})


def command(msg_type: str, ticket: OrderTicket, now: datetime, account: str | None) -> Fields:
    """The fields of a new order, a replace or a cancel; one that is empty is not sent."""
    named = {} if msg_type == NEW_ORDER else {41: ticket.orig_client_order_id, 37: ticket.broker_order_id}
    fields = named | {11: ticket.client_order_id, 1: account, 55: ticket.symbol, 54: _SIDES[ticket.side]}
    fields |= {60: time_text(now), 38: amount_text(ticket.quantity)}
    if msg_type != CANCEL:
        prices = {44: ticket.limit_price, 99: ticket.stop_price}
        fields |= {40: _KINDS[ticket.kind], 59: TIMES[ticket.time_in_force]}
        fields |= {tag: amount_text(price) for tag, price in prices.items() if price is not None}
    return [(tag, value or "") for tag, value in fields.items()]


def order_of(message: FixMessage) -> tuple[str | None, bool]:
    """The venue's id of the order that a report is about, if any, and whether it works on."""
    order_id = message.get(37)[:MAX_ID_CHARS]
    if message.type != REPORT or order_id in _NO_ORDER:
        return None, False
    return order_id, message.get(39) != "2" and _end_of(message) is None


def answered_id(message: FixMessage) -> str | None:
    """The client order id of the command that the venue thereby has, and need not get again."""
    return message.get(11) or None if message.type in (REPORT, CANCEL_REJECT) and not is_absent(message) else None


def is_status(message: FixMessage) -> bool:
    """Whether a report answers a status request: it reports no event, but a state."""
    return message.type == REPORT and (message.get(150) == "I" or message.get(20) == "3")


def is_absent(message: FixMessage) -> bool:
    is_unknown = message.get(103) == _UNKNOWN_ORDER or message.get(37) in _NO_ORDER
    return is_status(message) and message.get(39) == "8" and is_unknown


def events_of(received: ReceivedMessage) -> Iterator[BrokerEvent]:
    """What a message reports. ValueError, AssertionError: it lacks what makes it one event and no other."""
    message, epoch = received.message, received.epoch
    if received.refused:
        refusal = refusal_code(message), message.get(58) or None
        yield refusal_event(f"{epoch}:refused:{received.number}", *received.refused, *refusal)
    elif message.type == CANCEL_REJECT:
        kind = _E.REPLACE_REJECTED if message.get(434) == "2" else _E.CANCEL_REJECTED
        yield _event(message, epoch, kind)
    elif is_absent(message):
        return
    elif is_status(message):
        yield from _state(message, epoch)
    elif message.type == REPORT and message.get(150) != "A":
        kind = _TRANSACTIONS.get(message.get(20)) or _KINDS_TOLD.get(message.get(150), _E.STATUS)
        if message.get(150) == "3":
            kind = _end_of(message) or kind
        if kind is _E.FILL and not _amount(message, 32):
            kind = _E.STATUS
        yield _event(message, epoch, kind)


def refusal_event(
    name: str, msg_type: str, client_order_id: str, reason: str, detail: str | None = None
) -> BrokerEvent:
    """A command is refused that is not in an order's reports."""
    kind, key = _REFUSED[msg_type], f"fix:{name}"
    return BrokerEvent(kind=kind, dedupe_key=key, client_order_id=client_order_id, reason=reason, detail=detail)


def _end_of(message: FixMessage) -> EventKind | None:
    """How an order has ended, but for its being filled. The end of the day ends an order that is for the day."""
    is_over_today = message.get(39) == "3" and message.get(59) == "0"
    return _E.EXPIRED if is_over_today else _ENDS.get(message.get(39))


def _state(message: FixMessage, epoch: int) -> Iterator[BrokerEvent]:
    """The events that lead to an order's state, under the keys that the stream gives."""
    if message.get(39) not in ("8", "A"):
        yield _event(message, epoch, _E.ACCEPTED, counts=False)
        if _amount(message, 14):
            yield _event(message, epoch, _E.STATUS, name=f"filled:{message.get(14)}")
    if end := _end_of(message):
        yield _event(message, epoch, end)


def snapshot_of(received: ReceivedMessage) -> OrderSnapshot:
    """An order as one of its reports tells it. ValueError, AssertionError."""
    message = received.message
    return OrderSnapshot(
        client_order_id=_version(message) or None,
        broker_order_id=message.get(37),
        symbol=_symbol(message),
        side=_SIDES_TOLD.get(message.get(54), OrderSide.BUY),
        quantity=_amount(message, 38) or (_amount(message, 14) or Decimal(0)) + (_amount(message, 151) or Decimal(0)),
        events=tuple(_state(message, received.epoch)),
    )


def refusal_code(message: FixMessage) -> str:
    if message.type == CANCEL_REJECT:
        return _REFUSALS.get(message.get(102), "refused")
    if message.get(103) == _DUPLICATE:
        return port.DUPLICATE_ID
    return message.get(103) or message.get(380) or message.get(373) or "refused"


def _version(message: FixMessage) -> str:
    """The client order id of the version that a report is about. A CANCEL's own id is no version's."""
    is_cancel = message.get(150) in ("4", "6") and message.has(41)
    return message.get(41) if is_cancel else message.get(11)


def _event(message: FixMessage, epoch: int, kind: EventKind, name: str = "", counts: bool = True) -> BrokerEvent:
    """Keys have the epoch: a venue that was reset may use its ids again, for other orders."""
    order_id, exec_id, client_id = message.get(37), message.get(17), _version(message)
    is_execution = kind in (_E.FILL, _E.FILL_BUST, _E.FILL_CORRECT)
    is_priced = kind in (_E.FILL, _E.FILL_CORRECT)
    if is_execution and (not exec_id or (kind is not _E.FILL and not message.get(19))):
        raise ValueError(f"an execution without its id: {kind}")
    if is_execution or (kind is _E.STATUS and not name):
        name = exec_id
    quantity, price = (_amount(message, 32), _amount(message, 31)) if is_priced else (None, None)
    if is_priced and (quantity is None or price is None):
        raise ValueError(f"an execution without its numbers: {kind}")
    replaced = {_E.REPLACED: 41, _E.FILL_BUST: 19, _E.FILL_CORRECT: 19}.get(kind)
    return BrokerEvent(
        kind=kind,
        dedupe_key=f"fix:{epoch}:{order_id}:{name or f'{kind.lower()}:{client_id}'}",
        client_order_id=client_id or None,
        broker_order_id=None if order_id in _NO_ORDER else order_id,
        replaces=message.get(replaced) or None if replaced else None,
        exec_id=exec_id if is_execution else None,
        symbol=_symbol(message) if message.has(55) else None,
        side=_SIDES_TOLD.get(message.get(54)),
        quantity=quantity,
        price=price,
        fee=_amount(message, 12) if is_priced and message.get(13) == "3" else None,
        cum_quantity=_amount(message, 14) if counts and kind is not _E.FILL_BUST else None,
        leaves_quantity=_amount(message, 151) if counts else None,
        average_price=_amount(message, 6) or None if counts else None,
        broker_status=message.get(39) or None,
        venue_time=parse_time(message.get(60)),
        reason=refusal_code(message) if kind in _REFUSED.values() else None,
        detail=message.get(58) or None if kind in _EXPLAINED else None,
    )


def _symbol(message: FixMessage) -> Symbol:
    symbol = parse_symbol(message.get(55))
    if symbol is None:
        raise ValueError("a symbol that is none")
    return symbol


def _amount(message: FixMessage, tag: int) -> Decimal | None:
    if not (text := message.get(tag)):
        return None
    with suppress(InvalidOperation):
        if len(text) <= port.MAX_DIGITS and (amount := Decimal(text)).is_finite():
            return amount
    raise ValueError(f"tag {tag} is no number")
