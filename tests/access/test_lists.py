"""Every list, read from outside: both orders, cursors that belong to their query, and what is
refused."""

import re
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.intents.http_client import REMOTE_SECRETS, create
from tests.tenants import Tenants

SYMBOLS = ("AAPL", "BRK.B", "BTC/USD", "MSFT", "Z")
# Trades and positions are in tests/execution/test_list_pages.py: here nothing says what became of
# the orders.
SHOWN_ELSEWHERE = {"/v1/accounts/{account_id}/trades", "/v1/accounts/{account_id}/positions"}


class Lists:
    """An account with a few rows in every list that the tenants have."""

    def __init__(self, tenants: Tenants) -> None:
        self._client = tenants.client
        self._headers = tenants.callers["admin"]
        key = tenants.callers["key_all"]
        account = {"broker": "paper", "environment": "paper"}
        made = [self._post("/v1/accounts", account | {"name": f"list {n}"}) for n in range(3)][-1][
            "id"
        ]
        remote = self._post(
            "/v1/accounts", {"name": "remote", "broker": "remote", "environment": "live"}
        )["id"]
        self._post(f"/v1/accounts/{remote}/credentials", {"secrets": REMOTE_SECRETS})
        intents = [
            self._client.post(
                f"/v1/accounts/{made}/intents", json=create(symbol=symbol), headers=key
            ).json()
            for symbol in SYMBOLS
        ]
        for symbol in SYMBOLS:
            path = f"/v1/controls/accounts/{made}/symbols/{symbol.replace('/', '%2F')}"
            answer = self._client.put(path, json={"manually_disabled": True}, headers=self._headers)
            assert answer.status_code == 200, answer.text
        for symbol in ("LIST1", "LIST2", "LIST3"):
            quote = {"bid": "1", "ask": "2", "bid_size": "1", "ask_size": "1"}
            answer = self._client.put(
                f"/v1/paper/quotes/{symbol}", json=quote, headers=self._headers
            )
            assert answer.status_code == 200, answer.text
        for n in range(2):
            self._post(
                "/v1/api-keys", {"name": f"list {n}", "environment": "paper", "permissions": []}
            )
            path = f"/v1/reference-prices/LIST{n}"
            assert self._client.put(path, json={"price": "5"}, headers=key).status_code == 200
        one = f"/v1/accounts/{made}"
        self.paths = {
            "/v1/accounts": "/v1/accounts",
            "/v1/accounts/{account_id}/credentials": f"/v1/accounts/{remote}/credentials",
            "/v1/accounts/{account_id}/intents": f"{one}/intents",
            "/v1/accounts/{account_id}/intents/{intent_id}/actions": f"{one}/intents/{intents[0]['intent_id']}/actions",
            "/v1/accounts/{account_id}/orders": f"{one}/orders",
            "/v1/controls/accounts/{account_id}/symbols": f"/v1/controls/accounts/{made}/symbols",
            "/v1/api-keys": "/v1/api-keys",
            "/v1/brokers": "/v1/brokers",
            "/v1/paper/quotes": "/v1/paper/quotes",
            "/v1/reference-prices": "/v1/reference-prices?environment=paper",
        }

    def _post(self, path: str, body: Any) -> Any:
        answer = self._client.post(path, json=body, headers=self._headers)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def get(self, path: str, **query: Any) -> Any:
        path, _, needed = path.partition("?")
        return self._client.get(path, params=dict(parse_qsl(needed)) | query, headers=self._headers)

    def walk(self, path: str, **query: Any) -> list[Any]:
        found: list[Any] = []
        while True:
            page = self.get(path, **query).json()
            found += page["data"]
            if page["next_cursor"] is None:
                return found
            query["next_cursor"] = page["next_cursor"]


@pytest.fixture(scope="module")
def lists(tenants: Tenants) -> Lists:
    return Lists(tenants)


