"""GET balances and BALANCE events from outside, on the paper broker: cash, buying power and equity
move with fills."""

from decimal import Decimal
from typing import Any

from tests.answer_patterns import STAMP
from tests.intents.http_client import Tables, TradingClient, create, limit
from tests.prices.conftest import OpenClient
from tests.prices.market import new_symbol, post_quote, trade
from tests.stream.client import BALANCE, POSITION, Client
from tests.tenants import Tenants
from tests.waiting import eventually

START = "1000000"
PUBLISHED_SECONDS = 20.0


def balances(trading_client: TradingClient, **headers: str) -> dict[str, Any]:
    url = f"/v1/accounts/{trading_client.account['id']}/balances"
    answer = trading_client.client.get(url, headers=headers or trading_client.headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def amounts(trading_client: TradingClient) -> tuple[Any, ...]:
    reported = balances(trading_client)
    return reported["cash"], reported["buying_power"], reported["equity"]


def until(trading_client: TradingClient, *wanted: str) -> None:
    try:
        eventually(lambda: amounts(trading_client) == wanted, PUBLISHED_SECONDS)
    except AssertionError:
        raise AssertionError(f"{amounts(trading_client)}, not {wanted}") from None


def test_a_paper_account_starts_with_its_cash(open_client: OpenClient, tenants: Tenants) -> None:
    trading_client = open_client()
    until(trading_client, START, START, START)
    reported = balances(trading_client)
    assert STAMP.fullmatch(reported.pop("as_of"))
    assert reported == {
        "account_id": trading_client.account["id"],
        "currency": "USD",
        "cash": START,
        "buying_power": START,
        "equity": START,
    }
    for caller in ("read_only", "service_all"):
        assert balances(trading_client, **tenants.callers[caller])["cash"] == START


def test_a_broker_that_reports_no_balances_leaves_them_null(open_client: OpenClient) -> None:
    trading_client = open_client(broker="remote", environment="live", caller="key_live")
    assert balances(trading_client) == {
        "account_id": trading_client.account["id"],
        "currency": None,
        "cash": None,
        "buying_power": None,
        "equity": None,
        "as_of": None,
    }


def test_balances_are_the_accounts_organizations_and_environments(
    open_client: OpenClient, tenants: Tenants
) -> None:
    url = f"/v1/accounts/{open_client().account['id']}/balances"
    expected = {"key_live": 403, "other_key": 404, "other_admin": 404, "key_none": 403, "none": 401}
    for caller, status in expected.items():
        assert (caller, tenants.client.get(url, headers=tenants.callers[caller]).status_code) == (
            caller,
            status,
        )


def test_fills_move_cash_and_equity_is_valued_at_the_quotes_middle(
    tenants: Tenants, open_client: OpenClient
) -> None:
    symbol = new_symbol()
    trading_client = open_client()
    post_quote(tenants, symbol, "10", "12")
    trade(trading_client, symbol, "BUY", "100")
    until(trading_client, "998800", "998800", "999900")  # 1,200 paid for what is worth 1,100
    post_quote(tenants, symbol, "20", "22")
    trade(trading_client, symbol, "SELL", "50")
    until(trading_client, "999800", "999800", "1000850")  # 1,000 got, 50 left at 21
    trade(trading_client, symbol, "SELL", "50")
    until(trading_client, "1000800", "1000800", "1000800")


def test_equity_follows_the_price_when_it_is_read(
    tenants: Tenants, open_client: OpenClient, tables: Tables
) -> None:
    symbol = new_symbol()
    trading_client = open_client()
    post_quote(tenants, symbol, "10", "10")
    trade(trading_client, symbol, "BUY", "100")
    before = balances(trading_client)["as_of"]
    for price in range(20, 25):
        post_quote(tenants, symbol, str(price), str(price))
        reported = balances(trading_client)
        assert (reported["equity"], reported["cash"]) == (str(999000 + 100 * price), "999000")
        assert reported["as_of"] > before
    stale = "UPDATE paper_quotes SET posted_at = posted_at - interval '5 h' WHERE symbol = $1"
    tables.execute(stale, symbol)
    assert balances(trading_client)["equity"] == "1001400"
    for caller, status in (("other_key", 404), ("key_live", 403)):
        url = f"/v1/accounts/{trading_client.account['id']}/balances"
        assert tenants.client.get(url, headers=tenants.callers[caller]).status_code == status


def test_a_short_sale_is_worth_less_when_the_price_rises(
    tenants: Tenants, open_client: OpenClient
) -> None:
    symbol = new_symbol()
    trading_client = open_client()
    post_quote(tenants, symbol, "10", "10")
    trade(trading_client, symbol, "SELL_SHORT", "100")
    until(trading_client, "1001000", "999000", START)


def test_a_walked_position_counts_at_the_walks_middle(open_client: OpenClient) -> None:
    symbol = new_symbol()
    trading_client = open_client()
    paid = Decimal(trade(trading_client, symbol, "BUY", "1")["average_price"])
    eventually(
        lambda: Decimal(balances(trading_client)["cash"] or 0) == Decimal(START) - paid,
        PUBLISHED_SECONDS,
    )
    assert abs(Decimal(balances(trading_client)["equity"]) - Decimal(START)) < 21


def test_an_open_order_reserves_buying_power_and_is_published_at_its_pace(
    open_client: OpenClient,
) -> None:
    symbol = new_symbol()
    trading_client = open_client()
    until(trading_client, START, START, START)
    trading_client.accepted(create(limit("10", "1"), symbol=symbol))
    until(trading_client, START, "999990", START)


def balance_events(trading_client: TradingClient) -> list[Any]:
    return [
        event.balance for event in trading_client.events() if event.WhichOneof("event") == "balance"
    ]


def test_cash_changes_are_streamed(
    tenants: Tenants, open_client: OpenClient, client: Client
) -> None:
    symbol = new_symbol()
    trading_client = open_client()
    until(trading_client, START, START, START)
    post_quote(tenants, symbol, "10", "10")
    kinds = (BALANCE, POSITION)
    follower = client.follow(
        trading_client.headers, trading_client.account["id"], kinds
    ).subscribed()
    trade(trading_client, symbol, "BUY", "100")
    # The event of the first balance may come after the subscription.
    (event,) = follower.until(lambda event: event.balance.cash not in ("", START))[-1:]
    reported = event.balance
    shown = balances(trading_client)
    assert (reported.account_id, reported.organization_id) == (
        shown["account_id"],
        trading_client.account["organization_id"],
    )
    assert (reported.broker, reported.currency, reported.cash, reported.equity) == (
        "paper",
        "USD",
        "999000",
        START,
    )
    assert event.cursor


def test_nothing_is_streamed_while_nothing_changes(
    tenants: Tenants, open_client: OpenClient, tables: Tables
) -> None:
    symbol = new_symbol()
    trading_client = open_client()
    post_quote(tenants, symbol, "10", "10")
    trade(trading_client, symbol, "BUY", "100")
    until(trading_client, "999000", "999000", START)
    eventually(
        lambda: [event.cash for event in balance_events(trading_client)] == [START, "999000"],
        PUBLISHED_SECONDS,
    )
    reported = balance_events(trading_client)
    # Refused by the venue: nothing is reserved.
    trading_client.accepted(create(limit("1000000", "9000"), symbol=symbol))
    eventually(
        lambda: (
            tables.value(
                """
                    SELECT count(*) FROM orders
                    WHERE account_id = $1::text::uuid AND order_status = 'REJECTED'
                """,
                trading_client.account["id"],
            )
            == 1
        ),
        PUBLISHED_SECONDS,
    )
    assert balance_events(trading_client) == reported
