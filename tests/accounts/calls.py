"""Accounts that are made over REST."""

from typing import Any

from tests.tenants import Tenants

URL = "/v1/accounts"


def make(tenants: Tenants, caller: str = "admin", **changes: Any) -> Any:
    body = {"name": "sim", "broker": "paper", "environment": "paper"} | changes
    return tenants.client.post(URL, json=body, headers=tenants.callers[caller])


def made(tenants: Tenants, caller: str = "admin", **changes: Any) -> dict[str, Any]:
    answer = make(tenants, caller, **changes)
    assert answer.status_code == 201, answer.text
    account: dict[str, Any] = answer.json()
    return account
