"""A balance as it is kept and streamed, and which changes are recorded when. Pure: no I/O, no
clock."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from uuid import UUID

from msgspec.structs import replace

from trading_intents.brokers.port import BrokerBalance
from trading_intents.ids import OrganizationId
from trading_intents.stream.model import Event, EventType, make_payload
from trading_intents.trading import Environment, FrozenStruct, maybe_text

CASH_PACE_SECONDS = 1.0  # of a change of cash: each fill of a wave is one
PACE_SECONDS = 5.0
PRICES_PACE_SECONDS = 30.0  # of a change by prices alone


class Resolution(StrEnum):
    MINUTE = "1m"
    HOUR = "1h"
    DAY = "1d"

    @property
    def seconds(self) -> int:
        return {Resolution.MINUTE: 60, Resolution.HOUR: 3_600, Resolution.DAY: 86_400}[self]


class EquityValues(FrozenStruct):
    """An account's worth. The results are those that a daily loss is judged by."""

    equity: Decimal | None
    cash: Decimal | None
    realized_pnl: Decimal
    unrealized_pnl: Decimal


class EquityPoint(EquityValues):
    """The last values of a span, which began at `at`."""

    at: datetime


class DueSpan(FrozenStruct):
    at: datetime | None  # the begin of a minute whose equity is to be recorded
    left_seconds: float  # until the next minute


class LastEquity(FrozenStruct, kw_only=True):
    """An account with its balance and the values of its last point."""

    id: UUID
    organization_id: OrganizationId
    cash: Decimal | None
    equity: Decimal | None
    last_equity: Decimal | None
    last_cash: Decimal | None
    last_realized_pnl: Decimal | None
    last_unrealized_pnl: Decimal | None

    @property
    def last(self) -> tuple[Decimal | None, ...]:
        return self.last_equity, self.last_cash, self.last_realized_pnl, self.last_unrealized_pnl


class AccountBalance(FrozenStruct):
    account_id: UUID
    organization_id: OrganizationId
    environment: Environment
    broker: str
    balance: BrokerBalance


def balance_event(record: AccountBalance) -> Event:
    balance = record.balance
    payload = make_payload(
        EventType.BALANCE,
        account_id=str(record.account_id),
        organization_id=str(record.organization_id),
        broker=record.broker,
        currency=balance.currency,
        cash=maybe_text(balance.cash),
        buying_power=maybe_text(balance.buying_power),
        equity=maybe_text(balance.equity),
        as_of=balance.as_of,
    )
    return Event(
        organization_id=str(record.organization_id),
        account_id=str(record.account_id),
        environment=record.environment,
        kind=EventType.BALANCE,
        symbol="",
        payload=payload,
    )


@dataclass(slots=True)
class BalancePacer:
    """Says which of the balances that a session hears are recorded: one with other cash when the
    last record is `CASH_PACE_SECONDS` old, another equity alone when it is `PRICES_PACE_SECONDS`
    old, any other change when it is `PACE_SECONDS` old, and nothing that changes nothing.
    `recorded` is the last record."""

    recorded: BrokerBalance | None = None
    _recorded_seconds: float | None = None
    _held: BrokerBalance | None = None

    def offer(self, balance: BrokerBalance) -> None:
        """Replaces one that is held."""
        if self._held is None or balance.as_of >= self._held.as_of:
            self._held = balance

    def take(self, now_seconds: float) -> BrokerBalance | None:
        held = self._held
        if held is None or (self.recorded is not None and is_same(held, self.recorded)):
            self._held = None
            return None
        if self.wait_seconds(now_seconds):
            return None
        self.recorded = held
        self._recorded_seconds = now_seconds
        self._held = None
        return held

    def wait_seconds(self, now_seconds: float) -> float | None:
        """The seconds until a held balance is due; None: none is held."""
        if self._held is None:
            return None
        if self._recorded_seconds is None or self.recorded is None:
            return 0.0
        due_seconds = self._recorded_seconds + _pace_seconds(self.recorded, self._held)
        return max(0.0, due_seconds - now_seconds)


def _pace_seconds(recorded: BrokerBalance, held: BrokerBalance) -> float:
    if (held.currency, held.cash) != (recorded.currency, recorded.cash):
        return CASH_PACE_SECONDS
    is_by_prices = recorded.equity is not None and is_same(
        replace(held, equity=None), replace(recorded, equity=None)
    )
    return PRICES_PACE_SECONDS if is_by_prices else PACE_SECONDS


def is_same(one: BrokerBalance, other: BrokerBalance) -> bool:
    """But for their times."""
    return replace(one, as_of=other.as_of) == other
