"""Commands, the state in which they are decided, and the pure rule between them: decide(). No I/O, no clock."""

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, assert_never

from msgspec.structs import replace

from trading_intents.brokers.registry import Manifest
from trading_intents.controls.limits.model import AskedOrder
from trading_intents.controls.model import Controls, Triggered, evaluate
from trading_intents.errors import (
    AccountClosed,
    AccountDisabled,
    CancelPending,
    ControlRejected,
    CredentialMissing,
    EntitlementRequired,
    Forbidden,
    IdempotencyConflict,
    IntentClosed,
    NoPosition,
    NotFound,
    NotHalted,
    OpenOrders,
    PlatformError,
    ReplacePending,
    Unauthorized,
    Unavailable,
    ValidationFailed,
    either,
)
from trading_intents.identity.model import Entitlement, Permission
from trading_intents.orders.model import FINAL_STATUSES
from trading_intents.orders.positions import Holding, open_quantity
from trading_intents.trading import (
    ORDER_TYPES,
    ZERO,
    ActionType,
    Environment,
    FrozenStruct,
    OrderKind,
    OrderSide,
    RouteStrategy,
    Symbol,
    TimeInForce,
    VersionTerms,
    amount_text,
)


class Spec(FrozenStruct, frozen=True):
    """An order kind with its amounts, as trimmed decimal texts."""

    kind: OrderKind
    quantity: str
    limit_price: str | None = None
    stop_price: str | None = None
    trail_amount: str | None = None
    trail_bps: int | None = None
    time_in_force: TimeInForce | None = None  # None: DAY in a CREATE, the order's own in a REPLACE


SPEC_AMOUNTS = ("quantity", "limit_price", "stop_price", "trail_amount")


class Create(FrozenStruct, frozen=True):
    symbol: Symbol
    side: OrderSide
    route: RouteStrategy
    spec: Spec


class Replace(FrozenStruct, frozen=True):
    ref_intent_id: str
    spec: Spec


class Cancel(FrozenStruct, frozen=True):
    ref_intent_id: str
    once: bool = False  # not while another CANCEL of the intent is pending


class Close(FrozenStruct, frozen=True):
    """Makes a market order of the other side of a position. A caller's is for what is left to close of ours. A halt's
    is for `quantity`, which the broker told when `seen_seq` was the account's last action, if no order of the symbol
    is open or came since."""

    symbol: Symbol
    quantity: Decimal | None = None  # negative: short
    seen_seq: int | None = None


ClientCommand = Create | Replace | Cancel  # as a client's POST names it
Command = ClientCommand | Close
NewOrder = (Create, Close)  # commands that start an intent


class Submission(FrozenStruct, frozen=True):
    """A command, its caller and its account. Ids are texts, as they were received and as they are recorded."""

    account_id: str
    organization_id: str
    key_id: str | None  # None: the platform itself
    command: Command
    client_reference_id: str | None
    idempotency_key: str | None
    body_digest: str | None  # hex
    halt_id: str | None = None  # the platform itself, for this halt


class KeyState(FrozenStruct, frozen=True):
    organization_id: str
    environment: Environment
    permissions: frozenset[Permission]
    entitlements: frozenset[Entitlement]
    disabled: bool  # itself, or its organization
    expires_at: datetime | None = None


class AccountState(FrozenStruct, frozen=True):
    organization_id: str
    environment: Environment
    broker: str
    disabled: bool
    closed: bool
    has_credential: bool


class KnownOrder(FrozenStruct, frozen=True):
    """The order that a REPLACE or CANCEL names, with the terms that the broker last confirmed."""

    account_id: str
    symbol: Symbol
    side: OrderSide
    route: RouteStrategy
    spec: Spec
    client_reference_id: str | None
    status: str
    cancel_requested: bool
    replace_pending: bool
    version: int
    command_seq: int
    filled_quantity: Decimal = ZERO


class EarlierAction(FrozenStruct, frozen=True):
    """The action that the same Idempotency-Key was answered with before."""

    body_digest: str
    intent_id: str
    seq: int


class SubmissionState(FrozenStruct, frozen=True):
    """The state in which a command is decided, read in its transaction. None: nothing that this caller may know of."""

    key: KeyState | None
    account: AccountState | None
    manifest: Manifest | None
    order: KnownOrder | None
    earlier: EarlierAction | None
    controls: Controls
    judge: Callable[[AskedOrder], tuple[Triggered, ...]] | None = None  # by the limits; None: there are none
    holding: Holding | None = None  # of the symbol that a Close names


class Accepted(FrozenStruct, frozen=True):
    """The action to append. A CANCEL repeats the terms of the order that it cancels."""

    action_type: ActionType
    symbol: Symbol
    side: OrderSide
    route: RouteStrategy
    spec: Spec
    client_reference_id: str | None
    closes: bool = False  # made to close a position


