"""The body of a submit: its shape, its amounts and texts; each refusal names its field. Knows no
account and no order."""

import hashlib
import re
from typing import Annotated, Any, Literal

import msgspec

from trading_intents.errors import InvalidRequest, ValidationFailed, either
from trading_intents.ids import ID_PATTERN, ID_RULE, parse_id
from trading_intents.intents.deciding.linked import (
    EXITS_POINTER,
    PAIR_POINTER,
    POINTERS,
    check_create,
)
from trading_intents.intents.model import (
    SPEC_AMOUNTS,
    Cancel,
    ClientCommand,
    Create,
    LinkedSpec,
    Replace,
    Spec,
)
from trading_intents.trading import (
    AMOUNT,
    AMOUNT_RULE,
    Leg,
    OrderKind,
    OrderSide,
    RouteStrategy,
    Symbol,
    TimeInForce,
)
from trading_intents.web.body import Amount, convert, read_reference, read_symbol

MAX_KEY_CHARACTERS = 128
_KEY = re.compile(rf"[ -~]{{1,{MAX_KEY_CHARACTERS}}}")
_AMOUNT_FIELDS = frozenset({"quantity", "limit_price", "stop_price", "trail_amount"})
MAX_TRAIL_BPS = 5_000
_PAYLOAD = "/command/payload"
_SPEC = "/command/payload/spec"

Id = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": ID_PATTERN})]


class MarketSpec(msgspec.Struct, forbid_unknown_fields=True):
    quantity: Amount
    time_in_force: TimeInForce | None = None


class LimitSpec(msgspec.Struct, forbid_unknown_fields=True):
    quantity: Amount
    limit_price: Amount
    time_in_force: TimeInForce | None = None


class StopSpec(msgspec.Struct, forbid_unknown_fields=True):
    quantity: Amount
    stop_price: Amount
    time_in_force: TimeInForce | None = None


class StopLimitSpec(msgspec.Struct, forbid_unknown_fields=True):
    quantity: Amount
    stop_price: Amount
    limit_price: Amount
    time_in_force: TimeInForce | None = None


class TrailingStopSpec(msgspec.Struct, forbid_unknown_fields=True):
    """With one of the two."""

    quantity: Amount
    trail_amount: Amount | None = None
    trail_bps: Annotated[int, msgspec.Meta(ge=1, le=MAX_TRAIL_BPS)] | None = None
    time_in_force: TimeInForce | None = None


class SpecBody(msgspec.Struct, forbid_unknown_fields=True, rename="pascal"):
    """An object with exactly one key, which names the order kind."""

    market: MarketSpec | msgspec.UnsetType = msgspec.UNSET
    limit: LimitSpec | msgspec.UnsetType = msgspec.UNSET
    stop: StopSpec | msgspec.UnsetType = msgspec.UNSET
    stop_limit: StopLimitSpec | msgspec.UnsetType = msgspec.UNSET
    trailing_stop: TrailingStopSpec | msgspec.UnsetType = msgspec.UNSET


_KINDS = tuple(
    zip(SpecBody.__struct_fields__, map(OrderKind, SpecBody.__struct_encode_fields__), strict=True)
)


class TakeProfitBody(msgspec.Struct, forbid_unknown_fields=True):
    limit_price: Amount


class StopBody(msgspec.Struct, forbid_unknown_fields=True):
    """With a limit price, the stop makes a limit order."""

    stop_price: Amount
    limit_price: Amount | None = None


class ExitsBody(msgspec.Struct, forbid_unknown_fields=True):
    """One of the two, or both."""

    take_profit: TakeProfitBody | None = None
    stop_loss: StopBody | None = None
    time_in_force: Literal["DAY", "GOOD_TILL_CANCEL"] | None = None


class CreatePayload(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """With exits, a BUY or SELL_SHORT that is Market or Limit; with one_cancels_other a Limit;
    never with both."""

    symbol: str
    order_side: OrderSide
    spec: SpecBody
    route_strategy: RouteStrategy | None = None
    exits: ExitsBody | None = None
    one_cancels_other: StopBody | None = None


class ReplacePayload(msgspec.Struct, forbid_unknown_fields=True):
    ref_intent_id: Id
    spec: SpecBody


class CancelPayload(msgspec.Struct, forbid_unknown_fields=True):
    ref_intent_id: Id


class CreateCommand(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="CREATE"):
    payload: CreatePayload


class ReplaceCommand(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="REPLACE"):
    payload: ReplacePayload


class CancelCommand(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="CANCEL"):
    payload: CancelPayload


class Submit(msgspec.Struct, forbid_unknown_fields=True):
    command: CreateCommand | ReplaceCommand | CancelCommand
    client_reference_id: str | None = None


class ControlQuestion(msgspec.Struct, forbid_unknown_fields=True):
    """Without a symbol only the organization and the account are looked at; limits only with a
    command."""

    account_id: Id
    symbol: str | None = None
    command: CreateCommand | ReplaceCommand | CancelCommand | None = None


def check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"Idempotency-Key must be 1 to {MAX_KEY_CHARACTERS} printable ASCII characters"
        )


def digest_of(tree: Any) -> str:
    """The digest of the body's values: white space and the order of keys do not change it."""
    return hashlib.sha256(msgspec.json.encode(tree, order="sorted")).hexdigest()


