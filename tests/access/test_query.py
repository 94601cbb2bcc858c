"""A query parameter that an endpoint does not have is refused: ignored, a mistyped filter would
show everything."""

import uuid
from typing import Any

import pytest

from tests.tenants import Tenants

UNKNOWN = str(uuid.UUID(int=1))
PAYLOAD = {"symbol": "AAPL", "order_side": "BUY", "spec": {"Market": {"quantity": "1"}}}
CREATE = {"command": {"type": "CREATE", "payload": PAYLOAD}}
# By the contract: probes are never refused, and two endpoints answer errors in plain text. Pages
# are for browsers.
ANY_QUERY = {
    "/console",
    "/console/{file}",
    "/page.css",
    "/healthz",
    "/readyz",
    "/metrics",
    "/docs",
    "/",
    "/v1/accounts/outbox/health",
    "/v1/users/me",
}


def call(tenants: Tenants, method: str, path: str, caller: str, **more: Any) -> Any:
    return tenants.client.request(method, path, headers=tenants.callers[caller], **more)


def operations(tenants: Tenants) -> list[tuple[str, str, dict[str, Any]]]:
    paths = tenants.client.get("/openapi.json").json()["paths"]
    return [
        (method.upper(), path, answered)
        for path, methods in paths.items()
        for method, answered in methods.items()
    ]


@pytest.fixture(scope="module")
def account(tenants: Tenants) -> str:
    made = {"name": "query", "broker": "paper", "environment": "paper"}
    return str(call(tenants, "POST", "/v1/accounts", "key_all", json=made).json()["id"])


def test_an_account_is_looked_for_before_the_query_is_checked(
    tenants: Tenants, account: str
) -> None:
    wrong = {"zzz": "1"}
    unknown = f"/v1/accounts/{UNKNOWN}"
    for path in (unknown, f"{unknown}/events", f"/v1/controls/accounts/{UNKNOWN}/limits"):
        assert call(tenants, "GET", path, "key_all", params=wrong).status_code == 404
    assert (
        call(tenants, "GET", f"/v1/accounts/{account}", "key_live", params=wrong).status_code == 403
    )
    assert (
        call(
            tenants, "POST", f"{unknown}/intents", "key_all", json=CREATE, params=wrong
        ).status_code
        == 404
    )
    for caller, id_, status in (
        ("key_all", UNKNOWN, 404),
        ("key_live", account, 403),
        ("key_all", account, 422),
    ):
        answer = call(
            tenants, "GET", f"/v1/accounts/{id_}/events", caller, params={"kinds": "nonsense"}
        )
        assert answer.status_code == status


def test_every_operation_refuses_an_unknown_parameter(tenants: Tenants, account: str) -> None:
    seen = 0
    for method, path, answered in operations(tenants):
        if path in ANY_QUERY:
            continue
        content = answered.get("requestBody", {}).get("content", {})
        bodies: dict[str, Any] = {}
        for media, body in content.items():
            example = body["example"] if "example" in body else body["examples"]["CREATE"]["value"]
            bodies = {"json" if media.endswith("json") else "data": example}
        caller = (
            "none"
            if not answered["security"]
            else "key_all"
            if {"api_key": []} in answered["security"]
            else "admin"
        )
        filled = path.replace("{account_id}", account)
        for parameter in answered["parameters"]:
            filled = filled.replace(f"{{{parameter['name']}}}", str(parameter["example"]))
        answer = call(tenants, method, filled, caller, params={"zzz": "1"}, **bodies)
        assert answer.status_code == 422, (method, path, answer.text)
        if path != "/oauth/token":
            assert answer.json()["code"] == "validation_failed"
            assert [error["pointer"] for error in answer.json()["errors"]] == ["?zzz"]
        seen += 1
    assert seen > 35


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/docs", "/"])
def test_a_probe_or_page_is_never_refused_for_its_query(tenants: Tenants, path: str) -> None:
    assert tenants.client.get(path, params={"probe": "1", "utm_source": "x"}).status_code == 200


def test_plain_text_endpoints_ignore_a_query(tenants: Tenants) -> None:
    answer = call(
        tenants, "GET", "/v1/accounts/outbox/health", "internal_admin", params={"zzz": "1"}
    )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("statuss", "status"),
        ("limt", "limit"),
        ("cursor", "next_cursor"),
        ("odrer", "order"),
        ("create_after", "created_after"),
    ],
)
def test_a_near_name_is_suggested(tenants: Tenants, account: str, given: str, near: str) -> None:
    answer = call(
        tenants, "GET", f"/v1/accounts/{account}/orders", "key_all", params={given: "open"}
    )
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert (error["pointer"], error["did_you_mean"]) == (f"?{given}", near)
    assert near in error["detail"]


def test_an_unknown_name_without_a_near_one_lists_the_names(tenants: Tenants) -> None:
    [error] = call(tenants, "GET", "/v1/accounts", "key_all", params={"zzz": "1"}).json()["errors"]
    assert "did_you_mean" not in error
    assert "limit, next_cursor or order" in error["detail"]


def test_each_unknown_name_is_reported(tenants: Tenants) -> None:
    answer = call(
        tenants, "GET", "/v1/brokers", "key_all", params={"a": "1", "limit": "1", "b": "2"}
    )
    assert [error["pointer"] for error in answer.json()["errors"]] == ["?a", "?b"]


def test_a_submit_with_a_query_is_refused_and_writes_nothing(
    tenants: Tenants, account: str
) -> None:
    url = f"/v1/accounts/{account}/intents"
    for _ in range(2):  # the second is of a caller that is known by then
        answer = call(tenants, "POST", url, "key_all", json=CREATE, params={"dry_run": "1"})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "?dry_run")
    assert call(tenants, "GET", url, "key_all").json()["data"] == []


def test_a_missing_permission_is_answered_before_the_query_is_checked(tenants: Tenants) -> None:
    assert call(tenants, "GET", "/v1/accounts", "none", params={"zzz": "1"}).status_code == 401
    assert call(tenants, "GET", "/v1/accounts", "key_none", params={"zzz": "1"}).status_code == 403
    assert call(tenants, "GET", "/v1/accounts", "key_none", params="a=1&a=2").status_code == 400
