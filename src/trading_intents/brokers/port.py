"""The interface of a broker integration: its calls, its answers, and its capabilities. An adapter
only translates: it never sends twice, never decides an order's status, and never shows a secret."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Protocol, TypeVar, cast
from uuid import UUID

from trading_intents.clock import Clock
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.grouped import GroupTransactions
from trading_intents.storage.signals import Signals
from trading_intents.telemetry import Log, Metrics, make_log
from trading_intents.trading import (
    ZERO,
    Environment,
    FrozenStruct,
    Leg,
    OrderKind,
    OrderSide,
    RouteStrategy,
    Symbol,
    TimeInForce,
    VersionTerms,
    total,
)

ENTRY_POINT_GROUP = "trading_intents.brokers"
# The name is the command's, the value its parts by their names.
COMMANDS_GROUP = "trading_intents.broker_commands"
# The code of a refused CommandResult, or the reason of a REJECTED event, that only says "I have
# this id already".
DUPLICATE_ID = "duplicate_id"
# The reason of a REPLACED that no command asked for, as at a split: under the client order id of
# the version that it changes, with the new total `quantity`, and the new limit or else stop
# `price`.
REPLACED_BY_BROKER = "replaced_by_broker"
# More digits than any venue sends; longer numbers would slow every sum.
MAX_DIGITS = 40

T = TypeVar("T")


class Outcome(StrEnum):
    ACKED = "ACKED"  # the broker has it; for a submit: and works it
    REJECTED = "REJECTED"  # a definite refusal, never "duplicate id": that one is UNKNOWN
    NOT_SENT = "NOT_SENT"  # provably nothing reached the broker
    UNKNOWN = "UNKNOWN"  # everything else


class EventKind(StrEnum):
    ACCEPTED = "ACCEPTED"  # under a REPLACE's id: that version works now
    TRIGGERED = "TRIGGERED"
    FILL = "FILL"
    FILL_BUST = "FILL_BUST"
    FILL_CORRECT = "FILL_CORRECT"
    CANCELLED = "CANCELLED"  # never for a version that was replaced
    EXPIRED = "EXPIRED"
    REJECTED = "REJECTED"
    REPLACED = "REPLACED"
    CANCEL_REJECTED = "CANCEL_REJECTED"
    REPLACE_REJECTED = "REPLACE_REJECTED"
    PENDING_CANCEL = "PENDING_CANCEL"
    PENDING_REPLACE = "PENDING_REPLACE"
    STATUS = "STATUS"
    POSITION = "POSITION"
    # Taken in the symbol itself, as crypto venues do: `quantity` of it, below 0 if it came back.
    FEE = "FEE"


class LegTicket(VersionTerms, kw_only=True, omit_defaults=True):
    """An order that the broker links to the one it is sent with."""

    leg: Leg
    client_order_id: str
    symbol: Symbol
    side: OrderSide
    kind: OrderKind


class OrderTicket(VersionTerms, kw_only=True, omit_defaults=True):
    """A command as the broker gets it. The adapter checks `not_after` right before it writes, and
    answers NOT_SENT."""

    client_order_id: str  # of this command, a CANCEL's too
    broker_order_id: str | None = None
    orig_client_order_id: str | None = None  # REPLACE and CANCEL: the version that they change
    symbol: Symbol
    side: OrderSide
    kind: OrderKind
    extended_hours: bool = False
    route: RouteStrategy = RouteStrategy.SMART
    legs: tuple[LegTicket, ...] = ()  # of a submit
    # In monotonic seconds, as a deadline; None: a CANCEL, which is never stale.
    not_after: float | None = None


class BrokerEvent(FrozenStruct, kw_only=True, omit_defaults=True):
    """One thing that the broker said. `quantity` and `price` are of this execution (POSITION: the
    signed position, and what the broker values a share of it at now; STATUS: of an execution whose
    id is not reported, which ended at
    `cum_quantity`), `cum_quantity` and `average_price` of the order through all its versions
    (POSITION: what a share of it cost). None means not reported, never zero."""

    kind: EventKind
    # Unique per account, from the venue's ids only: stream, answer and snapshot give the same one.
    dedupe_key: str
    # Of the version; where a command is answered, of that command.
    client_order_id: str | None = None
    broker_order_id: str | None = None
    # Of a leg that the venue names in its own way: the client order id of the order that it was
    # sent with, and which one it is. Its `broker_order_id` names it then; it has no
    # `client_order_id`, nor has a report without its parent, which waits for one that has both.
    parent: str | None = None
    leg: Leg | None = None
    # REPLACED: the client order id before; FILL_BUST, FILL_CORRECT: the exec_id meant.
    replaces: str | None = None
    # Unique in its order: where a venue starts again every day, the day is part of it.
    exec_id: str | None = None
    symbol: Symbol | None = None
    side: OrderSide | None = None
    quantity: Decimal | None = None
    price: Decimal | None = None
    fee: Decimal | None = None  # in money; one in the symbol itself is a FEE of its own
    cum_quantity: Decimal | None = None
    leaves_quantity: Decimal | None = None
    average_price: Decimal | None = None
    broker_status: str | None = None
    venue_time: datetime | None = None
    reason: str | None = None  # a stable code
    detail: str | None = None  # what the venue says of it, for people; scrubbed
    raw: str = ""  # scrubbed

    def __post_init__(self) -> None:
        _check_amounts(self.quantity, self.price, self.fee)
        _check_amounts(self.cum_quantity, self.leaves_quantity, self.average_price)
        match self.kind:
            case EventKind.FILL:
                assert self.exec_id
                assert self.price is not None
                assert self.quantity is not None
                assert self.quantity > 0
            case EventKind.FILL_CORRECT:
                assert self.replaces
                assert self.price is not None
                assert self.quantity is not None
                assert self.quantity >= 0
            case EventKind.FILL_BUST:
                assert self.replaces
            case EventKind.POSITION | EventKind.FEE:
                assert self.symbol
                assert self.quantity is not None


def _check_amounts(*amounts: Decimal | None) -> None:
    for amount in amounts:
        assert amount is None or is_sane(amount), "a number that no venue means"


def is_sane(amount: Decimal) -> bool:
    return (
        amount.is_finite()
        and abs(amount.adjusted()) < MAX_DIGITS
        and len(amount.as_tuple().digits) <= MAX_DIGITS
    )


class BrokerBalance(FrozenStruct, kw_only=True):
    """An account's money, as the broker reported it. None means not reported, never zero."""

    currency: str | None = None
    cash: Decimal | None = None
    buying_power: Decimal | None = None
    # Cash and the value of the positions; None while one of these has no price.
    equity: Decimal | None = None
    as_of: datetime  # by the venue's clock, else when it was reported

    def __post_init__(self) -> None:
        _check_amounts(self.cash, self.buying_power, self.equity)