def read_command(tree: Any) -> tuple[ClientCommand, str | None]:
    """Gives the command and its client reference, or raises ValidationFailed."""
    body = convert(tree, Submit, _AMOUNT_FIELDS)
    command = _command(body.command)
    reference = body.client_reference_id
    if reference is not None:
        reference = read_reference("/client_reference_id", reference)
    return command, reference


def read_question(tree: Any) -> tuple[str, Symbol | None, ClientCommand | None]:
    """The account, the symbol and the command of a question to the controls, or
    ValidationFailed."""
    body = convert(tree, ControlQuestion, _AMOUNT_FIELDS)
    symbol = None if body.symbol is None else read_symbol("/symbol", body.symbol)
    return body.account_id, symbol, None if body.command is None else _command(body.command)


def _command(command: CreateCommand | ReplaceCommand | CancelCommand) -> ClientCommand:
    payload = command.payload
    if isinstance(payload, CreatePayload):
        symbol = read_symbol(f"{_PAYLOAD}/symbol", payload.symbol)
        route = payload.route_strategy or RouteStrategy.SMART
        spec = _spec(payload.spec)
        if payload.exits is None and payload.one_cancels_other is None:
            return Create(symbol, payload.order_side, route, spec)
        create = Create(symbol, payload.order_side, route, spec, _legs(payload, spec))
        check_create(create)
        return create
    if parse_id(payload.ref_intent_id) is None:
        raise ValidationFailed.at(f"{_PAYLOAD}/ref_intent_id", ID_RULE)
    if isinstance(payload, ReplacePayload):
        return Replace(payload.ref_intent_id, _spec(payload.spec))
    return Cancel(payload.ref_intent_id)


def _spec(body: SpecBody) -> Spec:
    # UNSET is false.
    given = [(kind, spec) for name, kind in _KINDS if (spec := getattr(body, name))]
    if len(given) != 1:
        raise ValidationFailed.at(_SPEC, f"must have exactly one key: {either(OrderKind)}")
    ((kind, spec),) = given
    at = _SPEC + "/" + kind
    texts: dict[str, Any] = {}
    for name in SPEC_AMOUNTS:
        text = getattr(spec, name, None)
        if text is not None:
            texts[name] = _amount(text, f"{at}/{name}")
    if kind is not OrderKind.TRAILING_STOP:
        return Spec(kind=kind, time_in_force=spec.time_in_force, **texts)
    if (spec.trail_amount is None) is (spec.trail_bps is None):
        raise ValidationFailed.at(at, "must have either trail_amount or trail_bps")
    return Spec(kind=kind, time_in_force=spec.time_in_force, trail_bps=spec.trail_bps, **texts)


def _legs(payload: CreatePayload, spec: Spec) -> tuple[LinkedSpec, ...]:
    exits = payload.exits
    pair = payload.one_cancels_other
    if exits is None:
        assert pair is not None
        if spec.kind is not OrderKind.LIMIT:
            raise ValidationFailed.at(
                PAIR_POINTER, f"the stop stands beside a Limit order, not a {spec.kind}"
            )
        return (_stop(Leg.ONE_CANCELS_OTHER, pair, spec, spec.time_in_force or TimeInForce.DAY),)
    if pair is not None:
        raise ValidationFailed.at(PAIR_POINTER, "cannot be together with exits")
    if exits.take_profit is None and exits.stop_loss is None:
        raise ValidationFailed.at(EXITS_POINTER, "must have take_profit, stop_loss or both")
    if payload.order_side is OrderSide.SELL:
        raise ValidationFailed.at(
            EXITS_POINTER, "a SELL has no exits: they close a BUY or a SELL_SHORT"
        )
    if spec.kind not in (OrderKind.MARKET, OrderKind.LIMIT):
        raise ValidationFailed.at(
            EXITS_POINTER, f"the entry must be Market or Limit, not {spec.kind}"
        )
    legs = list[LinkedSpec]()
    time_in_force = TimeInForce(exits.time_in_force or TimeInForce.GOOD_TILL_CANCEL)
    if exits.take_profit is not None:
        price = _amount(exits.take_profit.limit_price, f"{POINTERS[Leg.TAKE_PROFIT]}/limit_price")
        profit = Spec(
            kind=OrderKind.LIMIT,
            quantity=spec.quantity,
            limit_price=price,
            time_in_force=time_in_force,
        )
        legs.append(LinkedSpec(Leg.TAKE_PROFIT, profit))
    if exits.stop_loss is not None:
        legs.append(_stop(Leg.STOP_LOSS, exits.stop_loss, spec, time_in_force))
    return tuple(legs)


def _stop(leg: Leg, stop: StopBody, spec: Spec, time_in_force: TimeInForce) -> LinkedSpec:
    """The stop that is linked to an order of this spec."""
    price = _amount(stop.stop_price, f"{POINTERS[leg]}/stop_price")
    limit = (
        None
        if stop.limit_price is None
        else _amount(stop.limit_price, f"{POINTERS[leg]}/limit_price")
    )
    kind = OrderKind.STOP if limit is None else OrderKind.STOP_LIMIT
    return LinkedSpec(
        leg,
        Spec(
            kind=kind,
            quantity=spec.quantity,
            limit_price=limit,
            stop_price=price,
            time_in_force=time_in_force,
        ),
    )


def _amount(text: str, pointer: str) -> str:
    """Trims trailing zeros, so that equal amounts are equal texts."""
    if not AMOUNT.match(text):
        raise ValidationFailed.at(pointer, AMOUNT_RULE)
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    if text == "0":
        raise ValidationFailed.at(pointer, "must be greater than zero")
    return text
