"""Commands, and the state in which they are decided."""

from decimal import Decimal

from trading_intents import trading
from trading_intents.brokers.port import Capabilities
from trading_intents.controls.rules import Rules
from trading_intents.errors import PlatformError
from trading_intents.orders.positions import Holding


class Spec(trading.FrozenStruct, kw_only=True):
    """An order kind with its amounts, as trimmed decimal texts."""

    kind: trading.OrderKind
    quantity: str
    limit_price: str | None = None
    stop_price: str | None = None
    trail_amount: str | None = None
    trail_bps: int | None = None
    # None: DAY in a CREATE, the order's own in a REPLACE.
    time_in_force: trading.TimeInForce | None = None


SPEC_PRICES = ("limit_price", "stop_price")
SPEC_AMOUNTS = ("quantity", *SPEC_PRICES, "trail_amount")


class LinkedSpec(trading.FrozenStruct):
    """An order of those that a broker links."""

    leg: trading.Leg | None  # None: the one that the others are legs of
    spec: Spec
    has_fill: bool = False


class LinkedOrder(LinkedSpec, kw_only=True):
    """Another order of a group, with the terms that its broker confirmed or a pending REPLACE asks
    for."""

    order_id: str
    counted_notional: Decimal
    has_ended: bool


class Create(trading.FrozenStruct):
    symbol: trading.Symbol
    side: trading.OrderSide
    route: trading.RouteStrategy
    spec: Spec
    legs: tuple[LinkedSpec, ...] = ()


class Replace(trading.FrozenStruct):
    ref_intent_id: str
    spec: Spec


class Cancel(trading.FrozenStruct):
    ref_intent_id: str
    once: bool = False  # not while another CANCEL of the intent is pending


class Close(trading.FrozenStruct):
    """Makes a market order of the other side of a position. A caller's is for what is left to close
    of ours. A halt's is for `quantity`, which the broker reported when `seen_seq` was the account's
    last action, if no order of the symbol is open or came since."""

    symbol: trading.Symbol
    quantity: Decimal | None = None  # negative: short
    seen_seq: int | None = None


ClientCommand = Create | Replace | Cancel  # as a client's POST names it
Command = ClientCommand | Close
NewOrder = (Create, Close)  # commands that start an intent


class Submission(trading.FrozenStruct, kw_only=True):
    """A command, its caller and its account. Ids are texts, as they were received and as they are
    recorded."""

    account_id: str
    organization_id: str
    key_id: str | None  # None: the platform itself
    command: Command
    client_reference_id: str | None
    idempotency_key: str | None
    body_digest: str | None  # hex
    halt_id: str | None = None  # the platform itself, for this halt


class KnownOrder(trading.FrozenStruct, kw_only=True):
    """The order that a REPLACE or CANCEL names, with the terms that the broker last confirmed."""

    account_id: str
    symbol: trading.Symbol
    side: trading.OrderSide
    route: trading.RouteStrategy
    spec: Spec
    client_reference_id: str | None
    status: str
    cancel_requested: bool
    replace_pending: bool
    version: int
    command_seq: int
    filled_quantity: Decimal = trading.ZERO
    counted_notional: Decimal = trading.ZERO  # in days' sums of keys, with all of its group
    is_linked: bool = False
    leg: trading.Leg | None = None
    parent_intent_id: str | None = None
    # Of a linked order that a REPLACE names: the others of its group, those that a pending REPLACE
    # asks for too.
    others: tuple[LinkedOrder, ...] = ()


class PlacedLeg(trading.FrozenStruct):
    """A leg as its CREATE was answered."""

    leg: trading.Leg
    intent_id: str
    seq: int


class EarlierAction(trading.FrozenStruct):
    """The action that the same Idempotency-Key was answered with before."""

    body_digest: str
    intent_id: str
    seq: int
    legs: tuple[PlacedLeg, ...] = ()


class SubmissionState(trading.FrozenStruct, kw_only=True):
    """All that a command meets, read in its transaction. None: nothing that this caller may know
    of."""

    rules: Rules
    broker: Capabilities | None
    order: KnownOrder | None
    earlier: EarlierAction | None
    holding: Holding | None = None  # of the symbol that a Close names


class Accepted(trading.FrozenStruct, kw_only=True):
    """The action to append. A CANCEL repeats the terms of the order that it cancels."""

    action_type: trading.ActionType
    symbol: trading.Symbol
    side: trading.OrderSide
    route: trading.RouteStrategy
    spec: Spec
    client_reference_id: str | None
    closes: bool = False  # made to close a position
    is_linked: bool = False
    leg: trading.Leg | None = None
    parent_intent_id: str | None = None  # of a leg
    legs: tuple[LinkedSpec, ...] = ()  # of a CREATE that has some


class Replayed(trading.FrozenStruct):
    intent_id: str
    seq: int
    legs: tuple[PlacedLeg, ...] = ()


Decision = Accepted | Replayed | PlatformError
