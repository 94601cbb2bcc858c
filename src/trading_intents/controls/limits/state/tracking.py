"""The state by which limits judge while a batch is decided: it moves on with each order that is accepted. No I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from trading_intents.amounts import EXACT, ZERO
from trading_intents.brokers.paper.model import CAPABILITIES as PAPER
from trading_intents.controls.limits.model import AppliedLimits, AskedOrder, LimitState
from trading_intents.controls.limits.state.losses import AccountResults, DailyBaseline, baseline_rows
from trading_intents.controls.limits.state.recent import RecentByAccount
from trading_intents.controls.limits.state.statements import read_limit_state, read_results, record_baselines
from trading_intents.orders.ledger.exposures import ExposureChange, sum_changes
from trading_intents.orders.ledger.writes import change_exposures
from trading_intents.prices.model import PriceKey, PriceRules, ReferencePrice
from trading_intents.prices.store import parse_reply, read_prices
from trading_intents.storage.pipeline import Reply, Statement
from trading_intents.trading import Environment, FrozenStruct, OrderSide, Symbol

Place = tuple[str, str]  # an account and a symbol


@dataclass(slots=True)
class TrackedState:
    exposures: dict[Place, tuple[int, Decimal, Decimal]] = field(default_factory=dict)  # orders, of BUY, of SELL
    open_orders: dict[str, int] = field(default_factory=dict)  # by account
    positions: dict[Place, Decimal] = field(default_factory=dict)
    recent: RecentByAccount = field(default_factory=dict)  # of which all is known
    prices: dict[Place, Decimal] = field(default_factory=dict)  # reference prices
    daily_results: dict[str, Decimal] = field(default_factory=dict)  # by account
    _baselines: dict[tuple[str, str], DailyBaseline] = field(default_factory=dict)  # by account and organization
    _changes: list[ExposureChange] = field(default_factory=list)

    def read(self, rows: Iterable[Sequence[Any]]) -> None:
        """Takes the rows of `read_limit_state`."""
        for account_id, symbol, total, orders, buy, sell, position in rows:
            self.open_orders[account_id] = int(total)
            if orders is not None:
                self.exposures[account_id, symbol] = int(orders), Decimal(buy), Decimal(sell)
            if position is not None:
                self.positions[account_id, symbol] = Decimal(position)

    def begin_day(self, account_id: str, organization_id: str, today: tuple[Decimal, DailyBaseline | None]) -> None:
        """Takes today's result of an account, and the baseline that is to be recorded for it."""
        self.daily_results[account_id], baseline = today
        if baseline:
            self._baselines[account_id, organization_id] = baseline

    def met_by(self, account_id: str, asked: AskedOrder, now: datetime) -> LimitState:
        place, recent = (account_id, asked.symbol), self.recent.get(account_id)
        orders, buy, sell = self.exposures.get(place, _NOTHING_OPEN)
        return LimitState(
            position=self.positions.get(place, ZERO),
            open_buy=buy,
            open_sell=sell,
            open_orders=orders,
            account_open_orders=self.open_orders.get(account_id, 0),
            orders_last_minute=recent.count(now) if recent else 0,
            duplicate_at=recent.find(asked.terms) if recent else None,
            daily_result=self.daily_results.get(account_id, ZERO),
            reference_price=self.prices.get(place),
        )

    def accept(self, account_id: str, organization_id: str, asked: AskedOrder, is_new: bool) -> None:
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
        self.open_orders[account_id] = self.open_orders.get(account_id, 0) + is_new
        self._changes.append(ExposureChange(account_id, asked.symbol, organization_id, int(is_new), buy, sell))

    def writes(self) -> list[Statement]:
        """Before the stream's heads: what the accepted orders change."""
        changes = sum_changes(self._changes)
        return [
            *([change_exposures(changes)] if changes else ()),
            *([record_baselines(baseline_rows(self._baselines))] if self._baselines else ()),
        ]


_NOTHING_OPEN = (0, ZERO, ZERO)


class LimitedPlace(FrozenStruct, frozen=True, kw_only=True):
    """A symbol of an account that has limits, and what they are judged by."""

    account_id: str
    symbol: str
    organization_id: str
    limits: AppliedLimits
    needs_tracking: bool
    needs_recent: bool
    window_millis: int  # for which terms are to be remembered
    price_key: PriceKey | None
    has_walk: bool  # whether the paper broker's price counts
    has_daily_loss: bool


def limited_place(
    account_id: str, symbol: str, organization_id: str, environment: Environment, broker: str, limits: AppliedLimits
) -> LimitedPlace:
    account = limits.account
    return LimitedPlace(
        account_id=account_id,
        symbol=symbol,
        organization_id=organization_id,
        limits=limits,
        needs_tracking=limits.needs_tracking,
        needs_recent=limits.needs_recent,
        window_millis=(account.duplicate_window_millis or 0) if account else 0,
        price_key=PriceKey(UUID(organization_id), environment, Symbol(symbol)) if limits.needs_price else None,
        has_walk=broker == PAPER.name,
        has_daily_loss=account is not None and account.max_daily_loss is not None,
    )


LimitedPlaces = dict[Place, LimitedPlace]


@dataclass(frozen=True, slots=True)
class LimitMemory:
    """What a process keeps of limits from batch to batch."""

    places: LimitedPlaces = field(default_factory=dict)  # as the last batches met them
    recent: RecentByAccount = field(default_factory=dict)


class LimitStateReads:
    """What limits need beside themselves and the log, read in one round trip: `statements`, then `put` with their
    replies."""

    def __init__(self, places: Iterable[LimitedPlace]) -> None:
        self._places = {(each.account_id, each.symbol): each for each in places}
        self._tracked = sorted(place for place, each in self._places.items() if each.needs_tracking)
        self._prices = {each.price_key for each in self._places.values() if each.price_key}
        self._days = sorted({each.account_id for each in self._places.values() if each.has_daily_loss})

    def covers(self, needed: Iterable[LimitedPlace]) -> bool:
        return all(self._places.get((each.account_id, each.symbol)) == each for each in needed)

    def statements(self, is_tracked: bool = True) -> list[Statement]:
        return [
            *([read_limit_state(self._tracked, is_tracked)] if self._tracked else ()),
            *([read_prices(self._prices)] if self._prices else ()),
            *([read_results(self._days)] if self._days else ()),
        ]

    def put(
        self,
        replies: Sequence[Reply],
        needed: Sequence[LimitedPlace],
        prices: PriceRules,
        state: TrackedState,
        now: datetime,
    ) -> None:
        """Puts what is `needed` of these replies into the state."""
        rest = iter(replies)
        if self._tracked:
            state.read(next(rest).texts())
        if self._prices:
            self._put_prices(next(rest), needed, prices, state)
        if self._days:
            results = AccountResults(next(rest).texts(), prices)
            for account_id, place in {each.account_id: each for each in needed if each.has_daily_loss}.items():
                zone = place.limits.account.timezone if place.limits.account else None
                state.begin_day(account_id, place.organization_id, results.today(account_id, zone, now))

    def _put_prices(
        self, reply: Reply, needed: Sequence[LimitedPlace], prices: PriceRules, state: TrackedState
    ) -> None:
        known = parse_reply(reply)
        picked: dict[tuple[PriceKey, bool], ReferencePrice | None] = {}  # most accounts share their prices
        for each in needed:
            if each.price_key is None:
                continue
            asked = each.price_key, each.has_walk
            if asked not in picked:
                picked[asked] = prices.pick(known[each.price_key], has_walk=each.has_walk)
            if price := picked[asked]:
                state.prices[each.account_id, each.symbol] = price.price
