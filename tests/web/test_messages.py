"""A refusal says what was wrong, what was found and what is allowed, in plain words."""

from typing import Any

import pytest

from tests.tenants import Tenants

ACCOUNT = "/v1/accounts/01890a5d-ac96-774b-bcce-b302099a8057"
GOOD_PAYLOAD: dict[str, Any] = {
    "symbol": "AAPL",
    "order_side": "BUY",
    "spec": {"Market": {"quantity": "1"}},
}


@pytest.fixture(scope="module")
def intents(tenants: Tenants) -> str:
    body = {"name": "messages", "broker": "paper", "environment": "paper"}
    made = tenants.client.post("/v1/accounts", json=body, headers=tenants.callers["key_all"])
    return f"/v1/accounts/{made.json()['id']}/intents"


def answered(tenants: Tenants, path: str, body: Any, method: str = "POST") -> dict[str, Any]:
    answer = tenants.client.request(method, path, json=body, headers=tenants.callers["key_all"])
    assert answer.status_code == 422, answer.text
    [error] = answer.json()["errors"]
    found: dict[str, Any] = error
    return found


def create(**changes: Any) -> dict[str, Any]:
    return {"command": {"type": "CREATE", "payload": GOOD_PAYLOAD | changes}}


@pytest.mark.parametrize(
    ("body", "pointer", "detail"),
    [
        (
            {"command": {"type": "BUY", "payload": GOOD_PAYLOAD}},
            "/command/type",
            "found 'BUY'; use CREATE, REPLACE or CANCEL",
        ),
        (
            create(order_side="LONG"),
            "/command/payload/order_side",
            "found 'LONG'; use BUY, SELL or SELL_SHORT",
        ),
        (
            create(spec={"Market": {"quantity": 10}}),
            "/command/payload/spec/Market/quantity",
            (
                'found a number; amounts are decimal strings such as "10.5", since a JSON number '
                "may lose digits"
            ),
        ),
        (create(symbol=7), "/command/payload/symbol", "must be a string, found a number"),
        (create(spec=None), "/command/payload/spec", "must be an object, found null"),
        ({"command": {"type": "CREATE"}}, "/command/payload", "is required"),
        ([], "", "must be an object, found a list"),
        (
            {"command": {"type": "CANCEL", "payload": {"symbol": "AAPL"}}},
            "/command/payload/symbol",
            "unknown field; use ref_intent_id",
        ),
    ],
)
def test_a_bad_command_is_answered_with_what_is_allowed(
    tenants: Tenants, intents: str, body: Any, pointer: str, detail: str
) -> None:
    error = answered(tenants, intents, body)
    assert (error["pointer"], error["detail"]) == (pointer, detail)


def test_a_mistyped_field_is_answered_with_the_right_one(tenants: Tenants, intents: str) -> None:
    body = create(spec={"Limit": {"quantity": "1", "limitprice": "2"}})
    error = answered(tenants, intents, body)
    assert (error["pointer"], error["did_you_mean"]) == (
        "/command/payload/spec/Limit/limitprice",
        "limit_price",
    )
    assert error["detail"] == "unknown field; did you mean limit_price?"


def test_a_long_value_is_cut_in_the_message(tenants: Tenants, intents: str) -> None:
    assert len(answered(tenants, intents, create(order_side="L" * 30_000))["detail"]) < 120


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"name": "x" * 129}, "must have at most 128 characters"),
        ({"name": ""}, "must not be empty"),
        ({"name": "a\nb"}, "must have no control characters and no invisible ones"),
        ({"environment": "test"}, "found 'test'; use paper or live"),
        ({"broker": "papr"}, "no such broker: papr; use alpaca, paper or remote"),
        (
            {"broker": "paper", "environment": "live"},
            "the broker paper has no environment live; use paper",
        ),
    ],
)
def test_a_bad_account_is_answered_with_what_is_allowed(
    tenants: Tenants, changes: dict[str, Any], detail: str
) -> None:
    # `live` needs a caller who may make live accounts, to be refused for the broker and not for the
    # key.
    body = {"name": "x", "broker": "paper", "environment": "paper"} | changes
    answer = tenants.client.post("/v1/accounts", json=body, headers=tenants.callers["admin"])
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["detail"] == detail


def test_a_bad_number_is_answered_with_its_bounds(tenants: Tenants, intents: str) -> None:
    path = f"/v1/controls/accounts/{intents.split('/')[3]}/symbols/AAPL/time"
    assert (
        answered(tenants, path, {"stale_order_millis": 0}, "PATCH")["detail"]
        == "must be at least 1"
    )
    assert answered(tenants, path, {"stale_order_millis": "1"}, "PATCH")["detail"] == (
        "must be a whole number or null, found a string"
    )
