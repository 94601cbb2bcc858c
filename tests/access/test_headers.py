"""The headers of answers, and the description of them in /openapi.json."""

from typing import Any

import pytest

from tests.intents.http_client import create
from tests.tenants import Tenants

QUOTE = {"bid": "1", "ask": "2", "bid_size": "1", "ask_size": "1"}
DESCRIBED = {
    "etag",
    "idempotent-replayed",
    "link",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "www-authenticate",
}
KEY = {"name": "headers", "environment": "paper", "permissions": []}


@pytest.fixture(scope="module")
def document(tenants: Tenants) -> dict[str, Any]:
    answer: dict[str, Any] = tenants.client.get("/openapi.json").json()
    return answer


def test_an_answer_has_the_headers_that_are_described(
    tenants: Tenants, document: dict[str, Any]
) -> None:
    def call(
        method: str,
        path: str,
        body: Any = None,
        caller: str = "admin",
        headers: dict[str, str] | None = None,
    ) -> Any:
        filled = path
        for name, value in {
            "account_id": account,
            "intent_id": intent,
            "order_id": intent,
            "symbol": "HEADS",
        }.items():
            filled = filled.replace(f"{{{name}}}", value)
        sent = tenants.callers[caller] | (headers or {})
        answer = tenants.client.request(
            method, filled, headers=sent, **({} if body is None else {"json": body})
        )
        response = document["paths"][path][method.lower()]["responses"][str(answer.status_code)]
        found = DESCRIBED & set(answer.headers)
        answered = set(response["headers"])
        assert "x-request-id" in answer.headers
        if answer.status_code < 400:
            assert found | {"x-request-id"} == answered - (
                {"idempotent-replayed", "link"} - found
            ), (method, path)
        else:
            assert answered <= found | {"x-request-id"}, (method, path)
        return answer

    account = intent = ""
    made = {"name": "headers", "broker": "paper", "environment": "paper"}
    account = call("POST", "/v1/accounts", made).json()["id"]
    one = "/v1/accounts/{account_id}"
    controls = "/v1/controls/accounts/{account_id}"
    for _ in range(2):
        answer = call("POST", f"{one}/intents", create(), "key_all", {"idempotency-key": "headers"})
        intent = answer.json()["intent_id"]
    assert answer.headers["idempotent-replayed"] == "true"
    for tail in (
        "",
        "/credentials",
        "/intents",
        "/intents/{intent_id}",
        "/intents/stats",
        "/orders",
        "/positions",
    ):
        call("GET", one + tail)
    call("GET", f"{one}/orders/{{order_id}}")
    call("PUT", f"{controls}/symbols/{{symbol}}", {"manually_disabled": False})
    call("PATCH", f"{controls}/symbols/{{symbol}}/time", {})
    call("PUT", f"{controls}/limits", {})
    for tail in ("/symbols", "/symbols/{symbol}", "/limits"):
        call("GET", controls + tail)
    call("PUT", "/v1/paper/quotes/{symbol}", QUOTE)
    call("POST", "/v1/controls/evaluate", {"account_id": account})
    call("POST", "/v1/api-keys", KEY)
    call("DELETE", f"{controls}/symbols/{{symbol}}")
    for path in ("/healthz", "/metrics", "/openapi.json", "/v1/brokers", "/v1/caller"):
        call("GET", path)
    for path in (one, "/v1/accounts/outbox/health", "/v1/brokers"):
        assert call("GET", path, caller="none").status_code == 401


def test_the_organization_header_is_described_where_a_service_account_sends_it(
    tenants: Tenants, document: dict[str, Any]
) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            is_described = any(
                each["name"] == "x-organization-id" for each in operation["parameters"]
            )
            filled = path
            for parameter in operation["parameters"]:
                filled = filled.replace(f"{{{parameter['name']}}}", str(parameter["example"]))
            body: dict[str, Any] = {"json": {}} if "requestBody" in operation else {}
            if operation["x-policy"] != "public":
                headers = tenants.callers["service_unnamed"]
                answer = tenants.client.request(method, filled, headers=headers, **body)
                assert ("x-organization-id is missing" in answer.text) == is_described, (
                    method,
                    path,
                )
