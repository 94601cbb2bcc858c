"""The state that limits are judged by while a batch is decided, of parts with one interface: needs,
read, meet, accept, writes. No I/O."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import msgspec

from trading_intents.brokers.registry import Registry
from trading_intents.controls.limits.model import (
    NO_LIMIT,
    AppliedLimits,
    AskedOrder,
    Levels,
    LimitState,
    TradingLimits,
    added_notional,
)
from trading_intents.controls.limits.state import recent, statements
from trading_intents.controls.limits.state.budgets import KeyUse, parse_use
from trading_intents.controls.limits.state.losses import (
    AccountResults,
    DailyBaseline,
    baseline_rows,
)
from trading_intents.controls.limits.state.recent import LogHead, RecentByAccount
from trading_intents.controls.model import Subject
from trading_intents.prices.model import PriceKey, PriceRules, ReferencePrice, market_of
from trading_intents.prices.store import parse_reply, read_prices
from trading_intents.storage.pipeline import Reply, Statement
from trading_intents.trading import (
    EXACT,
    EXITS,
    ZERO,
    AccountSymbol,
    Environment,
    FrozenStruct,
    OrderSide,
    Symbol,
)


class LimitedSubject(FrozenStruct, kw_only=True):
    """A symbol of an account that has limits, and what they are judged by."""

    account_id: str
    organization_id: str
    symbol: str
    broker: str
    levels: Levels
    needs_exposure: bool
    needs_recent: bool
    price_key: PriceKey | None
    account: TradingLimits
    key_id: str  # of the caller; empty: it has no limits


def limited_subject(
    subject: Subject, environment: Environment, broker: str, limits: AppliedLimits
) -> LimitedSubject:
    """The notional of a key's orders is counted whether it has a limit or not: it may get one
    during the day."""
    price_key = None
    if subject.key_id or limits.needs_price:
        market = market_of(broker, environment)
        price_key = PriceKey(UUID(subject.organization_id), market, Symbol(subject.symbol))
    return LimitedSubject(
        account_id=subject.account_id,
        organization_id=subject.organization_id,
        symbol=subject.symbol,
        broker=broker,
        levels=limits.levels(subject),
        needs_exposure=limits.needs_exposure,
        needs_recent=limits.needs_recent,
        price_key=price_key,
        account=limits.account or NO_LIMIT,
        key_id=subject.key_id or "" if limits.key else "",
    )


class LimitPart:
    """A part of what limits are judged by. It moves on with each order that is accepted."""

    now: datetime

    def begin(self, heads: Mapping[str, LogHead], now: datetime) -> None:
        """Takes the heads of the accounts that are locked."""
        self.now = now

    def needs(self, subjects: Collection[LimitedSubject]) -> Statement | None:
        """Reads what the limits of these subjects need and is not known yet."""

    def read(self, reply: Reply) -> None:
        """Takes the reply to the last statement."""

    def meet(self, subject: LimitedSubject, asked: AskedOrder, met: LimitState) -> None:
        """Fills in what the order meets."""

    def accept(self, account_id: str, subject: LimitedSubject | None, asked: AskedOrder) -> None:
        """Counts it for the orders that follow in the batch. It has a subject if it was judged."""

    def writes(self) -> list[Statement]:
        return []


class Exposures(LimitPart):
    """Open orders and positions."""

    def __init__(self, brokers: Registry) -> None:
        self._brokers = brokers
        self._symbols: dict[AccountSymbol[str], LimitState] = {}
        self._open_orders: dict[str, int] = {}  # by account
        self._opened: set[str] = set()  # accounts whose opening positions are set

    def needs(self, subjects: Collection[LimitedSubject]) -> Statement | None:
        asked = set[tuple[str, str, str]]()
        for each in subjects:
            if each.needs_exposure and (each.account_id, each.symbol) not in self._symbols:
                asked.add((each.organization_id, each.account_id, each.symbol))
        return statements.read_limit_state(asked) if asked else None

    def read(self, reply: Reply) -> None:
        for account_id, symbol, text in reply.texts():
            state = msgspec.json.decode(text, type=LimitState)
            self._symbols[account_id, symbol] = state
            self._open_orders[account_id] = state.account_open_orders
            if state.is_position_known:
                self._opened.add(account_id)

    def meet(self, subject: LimitedSubject, asked: AskedOrder, met: LimitState) -> None:
        if subject.needs_exposure:
            known = self._symbols[subject.account_id, subject.symbol]
            broker = self._brokers.find(subject.broker)
            met.position = known.position
            met.open_buy = known.open_buy
            met.open_sell = known.open_sell
            met.open_orders = known.open_orders
            met.account_open_orders = self._open_orders[subject.account_id]
            is_reported = broker is not None and broker.tells_positions
            met.is_position_known = subject.account_id in self._opened or not is_reported

    def accept(self, account_id: str, subject: LimitedSubject | None, asked: AskedOrder) -> None:
        if account_id in self._open_orders:
            self._open_orders[account_id] += asked.new_orders
        if known := self._symbols.get((account_id, asked.symbol)):
            known.open_orders += asked.new_orders
            if asked.side is OrderSide.BUY:
                known.open_buy = EXACT.add(known.open_buy, asked.opens)
            else:
                known.open_sell = EXACT.add(known.open_sell, asked.opens)


class LimitPrices(LimitPart):
    """Reference prices."""

    def __init__(self, rules: PriceRules) -> None:
        self._rules = rules
        self._picked = dict[PriceKey, ReferencePrice | None]()

    def needs(self, subjects: Collection[LimitedSubject]) -> Statement | None:
        keys = {each.price_key for each in subjects if each.price_key} - self._picked.keys()
        return read_prices(keys) if keys else None

    def read(self, reply: Reply) -> None:
        for key, known in parse_reply(reply).items():
            self._picked[key] = self._rules.pick(known)

    def meet(self, subject: LimitedSubject, asked: AskedOrder, met: LimitState) -> None:
        met.reference_price = self.price_of(subject)

    def price_of(self, subject: LimitedSubject) -> Decimal | None:
        price = self._picked[subject.price_key] if subject.price_key else None
        return price.price if price else None


class KeyBudgets(LimitPart):
    """The budgets that callers' keys have used, but for those whose rows others have locked
    (`held`)."""

    def __init__(self, prices: LimitPrices, locking: str) -> None:
        self._prices = prices
        self._locking = locking
        self.used: dict[str, KeyUse] = {}
        self.held: set[str] = set()
        self._changed: set[str] = set()

    def needs(self, subjects: Collection[LimitedSubject]) -> Statement | None:
        self.held = {each.key_id for each in subjects} - self.used.keys() - {""}
        return statements.read_budgets(self.held, self._locking) if self.held else None

    def read(self, reply: Reply) -> None:
        for (text,) in reply.texts():
            use = parse_use(text, self.now)
            self.used[use.key_id] = use
        self.held -= self.used.keys()

    def meet(self, subject: LimitedSubject, asked: AskedOrder, met: LimitState) -> None:
        if used := self.used.get(subject.key_id):
            met.key_orders_last_minute = used.orders_last_minute
            met.key_daily_notional = used.daily_notional

    def count(self, subject: LimitedSubject | None, asked: AskedOrder) -> Decimal:
        """Gives what the order adds to the day's sum of the key."""
        if not subject or asked.closes or asked.leg in EXITS:
            return ZERO
        added = added_notional(asked, self._prices.price_of(subject)) or ZERO
        if subject.key_id:
            self.used[subject.key_id].accept(not asked.leg, added, self.now)
            self._changed.add(subject.key_id)
        return added

    def writes(self) -> list[Statement]:
        if not self._changed:
            return []
        return [statements.keep_budgets(self.used[each] for each in sorted(self._changed))]


