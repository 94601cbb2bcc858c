"""/v1/reference-prices from outside: posted, traded and quoted prices, whose they are, and what is
refused."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.answer_patterns import STAMP
from tests.intents.http_client import Tables, pointers
from tests.prices.conftest import OpenClient
from tests.prices.market import new_symbol, post_quote, trade
from tests.tenants import Tenants
from trading_intents.prices.service import MAX_SYMBOLS


def put(tenants: Tenants, symbol: str, body: Any, caller: str = "key_live") -> Any:
    return tenants.client.put(
        f"/v1/reference-prices/{symbol}", json=body, headers=tenants.callers[caller]
    )


def get(tenants: Tenants, symbol: str, caller: str = "key_live", **query: str) -> Any:
    return tenants.client.get(
        f"/v1/reference-prices/{symbol}", params=query, headers=tenants.callers[caller]
    )


def price_of(
    tenants: Tenants, symbol: str, caller: str = "key_all", **query: str
) -> tuple[str, str]:
    answer = get(tenants, symbol, caller, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()["price"], answer.json()["source"]


def age(tables: Tables, symbol: str, seconds: int) -> None:
    tables.execute(
        "UPDATE reference_prices SET as_of = as_of - make_interval(secs => $2) WHERE symbol = $1",
        symbol,
        seconds,
    )


def test_a_posted_price_is_answered_and_read(tenants: Tenants) -> None:
    symbol = new_symbol()
    answer = put(tenants, symbol.lower(), {"price": "187.50"})
    assert answer.status_code == 200, answer.text
    posted = answer.json()
    assert STAMP.fullmatch(posted["as_of"])
    assert posted == {
        "symbol": symbol,
        "environment": "live",
        "price": "187.5",
        "source": "posted",
        "as_of": posted["as_of"],
    }
    assert get(tenants, symbol).json() == posted
    assert put(tenants, symbol, {"price": "188"}).json()["price"] == "188"
    assert price_of(tenants, symbol, "key_live") == ("188", "posted")


def test_a_symbol_may_have_a_slash(tenants: Tenants) -> None:
    symbol = f"{new_symbol()}/USD"
    assert put(tenants, symbol.replace("/", "%2F"), {"price": "1"}).json()["symbol"] == symbol
    assert price_of(tenants, symbol.replace("/", "%2F"), "key_live") == ("1", "posted")


def test_prices_are_kept_by_organization_and_environment(tenants: Tenants) -> None:
    symbol = new_symbol()
    assert put(tenants, symbol, {"price": "1", "environment": "live"}, "admin").status_code == 200
    assert put(tenants, symbol, {"price": "2", "environment": "paper"}, "admin").status_code == 200
    assert put(tenants, symbol, {"price": "3"}, "other_key").status_code == 200
    assert price_of(tenants, symbol, "key_live") == ("1", "posted")
    assert price_of(tenants, symbol, "key_all") == ("2", "posted")
    assert price_of(tenants, symbol, "member", environment="live") == ("1", "posted")
    assert price_of(tenants, symbol, "service_all", environment="paper") == ("2", "posted")
    assert price_of(tenants, symbol, "other_key") == ("3", "posted")


def test_an_api_key_has_its_own_environment_only(tenants: Tenants) -> None:
    symbol = new_symbol()
    assert (
        put(tenants, symbol, {"price": "1", "environment": "live"}, "key_live").status_code == 200
    )
    for answer in (
        put(tenants, symbol, {"price": "1", "environment": "live"}, "key_all"),
        get(tenants, symbol, "key_all", environment="live"),
        tenants.client.get(
            "/v1/reference-prices?environment=live", headers=tenants.callers["key_all"]
        ),
    ):
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_users_and_services_name_the_environment(tenants: Tenants) -> None:
    assert pointers(put(tenants, "ACME", {"price": "1"}, "admin")) == ["/environment"]
    assert pointers(put(tenants, "ACME", {"price": "1", "environment": "test"}, "admin")) == [
        "/environment"
    ]
    for caller in ("member", "service_all"):
        assert pointers(get(tenants, "ACME", caller)) == ["?environment"]
        assert pointers(get(tenants, "ACME", caller, environment="Paper")) == ["?environment"]
        answer = tenants.client.get("/v1/reference-prices", headers=tenants.callers[caller])
        assert pointers(answer) == ["?environment"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/price"),
        ({"price": "0"}, "/price"),
        ({"price": "-1"}, "/price"),
        ({"price": "1e3"}, "/price"),
        ({"price": None}, "/price"),
        ({"price": 187.5}, "/price"),
        ({"price": "1", "prise": "1"}, "/prise"),
    ],
)
def test_a_wrong_price_is_refused_at_its_field(
    tenants: Tenants, body: dict[str, Any], pointer: str
) -> None:
    answer = put(tenants, "ACME", body)
    assert pointers(answer) == [pointer]
    if body.get("price") == 187.5:
        assert "decimal strings" in answer.json()["detail"]


def test_what_is_no_symbol_has_no_price(tenants: Tenants) -> None:
    assert put(tenants, "-A", {"price": "1"}).status_code == 422
    assert get(tenants, "-A").status_code == 404


def test_an_unknown_price_and_one_that_is_too_old_are_not_found(
    tenants: Tenants, tables: Tables
) -> None:
    symbol = new_symbol()
    assert (get(tenants, symbol).status_code, get(tenants, symbol).json()["code"]) == (
        404,
        "not_found",
    )
    put(tenants, symbol, {"price": "1"})
    age(tables, symbol, 880)
    assert price_of(tenants, symbol, "key_live") == ("1", "posted")
    age(tables, symbol, 21)
    assert get(tenants, symbol).status_code == 404
    listed = tenants.client.get(
        "/v1/reference-prices?limit=100", headers=tenants.callers["key_live"]
    ).json()["data"]
    assert symbol not in {each["symbol"] for each in listed}


def test_on_paper_the_quotes_middle_counts(tenants: Tenants) -> None:
    symbol = new_symbol()
    walked = get(tenants, symbol, "key_all").json()
    assert (walked["source"], walked["environment"]) == ("quote", "paper")
    assert 29 < float(walked["price"]) < 521
    post_quote(tenants, symbol, "10", "10.5")
    assert price_of(tenants, symbol) == ("10.25", "quote")
    assert get(tenants, symbol, "key_live").status_code == 404, "a paper quote is no live price"


def test_the_newest_of_quote_trade_and_posted_counts(
    tenants: Tenants, open_client: OpenClient
) -> None:
    symbol = new_symbol()
    trading_client = open_client()
    post_quote(tenants, symbol, "10", "11")
    trade(trading_client, symbol, "BUY", "5")
    assert price_of(tenants, symbol) == ("11", "trade")
    put(tenants, symbol, {"price": "12"}, "key_all")
    assert price_of(tenants, symbol) == ("12", "posted")
    post_quote(tenants, symbol, "13", "14")
    assert price_of(tenants, symbol) == ("13.5", "quote")
    trade(trading_client, symbol, "SELL", "5")
    assert price_of(tenants, symbol) == ("13", "trade")


def test_a_posted_price_holds_against_the_walk(tenants: Tenants, tables: Tables) -> None:
    symbol = new_symbol()
    put(tenants, symbol, {"price": "7"}, "key_all")
    assert price_of(tenants, symbol) == ("7", "posted")
    age(tables, symbol, 901)
    assert price_of(tenants, symbol)[1] == "quote"


def test_the_list_is_by_symbol_and_in_pages(tenants: Tenants) -> None:
    prefix = new_symbol()
    for letter in "cab":
        put(tenants, f"{prefix}{letter}", {"price": "1"})
    headers = tenants.callers["key_live"]
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = tenants.client.get("/v1/reference-prices", params=query, headers=headers).json()
        assert len(page["data"]) <= 2
        found += page["data"]
        if page["next_cursor"] is None:
            break
        query["next_cursor"] = page["next_cursor"]
    symbols = [each["symbol"] for each in found]
    assert symbols == sorted(set(symbols))
    assert [symbol for symbol in symbols if symbol.startswith(prefix)] == [
        f"{prefix}{letter}" for letter in "ABC"
    ]
    assert {each["environment"] for each in found} == {"live"}
    other = tenants.client.get(
        "/v1/reference-prices",
        params={"next_cursor": query["next_cursor"]},
        headers=tenants.callers["key_all"],
    )
    assert (other.status_code, other.json()["code"]) == (400, "invalid_cursor")


def test_a_paper_list_has_the_symbols_with_posted_quotes(tenants: Tenants) -> None:
    symbol = new_symbol()
    post_quote(tenants, symbol, "10", "12")
    query: dict[str, Any] = {"limit": 100}
    found: dict[str, Any] = {}
    while True:
        page = tenants.client.get(
            "/v1/reference-prices", params=query, headers=tenants.callers["key_all"]
        ).json()
        found |= {each["symbol"]: each for each in page["data"]}
        if page["next_cursor"] is None:
            break
        query["next_cursor"] = page["next_cursor"]
    assert (found[symbol]["price"], found[symbol]["source"]) == ("11", "quote")


def test_one_symbol_more_than_allowed_is_refused(tenants: Tenants, tables: Tables) -> None:
    symbol = new_symbol()
    organization = tenants.organization("org_other")["id"]
    tables.execute(
        """
        INSERT INTO reference_prices (organization_id, environment, symbol, price, source, as_of)
        SELECT $1::text::uuid, 'paper', 'FULL' || n, 1, 'posted', clock_timestamp()
        FROM generate_series(1, $2) n
        """,
        organization,
        MAX_SYMBOLS,
    )
    try:
        answer = put(tenants, symbol, {"price": "1"}, "other_key")
        assert (answer.status_code, answer.json()["code"]) == (409, "limit_reached")
        assert put(tenants, "FULL1", {"price": "2"}, "other_key").status_code == 200
    finally:
        tables.execute("DELETE FROM reference_prices WHERE symbol LIKE 'FULL%'")


def test_a_walks_time_is_now(tenants: Tenants) -> None:
    walked = get(tenants, new_symbol(), "key_all")
    at = datetime.fromisoformat(walked.json()["as_of"])
    assert abs(datetime.now(at.tzinfo) - at) < timedelta(seconds=30)