def names_of(row: dict[str, Any]) -> dict[str, Any]:
    """Without what a worker changes meanwhile."""
    return {name: row[name] for name in ("id", "seq", "order_id", "symbol", "name") if name in row}


def listed(tenants: Tenants) -> dict[str, dict[str, Any]]:
    paths = tenants.client.get("/openapi.json").json()["paths"]
    parameters = {
        path: {p["name"]: p for p in answered["get"]["parameters"]}
        for path, answered in paths.items()
        if "get" in answered
    }
    return {path: found for path, found in parameters.items() if "next_cursor" in found}


def test_every_list_of_the_description_is_proved(tenants: Tenants, lists: Lists) -> None:
    described = listed(tenants)
    assert set(described) == set(lists.paths) | SHOWN_ELSEWHERE
    for path, parameters in described.items():
        schema = parameters["order"]["schema"]
        assert (schema["enum"], schema["default"]) == (["asc", "desc"], "asc"), path
    by_time = {path for path, parameters in described.items() if "created_after" in parameters}
    assert {re.sub(r".*}/", "", path) for path in by_time} == {
        "intents",
        "actions",
        "orders",
        "trades",
    }
    status = described["/v1/accounts/{account_id}/orders"]["status"]
    assert (status["schema"]["type"], status["style"], status["explode"]) == (
        "array",
        "form",
        False,
    )


def test_every_list_is_ascending_by_default_and_descending_if_asked(lists: Lists) -> None:
    for path in lists.paths.values():
        for limit in (1, 2, 100):
            ascending = [names_of(row) for row in lists.walk(path, limit=limit)]
            assert ascending
            assert [
                names_of(row) for row in lists.walk(path, limit=limit, order="asc")
            ] == ascending
            assert [
                names_of(row) for row in lists.walk(path, limit=limit, order="desc")
            ] == ascending[::-1], path


def test_a_cursor_belongs_to_its_order_and_the_limit_may_change(lists: Lists) -> None:
    proved = 0
    for path in lists.paths.values():
        for order, other in (("asc", "desc"), ("desc", "asc")):
            whole = lists.walk(path, order=order)
            cursor = lists.get(path, order=order, limit=1).json()["next_cursor"]
            if cursor is None:
                continue
            proved += 1
            rest = lists.walk(path, order=order, limit=100, next_cursor=cursor)
            assert [names_of(row) for row in rest] == [names_of(row) for row in whole[1:]]
            answer = lists.get(path, order=other, next_cursor=cursor)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")
        cursor = lists.get(path, limit=1).json()["next_cursor"]
        assert (
            lists.get(path, order="asc", **({"next_cursor": cursor} if cursor else {})).status_code
            == 200
        )
    assert proved >= 10  # of both orders: all lists but those of one row


@pytest.mark.parametrize("order", ["up", "", "ASC", "desc ", "asc,desc"])
def test_another_order_is_refused_at_its_name(lists: Lists, order: str) -> None:
    for path in lists.paths.values():
        answer = lists.get(path, order=order)
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), path
        [error] = answer.json()["errors"]
        assert error["pointer"] == "?order"
        assert "asc or desc" in error["detail"]


def test_what_is_not_there_is_not_found_before_the_order_is_looked_at(lists: Lists) -> None:
    missing = "01a1dd3b-0e5c-7d53-8a94-4b7a3c1f0b62"
    for shape in lists.paths:
        if "{" in shape:
            assert lists.get(re.sub(r"{\w+}", missing, shape), order="up").status_code == 404
    actions = lists.paths["/v1/accounts/{account_id}/intents"] + f"/{missing}/actions"
    assert lists.get(actions, order="up").status_code == 404


@pytest.mark.parametrize("name", ["created_after", "created_before", "status"])
def test_a_list_without_a_filter_refuses_it(lists: Lists, name: str) -> None:
    for path in ("/v1/accounts", "/v1/api-keys", "/v1/brokers"):
        answer = lists.get(path, **{name: "2026-01-05T15:00:00Z"})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"?{name}")
