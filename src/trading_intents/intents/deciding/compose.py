"""The action that a command asks for, and the case that controls judge."""

from decimal import Decimal

from msgspec.structs import replace

from trading_intents.controls.case import Purpose
from trading_intents.controls.limits.model import AskedOrder
from trading_intents.errors import NoPosition, NotFound, OpenOrders, ValidationFailed
from trading_intents.intents.deciding.linked import check_replace, leg_side
from trading_intents.intents.model import (
    Accepted,
    Cancel,
    ClientCommand,
    Close,
    Create,
    KnownOrder,
    LinkedSpec,
    Spec,
    Submission,
    SubmissionState,
)
from trading_intents.orders.positions import open_quantity
from trading_intents.trading import (
    ORDER_TYPES,
    ZERO,
    ActionType,
    OrderKind,
    OrderSide,
    RouteStrategy,
    TimeInForce,
    amount_text,
)


def compose(
    account_id: str, command: ClientCommand, order: KnownOrder | None, reference: str | None = None
) -> Accepted:
    """The action that the command asks for; `order` is the one that it names."""
    if isinstance(command, Create):
        spec = _with_time(command.spec, TimeInForce.DAY)
        return Accepted(
            action_type=ActionType.CREATE,
            symbol=command.symbol,
            side=command.side,
            route=command.route,
            spec=spec,
            client_reference_id=reference,
            is_linked=bool(command.legs),
            legs=command.legs,
        )
    if order is None or order.account_id != account_id:
        raise NotFound("no such intent: /command/payload/ref_intent_id")
    cancel = Accepted(
        action_type=ActionType.CANCEL,
        symbol=order.symbol,
        side=order.side,
        route=order.route,
        spec=order.spec,
        client_reference_id=reference or order.client_reference_id,
        is_linked=order.is_linked,
        leg=order.leg,
        parent_intent_id=order.parent_intent_id,
    )
    if isinstance(command, Cancel):
        return cancel
    if command.spec.kind is not order.spec.kind:
        raise ValidationFailed.at(
            "/command/payload/spec", f"must be {order.spec.kind}, as the order is"
        )
    if (command.spec.trail_bps is None) is not (order.spec.trail_bps is None):
        trail = "trail_amount" if order.spec.trail_bps is None else "trail_bps"
        raise ValidationFailed.at(
            f"/command/payload/spec/{command.spec.kind}", f"must have {trail}, as the order does"
        )
    assert order.spec.time_in_force is not None
    spec = _with_time(command.spec, order.spec.time_in_force)
    if order.is_linked:
        check_replace(spec, order)
    return replace(cancel, action_type=ActionType.REPLACE, spec=spec)


def compose_leg(entry: Accepted, linked: LinkedSpec, parent_intent_id: str) -> Accepted:
    """The CREATE of a leg of this CREATE."""
    assert linked.leg is not None
    side = leg_side(linked.leg, entry.side)
    return replace(
        entry,
        side=side,
        spec=linked.spec,
        leg=linked.leg,
        parent_intent_id=parent_intent_id,
        legs=(),
        closes=False,
    )


def compose_close(submission: Submission, state: SubmissionState) -> Accepted:
    command = submission.command
    holding = state.holding
    broker = state.broker
    assert isinstance(command, Close)
    assert holding is not None
    assert broker is not None
    quantity = holding.left_to_close
    if command.quantity is not None:
        if holding.open_orders or holding.is_newer:
            raise OpenOrders("an order of the symbol is open, or came since the position was read")
        quantity = command.quantity
    if not quantity:
        raise NoPosition(
            f"no position in {command.symbol} is left to close: it is flat, or open orders close it"
        )
    offered = broker.times_in_force[OrderKind.MARKET]
    time_in_force = TimeInForce.DAY if TimeInForce.DAY in offered else offered[0]
    return Accepted(
        action_type=ActionType.CREATE,
        symbol=command.symbol,
        side=OrderSide.SELL if quantity > 0 else OrderSide.BUY,
        route=RouteStrategy.SMART if RouteStrategy.SMART in broker.routes else broker.routes[0],
        spec=Spec(
            kind=OrderKind.MARKET, quantity=amount_text(abs(quantity)), time_in_force=time_in_force
        ),
        client_reference_id=submission.client_reference_id,
        closes=True,
    )


def _with_time(spec: Spec, time_in_force: TimeInForce) -> Spec:
    """The spec, with this time in force if it has none."""
    return replace(spec, time_in_force=time_in_force) if spec.time_in_force is None else spec


def purpose_of(accepted: Accepted, halt_id: str | None = None) -> Purpose:
    if accepted.action_type is ActionType.CANCEL:
        return Purpose.CANCEL
    if accepted.closes:
        return Purpose.HALT if halt_id else Purpose.CLOSE
    return Purpose.TRADE


def asked_order(accepted: Accepted, replaced: KnownOrder | None) -> AskedOrder:
    """A CREATE as controls judge it, with its legs, or a REPLACE of this order."""
    spec = accepted.spec
    quantity = Decimal(spec.quantity)
    counted = ZERO
    open_before = ZERO
    open_after = quantity
    if replaced is not None:
        before = Decimal(replaced.spec.quantity)
        counted = replaced.counted_notional
        open_before = open_quantity(before, None, replaced.filled_quantity)
        open_after = open_quantity(before, quantity, replaced.filled_quantity)
    return AskedOrder(
        is_create=replaced is None,
        closes=accepted.closes,
        symbol=accepted.symbol,
        side=accepted.side,
        kind=spec.kind,
        quantity=quantity,
        limit_price=None if spec.limit_price is None else Decimal(spec.limit_price),
        stop_price=None if spec.stop_price is None else Decimal(spec.stop_price),
        open_before=open_before,
        open_after=open_after,
        terms=_terms(accepted) if replaced is None else "",
        counted=counted,
        leg=accepted.leg,
        legs=tuple(asked_order(compose_leg(accepted, each, ""), None) for each in accepted.legs),
    )


def _terms(accepted: Accepted) -> str:
    """The text by which CREATEs are duplicates, as the log's statement makes it too."""
    spec = accepted.spec
    parts = (
        accepted.symbol,
        accepted.side,
        ORDER_TYPES[spec.kind],
        spec.quantity,
        spec.limit_price or "",
        spec.stop_price or "",
        spec.trail_amount or "",
        str(spec.trail_bps or ""),
    )
    return "|".join(parts)
