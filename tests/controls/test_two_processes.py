"""Two processes of one database: what one of them answered, the other honours from its next command
on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Databases, Urls
from tests.controls.calls import URL, TradingClient
from tests.platform import Platform, serving
from tests.tenants import PLENTY, Tenants, made_tenants


@pytest.fixture(params=[3, pytest.param(10, marks=pytest.mark.chaos)])
def rounds(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, databases: Databases
) -> Iterator[tuple[Tenants, Platform]]:
    folder: Path = tmp_path_factory.mktemp("pair")
    with (
        databases() as urls,
        made_tenants(urls, folder) as first,
        serving(folder, **PLENTY, **_urls(urls), ROLES="api") as second,
    ):
        yield first, second


def _urls(urls: Urls) -> dict[str, str]:
    return {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}


class Elsewhere:
    """Submits to the second process, which has decided orders of the account before."""

    def __init__(self, pair: tuple[Tenants, Platform]) -> None:
        self.tenants, self.second = pair
        self.client = TradingClient(self.tenants)
        for _ in range(3):
            assert self.submit().status_code == 202

    def submit(self, quantity: str = "2", side: str = "BUY") -> Any:
        spec = {"Limit": {"quantity": quantity, "limit_price": "0.01"}}
        command = {
            "type": "CREATE",
            "payload": {"symbol": "AAPL", "order_side": side, "spec": spec},
        }
        path = f"/v1/accounts/{self.client.account}/intents"
        return self.second.client.post(
            path, json={"command": command}, headers=self.tenants.callers["key_all"]
        )

    def reasons(self, **order: str) -> list[str]:
        answer = self.submit(**order)
        return (
            []
            if answer.status_code == 202
            else [each["reason"] for each in answer.json()["triggered"]]
        )


@pytest.mark.slow
def test_a_halt_and_its_end_hold_everywhere_from_their_answer_on(
    pair: tuple[Tenants, Platform], rounds: int
) -> None:
    other = Elsewhere(pair)
    body = {"reason": "x", "cancel_orders": False}
    for _ in range(rounds):
        assert other.client.call("POST", "/halt", body).status_code == 202
        assert other.reasons() == ["account_halted"]
        assert other.client.call("POST", "/resume").status_code == 200
        assert other.reasons() == []
    path = f"{URL}/organization"
    admin = other.tenants.callers["admin"]
    for _ in range(rounds):
        assert (
            other.tenants.client.post(f"{path}/halt", json=body, headers=admin).status_code == 202
        )
        assert other.reasons() == ["organization_halted"]
        assert other.tenants.client.post(f"{path}/resume", headers=admin).status_code == 200
        assert other.reasons() == []


@pytest.mark.parametrize(
    ("limit", "order", "reason"),
    [
        ({"max_order_quantity": "1"}, {}, "max_order_quantity"),
        ({"allowed_symbols": []}, {}, "allowed_symbols"),
        ({"max_open_orders": 1}, {}, "max_open_orders"),
        ({"max_position_quantity": "1"}, {}, "max_position_quantity"),
        ({"allow_short": False}, {"side": "SELL_SHORT"}, "allow_short"),
        ({"duplicate_window_millis": 60_000}, {}, "duplicate_window_millis"),
    ],
)
def test_a_limit_and_its_end_hold_everywhere_from_their_answer_on(
    pair: tuple[Tenants, Platform],
    limit: dict[str, Any],
    order: dict[str, str],
    reason: str,
    rounds: int,
) -> None:
    other = Elsewhere(pair)
    for _ in range(rounds):
        assert other.client.call("PUT", "/limits", limit).status_code == 200
        assert other.reasons(**order) == [reason]
        assert other.client.call("DELETE", "/limits").status_code == 204
        assert other.reasons(**order) == []
