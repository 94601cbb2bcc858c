"""Checks run in this order: a body that cannot be read is 400, then a missing permission 403, then
a missing object
404."""

import uuid

import pytest

from tests.tenants import Tenants

ACCOUNT = f"/v1/accounts/{uuid.UUID(int=1)}"
BAD_PAGES = ({"limit": "x"}, {"limit": "-1"}, {"next_cursor": "=="}, {"next_cursor": "é"})


@pytest.mark.parametrize("path", ["/v1/accounts", f"{ACCOUNT}/credentials", f"{ACCOUNT}/intents"])
@pytest.mark.parametrize("query", BAD_PAGES)
@pytest.mark.parametrize("caller", ["key_none", "admin"])
def test_a_bad_page_is_400_whoever_asks_for_whatever(
    tenants: Tenants, path: str, query: dict[str, str], caller: str
) -> None:
    assert (
        tenants.client.get(path, params=query, headers=tenants.callers[caller]).status_code == 400
    )


@pytest.mark.parametrize("key", ["", "x" * 129, "a\tb"])
@pytest.mark.parametrize("caller", ["key_none", "key_all"])
def test_a_bad_idempotency_key_is_400_whoever_sends_it(
    tenants: Tenants, key: str, caller: str
) -> None:
    headers = tenants.callers[caller] | {"idempotency-key": key}
    assert tenants.client.post(f"{ACCOUNT}/intents", json={}, headers=headers).status_code == 400


@pytest.mark.parametrize("caller", ["key_none", "key_all"])
def test_a_bad_if_match_is_400_whoever_sends_it(tenants: Tenants, caller: str) -> None:
    headers = tenants.callers[caller] | {"if-match": "3"}
    assert tenants.client.patch(ACCOUNT, json={}, headers=headers).status_code == 400


def test_nobody_at_all_is_401_first(tenants: Tenants) -> None:
    assert tenants.client.get("/v1/accounts", params={"limit": "x"}).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "wrong"),
    [
        ("POST", "/v1/accounts", {"name": "", "brocker": "paper"}),
        ("POST", "/v1/accounts", {"name": 5, "broker": "paper"}),
        ("PUT", "/v1/reference-prices/AAPL", {"price": 5}),
        ("PUT", "/v1/reference-prices/A B", {"price": "5"}),
    ],
)
def test_a_caller_without_rights_in_the_named_environment_is_403_whatever_else_is_wrong(
    tenants: Tenants, method: str, path: str, wrong: dict[str, object]
) -> None:
    for environment, status in (("live", 403), ("paper", 422), ("Live", 422), (["live"], 422)):
        body = wrong | {"environment": environment}
        headers = tenants.callers["key_all"]
        answer = tenants.client.request(method, path, json=body, headers=headers)
        assert answer.status_code == status, environment
    body = wrong | {"environment": "live"}
    headers = tenants.callers["admin"]
    assert tenants.client.request(method, path, json=body, headers=headers).status_code == 422
