"""GET /v1/paper/quotes from outside: the posted quote or the walk's, as the caller's organization
sees it."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.answer_patterns import STAMP
from tests.prices.market import new_symbol
from tests.tenants import Tenants

QUOTE = {
    "bid": "99.5",
    "ask": "100",
    "bid_size": "300",
    "ask_size": "200",
    "last": "99.75",
    "last_size": "5",
}


def put(tenants: Tenants, symbol: str, body: Any = QUOTE, caller: str = "key_all") -> Any:
    answer = tenants.client.put(
        f"/v1/paper/quotes/{symbol}", json=body, headers=tenants.callers[caller]
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def get(tenants: Tenants, symbol: str, caller: str = "key_all") -> Any:
    return tenants.client.get(f"/v1/paper/quotes/{symbol}", headers=tenants.callers[caller])


def test_a_posted_quote_is_read_as_it_was_posted(tenants: Tenants) -> None:
    symbol = new_symbol()
    posted = put(tenants, symbol)
    for caller in ("key_all", "read_only", "service_all"):
        assert get(tenants, symbol.lower(), caller).json() == QUOTE | {
            "symbol": symbol,
            "source": "posted",
            "as_of": posted["updated_at"],
        }
    again = put(tenants, symbol, {**QUOTE, "last": None, "last_size": None, "bid": "98"})
    assert (get(tenants, symbol).json()["bid"], get(tenants, symbol).json()["last"]) == ("98", None)
    assert get(tenants, symbol).json()["as_of"] == again["updated_at"]


def test_if_match_makes_a_quote_conditional(tenants: Tenants) -> None:
    url = f"/v1/paper/quotes/{new_symbol()}"

    def post(**headers: str) -> Any:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return tenants.client.put(url, json=QUOTE, headers=tenants.callers["key_all"] | given)

    for none_yet in ('"1"', "*"):
        assert post(if_match=none_yet).json()["code"] == "version_conflict"
    assert post().headers["etag"] == '"1"'
    assert post(if_match='"1"').headers["etag"] == '"2"'
    assert post(if_match='"1"').status_code == 412
    assert post(if_match="*").headers["etag"] == '"3"', "a refused quote takes no version"


def test_without_a_posted_quote_the_walk_is_read(tenants: Tenants) -> None:
    symbol = new_symbol()
    put(tenants, symbol)
    quote = get(tenants, symbol, "other_key").json()
    assert (quote["source"], quote["last"], quote["last_size"]) == ("walk", None, None)
    assert Decimal(quote["ask"]) - Decimal(quote["bid"]) == Decimal("0.02")
    assert 100 <= int(quote["bid_size"]) <= 1_000
    assert STAMP.fullmatch(quote["as_of"])
    at = datetime.fromisoformat(quote["as_of"])
    assert abs(datetime.now(at.tzinfo) - at) < timedelta(seconds=30)


@pytest.mark.parametrize("symbol", ["-A", "A" * 33, "A%20B"])
def test_what_is_no_symbol_has_no_quote(tenants: Tenants, symbol: str) -> None:
    assert get(tenants, symbol).status_code == 404


def test_the_list_has_the_organizations_posted_quotes_by_symbol(tenants: Tenants) -> None:
    prefix = new_symbol()
    for letter in "cab":
        put(tenants, f"{prefix}{letter}")
    put(tenants, f"{prefix}a", QUOTE | {"bid": "97"})
    found: list[Any] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = tenants.client.get(
            "/v1/paper/quotes", params=query, headers=tenants.callers["key_all"]
        ).json()
        assert len(page["data"]) <= 2
        found += page["data"]
        if page["next_cursor"] is None:
            break
        query["next_cursor"] = page["next_cursor"]
    own = [each for each in found if each["symbol"].startswith(prefix)]
    assert [(each["symbol"], each["bid"]) for each in own] == [
        (f"{prefix}A", "97"),
        (f"{prefix}B", "99.5"),
        (f"{prefix}C", "99.5"),
    ]
    assert own[0] == get(tenants, f"{prefix}A").json()
    assert [each["symbol"] for each in found] == sorted(each["symbol"] for each in found)
    other = tenants.client.get(
        "/v1/paper/quotes",
        params={"next_cursor": query["next_cursor"]},
        headers=tenants.callers["other_key"],
    )
    assert (other.status_code, other.json()["code"]) == (400, "invalid_cursor")


def test_a_live_key_reads_no_paper_quotes(tenants: Tenants) -> None:
    assert get(tenants, "ACME", "key_live").status_code == 403
    assert (
        tenants.client.get("/v1/paper/quotes", headers=tenants.callers["key_live"]).status_code
        == 403
    )
