"""An account's daily loss from outside: prices fall, the platform halts the account once, and only
reductions pass."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Urls
from tests.intents.http_client import (
    Body,
    Tables,
    TradingClient,
    create,
    limit,
    market,
    open_trading_client,
)
from tests.tenants import EVERY_PERMISSION, Tenants
from tests.waiting import eventually
from trading_intents.controls.store import HALT_LOCK

WAIT_SECONDS = 30


class LossyAccount:
    """A paper account that holds 10 of a symbol which nobody else trades."""

    def __init__(self, tenants: Tenants, tables: Tables) -> None:
        self.tenants = tenants
        self.tables = tables
        self.symbol = f"L{uuid.uuid4().hex[:10].upper()}"
        self.trading_client: TradingClient = open_trading_client(tenants, tables)
        self.id = self.trading_client.account["id"]
        self.quote("99", "101")
        self.trading_client.accepted(self.order("BUY", market("10")))
        eventually(
            lambda: (
                self.value("SELECT quantity FROM holdings WHERE account_id = $1::text::uuid") == 10
            ),
            WAIT_SECONDS,
        )
        self.quote("99", "101")

    def value(self, query: str) -> Any:
        return self.tables.value(query, self.id)

    def quote(self, bid: str, ask: str) -> None:
        body = {"bid": bid, "ask": ask, "bid_size": "1000", "ask_size": "1000"}
        self._admin("PUT", f"/v1/paper/quotes/{self.symbol}", body)

    def put_limit(self, loss: str, **more: str | int) -> None:
        self._admin(
            "PUT", f"/v1/controls/accounts/{self.id}/limits", {"max_daily_loss": loss} | more
        )

    def until_baseline(self) -> None:
        query = "SELECT count(*) FROM daily_baselines WHERE account_id = $1::text::uuid"
        eventually(lambda: self.value(query) == 1, WAIT_SECONDS)

    def order(self, side: str, spec: Body) -> Body:
        return create(spec, symbol=self.symbol, order_side=side)

    def reasons(self, body: Body) -> list[str]:
        answer = self.trading_client.submit(body)
        return (
            []
            if answer.status_code == 202
            else [answered["reason"] for answered in answer.json()["triggered"]]
        )

    def halts(self) -> int:
        return int(self.value("SELECT count(*) FROM halts WHERE account_id = $1::text::uuid"))

    def resume(self) -> None:
        self._admin("POST", f"/v1/controls/accounts/{self.id}/resume")

    def halt(self) -> Body:
        answer = self.tenants.client.get(
            f"/v1/controls/accounts/{self.id}/halt", headers=self.tenants.callers["admin"]
        )
        halt: Body = answer.json()
        return halt

    def _admin(self, method: str, path: str, body: Body | None = None) -> None:
        answer = self.tenants.client.request(
            method, path, json=body, headers=self.tenants.callers["admin"]
        )
        assert answer.status_code == 200, answer.text


@pytest.fixture
def tables(tenants_database: Urls) -> Iterator[Tables]:
    opened = Tables(tenants_database.owner)
    yield opened
    opened.close()


@pytest.fixture
def account(tenants: Tenants, tables: Tables) -> LossyAccount:
    return LossyAccount(tenants, tables)


def test_reaching_it_halts_the_account_once_for_a_day_and_version(
    tenants: Tenants, tables: Tables, account: LossyAccount
) -> None:
    other = LossyAccount(tenants, tables)
    for each in (account, other):
        each.put_limit("50")
        each.until_baseline()
    assert account.reasons(account.order("BUY", limit("1", "1"))) == []
    account.quote("94.01", "96.01")  # 10 x (100 - 95.01) = 49.9
    assert account.reasons(account.order("BUY", limit("1", "1"))) == []
    account.quote("94", "96")  # 50: exactly this is a loss of this
    eventually(lambda: account.halts() == 1, WAIT_SECONDS)
    halt = account.halt()
    assert (halt["principal_type"], halt["principal_id"]) == ("SYSTEM", "platform")
    assert halt["reason"] == "max_daily_loss: today's result is a loss of 50, and the limit is 50"
    assert account.reasons(account.order("BUY", limit("1", "1"))) == [
        "account_halted",
        "max_daily_loss",
    ]
    account.resume()
    assert account.reasons(account.order("BUY", limit("1", "1"))) == ["max_daily_loss"]
    assert account.reasons(account.order("SELL", limit("11", "900"))) == ["max_daily_loss"]
    assert account.reasons(account.order("SELL", limit("10", "900"))) == []
    account.put_limit("60")
    assert account.reasons(account.order("BUY", limit("1", "1"))) == []
    account.quote("93", "95")  # 60
    eventually(lambda: account.halts() == 2, WAIT_SECONDS)
    account.resume()
    account.quote("80", "82")
    other.quote("94", "96")
    eventually(lambda: other.halts() == 1, WAIT_SECONDS)  # all accounts were judged again
    assert account.reasons(account.order("BUY", limit("1", "1"))) == ["max_daily_loss"]
    assert account.halts() == 2, "once for a day and version of the limits"
    account.put_limit("60", max_open_orders=100)
    eventually(lambda: account.halts() == 3, WAIT_SECONDS)


def test_a_limit_counts_from_its_answer_on(account: LossyAccount) -> None:
    """Not from the moment at which a worker first sees it: the price may have fallen by then."""
    account.put_limit("50")
    account.quote("94", "96")
    eventually(lambda: account.halts() == 1, WAIT_SECONDS)


@pytest.fixture
def other_firm(tenants: Tenants) -> Tenants:
    name = f"org_losses_{uuid.uuid4().hex}"
    key = {"name": "all", "environment": "paper", "permissions": list(EVERY_PERMISSION)}
    document = {
        "external_id": name,
        "entitlements": ["controls_premium"],
        "users": [{"external_id": f"{name}-admin", "role": "admin"}],
        "api_keys": [key],
    }
    made = tenants.platform.provision({"organizations": [document]})["organizations"][0]
    callers = {
        "key_all": {"x-api-key": made["api_keys"][0]["api_key"]},
        "admin": {"authorization": f"Bearer {tenants.platform.token(f'{name}-admin', name)}"},
    }
    return Tenants(tenants.platform, {"organizations": [made]}, callers)


def test_an_organization_that_cannot_be_halted_now_delays_no_other(
    other_firm: Tenants, tables: Tables, account: LossyAccount, tenants_database: Urls
) -> None:
    other = LossyAccount(other_firm, tables)
    for each in (account, other):
        each.put_limit("50")
    holding = Tables(tenants_database.owner)
    organization = account.trading_client.account["organization_id"]
    holding.execute("SELECT pg_advisory_lock_shared($1, hashtext($2))", HALT_LOCK, organization)
    try:
        for each in (account, other):  # the first is judged first
            each.quote("94", "96")
        eventually(lambda: other.halts() == 1, WAIT_SECONDS)
        assert account.halts() == 0
    finally:
        holding.close()
    eventually(lambda: account.halts() == 1, WAIT_SECONDS)


def test_a_fill_that_loses_is_judged(account: LossyAccount) -> None:
    account.put_limit("70")
    account.until_baseline()
    account.quote("94", "96")  # unrealized: 50 lost
    assert account.reasons(account.order("SELL", market("5"))) == []
    eventually(
        lambda: (
            account.value("SELECT quantity FROM holdings WHERE account_id = $1::text::uuid") == 5
        ),
        WAIT_SECONDS,
    )
    assert account.halts() == 0
    account.quote("90", "92")
    eventually(lambda: account.halts() == 1, WAIT_SECONDS)


def test_another_day_and_another_zone_begin_anew(account: LossyAccount) -> None:
    account.put_limit("50")
    account.until_baseline()
    account.tables.execute(
        "UPDATE daily_baselines SET result = result + 100 WHERE account_id = $1::text::uuid",
        account.id,
    )
    eventually(lambda: account.halts() == 1, WAIT_SECONDS)
    account.resume()
    assert account.reasons(account.order("BUY", limit("1", "1"))) == ["max_daily_loss"]
    account.tables.execute(
        "UPDATE daily_baselines SET day = day - 1 WHERE account_id = $1::text::uuid", account.id
    )
    assert account.reasons(account.order("BUY", limit("1", "1"))) == []
    account.tables.execute(
        "UPDATE daily_baselines SET result = result + 100 WHERE account_id = $1::text::uuid",
        account.id,
    )
    eventually(lambda: account.halts() == 2, WAIT_SECONDS)
    account.resume()
    account.put_limit("50", timezone="Pacific/Kiritimati")
    assert account.reasons(account.order("BUY", limit("1", "1"))) == []