class DailyResults(LimitPart):
    """Today's results, by account; and the days that begin with the batch."""

    def __init__(self, prices: PriceRules) -> None:
        self._prices = prices
        self._results = dict[str, AccountResults]()
        self._asked: set[str] = set()
        self._begun: dict[tuple[str, str], DailyBaseline] = {}  # by account and organization

    def needs(self, subjects: Collection[LimitedSubject]) -> Statement | None:
        limited = {each.account_id for each in subjects if each.account.max_daily_loss is not None}
        self._asked = limited - self._results.keys()
        return statements.read_results(list(self._asked)) if self._asked else None

    def read(self, reply: Reply) -> None:
        self._results |= dict.fromkeys(self._asked, AccountResults(reply.texts(), self._prices))

    def meet(self, subject: LimitedSubject, asked: AskedOrder, met: LimitState) -> None:
        if subject.account.max_daily_loss is not None:
            account_id = subject.account_id
            met.daily_result, begun = self._results[account_id].today(
                account_id, subject.account.timezone, self.now
            )
            if begun:
                self._begun[account_id, subject.organization_id] = begun

    def writes(self) -> list[Statement]:
        return [statements.record_baselines(baseline_rows(self._begun))] if self._begun else []


class LastMinutes(LimitPart):
    """The last orders of accounts, as far as `memory` does not know them up to the account's
    head."""

    def __init__(self, memory: RecentByAccount, *, may_take_long: bool) -> None:
        self._memory = memory
        self._may_take_long = may_take_long
        self._heads: Mapping[str, LogHead] = {}
        self._asked: Sequence[recent.RecentRequest] = ()
        self.known: RecentByAccount = {}
        # Accounts whose log must be read before their orders can be judged.
        self.unread: set[str] = set()

    def begin(self, heads: Mapping[str, LogHead], now: datetime) -> None:
        self.now = now
        self._heads = heads
        self.known = recent.find_whole(self._memory, heads, now)

    def needs(self, subjects: Collection[LimitedSubject]) -> Statement | None:
        windows: dict[str, int] = {}
        for each in subjects:
            if each.needs_recent and each.account_id in self._heads:
                windows[each.account_id] = each.account.duplicate_window_millis or 0
        self._asked = ()
        if windows:  # no head is known before the first reply, and no time
            self._asked = recent.request_recent(windows, self._memory, self.known, self.now)
        if not self._asked:
            return None
        return statements.read_recent(self._asked, may_take_long=self._may_take_long)

    def read(self, reply: Reply) -> None:
        rows = reply.parse(recent.RecentRow)
        self.known |= recent.put_recent(self._memory, self._asked, rows, self._heads, self.now)
        self.unread = {each.account_id for each in self._asked} - self.known.keys()

    def meet(self, subject: LimitedSubject, asked: AskedOrder, met: LimitState) -> None:
        if subject.needs_recent:
            known = self.known[subject.account_id]
            met.orders_last_minute = known.count(self.now)
            met.duplicate_at = known.find(asked.terms)

    def accept(self, account_id: str, subject: LimitedSubject | None, asked: AskedOrder) -> None:
        known = self.known.get(account_id)
        if known and not asked.leg:
            known.accept(asked.terms, self.now)


