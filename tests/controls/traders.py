"""Callers with an account of their own, and a symbol that nobody else trades."""

import contextlib
import http.client
import itertools
import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.controls.calls import TradingClient, code
from tests.tenants import Tenants
from tests.waiting import eventually

WAIT_SECONDS = 20.0
CLIENTS = 16


class Trader:
    """One caller with an account of their own, and a symbol that nobody else trades."""

    def __init__(self, tenants: Tenants, caller: str = "key_all") -> None:
        self.tenants = tenants
        self.client = TradingClient(tenants, "admin")
        self.headers = tenants.callers[caller]
        self.account = self.client.account
        self.symbol = f"R{uuid.uuid4().hex[:12].upper()}"
        self.quote()

    def quote(self, symbol: str | None = None) -> None:
        body = {"bid": "100", "ask": "100", "bid_size": "100000", "ask_size": "100000"}
        path = f"/v1/paper/quotes/{symbol or self.symbol}"
        assert self.tenants.client.put(path, json=body, headers=self.headers).status_code == 200

    def post(self, tail: str, body: Any = None, **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {} if body is None else {"json": body}
        path = f"/v1/accounts/{self.account}/{tail}"
        return self.tenants.client.post(path, headers=self.headers | named, **sent)

    def create(
        self,
        side: str = "BUY",
        quantity: str = "1",
        limit: str | None = None,
        symbol: str | None = None,
    ) -> str:
        terms = {"quantity": quantity} | ({"limit_price": limit} if limit else {})
        payload = {
            "symbol": symbol or self.symbol,
            "order_side": side,
            "spec": {"Limit" if limit else "Market": terms},
        }
        answer = self.post("intents", {"command": {"type": "CREATE", "payload": payload}})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["intent_id"])

    def create_many(self, count: int) -> Iterator[str]:
        """As `create` with a limit, by clients that take a tenth of the time for each, and whose
        orders are written together."""
        spec = {"Limit": {"quantity": "1", "limit_price": "1"}}
        payload = {"symbol": self.symbol, "order_side": "BUY", "spec": spec}
        body = json.dumps({"command": {"type": "CREATE", "payload": payload}})
        headers = self.headers | {"content-type": "application/json"}
        address = httpx.URL(self.tenants.platform.url)
        numbers = iter(range(count))

        def create(_: int) -> list[str]:
            created = []
            connection = http.client.HTTPConnection(
                address.host, address.port, timeout=WAIT_SECONDS
            )
            with contextlib.closing(connection):
                for _ in numbers:
                    connection.request(
                        "POST", f"/v1/accounts/{self.account}/intents", body, headers
                    )
                    answer = connection.getresponse()
                    answered = answer.read()
                    assert answer.status == 202, answered
                    created.append(str(json.loads(answered)["intent_id"]))
            return created

        with ThreadPoolExecutor(CLIENTS) as threads:
            return itertools.chain.from_iterable(list(threads.map(create, range(CLIENTS))))

    def order(self, order_id: str) -> Any:
        path = f"/v1/accounts/{self.account}/orders/{order_id}"
        return self.tenants.client.get(path, headers=self.headers).json()

    def until(self, order_id: str, status: str) -> Any:
        eventually(lambda: self.order(order_id)["order_status"] == status, WAIT_SECONDS)
        return self.order(order_id)

    def hold(self, quantity: str = "10", side: str = "BUY") -> None:
        self.until(self.create(side, quantity), "FILLED")

    def cancel_all(self, body: Any = None) -> Any:
        return self.post("intents/cancel-all", body)

    def close(self, symbol: str | None = None, body: Any = None, **headers: str) -> Any:
        return self.post(f"positions/{symbol or self.symbol}/close", body, **headers)

    def action(self, intent_id: str) -> Any:
        return self.tenants.client.get(
            f"/v1/accounts/{self.account}/intents/{intent_id}", headers=self.headers
        ).json()


class LimitedTrader(Trader):
    def limit(self, level: str = "account", **fields: Any) -> None:
        symbol = f"/symbols/{self.symbol}" if level == "symbol" else ""
        assert self.client.call("PUT", f"{symbol}/limits", fields).status_code == 200

    def book(self, bid: str, ask: str, size: str = "100000") -> None:
        body = {"bid": bid, "ask": ask, "bid_size": size, "ask_size": size}
        path = f"/v1/paper/quotes/{self.symbol}"
        assert self.tenants.client.put(path, json=body, headers=self.headers).status_code == 200

    def submit(self, side: str, quantity: str, price: str = "1", **headers: str) -> Any:
        spec = {"Limit": {"quantity": quantity, "limit_price": price}}
        payload = {"symbol": self.symbol, "order_side": side, "spec": spec}
        return self.post("intents", {"command": {"type": "CREATE", "payload": payload}}, **headers)

    def replace(self, order: str, quantity: str, price: str = "1") -> Any:
        spec = {"Limit": {"quantity": quantity, "limit_price": price}}
        return self.post(
            "intents",
            {"command": {"type": "REPLACE", "payload": {"ref_intent_id": order, "spec": spec}}},
        )

    def refused(self, answer: Any) -> list[tuple[str, Any, Any]]:
        assert code(answer) == (409, "control_rejected"), answer.text
        return [
            (each["reason"], each["limit"], each["asked"]) for each in answer.json()["triggered"]
        ]

    def position(self) -> Any:
        path = f"/v1/accounts/{self.account}/positions"
        found = self.tenants.client.get(path, headers=self.headers).json()["data"]
        return next((each["quantity"] for each in found if each["symbol"] == self.symbol), "0")
