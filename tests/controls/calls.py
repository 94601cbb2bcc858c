"""Controls as a caller asks for them."""

from typing import Any

from tests.accounts.calls import made
from tests.tenants import Tenants

URL = "/v1/controls"


class TradingClient:
    """One caller, and one account of theirs."""

    def __init__(self, tenants: Tenants, caller: str = "admin", **account: Any) -> None:
        self.tenants = tenants
        self.headers = tenants.callers[caller]
        self.account = made(tenants, caller, **account)["id"]

    def call(
        self, method: str, tail: str, body: Any = None, caller: str | None = None, **headers: str
    ) -> Any:
        """At a path below the account's controls; header names are written with underscores."""
        sent = self.tenants.callers[caller] if caller else self.headers
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.tenants.client.request(
            method, f"{URL}/accounts/{self.account}{tail}", json=body, headers=sent | named
        )

    def put(
        self, symbol: str, reason: str | None = None, *, disabled: bool = True, **headers: str
    ) -> Any:
        body = {"manually_disabled": disabled} | (
            {} if reason is None else {"manual_reason": reason}
        )
        return self.call("PUT", f"/symbols/{symbol}", body, **headers)

    def patch(self, symbol: str, body: Any, **headers: str) -> Any:
        return self.call("PATCH", f"/symbols/{symbol}/time", body, **headers)

    def get(self, tail: str, **headers: str) -> Any:
        return self.call("GET", tail, **headers)

    def evaluate(self, symbol: str | None = None, caller: str | None = None) -> Any:
        body = {"account_id": self.account} | ({} if symbol is None else {"symbol": symbol})
        headers = self.tenants.callers[caller] if caller else self.headers
        return self.tenants.client.post(f"{URL}/evaluate", json=body, headers=headers)

    def reasons(self, symbol: str | None = None) -> list[str]:
        answer = self.evaluate(symbol)
        assert answer.status_code == 200, answer.text
        reasons = [answered["reason"] for answered in answer.json()["triggered"]]
        assert answer.json()["allowed"] is (reasons == [])
        return reasons


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def pointers(answer: Any) -> list[str]:
    assert code(answer) == (422, "validation_failed"), answer.text
    return [error["pointer"] for error in answer.json()["errors"]]
