"""Accounts and controls that are changed over REST."""

from typing import Any

from tests.intents.http_client import Body, TradingClient
from tests.tenants import Tenants


def change_account(tenants: Tenants, trading_client: TradingClient, **changes: Any) -> None:
    url = f"/v1/accounts/{trading_client.account['id']}"
    assert (
        tenants.client.patch(url, json=changes, headers=tenants.callers["admin"]).status_code == 200
    )


def control(
    tenants: Tenants,
    path: str,
    disabled: bool = True,
    reason: str | None = None,
    admin: str = "admin",
) -> None:
    body: Body = {"manually_disabled": disabled} | ({"manual_reason": reason} if reason else {})
    answer = tenants.client.put(f"/v1/controls/{path}", json=body, headers=tenants.callers[admin])
    assert answer.status_code == 200, answer.text
