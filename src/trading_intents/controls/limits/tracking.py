"""The state of tracked accounts while a batch is decided: it moves on with each order that is accepted. No I/O."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from trading_intents.amounts import EXACT, ZERO
from trading_intents.brokers.paper.model import CAPABILITIES as PAPER
from trading_intents.controls.limits.losses import AccountResults, DailyBaseline, baseline_rows
from trading_intents.controls.limits.model import AppliedLimits, AskedOrder, LimitState
from trading_intents.controls.limits.statements import (
    LimitReads,
    count_orders,
    read_limit_state,
    read_results,
    record_baselines,
    remember_creates,
)
from trading_intents.orders.ledger.exposures import ExposureChange, sum_changes
from trading_intents.orders.ledger.writes import change_exposures
from trading_intents.prices.model import PriceKey, PriceRules, ReferencePrice
from trading_intents.prices.store import parse_reply, read_prices
from trading_intents.storage.pipeline import Reply, Statement
from trading_intents.trading import Environment, FrozenStruct, OrderSide

Place = tuple[str, str]  # an account, and a symbol or terms


@dataclass(slots=True)
class TrackedState:
    """By account and symbol: what is open. By account and terms: when a CREATE was last accepted."""

    exposures: dict[Place, tuple[int, Decimal, Decimal]] = field(default_factory=dict)  # orders, of BUY, of SELL
    open_orders: Counter[str] = field(default_factory=Counter)  # by account
    positions: dict[Place, Decimal] = field(default_factory=dict)
    rates: Counter[str] = field(default_factory=Counter)  # by account
    recent: dict[Place, datetime] = field(default_factory=dict)
    prices: dict[Place, Decimal] = field(default_factory=dict)  # reference prices
    daily_results: dict[str, Decimal] = field(default_factory=dict)  # by account
    _baselines: dict[tuple[str, str], DailyBaseline] = field(default_factory=dict)  # by account and organization
    _changes: list[ExposureChange] = field(default_factory=list)
    _orders: Counter[tuple[str, str]] = field(default_factory=Counter)  # by account and organization
    _creates: list[tuple[str, str, str]] = field(default_factory=list)

    def read(self, rows: Iterable[Sequence[Any]]) -> None:
        """Takes the rows of `read_limit_state`."""
        for kind, account_id, key, first, second, third in rows:
            place = account_id, key
            match kind:
                case "exposure":
                    self.exposures[place] = int(first), Decimal(second), Decimal(third)
                case "open_orders":
                    self.open_orders[account_id] = int(first)
                case "position":
                    self.positions[place] = Decimal(first)
                case "rate":
                    self.rates[account_id] = int(first)
                case "recent":
                    self.recent[place] = datetime.fromisoformat(first)

    def begin_day(self, account_id: str, organization_id: str, today: tuple[Decimal, DailyBaseline | None]) -> None:
        """Takes today's result of an account, and the baseline that is to be recorded for it."""
        self.daily_results[account_id], baseline = today
        if baseline:
            self._baselines[account_id, organization_id] = baseline

    def met_by(self, account_id: str, asked: AskedOrder) -> LimitState:
        orders, buy, sell = self.exposures.get((account_id, asked.symbol), _NOTHING_OPEN)
        return LimitState(
            position=self.positions.get((account_id, asked.symbol), ZERO),
            open_buy=buy,
            open_sell=sell,
            open_orders=orders,
            account_open_orders=self.open_orders[account_id],
            orders_last_minute=self.rates[account_id],
            duplicate_at=self.recent.get((account_id, asked.terms)),
            daily_result=self.daily_results.get(account_id, ZERO),
            reference_price=self.prices.get((account_id, asked.symbol)),
        )

    def accept(self, account_id: str, organization_id: str, asked: AskedOrder, is_new: bool, now: datetime) -> None:
        """`is_new`: the order was not counted before."""
        place, moved = (account_id, asked.symbol), asked.open_after
        if not is_new:
            moved = EXACT.subtract(moved, asked.open_before)
        orders, open_buy, open_sell = self.exposures.get(place, _NOTHING_OPEN)
        if asked.side is OrderSide.BUY:
            buy, sell = moved, ZERO
            self.exposures[place] = orders + is_new, EXACT.add(open_buy, moved), open_sell
        else:
            buy, sell = ZERO, moved
            self.exposures[place] = orders + is_new, open_buy, EXACT.add(open_sell, moved)
        self.open_orders[account_id] += is_new
        self._changes.append(ExposureChange(account_id, asked.symbol, organization_id, int(is_new), buy, sell))
        self.rates[account_id] += 1
        self._orders[account_id, organization_id] += 1
        if asked.is_create:
            self.recent[account_id, asked.terms] = now
            self._creates.append((account_id, organization_id, asked.terms))

    def writes(self, now: datetime) -> list[Statement]:
        """Before the stream's heads: what the accepted orders change."""
        second = now.replace(microsecond=0).isoformat()
        changes = sum_changes(self._changes)
        orders = [(*place, str(count)) for place, count in sorted(self._orders.items())]
        return [
            *([count_orders(orders, second)] if orders else ()),
            *([remember_creates(self._creates, now.isoformat())] if self._creates else ()),
            *([change_exposures(changes)] if changes else ()),
            *([record_baselines(baseline_rows(self._baselines))] if self._baselines else ()),
        ]