class Replayed(FrozenStruct, frozen=True):
    intent_id: str
    seq: int


Decision = Accepted | Replayed | PlatformError


def decide(submission: Submission, state: SubmissionState, now: datetime) -> Decision:
    """Gives an action, an earlier answer or a refusal. The checks run in the order that the API documents."""
    try:
        account = _check_caller(submission, state, now)
        _check_broker(submission.command, state)
        composed = (
            None if isinstance(submission.command, Close) else compose(submission, submission.command, state.order)
        )
        if state.earlier:
            if state.earlier.body_digest != submission.body_digest:
                raise IdempotencyConflict(
                    "the Idempotency-Key was used with a different body; use a new key for a new command"
                )
            return Replayed(state.earlier.intent_id, state.earlier.seq)
        _check_account(submission, account, state.manifest)
        _check_order(submission, state.order)
        accepted = composed or _compose_close(submission, state)
        if not isinstance(submission.command, Cancel):
            controls = _judged_controls(submission, state.controls)
            triggered = evaluate(controls, accepted.symbol, now)
            if state.judge:
                triggered += state.judge(asked_order(accepted, state.order))
            if triggered:
                raise ControlRejected(triggered, list(dict.fromkeys(item.reason for item in triggered)))
    except PlatformError as refusal:
        return refusal
    return accepted


def asked_order(accepted: Accepted, replaced: KnownOrder | None) -> AskedOrder:
    """A CREATE as limits judge it, or a REPLACE of this order."""
    symbol, side, spec = accepted.symbol, accepted.side, accepted.spec
    amounts = _amounts(spec)
    before, open_before, open_after = None, ZERO, amounts["quantity"]
    if replaced is not None:
        before = VersionTerms(**_amounts(replaced.spec))
        open_before = open_quantity(before.quantity, None, replaced.filled_quantity)
        open_after = open_quantity(before.quantity, amounts["quantity"], replaced.filled_quantity)
    terms = (symbol, side, ORDER_TYPES[spec.kind], spec.quantity, spec.limit_price, spec.stop_price, spec.trail_amount)
    return AskedOrder(
        is_create=replaced is None,
        closes=accepted.closes,
        symbol=symbol,
        side=side,
        kind=spec.kind,
        open_before=open_before,
        open_after=open_after,
        terms="|".join(f"{each or ''}" for each in (*terms, spec.trail_bps)) if replaced is None else "",
        replaced=before,
        **amounts,
    )


def _amounts(spec: Spec) -> dict[str, Any]:
    """As limits see them: a trailing stop is a Market order, wherever its stop is now."""
    texts = {name: getattr(spec, name) for name in SPEC_AMOUNTS}
    if spec.kind is OrderKind.TRAILING_STOP:
        texts["stop_price"] = None
    return {name: None if text is None else Decimal(text) for name, text in texts.items()}


def _check_caller(submission: Submission, state: SubmissionState, now: datetime) -> AccountState:
    key, account, command = state.key, state.account, submission.command
    if submission.key_id is None:
        assert account is not None
        halts = (state.controls.organization_halt, state.controls.account_halt)
        if submission.halt_id and submission.halt_id not in {halt.id for halt in halts if halt}:
            raise NotHalted("the halt is over")
        return account
    if key is None or key.disabled or (key.expires_at is not None and key.expires_at <= now):
        raise Unauthorized("the API key does not verify")
    if Permission.INTENT_EDIT not in key.permissions:
        raise Forbidden(f"the API key lacks the permission {Permission.INTENT_EDIT}")
    if account is None or account.organization_id != key.organization_id:
        raise NotFound("no such account")
    if key.environment != account.environment:
        raise Forbidden(f"the API key is not of environment {account.environment}, which the account is")
    # A CANCEL lowers risk, so it needs no entitlement.
    needs_plan = account.environment is Environment.LIVE and not isinstance(command, Cancel)
    if needs_plan and Entitlement.TRADING_LIVE not in key.entitlements:
        raise EntitlementRequired(f"the organization needs the entitlement {Entitlement.TRADING_LIVE}")
    return account


def _check_broker(command: Command, state: SubmissionState) -> None:
    manifest = state.manifest
    if isinstance(command, Cancel):
        return
    if manifest is None:
        raise Unavailable("the account's broker cannot be used: its integration is not installed here")
    if isinstance(command, Replace) and not manifest.native_replace:
        raise ValidationFailed.at(
            "/command/type", f"the broker {manifest.name} cannot replace an order; use CANCEL and CREATE"
        )
    if isinstance(command, Create) and command.route not in manifest.routes:
        raise ValidationFailed.at(
            "/command/payload/route_strategy",
            f"the broker {manifest.name} cannot route there; use {either(manifest.routes)}",
        )
    if isinstance(command, Close):
        if not manifest.times_in_force.get(OrderKind.MARKET):
            raise ValidationFailed.at("", f"the broker {manifest.name} has no market orders; close it with another")
        return
    kind, time_in_force = command.spec.kind, command.spec.time_in_force
    offered = manifest.times_in_force.get(kind)
    if offered is None:
        raise ValidationFailed.at(
            f"/command/payload/spec/{kind}",
            f"the broker {manifest.name} has no such order kind; use {either(manifest.times_in_force)}",
        )
    if (time_in_force or TimeInForce.DAY) not in offered and (time_in_force or isinstance(command, Create)):
        raise ValidationFailed.at(
            f"/command/payload/spec/{kind}/time_in_force",
            f"the broker {manifest.name} does not offer it; use {either(offered)}",
        )


