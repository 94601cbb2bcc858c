"""Reference prices of a recording: of its trades, and of brokers' reports. Pure: no I/O, no
clock."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from trading_intents.brokers.port import BrokerEvent
from trading_intents.orders.executions import TradeFlag
from trading_intents.orders.ledger.booking import TradeChange
from trading_intents.orders.ledger.matching import AccountRef
from trading_intents.prices.model import PriceKey, PriceSource, ReferencePrice, market_of, newest
from trading_intents.trading import Symbol


def reported_prices(
    account_ref: AccountRef,
    changes: Sequence[TradeChange],
    reports: Iterable[BrokerEvent],
    now: datetime,
) -> tuple[ReferencePrice, ...]:
    """A corrected trade sets its price again, at its own time; a fill that we only infer sets
    none."""
    environment = account_ref.environment
    found = []
    for change in changes:
        trade = change.after
        is_priced = trade.quantity and trade.price > 0 and TradeFlag.GAP not in trade.flags
        if is_priced and change.is_published:
            found.append(
                ReferencePrice(
                    Symbol(trade.symbol), environment, trade.price, PriceSource.TRADE, trade.at
                )
            )
    for event in reports:
        if event.symbol and event.price and event.price > 0:
            at = min(event.venue_time or now, now)
            found.append(
                ReferencePrice(event.symbol, environment, event.price, PriceSource.QUOTE, at)
            )
    return tuple(found)


def newest_prices(
    prices: Iterable[tuple[AccountRef, ReferencePrice]],
) -> Mapping[PriceKey, ReferencePrice]:
    """Of each key one, over all accounts."""
    by_key: dict[PriceKey, list[ReferencePrice]] = {}
    for account_ref, price in prices:
        market = market_of(account_ref.broker, price.environment)
        key = PriceKey(account_ref.organization_id, market, price.symbol)
        by_key.setdefault(key, []).append(price)
    return {key: found for key, prices in by_key.items() if (found := newest(prices))}
