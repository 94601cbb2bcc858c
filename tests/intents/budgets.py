"""Keys with a budget, on accounts that share it."""

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx

from tests.intents.conftest import OpenClient
from tests.intents.http_client import Body, TradingClient
from tests.tenants import EVERY_PERMISSION, Tenants

SYMBOL = "BUDGET"  # its reference price is 100


@dataclass
class Budget:
    """A key of its own, on an account of its own."""

    tenants: Tenants
    trader: TradingClient
    key_id: str

    @property
    def path(self) -> str:
        return f"/v1/api-keys/{self.key_id}/limits"

    def call(
        self, method: str, body: Any = None, caller: str = "admin", **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = self.tenants.callers[caller] if caller else self.trader.headers
        answer: httpx.Response = self.tenants.client.request(
            method, self.path, json=body, headers=sent | named
        )
        return answer

    def set(self, **fields: Any) -> Body:
        answer = self.call("PUT", fields)
        assert answer.status_code == 200, answer.text
        made: Body = answer.json()
        return made

    def price(self, price: str, symbol: str = SYMBOL) -> None:
        path = f"/v1/reference-prices/{symbol}"
        body = {"price": price, "environment": "paper"}
        answer = self.tenants.client.put(path, json=body, headers=self.tenants.callers["admin"])
        assert answer.status_code == 200, answer.text

    def used(self) -> tuple[str, int]:
        used = self.call("GET").json()["used"]
        return used["daily_notional"], used["orders_last_minute"]

    def answered(self, body: Body) -> list[tuple[str, Any, Any]]:
        """The answer of the key's limits; evaluate answers the same before, and changes nothing."""
        question = {"account_id": self.trader.account["id"]} | body
        judged = self.tenants.client.post(
            "/v1/controls/evaluate", json=question, headers=self.trader.headers
        ).json()
        answer = self.trader.submit(body)
        triggered = [] if answer.status_code == 202 else answer.json()["triggered"]
        assert judged == {"allowed": answer.status_code == 202, "triggered": triggered}
        assert all(each["scope"] == {"ApiKey": self.key_id} for each in triggered)
        return [(each["reason"], each["limit"], each["asked"]) for each in triggered]

    def open(self, body: Body) -> str:
        """An order that its broker has confirmed."""
        intent_id: str = self.trader.accepted(body)["intent_id"]
        self.trader.set_order(intent_id, "NEW")
        return intent_id


def open_budget(tenants: Tenants, open_client: OpenClient) -> Budget:
    admin = tenants.callers["admin"]
    body = {"name": f"budget {uuid4()}", "environment": "paper", "permissions": EVERY_PERMISSION}
    made = tenants.client.post("/v1/api-keys", json=body, headers=admin).json()
    trader = open_client()
    trader.headers = {"x-api-key": made["api_key"]}
    budget = Budget(tenants, trader, made["id"])
    budget.price("100")
    return budget
