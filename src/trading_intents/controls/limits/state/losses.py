"""An account's result of today, by which its daily-loss limit is judged. Pure: no I/O, no clock."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from trading_intents.amounts import EXACT, ZERO, exact
from trading_intents.brokers.paper.model import CAPABILITIES as PAPER
from trading_intents.controls.model import DEFAULT_TIMEZONE
from trading_intents.orders.positions import NetPosition
from trading_intents.prices.model import PriceRules, StoredPrices
from trading_intents.trading import FrozenStruct


class HeldResult(msgspec.Struct, frozen=True):
    """What a position made, and what is held of it."""

    quantity: Decimal
    uncosted_quantity: Decimal
    open_cost: Decimal
    realized_pnl: Decimal


class DailyBaseline(FrozenStruct, frozen=True):
    """The result that a day's result is counted from."""

    day: date
    timezone: str
    result: Decimal
    halted: bool = False


@lru_cache(maxsize=100)  # the accounts of a batch ask for the same moment
def day_at(now: datetime, timezone: str | None) -> date:
    """The calendar day there; days have 23, 24 or 25 hours. A zone that is not known here counts as UTC."""
    try:
        return now.astimezone(ZoneInfo(timezone or DEFAULT_TIMEZONE)).date()
    except (LookupError, ValueError, OSError):
        return now.astimezone(UTC).date()


def result_of(position: HeldResult | NetPosition, price: Decimal | None) -> Decimal:
    """Realized and unrealized, fees included. What has no known cost, and a symbol without a price, only realizes."""
    with exact():
        if price is None:
            return position.realized_pnl
        held = position.quantity - position.uncosted_quantity
        return position.realized_pnl + held * price - position.open_cost


class AccountResults:
    """The results and baselines of accounts, as the rows of `read_results` tell them."""

    def __init__(
        self, rows: Iterable[Sequence[Any]], prices: PriceRules, baselines: dict[str, DailyBaseline] | None = None
    ) -> None:
        """`baselines`, if they are known already; else they are among the rows."""
        self.results: dict[str, Decimal] = {}
        self.baselines: dict[str, DailyBaseline] = baselines or {}
        for kind, account_id, *told in rows:
            if kind == "baseline":
                day, timezone, result, halted = told
                self.baselines[account_id] = DailyBaseline(
                    date.fromisoformat(day), timezone, Decimal(result), halted == "true"
                )
                continue
            broker, position, known, _ = told
            # The last known price counts, however old.
            price = prices.pick_last(msgspec.json.decode(known, type=StoredPrices), has_walk=broker == PAPER.name)
            made = result_of(msgspec.json.decode(position, type=HeldResult), price.price if price else None)
            with exact():
                self.results[account_id] = self.results.get(account_id, ZERO) + made

    def today(self, account_id: str, timezone: str | None, now: datetime) -> tuple[Decimal, DailyBaseline | None]:
        """Today's result, and the baseline that it begins, if none of today is known."""
        result, zone, day = self.results.get(account_id, ZERO), timezone or DEFAULT_TIMEZONE, day_at(now, timezone)
        known = self.baselines.get(account_id)
        if known is None or (known.day, known.timezone) != (day, zone):
            return ZERO, DailyBaseline(day, zone, result)
        return EXACT.subtract(result, known.result), None


def baseline_rows(baselines: Mapping[tuple[str, str], DailyBaseline]) -> list[tuple[str, str, str, str, str]]:
    """By account and organization, in the order of their locks: the commit locks the organizations' rules too."""
    return [
        (account_id, organization_id, each.day.isoformat(), each.timezone, str(each.result))
        for (account_id, organization_id), each in sorted(baselines.items(), key=lambda item: item[0][::-1])
    ]
