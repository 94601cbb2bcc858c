"""Orders, positions and controls for a demo that is worth looking at."""

import json
from pathlib import Path
from typing import Any

from tests.platform import Platform
from tests.waiting import eventually
from trading_intents.config import PREFIX

ORDERS: tuple[tuple[str, str, str, str], ...] = (
    ("AAPL", "BUY", "100", ""),
    ("MSFT", "BUY", "40", ""),
    ("NVDA", "BUY", "75", ""),
    ("MSFT", "SELL", "15", ""),
    ("TSLA", "SELL_SHORT", "20", ""),
    ("AAPL", "BUY", "50", "1"),
    ("AMZN", "BUY", "30", "0.5"),
    ("GOOG", "SELL_SHORT", "10", "99999"),
    ("META", "BUY", "12", ""),
)


def headers_of(platform: Platform) -> dict[str, str]:
    file = Path(platform.environ[PREFIX + "DATA_DIR"]) / "demo.json"
    return {"x-api-key": json.loads(file.read_text())["api_key"]}


def trade(platform: Platform) -> None:
    headers = headers_of(platform)
    account = platform.client.get("/v1/accounts", headers=headers).json()["data"][0]["id"]
    made = [submit(platform, headers, account, *order) for order in ORDERS]
    switch = {"manually_disabled": True, "manual_reason": "earnings tonight"}
    platform.client.put(
        f"/v1/controls/accounts/{account}/symbols/META", headers=headers, json=switch
    )
    window = {
        "trading_start": "09:30:00",
        "trading_end": "16:00:00",
        "timezone": "America/New_York",
    }
    platform.client.patch(
        f"/v1/controls/accounts/{account}/symbols/AMZN/time", headers=headers, json=window
    )
    submit(
        platform=platform,
        headers=headers,
        account=account,
        symbol="META",
        side="BUY",
        quantity="5",
        limit="",
    )
    exits = {"take_profit": {"limit_price": "460"}, "stop_loss": {"stop_price": "350"}}
    submit(
        platform=platform,
        headers=headers,
        account=account,
        symbol="AAPL",
        side="BUY",
        quantity="20",
        limit="380",
        exits=exits,
    )
    cancel = {"command": {"type": "CANCEL", "payload": {"ref_intent_id": made[6]}}}
    platform.client.post(f"/v1/accounts/{account}/intents", headers=headers, json=cancel)

    def is_done() -> bool:
        orders = platform.client.get(f"/v1/accounts/{account}/orders", headers=headers).json()[
            "data"
        ]
        return not any(order["order_status"].startswith("PENDING") for order in orders)

    eventually(is_done, 20)


def submit_some(platform: Platform) -> None:
    """Orders that rest, for the charts."""
    headers = headers_of(platform)
    account = platform.client.get("/v1/accounts", headers=headers).json()["data"][0]["id"]
    for _ in range(5):
        submit(
            platform=platform,
            headers=headers,
            account=account,
            symbol="AAPL",
            side="BUY",
            quantity="1",
            limit="2",
        )


def submit(
    platform: Platform,
    headers: dict[str, str],
    account: str,
    symbol: str,
    side: str,
    quantity: str,
    limit: str,
    **links: Any,
) -> str:
    spec: dict[str, Any] = {"Market": {"quantity": quantity}}
    if limit:
        spec = {
            "Limit": {
                "quantity": quantity,
                "limit_price": limit,
                "time_in_force": "GOOD_TILL_CANCEL",
            }
        }
    payload = {"symbol": symbol, "order_side": side, "spec": spec} | links
    body = {
        "command": {"type": "CREATE", "payload": payload},
        "client_reference_id": f"model-{len(symbol)}-{quantity}",
    }
    answer = platform.client.post(f"/v1/accounts/{account}/intents", headers=headers, json=body)
    return str(answer.json().get("intent_id", ""))


def live_account(platform: Platform) -> str:
    """A key of environment live, with an account at the broker that tests install beside the paper
    one."""
    permissions = [
        "intent:read",
        "intent:edit",
        "control:read",
        "control:edit",
        "account:read",
        "stream:read",
    ]
    organization = {
        "external_id": "org_live",
        "name": "Live",
        "entitlements": ["trading_live", "controls_premium"],
        "accounts": [{"name": "main", "broker": "remote", "environment": "live"}],
        "api_keys": [{"name": "trader", "environment": "live", "permissions": permissions}],
    }
    made = platform.provision({"organizations": [organization]})
    return str(made["organizations"][0]["api_keys"][0]["api_key"])