@dataclass(frozen=True, slots=True)
class StreamGap:
    """Events may be missing before the next one: reconcile."""

    reason: str


@dataclass(frozen=True, slots=True)
class UnreadableEvent(StreamGap):
    """One event could not be read and is left out, with an alert: it never ends a session."""


@dataclass(frozen=True, slots=True)
class StreamBack(StreamGap):
    """Updates come again that were missing since `open`."""


class CommandResult(FrozenStruct, kw_only=True):
    outcome: Outcome
    broker_order_id: str | None = None
    # NOT_SENT by a rate limit, or "not yet": this is no attempt.
    retry_after_seconds: int | None = None
    code: str | None = None
    message: str = ""  # scrubbed: it is shown and logged
    # Events in the answer itself, under the keys that the stream would give.
    updates: tuple[BrokerEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSnapshot:
    """An order at the broker, as the events that lead to its state: stream, look-up and reconcile
    share one path. `quantity` is all that the broker works or worked, through all versions and with
    what it filled: an order that filled that much, or has an event of its end, is over, and ends
    here whatever we know of it."""

    client_order_id: str | None
    broker_order_id: str
    symbol: Symbol
    side: OrderSide
    quantity: Decimal
    events: tuple[BrokerEvent, ...]  # those of its legs may be among them

    @property
    def _own_events(self) -> list[BrokerEvent]:
        return [each for each in self.events if not (each.leg and self.client_order_id)]

    @property
    def has_ended(self) -> bool:
        kinds = set[EventKind]()
        for each in self._own_events:
            # Of another id it is a command that was rejected.
            is_own = each.client_order_id in (None, self.client_order_id)
            if is_own or each.kind is not EventKind.REJECTED:
                kinds.add(each.kind)
        return bool(kinds & {EventKind.CANCELLED, EventKind.EXPIRED, EventKind.REJECTED})

    @property
    def is_working(self) -> bool:
        own = self._own_events
        filled = total(each.quantity or ZERO for each in own if each.kind is EventKind.FILL)
        counted = max((each.cum_quantity or ZERO for each in own), default=ZERO)
        return not self.has_ended and max(filled, counted) < self.quantity


@dataclass(frozen=True, slots=True)
class Absent:
    """The broker says that it has no such order: a proof only where the look-up is durable.
    `never_sent`: the adapter stores every command before it sends it, and has no such one."""

    never_sent: bool = False


@dataclass(frozen=True, slots=True)
class LookupUnknown:
    message: str  # scrubbed


Lookup = OrderSnapshot | Absent | LookupUnknown


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSnapshot:
    """A snapshot, read after the stream is subscribed, so that no event is missed between the
    two."""

    taken_at: datetime
    open_orders: tuple[OrderSnapshot, ...]
    executions: tuple[BrokerEvent, ...]
    # All positions, as of the executions in the snapshot: a symbol that is left out is 0. None: the
    # broker reports none.
    positions: tuple[BrokerEvent, ...] | None
    balance: BrokerBalance | None = None  # None: the broker reports none
    # What the broker says that keeps the account from trading, such as a block.
    notices: tuple[str, ...] = ()
    # Rows that could not be read and are left out, each named once in a session.
    unreadable: tuple[str, ...] = ()
    # How the account is read, where hosts differ: logged, and shown by `doctor`.
    remarks: tuple[str, ...] = ()


class LookupKind(StrEnum):
    DURABLE = "durable"  # finds every order for ever: not found means never arrived
    OPEN_ONLY = "open_only"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class PriceTick:
    """Prices from `from_price` on are multiples of `tick`."""

    from_price: Decimal
    tick: Decimal


@dataclass(frozen=True, slots=True)
class LinkedOrders:
    """The entries to which a broker links exits, or the limits beside which it puts a stop."""

    order_sides: tuple[OrderSide, ...]
    order_kinds: tuple[OrderKind, ...]
    times_in_force: tuple[TimeInForce, ...]
    one_time_in_force: bool = False  # all orders of the group have one


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    name: str
    environments: tuple[Environment, ...]
    # A kind that is missing is not offered.
    times_in_force: Mapping[OrderKind, tuple[TimeInForce, ...]]
    routes: tuple[RouteStrategy, ...]
    native_replace: bool  # without it a REPLACE is refused, never made of a cancel and a new order
    credential_fields: tuple[str, ...]
    quantity_step: Decimal | None = None  # None: any
    price_ticks: tuple[PriceTick, ...] = ()  # ascending; none: any
    lookup: LookupKind = LookupKind.NONE
    # Refuses a used client order id for ever, that of a finished order too.
    unique_order_ids: bool = False
    requests_per_minute: int | None = None  # of a credential; None: any number
    tells_balances: bool = False  # in snapshots, and by the stream where it can
    # In every snapshot; accounts may hold some that the platform did not trade.
    tells_positions: bool = False
    exits: LinkedOrders | None = None
    one_cancels_other: LinkedOrders | None = None
    # False: an order that it counted as filled (`cum_quantity`) is final, whatever is busted.
    bust_reopens: bool = True
    calls_at_once: int = 10  # commands of one session that may be under way together


class BrokerAdapter(Protocol):
    """One account's session. `deadline` is in the context's monotonic seconds; every call is over
    by then.

    A command is written once, and never again for any answer or error: only the caller knows
    whether it may be."""

    name: str
    capabilities: Capabilities

    async def open(self) -> StreamGap | None:
        """Connect, authenticate, subscribe. AuthFailed or BrokerUnavailable. A StreamGap says why
        updates alone are missing: commands are sent all the same, `events` gives what is read at
        intervals, and StreamBack in the end."""

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        """Never raises for a refusal of the broker, nor for a lost connection."""

    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult: ...

    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult: ...

    async def lookup(
        self, client_order_id: str, broker_order_id: str | None, deadline: float
    ) -> Lookup:
        """Gives Absent only when the broker said so, or the command was provably never sent, else
        LookupUnknown."""

    def events(self) -> AsyncIterator[BrokerEvent | BrokerBalance | StreamGap]:
        """Ends with the connection. Never drops an event silently: a StreamGap says so. A balance
        comes after the events that changed it, as often as the venue reports it."""

    async def snapshot(self, since: datetime) -> AccountSnapshot:
        """Gives every open order, and every execution from `since` on. BrokerUnavailable rather
        than a part of it, AuthFailed if the credential is refused. `doctor` asks for one without
        `open`: where that is not possible, BrokerUnavailable."""

    async def close(self) -> None: ...


class AuthFailed(Exception):
    """The broker refuses the credential, so a retry is useless. The text is scrubbed."""


class BrokerUnavailable(Exception):
    """The broker cannot be reached or does not answer: try again later. The text is scrubbed."""


@dataclass(frozen=True, slots=True)
class BrokerAccount:
    id: UUID
    organization_id: OrganizationId
    environment: Environment
    external_account_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrationContext:
    """All that an integration gets of us. `settings` are those that start with its name, such as
    PAPER_SEED;
    `database` is for its own tables and no others; `signals` wakes it when another process changed
    those. All sessions of the integration in this process have one `shared`; `open_transactions`
    gives a connection for group commits."""

    account: BrokerAccount
    secrets: Mapping[str, Secret]
    clock: Clock
    settings: Mapping[str, str]
    database: Pool
    signals: Signals
    open_transactions: Callable[[], GroupTransactions]
    shared: dict[str, object]
    # Grows with each worker that takes the account: an earlier one's holder writes nothing more.
    lease_token: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    log: Log = field(default_factory=make_log)

    def share(self, name: str, make: Callable[[], T]) -> T:
        """Gives what is shared by that name; the first session makes it."""
        if name not in self.shared:
            self.shared[name] = make()
        return cast(T, self.shared[name])


class SimulatedPrice(FrozenStruct):
    price: Decimal
    as_of: datetime


class Simulation(Protocol):
    """A venue inside the platform: what it would report is computed when it is asked for."""

    def price(self, symbol: Symbol, now: datetime) -> SimulatedPrice:
        """Of a symbol for which the organization posts no quotes; there is one of every symbol at
        any time."""

    async def value(
        self, tx: Tx, organization_id: OrganizationId, account_id: UUID
    ) -> BrokerBalance | None:
        """The account's balance now. None: it was never opened there."""


@dataclass(frozen=True, slots=True)
class Integration:
    """An integration, as an entry point of the group `trading_intents.brokers` names it. `connect`
    makes the adapter without I/O, `simulate` its venue from its settings, if the integration is a
    simulation."""

    name: str
    capabilities: Capabilities
    connect: Callable[[IntegrationContext], BrokerAdapter]
    simulate: Callable[[Mapping[str, str]], Simulation] | None = None

    def __post_init__(self) -> None:
        assert self.name == self.capabilities.name


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """All that an integration's command for operators gets of us, beside the log. Its own
    parameters come after."""

    database: Pool
    operator: str  # the name of who runs it
    # Whether a worker that is alive has a session of the account.
    is_connected: Callable[[Tx, UUID], Awaitable[bool]]
