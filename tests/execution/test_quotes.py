"""PUT /v1/paper/quotes/{symbol} from outside: what is taken, what is refused and where, and whose
it is."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.answer_patterns import STAMP
from tests.conftest import Urls
from tests.intents.http_client import Tables, pointers
from tests.tenants import Tenants

QUOTE = {"bid": "99.5", "ask": "100", "bid_size": "300", "ask_size": "200"}


@pytest.fixture
def tables(tenants_database: Urls) -> Iterator[Tables]:
    opened = Tables(tenants_database.owner)
    yield opened
    opened.close()


def put(tenants: Tenants, symbol: str, body: Any, caller: str = "key_all") -> Any:
    return tenants.client.put(
        f"/v1/paper/quotes/{symbol}", json=body, headers=tenants.callers[caller]
    )


def new_symbol() -> str:
    return uuid.uuid4().hex[:12].upper()


def test_a_quote_is_stored_and_answered(tenants: Tenants) -> None:
    symbol = new_symbol()
    answer = put(
        tenants, symbol, QUOTE | {"bid": "99.50", "last": "99.75", "last_size": "10.00"}, "admin"
    )
    assert (answer.status_code, answer.headers["etag"]) == (200, '"1"')
    quote = answer.json()
    assert STAMP.fullmatch(quote.pop("updated_at"))
    assert quote == QUOTE | {
        "organization_id": tenants.organization("org_acme")["id"],
        "symbol": symbol,
        "last": "99.75",
        "last_size": "10",
        "version": 1,
    }
    again = put(tenants, symbol, QUOTE).json()
    assert (again["last"], again["last_size"], again["version"]) == (None, None, 2)


def test_a_symbol_has_one_spelling_and_may_have_a_slash(tenants: Tenants) -> None:
    name = new_symbol()
    assert put(tenants, f"x{name.lower()}%2Fusd", QUOTE).json()["symbol"] == f"X{name}/USD"
    assert put(tenants, f"X{name}%2FUSD", QUOTE).json()["version"] == 2
    assert put(tenants, f"X{name}%2FUSD", QUOTE, "other_key").json()["version"] == 1, (
        "another's quotes are its own"
    )
    for symbol in ("-A", "A" * 33, "A%20B", "%C3%84"):
        answer = put(tenants, symbol, QUOTE)
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), symbol


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"bid": "100.01"}, "/bid"),
        ({"bid": "0"}, "/bid"),
        ({"ask": "0.00"}, "/ask"),
        ({"bid_size": "0"}, "/bid_size"),
        ({"ask_size": "-1"}, "/ask_size"),
        ({"ask_size": "1e5"}, "/ask_size"),
        ({"last": "NaN"}, "/last"),
        ({"last": "1", "last_size": "0"}, "/last_size"),
        ({"last_size": "5"}, "/last_size"),
        ({"ask": "1" * 19}, "/ask"),
        ({"ask": "1." + "1" * 19}, "/ask"),
        ({"ask": "\u0661\u0660"}, "/ask"),
        ({"bid": 99.5}, "/bid"),
        ({"bid": 99}, "/bid"),
        ({"bid": None}, "/bid"),
        ({"size": "1"}, "/size"),
    ],
)
def test_a_wrong_quote_is_refused_at_its_field(
    tenants: Tenants, changes: dict[str, Any], pointer: str
) -> None:
    answer = put(tenants, "ACME", QUOTE | changes)
    assert pointers(answer) == [pointer]
    if isinstance(changes.get("bid"), int | float):
        assert "decimal strings" in answer.json()["detail"]


@pytest.mark.parametrize("field", QUOTE)
def test_every_side_is_needed(tenants: Tenants, field: str) -> None:
    assert pointers(
        put(tenants, "ACME", {name: value for name, value in QUOTE.items() if name != field})
    ) == [f"/{field}"]


def test_bid_and_ask_may_meet(tenants: Tenants) -> None:
    assert put(tenants, new_symbol(), QUOTE | {"bid": "100.000"}).status_code == 200


def test_only_the_last_thousand_quotes_are_kept(tenants: Tenants, tables: Tables) -> None:
    symbol = new_symbol()
    put(tenants, symbol, QUOTE)
    tables.execute("UPDATE paper_symbols SET number = 1001 WHERE symbol = $1", symbol)
    assert put(tenants, symbol, QUOTE).json()["version"] == 1002
    assert tables.fetch("SELECT number FROM paper_quotes WHERE symbol = $1", symbol) == [
        {"number": 1002}
    ]
