"""Reference prices that a recording tells: of its trades, and of brokers' reports. Pure: no I/O, no clock."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from trading_intents.brokers.port import BrokerEvent
from trading_intents.orders.executions import TradeFlag
from trading_intents.orders.ledger.booking import TradeChange
from trading_intents.orders.ledger.matching import AccountRef
from trading_intents.prices.model import PriceKey, PriceSource, ReferencePrice, market_of, newest
from trading_intents.trading import Symbol


def reported_prices(
    account_ref: AccountRef, changes: Sequence[TradeChange], reports: Iterable[BrokerEvent], now: datetime
) -> tuple[ReferencePrice, ...]:
    """A corrected trade tells its price again, at its own time; a fill that we only infer tells none."""
    trades = [
        ReferencePrice(
            Symbol(change.after.symbol),
            account_ref.environment,
            change.after.price,
            PriceSource.TRADE,
            change.after.at,
        )
        for change in changes
        if change.is_published and change.after.quantity and change.after.price > 0
        if TradeFlag.GAP not in change.after.flags
    ]
    quotes = [
        ReferencePrice(
            event.symbol, account_ref.environment, event.price, PriceSource.QUOTE, min(event.venue_time or now, now)
        )
        for event in reports
        if event.symbol and event.price is not None and event.price > 0
    ]
    return (*trades, *quotes)


def newest_prices(told: Iterable[tuple[AccountRef, ReferencePrice]]) -> Mapping[PriceKey, ReferencePrice]:
    """Of each key one, over all accounts."""
    by_key: dict[PriceKey, list[ReferencePrice]] = {}
    for account_ref, price in told:
        market = market_of(account_ref.broker, price.environment)
        key = PriceKey(account_ref.organization_id, market, price.symbol)
        by_key.setdefault(key, []).append(price)
    return {key: found for key, prices in by_key.items() if (found := newest(prices))}
