"""Money, prices, lists, limits and halts, by the client and against the real platform."""

from datetime import timedelta
from decimal import Decimal

import pytest

from trading_intents_client import (
    Account,
    BalanceEvent,
    HaltEvent,
    HaltState,
    Limits,
    OrderStatus,
    PriceSource,
    QuoteSource,
    TradingClient,
    create_command,
    errors,
)

PAPER_CASH = 1_000_000


def test_prices_and_money_are_shown(account: Account, client: TradingClient) -> None:
    quote = client.market.quote("AAPL")
    assert quote.source is QuoteSource.WALK
    assert 0 < quote.bid <= quote.ask
    client.market.post_quote("BTC/USD", bid="99", ask="101", bid_size=5, ask_size=5)
    assert client.market.quote("btc/usd").source is QuoteSource.POSTED
    assert "BTC/USD" in [found.symbol for found in client.market.quotes()]
    posted = client.market.post_reference_price("PRICED", "12.5")
    assert (posted.price, posted.source) == (Decimal("12.5"), PriceSource.POSTED)
    assert client.market.reference_price("PRICED") == posted
    assert "PRICED" in [price.symbol for price in client.market.reference_prices()]
    account.buy("AAPL", 2).wait()
    (position,) = account.positions()
    assert position.market_price is not None
    assert position.market_value == position.market_price * 2
    assert position.unrealized_pnl is not None
    assert account.balances().account_id == account.id


def test_lists_are_read_in_both_orders_and_by_time_and_status(account: Account) -> None:
    placed = [account.buy("ACME", number, limit=1) for number in (1, 2, 3)]
    filled = account.buy("AAPL", 4).wait()
    for order in placed:
        order.wait(until="NEW")
    assert [order.quantity for order in account.orders(order="desc")] == [4, 3, 2, 1]
    assert [order.quantity for order in account.orders(status="NEW")] == [1, 2, 3]
    assert [
        order.quantity for order in account.orders(status=[OrderStatus.FILLED, "REJECTED"])
    ] == [4]
    assert [order.quantity for order in account.orders(created_after=filled.created_at)] == [4]
    assert [
        order.quantity for order in account.orders(created_before=filled.created_at, order="desc")
    ] == [3, 2, 1]
    assert [action.seq for action in account.intents(order="desc")] == [4, 3, 2, 1]
    assert list(account.trades(created_before=filled.created_at - timedelta(hours=1))) == []
    first = account.orders(order="desc").page(limit=2)
    rest = account.orders(order="desc").page(cursor=first.next_cursor)
    assert [order.quantity for order in (*first.data, *rest.data)] == [4, 3, 2, 1]
    with pytest.raises(errors.InvalidCursor):
        account.orders().page(cursor=first.next_cursor)


def test_limits_are_set_judged_and_removed(account: Account) -> None:
    made = account.controls.set_limits(
        Limits(max_order_quantity=Decimal(5), max_open_orders=1, allow_short=False)
    )
    assert made.max_order_quantity == 5
    assert account.controls.limits() == made
    with pytest.raises(errors.ControlRejected) as refused:
        account.buy("AAPL", 6)
    (triggered,) = refused.value.triggered
    assert (triggered.reason, triggered.limit, triggered.asked) == ("max_order_quantity", "5", "6")
    judged = account.controls.evaluate("AAPL", create_command("AAPL", "SELL_SHORT", 6))
    assert {one.reason for one in judged.triggered} == {"max_order_quantity", "allow_short"}
    assert not judged.allowed
    with pytest.raises(errors.VersionConflict):
        account.controls.set_limits(Limits(), version=7)
    changed = account.controls.set_limits(Limits(allowed_symbols=["MSFT"]), version=made.version)
    assert changed.max_order_quantity is None
    with pytest.raises(errors.ControlRejected):
        account.buy("AAPL", 1)
    account.controls.set_symbol_limits("MSFT", Limits(max_order_notional=Decimal("0.01")))
    with pytest.raises(errors.ControlRejected):
        account.buy("MSFT", 1)
    account.controls.delete_symbol_limits("MSFT")
    account.controls.delete_limits()
    with pytest.raises(errors.NotFound):
        account.controls.limits()
    assert account.buy("AAPL", 6).wait().is_final


def test_a_halt_cancels_open_orders_and_is_on_the_stream(account: Account) -> None:
    with pytest.raises(errors.NotFound):
        account.controls.current_halt()
    resting = account.buy("ACME", 3, limit=1)
    resting.wait(until="NEW")
    with account.events(kinds=["halt"]) as stream:
        halt = account.controls.halt("strange news")
        assert halt.reason == "strange news"
        assert resting.wait().order_status == "CANCELLED"
        halts = (event.halt for event in stream if isinstance(event, HaltEvent))
        received = next(one for one in halts if one.state is HaltState.DONE)
    assert (received.id, received.account_id) == (halt.id, account.id)
    assert account.controls.current_halt().state == "done"
    with pytest.raises(errors.ControlRejected):
        account.buy("AAPL", 1)
    assert account.controls.resume().state == "resumed"
    with pytest.raises(errors.NotHalted):
        account.controls.resume()


def test_all_orders_are_cancelled_and_a_position_is_closed(account: Account) -> None:
    resting = [account.buy("ACME", number, limit=1) for number in (1, 2)]
    other = account.buy("OTHER", 1, limit=1)
    for order in (*resting, other):
        order.wait(until="NEW")
    answer = account.cancel_all("ACME")
    assert {one.intent_id for one in answer.intents} == {order.intent_id for order in resting}
    assert not answer.more
    assert [order.wait().order_status for order in resting] == ["CANCELLED"] * 2
    assert [one.intent_id for one in account.cancel_all().intents] == [other.intent_id]
    with pytest.raises(errors.NoPosition):
        account.close_position("AAPL")
    account.buy("AAPL", 7).wait()
    closing = account.close_position("AAPL", idempotency_key="close-1")
    assert closing.wait().filled_quantity == 7
    assert account.close_position("AAPL", idempotency_key="close-1").is_replayed
    (position,) = account.positions()
    assert position.quantity == 0


def test_balances_are_on_the_stream_where_they_are_asked_for(account: Account) -> None:
    with account.events(kinds=["balance"]) as stream:
        next(stream)
        price = account.buy("AAPL", 1).wait().average_price
        balances = (event.balance for event in stream if isinstance(event, BalanceEvent))
        received = next(one for one in balances if one.cash not in (None, PAPER_CASH))
    assert received.account_id == account.id
    assert price is not None
    assert received.cash == PAPER_CASH - price == account.balances().cash


def test_the_caller_can_be_asked_for(client: TradingClient) -> None:
    caller = client.organization.caller()
    assert caller.organization_name == "Acme"
    assert caller.environment == "paper"
