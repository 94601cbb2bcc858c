"""Steps of a user on the console's pages, and accounts to take them with."""

import uuid
from typing import Any

from tests.console.conftest import LIMIT_SECONDS, Screen
from tests.tenants import Tenants
from tests.waiting import eventually


def symbol() -> str:
    return f"T{uuid.uuid4().hex[:8].upper()}"


def bearer(tenants: Tenants, caller: str) -> str:
    headers = tenants.callers[caller]
    return headers.get("x-api-key") or headers["authorization"].removeprefix("Bearer ")


def make_account(tenants: Tenants, name: str) -> str:
    body = {"name": name, "broker": "paper", "environment": "paper"}
    made: dict[str, Any] = tenants.client.post(
        "/v1/accounts", json=body, headers=tenants.callers["key_all"]
    ).json()

    def is_connected() -> bool:
        found = tenants.client.get(
            f"/v1/accounts/{made['id']}", headers=tenants.callers["key_all"]
        ).json()
        return bool(found["connection"] == "connected")

    eventually(is_connected, LIMIT_SECONDS)
    return str(made["id"])


def choose(screen: Screen, account: str) -> None:
    screen.page.get_by_label("Account", exact=True).select_option(account)
    screen.wait_live()


def send(tenants: Tenants, account: str, name: str, quantity: str) -> None:
    payload = {"symbol": name, "order_side": "BUY", "spec": {"Market": {"quantity": quantity}}}
    body = {"command": {"type": "CREATE", "payload": payload}}
    answer = tenants.client.post(
        f"/v1/accounts/{account}/intents", json=body, headers=tenants.callers["key_all"]
    )
    assert answer.status_code == 202, answer.text


def post_quote(tenants: Tenants, name: str, price: str) -> None:
    prices = {"bid": price, "ask": price, "bid_size": "100000", "ask_size": "100000"}
    answer = tenants.client.put(
        f"/v1/paper/quotes/{name}", json=prices, headers=tenants.callers["key_all"]
    )
    assert answer.status_code == 200, answer.text


TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Held:
    """Answers that the browser gets when the test lets them go."""

    def __init__(self, screen: Screen, pattern: str) -> None:
        self.page = screen.page
        self.pattern = pattern
        self.routes = list[Any]()
        self.is_released = False
        self.page.route(pattern, self._hold)

    def _hold(self, route: Any) -> None:
        if self.is_released:
            route.continue_()
        else:
            self.routes.append(route)

    def wait(self) -> None:
        eventually(lambda: bool(self.page.evaluate("true") and self.routes), LIMIT_SECONDS)

    def release(self) -> None:
        self.is_released = True
        with self.page.expect_response(self.pattern):
            for route in self.routes:
                route.continue_()
        self.page.wait_for_function(TWO_FRAMES)
