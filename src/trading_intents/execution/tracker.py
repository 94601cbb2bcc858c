"""What brokers told and what we did becomes facts, orders, trades, positions and stream events, in the caller's
transaction. Never talks to a broker, never decides what an order is: orders/model.py does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trading_intents.brokers.port import BrokerEvent, CommandResult
from trading_intents.ids import OrganizationId
from trading_intents.orders.facts import CommandKind, FactKind, result_facts
from trading_intents.orders.model import OrderView
from trading_intents.storage.database import Row, Tx
from trading_intents.trading import Environment


@dataclass(frozen=True, slots=True)
class Desk:
    """The account that is worked."""

    account_id: UUID
    organization_id: OrganizationId
    environment: Environment
    broker: str


@dataclass(frozen=True, slots=True)
class OwnFact:
    """What we saw of an order on our side."""

    order_id: UUID
    kind: FactKind
    client_order_id: str  # of the command that it is about
    reason: str | None = None
    broker_order_id: str | None = None


@dataclass(frozen=True, slots=True)
class Booked:
    """An order after its new facts: the row as it is now, and the view that it was made of."""

    row: Row
    view: OrderView
    changed: bool  # whether anything that a reader sees did


@dataclass(frozen=True, slots=True)
class Recorded:
    """What `record` wrote, and what is left for `publish`. Orders that no new fact touched are not in it."""

    desk: Desk
    now: datetime | None  # the database's; None: nothing was new
    orders: Mapping[UUID, Booked]
    resurrected: tuple[UUID, ...]  # the broker has them though they were given up: cancel at once

    @property
    def changed(self) -> bool:
        return self.now is not None


def answer(order_id: UUID, command: CommandKind, client_order_id: str, result: CommandResult) -> tuple[OwnFact, ...]:
    """What a command's outcome says by itself. Its updates are events: hand them to `record` beside this."""
    return tuple(
        OwnFact(order_id, fact.kind, client_order_id, fact.reason, fact.broker_order_id)
        for fact in result_facts(command, client_order_id, result, 0)
        if fact.key.startswith("own:")
    )


async def record(tx: Tx, desk: Desk, events: Sequence[BrokerEvent], own: Sequence[OwnFact] = ()) -> Recorded:
    """Locks the orders concerned (by id), then their positions. Events that were seen before change nothing."""
    raise NotImplementedError


async def publish(tx: Tx, recorded: Recorded) -> None:
    """The last statements before the commit: stats, then the organization's stream head."""
    raise NotImplementedError
