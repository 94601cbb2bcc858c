"""Orders that a broker links, an entry and its exits or a limit and the stop beside it: their
sides, on which side of each other their prices are, and whether the broker offers it."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

from trading_intents.brokers.port import Capabilities, LinkedOrders
from trading_intents.errors import ValidationFailed, either
from trading_intents.intents.model import SPEC_PRICES, Create, KnownOrder, LinkedSpec, Spec
from trading_intents.trading import Leg, OrderSide, TimeInForce, amount_text

EXITS_POINTER = "/command/payload/exits"
PAIR_POINTER = "/command/payload/one_cancels_other"
POINTERS = {
    Leg.TAKE_PROFIT: f"{EXITS_POINTER}/take_profit",
    Leg.STOP_LOSS: f"{EXITS_POINTER}/stop_loss",
    Leg.ONE_CANCELS_OTHER: PAIR_POINTER,
}
_NAMES = {
    None: "the order that it is linked to",
    Leg.TAKE_PROFIT: "the take profit",
    Leg.STOP_LOSS: "the stop loss",
    Leg.ONE_CANCELS_OTHER: "the stop beside it",
}


def leg_side(leg: Leg, side: OrderSide) -> OrderSide:
    """An exit closes its entry; the stop beside a limit has the limit's side."""
    if leg is Leg.ONE_CANCELS_OTHER:
        return side
    return OrderSide.SELL if side is OrderSide.BUY else OrderSide.BUY


def check_create(command: Create) -> None:
    """Refuses legs whose prices are not on their side of the entry's and of each other's."""
    group = [LinkedSpec(None, command.spec), *command.legs]
    for index, each in enumerate(command.legs, start=1):
        assert each.leg is not None
        _check_prices(each, group[:index], leg_side(each.leg, command.side), POINTERS[each.leg])


def check_replace(spec: Spec, order: KnownOrder) -> None:
    """Refuses what would change more of a linked order than its prices, or put those on a wrong
    side. An exit that works nothing so far takes any quantity: 0 cannot be asked for."""
    pointer = f"/command/payload/spec/{spec.kind}"
    for name in ("quantity", "time_in_force"):
        if (shown := getattr(order.spec, name)) not in (getattr(spec, name), "0"):
            raise ValidationFailed.at(
                f"{pointer}/{name}",
                f"must be {shown}, as the order's: a REPLACE of a linked order changes prices only",
            )
    closing = order.side
    if order.leg is None:
        closing = next(
            (leg_side(each.leg, order.side) for each in order.others if each.leg), order.side
        )
    own = LinkedSpec(order.leg, spec, order.filled_quantity > 0)
    others = [each for each in order.others if not each.has_ended]
    _check_prices(own, others, closing, pointer)


def _check_prices(
    own: LinkedSpec, others: Sequence[LinkedSpec], closing: OrderSide, pointer: str
) -> None:
    """In a group that sells, a stop is below the entry and a profit above it; in one that buys, the
    reverse."""
    is_pair = any(each.leg is Leg.ONE_CANCELS_OTHER for each in (own, *others))
    for name, price in _prices(own.spec):
        for other in others:
            if not is_pair and any(each.leg is None and each.has_fill for each in (own, other)):
                continue  # the entry's price is over: a stop may be moved past it
            distance = _rank(own, is_pair) - _rank(other, is_pair)
            is_above = (distance > 0) is not (closing is OrderSide.BUY)
            for other_name, theirs in _prices(other.spec) if distance else ():
                if price == theirs or (price > theirs) is not is_above:
                    where = "above" if is_above else "below"
                    detail = (
                        f"must be {where} the {other_name} of {_NAMES[other.leg]}, which is "
                        f"{amount_text(theirs)}"
                    )
                    raise ValidationFailed.at(f"{pointer}/{name}", detail)


def _rank(order: LinkedSpec, is_pair: bool) -> int:
    """Among the prices of a group that sells, from the lowest on. Of a pair the limit takes the
    profit."""
    if order.leg is None:
        return 1 if is_pair else 0
    return 1 if order.leg is Leg.TAKE_PROFIT else -1


def _prices(spec: Spec) -> Iterator[tuple[str, Decimal]]:
    for name in SPEC_PRICES:
        if text := getattr(spec, name):
            yield name, Decimal(text)


def check_offered(command: Create, broker: Capabilities) -> None:
    """Refuses legs that the account's broker does not link to such an order."""
    is_pair = command.legs[0].leg is Leg.ONE_CANCELS_OTHER
    offered = broker.one_cancels_other if is_pair else broker.exits
    if why := _find_unoffered(command, broker, offered):
        raise ValidationFailed.at(
            PAIR_POINTER if is_pair else EXITS_POINTER, f"the broker {broker.name} {why}"
        )


def _find_unoffered(
    command: Create, broker: Capabilities, offered: LinkedOrders | None
) -> str | None:
    if offered is None:
        return "does not link orders in this way"
    if command.side not in offered.order_sides:
        return f"links it to no {command.side}; use {either(offered.order_sides)}"
    if command.spec.kind not in offered.order_kinds:
        return f"links it to no {command.spec.kind} order; use {either(offered.order_kinds)}"
    time = command.spec.time_in_force or TimeInForce.DAY
    times = [time, *(each.spec.time_in_force or time for each in command.legs)]
    if unoffered := [each for each in times if each not in offered.times_in_force]:
        return (
            f"does not link orders of time_in_force {unoffered[0]}; use "
            f"{either(offered.times_in_force)}"
        )
    if offered.one_time_in_force and len(set(times)) > 1:
        return (
            f"has one time_in_force for linked orders; the entry's is {times[0]} and the exits' "
            f"is {times[-1]}"
        )
    for each, leg_time in zip(command.legs, times[1:], strict=True):
        if leg_time not in broker.times_in_force.get(each.spec.kind, ()):
            return f"has no {each.spec.kind} order of time_in_force {leg_time}"
    return None
