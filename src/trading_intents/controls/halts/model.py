"""A halt: its terms, its states and what a second call adds to it. Pure: no I/O, no clock."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from msgspec.structs import replace

from trading_intents.ids import OrganizationId
from trading_intents.stream.model import Event, EventType, make_payload
from trading_intents.trading import Environment, FrozenStruct


class HaltState(StrEnum):
    CANCELLING = "cancelling"  # orders may be open
    CLOSING = "closing"  # none is, positions may be
    DONE = "done"
    RESUMED = "resumed"


class HaltPrincipalType(StrEnum):
    API_KEY = "API_KEY"
    USER = "USER"
    SYSTEM = "SYSTEM"


class HaltPrincipal(FrozenStruct):
    type: HaltPrincipalType
    id: str


class HaltScope(FrozenStruct):
    """An account, or without one the whole organization."""

    organization_id: OrganizationId
    account_id: UUID | None = None


class HaltTerms(FrozenStruct):
    reason: str
    cancel_orders: bool = True
    close_positions: bool = False


class HaltWaiting(FrozenStruct, omit_defaults=True):
    """An order or a symbol that the halt cannot finish yet, and why."""

    account_id: str
    reason: str
    symbol: str | None = None
    order_id: str | None = None


class Halt(FrozenStruct, kw_only=True):
    id: UUID
    scope: HaltScope
    environment: Environment | None  # the account's
    terms: HaltTerms
    state: HaltState
    orders: int
    orders_done: int
    positions: int
    positions_done: int
    waiting: tuple[HaltWaiting, ...]
    principal: HaltPrincipal
    created_at: datetime
    updated_at: datetime
    resumed_at: datetime | None


def first_state(terms: HaltTerms) -> HaltState:
    return HaltState.CANCELLING if terms.cancel_orders else HaltState.DONE


def extended(halt: Halt, terms: HaltTerms) -> Halt:
    """The halt that stands, with what a second call adds to its work; its reason and its principal
    stay."""
    cancel_orders = halt.terms.cancel_orders or terms.cancel_orders
    close_positions = halt.terms.close_positions or terms.close_positions
    if (cancel_orders, close_positions) == (halt.terms.cancel_orders, halt.terms.close_positions):
        return halt
    wanted = replace(halt.terms, cancel_orders=cancel_orders, close_positions=close_positions)
    return replace(halt, terms=wanted, state=first_state(wanted))


def halt_event(halt: Halt) -> Event:
    """The stream's event of a halt that changed. The organization's goes to every scope, whatever
    environment."""
    organization_id = halt.scope.organization_id
    account_id = halt.scope.account_id
    payload = make_payload(
        EventType.HALT,
        id=str(halt.id),
        organization_id=str(organization_id),
        account_id=None if account_id is None else str(account_id),
        state=halt.state,
        reason=halt.terms.reason,
        orders=halt.orders,
        orders_done=halt.orders_done,
        positions=halt.positions,
        positions_done=halt.positions_done,
        principal_type=halt.principal.type,
        principal_id=halt.principal.id,
        created_at=halt.created_at,
        updated_at=halt.updated_at,
    )
    environment = halt.environment or Environment.PAPER
    return Event(
        organization_id=str(organization_id),
        account_id=str(account_id or organization_id),
        environment=environment,
        symbol="",
        payload=payload,
    )