class LimitTracking:
    """All of it, for one transaction."""

    def __init__(
        self,
        prices: PriceRules,
        brokers: Registry,
        memory: RecentByAccount,
        *,
        may_take_long: bool = True,
        key_locking: str = "",
    ) -> None:
        reference = LimitPrices(prices)
        self.minutes = LastMinutes(memory, may_take_long=may_take_long)
        self.budgets = KeyBudgets(reference, key_locking)
        self._parts = (
            Exposures(brokers),
            reference,
            DailyResults(prices),
            self.minutes,
            self.budgets,
        )
        self._asked: list[LimitPart] = []
        self.counts = False  # whether orders must be counted for those that follow

    def begin(self, heads: Mapping[str, LogHead], now: datetime) -> None:
        for part in self._parts:
            part.begin(heads, now)
        self.counts |= bool(self.minutes.known)

    def needs(self, subjects: Collection[LimitedSubject]) -> list[Statement]:
        self._asked = []
        needed: list[Statement] = []
        if not subjects:
            return needed
        for part in self._parts:
            if statement := part.needs(subjects):
                self._asked.append(part)
                needed.append(statement)
        self.counts |= bool(needed)
        return needed

    def read(self, replies: Sequence[Reply]) -> None:
        for part, reply in zip(self._asked, replies, strict=True):
            part.read(reply)

    def meet(self, subject: LimitedSubject, asked: AskedOrder) -> LimitState:
        met = LimitState()
        for part in self._parts:
            part.meet(subject, asked, met)
        return met

    def accept(self, account_id: str, subject: LimitedSubject | None, asked: AskedOrder) -> Decimal:
        """Gives what it adds to the day's sum of the caller's key."""
        for part in self._parts:
            part.accept(account_id, subject, asked)
        return self.budgets.count(subject, asked)

    def writes(self) -> list[Statement]:
        writes: list[Statement] = []
        for part in self._parts:
            writes += part.writes()
        return writes