_NOTHING_OPEN = (0, ZERO, ZERO)


class LimitedPlace(FrozenStruct, frozen=True):
    """A symbol of an account that has limits, and whose it is."""

    account_id: str
    organization_id: str
    environment: Environment
    broker: str
    limits: AppliedLimits


class LimitStateReads:
    """What limits need beside themselves, read in one round trip: `statements`, then `put` with their replies."""

    def __init__(self) -> None:
        self._reads: set[LimitReads] = set()
        self._prices: dict[Place, tuple[PriceKey, bool]] = {}  # and whether the paper broker's walk counts
        self._days: dict[str, LimitedPlace] = {}  # accounts with a daily loss

    def add(self, place: LimitedPlace, asked: AskedOrder) -> None:
        limits, account_id = place.limits, place.account_id
        if limits.needs_state:
            self._reads.add(LimitReads(account_id, asked.symbol, asked.terms))
        if limits.needs_price:
            key = PriceKey(UUID(place.organization_id), place.environment, asked.symbol)
            self._prices[account_id, asked.symbol] = key, place.broker == PAPER.name
        if limits.account and limits.account.max_daily_loss is not None:
            self._days[account_id] = place

    def __bool__(self) -> bool:
        return bool(self._reads)

    def covers(self, needed: "LimitStateReads") -> bool:
        return (
            self._reads >= needed._reads
            and self._prices.items() >= needed._prices.items()
            and self._days.keys() >= needed._days.keys()
        )

    def statements(self) -> list[Statement]:
        return [
            read_limit_state(sorted(self._reads)),
            *([read_prices({key for key, _ in self._prices.values()})] if self._prices else ()),
            *([read_results(list(self._days))] if self._days else ()),
        ]

    def put(self, replies: Sequence[Reply], needed: "LimitStateReads", prices: PriceRules, state: TrackedState) -> None:
        """Puts what is `needed` of these replies into the state, but for today's results."""
        state.read(replies[0].texts())
        known = parse_reply(replies[1]) if self._prices else {}
        picked: dict[tuple[PriceKey, bool], ReferencePrice | None] = {}  # most accounts share their prices
        for place, asked in needed._prices.items():
            if asked not in picked:
                picked[asked] = prices.pick(known[asked[0]], has_walk=asked[1])
            if price := picked[asked]:
                state.prices[place] = price.price

    def begin_days(
        self,
        replies: Sequence[Reply],
        needed: "LimitStateReads",
        prices: PriceRules,
        state: TrackedState,
        now: datetime,
    ) -> None:
        """Puts today's results into the state."""
        if not needed._days:
            return
        results = AccountResults(replies[1 + bool(self._prices)].texts(), prices)
        for account_id, place in needed._days.items():
            zone = place.limits.account.timezone if place.limits.account else None
            state.begin_day(account_id, place.organization_id, results.today(account_id, zone, now))
