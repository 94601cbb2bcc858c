"""The state by which limits judge while a batch is decided: it moves on with each order that is accepted. No I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from trading_intents.brokers.port import Capabilities
from trading_intents.controls.limits.model import AppliedLimits, AskedOrder, Levels, LimitOwner, LimitState
from trading_intents.controls.limits.state.losses import AccountResults, DailyBaseline, baseline_rows
from trading_intents.controls.limits.state.recent import RecentByAccount
from trading_intents.controls.limits.state.statements import read_limit_state, read_results, record_baselines
from trading_intents.prices.model import PriceKey, PriceRules, market_of
from trading_intents.prices.store import parse_reply, read_prices
from trading_intents.storage.pipeline import Reply, Statement
from trading_intents.trading import EXACT, ZERO, Environment, FrozenStruct, OrderSide, Symbol

Place = tuple[str, str]  # an account and a symbol


@dataclass(slots=True)
class TrackedState:
    symbols: dict[Place, LimitState] = field(default_factory=dict)
    open_orders: dict[str, int] = field(default_factory=dict)  # by account
    opened: set[str] = field(default_factory=set)  # accounts whose opening positions are set
    recent: RecentByAccount = field(default_factory=dict)  # of which all is known
    _baselines: dict[tuple[str, str], DailyBaseline] = field(default_factory=dict)  # by account and organization

    def read(self, rows: Iterable[Sequence[Any]]) -> None:
        """Takes the rows of `read_limit_state`."""
        for account_id, symbol, total, orders, buy, sell, position, is_opened in rows:
            self.open_orders[account_id] = int(total or 0)
            if is_opened:
                self.opened.add(account_id)
            self.symbols[account_id, symbol] = LimitState(
                ZERO if position is None else Decimal(position),
                *((Decimal(buy), Decimal(sell), int(orders)) if orders else ()),
            )

    def of_symbol(self, place: Place) -> LimitState:
        state = self.symbols.get(place)
        if state is None:
            state = self.symbols[place] = LimitState()
        return state

    def begin_day(self, account_id: str, organization_id: str, baseline: DailyBaseline) -> None:
        self._baselines[account_id, organization_id] = baseline

    def met_by(self, account_id: str, asked: AskedOrder, now: datetime, broker: Capabilities | None) -> LimitState:
        state, recent = self.of_symbol((account_id, asked.symbol)), self.recent.get(account_id)
        state.account_open_orders = self.open_orders.get(account_id, 0)
        state.is_position_known = account_id in self.opened or not (broker and broker.tells_positions)
        if recent:
            state.orders_last_minute, state.duplicate_at = recent.count(now), recent.find(asked.terms)
        return state

    def accept(self, account_id: str, asked: AskedOrder) -> None:
        state = self.of_symbol((account_id, asked.symbol))
        if asked.side is OrderSide.BUY:
            state.open_buy = EXACT.add(state.open_buy, asked.opens)
        else:
            state.open_sell = EXACT.add(state.open_sell, asked.opens)
        state.open_orders += asked.is_create
        self.open_orders[account_id] = self.open_orders.get(account_id, 0) + asked.is_create

    def begun_days(self) -> list[Statement]:
        return [record_baselines(baseline_rows(self._baselines))] if self._baselines else []


class LimitedPlace(FrozenStruct, frozen=True, kw_only=True):
    """A symbol of an account that has limits, and what they are judged by."""

    account_id: str
    organization_id: str
    levels: Levels
    needs_exposure: bool
    needs_recent: bool
    window_millis: int  # for which terms are to be remembered
    price_key: PriceKey | None
    has_daily_loss: bool
    timezone: str | None  # of the daily loss


def limited_place(
    account_id: str, symbol: str, organization_id: str, environment: Environment, broker: str, limits: AppliedLimits
) -> LimitedPlace:
    account = limits.account
    return LimitedPlace(
        account_id=account_id,
        organization_id=organization_id,
        levels=limits.levels(LimitOwner(organization_id, account_id), symbol),
        needs_exposure=limits.needs_exposure,
        needs_recent=limits.needs_recent,
        window_millis=(account.duplicate_window_millis or 0) if account else 0,
        price_key=PriceKey(UUID(organization_id), market_of(broker, environment), Symbol(symbol))
        if limits.needs_price
        else None,
        has_daily_loss=account is not None and account.max_daily_loss is not None,
        timezone=account.timezone if account else None,
    )


LimitedPlaces = dict[Place, LimitedPlace]


class LimitStateReads:
    """What limits need beside themselves and the log, read in one round trip: `statements`, then `put` with their
    replies."""

    def __init__(self, places: LimitedPlaces) -> None:
        self._exposed = [place for place, each in places.items() if each.needs_exposure]
        self._prices = {each.price_key for each in places.values() if each.price_key}
        self._days = list({each.account_id for each in places.values() if each.has_daily_loss})

    def statements(self) -> list[Statement]:
        return [
            *([read_limit_state(self._exposed)] if self._exposed else ()),
            *([read_prices(self._prices)] if self._prices else ()),
            *([read_results(self._days)] if self._days else ()),
        ]

    def put(
        self, replies: Sequence[Reply], needed: LimitedPlaces, prices: PriceRules, state: TrackedState, now: datetime
    ) -> None:
        """Puts what is `needed` of these replies into the state."""
        rest = iter(replies)
        if self._exposed:
            state.read(next(rest).texts())
        if self._prices:
            picked = {key: prices.pick(known) for key, known in parse_reply(next(rest)).items()}
            for place, each in needed.items():
                if each.price_key and (price := picked[each.price_key]):
                    state.of_symbol(place).reference_price = price.price
        if self._days:
            results = AccountResults(next(rest).texts(), prices)
            for place, each in needed.items():
                if each.has_daily_loss:
                    result, baseline = results.today(each.account_id, each.timezone, now)
                    state.of_symbol(place).daily_result = result
                    if baseline:
                        state.begin_day(each.account_id, each.organization_id, baseline)
