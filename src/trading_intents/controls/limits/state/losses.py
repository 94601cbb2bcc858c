"""An account's result of today, by which its daily-loss limit is judged. Pure: no I/O, no clock."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from trading_intents.controls.model import DEFAULT_TIMEZONE
from trading_intents.orders.positions import NetPosition
from trading_intents.prices.model import PriceRules, StoredPrices
from trading_intents.trading import ZERO, FrozenStruct, exact


class HeldResult(msgspec.Struct, frozen=True, kw_only=True):
    """A position's result, its quantity, and its opening."""

    quantity: Decimal
    uncosted_quantity: Decimal
    open_cost: Decimal
    realized_pnl: Decimal
    opening_quantity: Decimal = ZERO
    opening_price: Decimal | None = None


class DailyBaseline(FrozenStruct):
    """The result that a day's result is counted from. Days only go forward, whatever a clock does:
    a later day's holds until its day has passed."""

    day: date
    timezone: str
    result: Decimal
    unpriced: frozenset[str] = frozenset()  # symbols of openings that had no price yet
    halted: bool = False


@lru_cache(maxsize=100)  # the accounts of a batch ask for the same moment
def day_at(now: datetime, timezone: str | None) -> date:
    """The calendar day there; days have 23, 24 or 25 hours. A zone that is not known here counts as
    UTC."""
    try:
        return now.astimezone(ZoneInfo(timezone or DEFAULT_TIMEZONE)).date()
    except (LookupError, ValueError, OSError):
        return now.astimezone(UTC).date()


def result_of(position: HeldResult | NetPosition, price: Decimal | None) -> Decimal:
    """Realized and unrealized, fees included. What has no known cost, and a symbol without a price,
    only realizes."""
    with exact():
        if price is None:
            return position.realized_pnl
        held = position.quantity - position.uncosted_quantity
        return position.realized_pnl + held * price - position.open_cost


class AccountResults:
    """The results and baselines of accounts, as the rows of `read_results` have them."""

    def __init__(self, rows: Iterable[Sequence[Any]], prices: PriceRules) -> None:
        self.results: dict[str, Decimal] = {}
        self.realized: dict[str, Decimal] = {}  # the part of the results that is
        self.baselines: dict[str, DailyBaseline] = {}
        # What openings made at the price of now, None without one, by account and symbol.
        self._openings: dict[str, dict[str, Decimal | None]] = {}
        for account_id, position, text in rows:
            if position is None:
                self.baselines[account_id] = msgspec.json.decode(text, type=DailyBaseline)
                continue
            known = msgspec.json.decode(text, type=StoredPrices)
            # The last known price counts, however old.
            last = prices.pick_last(known)
            held = msgspec.json.decode(position, type=HeldResult)
            self._add(account_id, known.symbol, held, last.price if last else None)

    def _add(self, account_id: str, symbol: str, held: HeldResult, price: Decimal | None) -> None:
        with exact():
            self.results[account_id] = self.results.get(account_id, ZERO) + result_of(held, price)
            self.realized[account_id] = self.realized.get(account_id, ZERO) + held.realized_pnl
            if held.opening_price is None:
                return
            made = None
            if price is not None:
                made = held.opening_quantity * (price - held.opening_price)
            self._openings.setdefault(account_id, {})[symbol] = made

    def begin_day(self, account_id: str, timezone: str | None, now: datetime) -> DailyBaseline:
        """The baseline of a day of which nothing is known yet."""
        openings = self._openings.get(account_id, {})
        unpriced = frozenset(symbol for symbol, made in openings.items() if made is None)
        result = self.results.get(account_id, ZERO)
        return DailyBaseline(day_at(now, timezone), timezone or DEFAULT_TIMEZONE, result, unpriced)

    def today(
        self, account_id: str, timezone: str | None, now: datetime
    ) -> tuple[Decimal, DailyBaseline | None]:
        """Today's result, and the baseline that it begins, if none of today is known. Openings that
        had no price then count nothing until the next day: what they made before we knew one is no
        result of today."""
        begun = self.begin_day(account_id, timezone, now)
        known = self.baselines.get(account_id)
        if known is None or known.timezone != begun.timezone or known.day < begun.day:
            return ZERO, begun
        openings = self._openings.get(account_id, {})
        result = begun.result
        with exact():
            result -= known.result
            for symbol in known.unpriced:
                result -= openings.get(symbol) or ZERO
        return result, None


def baseline_rows(baselines: Mapping[tuple[str, str], DailyBaseline]) -> list[tuple[str, ...]]:
    """By account and organization, in the order of their locks."""
    rows: list[tuple[str, ...]] = []
    for ids, each in sorted(baselines.items(), key=lambda item: item[0]):
        unpriced = msgspec.json.encode(each.unpriced).decode()
        rows.append((*ids, each.day.isoformat(), each.timezone, str(each.result), unpriced))
    return rows