def compose(submission: Submission, command: ClientCommand, order: KnownOrder | None) -> Accepted:
    """The action that the command asks for; `order` is the one that it names."""
    if isinstance(command, Create):
        spec = _with_time(command.spec, TimeInForce.DAY)
        return Accepted(
            ActionType.CREATE, command.symbol, command.side, command.route, spec, submission.client_reference_id
        )
    if order is None or order.account_id != submission.account_id:
        raise NotFound("no such intent: /command/payload/ref_intent_id")
    reference = submission.client_reference_id or order.client_reference_id
    if isinstance(command, Cancel):
        return Accepted(ActionType.CANCEL, order.symbol, order.side, order.route, order.spec, reference)
    if command.spec.kind is not order.spec.kind:
        raise ValidationFailed.at("/command/payload/spec", f"must be {order.spec.kind}, as the order is")
    if (command.spec.trail_bps is None) is not (order.spec.trail_bps is None):
        trail = "trail_amount" if order.spec.trail_bps is None else "trail_bps"
        raise ValidationFailed.at(f"/command/payload/spec/{command.spec.kind}", f"must have {trail}, as the order does")
    assert order.spec.time_in_force is not None
    spec = _with_time(command.spec, order.spec.time_in_force)
    return Accepted(ActionType.REPLACE, order.symbol, order.side, order.route, spec, reference)


def _compose_close(submission: Submission, state: SubmissionState) -> Accepted:
    command, holding, manifest = submission.command, state.holding, state.manifest
    assert isinstance(command, Close)
    assert holding is not None
    assert manifest is not None
    quantity = holding.left_to_close
    if command.quantity is not None:
        if holding.open_orders or holding.is_newer:
            raise OpenOrders("an order of the symbol is open, or came since the position was read")
        quantity = command.quantity
    if not quantity:
        raise NoPosition(f"no position in {command.symbol} is left to close: it is flat, or open orders close it")
    offered = manifest.times_in_force[OrderKind.MARKET]
    time_in_force = TimeInForce.DAY if TimeInForce.DAY in offered else offered[0]
    return Accepted(
        ActionType.CREATE,
        command.symbol,
        OrderSide.SELL if quantity > 0 else OrderSide.BUY,
        RouteStrategy.SMART if RouteStrategy.SMART in manifest.routes else manifest.routes[0],
        Spec(OrderKind.MARKET, amount_text(abs(quantity)), time_in_force=time_in_force),
        submission.client_reference_id,
        closes=True,
    )


def _judged_controls(submission: Submission, controls: Controls) -> Controls:
    """A halt's own orders pass all but the trading window, a caller's that closes a position passes halts."""
    if submission.halt_id:
        return controls.window_only()
    return controls.without_halts() if isinstance(submission.command, Close) else controls


def _with_time(spec: Spec, time_in_force: TimeInForce) -> Spec:
    """The spec, with this time in force if it has none."""
    return replace(spec, time_in_force=time_in_force) if spec.time_in_force is None else spec


def _check_account(submission: Submission, account: AccountState, manifest: Manifest | None) -> None:
    if account.closed:
        raise AccountClosed("the account is closed for good: it can be read, not changed")
    if isinstance(submission.command, Cancel):
        return
    if account.disabled and not submission.halt_id:
        raise AccountDisabled("the account is disabled; it takes CANCEL only")
    if manifest and manifest.credential_fields and not account.has_credential:
        raise CredentialMissing("the account's broker needs a credential; store one first")


def _check_order(submission: Submission, order: KnownOrder | None) -> None:
    command = submission.command
    match command:
        case Create() | Close():
            return
        case Replace() | Cancel():
            assert order is not None
            if order.status in FINAL_STATUSES:
                raise IntentClosed(f"the order is {order.status}, which is final; use CREATE for a new one")
            if isinstance(command, Cancel) and not command.once:
                return
            if order.cancel_requested:
                raise CancelPending("a CANCEL of this intent is pending; wait until the broker has answered it")
            if order.replace_pending and not isinstance(command, Cancel):
                raise ReplacePending("a REPLACE of this intent is pending; wait until the broker has answered it")
        case _:
            assert_never(command)
