"""Real accounts from outside: the calls and events of the paper broker, and what `doctor` says of
them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.accounts.provisioned import settings_of
from tests.brokers.alpaca.simulator import Fault
from tests.brokers.alpaca.threaded import ThreadedSimulator, simulating_in_thread
from tests.conftest import Urls
from tests.doctor_lines import lines_of
from tests.intents.http_client import cancel, create, limit, market
from tests.platform import Platform, run_command, serving
from tests.stream.sse_reader import Reader
from tests.waiting import eventually
from trading_intents.config import PREFIX

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 20.0
PERMISSIONS = [
    "account:read",
    "account:edit",
    "credential:edit",
    "intent:edit",
    "intent:read",
    "stream:read",
]
ACCOUNTS = {
    "alpaca paper": ("alpaca", "paper"),
    "alpaca live": ("alpaca", "live"),
    "paper": ("paper", "paper"),
}


def document(*entitlements: str) -> dict[str, Any]:
    accounts = [
        {"name": name, "broker": broker, "environment": at}
        for name, (broker, at) in ACCOUNTS.items()
    ]
    keys = [{"name": at, "environment": at, "permissions": PERMISSIONS} for at in ("paper", "live")]
    organization = {
        "external_id": "o",
        "entitlements": entitlements,
        "accounts": accounts,
        "api_keys": keys,
    }
    return {"organizations": [organization]}


@dataclass
class Trader:
    platform: Platform
    alpaca: ThreadedSimulator
    accounts: dict[str, str]
    keys: dict[str, str]

    def headers(self, name: str) -> dict[str, str]:
        return {"x-api-key": self.keys[ACCOUNTS[name][1]]}

    def submit(self, name: str, body: dict[str, Any]) -> Any:
        url = f"/v1/accounts/{self.accounts[name]}/intents"
        return self.platform.client.post(url, json=body, headers=self.headers(name))

    def get(self, name: str, path: str) -> Any:
        answer = self.platform.client.get(
            f"/v1/accounts/{self.accounts[name]}{path}", headers=self.headers(name)
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def store(self, name: str, key: str, secret: str = "SECRET") -> None:
        url = f"/v1/accounts/{self.accounts[name]}/credentials"
        body = {"secrets": {"api_key_id": key, "api_secret": secret}}
        answer = self.platform.client.post(url, json=body, headers=self.headers(name))
        assert answer.status_code == 201, answer.text

    def until_connection(self, name: str, wanted: str) -> None:
        eventually(lambda: self.get(name, "")["connection"] == wanted, LIMIT_SECONDS)

    def until_order(self, name: str, intent_id: str, status: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def reached() -> bool:
            orders = self.get(name, "/orders")["data"]
            found.update(next((each for each in orders if each["intent_id"] == intent_id), {}))
            return bool(found.get("order_status") == status)

        eventually(reached, LIMIT_SECONDS)
        return found

    def try_account(self, name: str, *options: str) -> tuple[int, dict[str, str], str]:
        key = self.keys[ACCOUNTS[name][1]]
        environ = self.platform.environ | {
            f"{PREFIX}URL": self.platform.url,
            f"{PREFIX}API_KEY": key,
        }
        done = run_command(environ, "doctor", "--account", self.accounts[name], "--try", *options)
        return done.returncode, lines_of(done.stdout), done.stdout + done.stderr

    def doctor(self, name: str) -> tuple[int, dict[str, str]]:
        done = self.platform.run("doctor", "--account", self.accounts[name])
        return done.returncode, lines_of(done.stdout)


@pytest.fixture
def trader(urls: Urls, tmp_path: Path) -> Iterator[Trader]:
    with simulating_in_thread() as alpaca:
        for key in ("PAPER", "LIVE"):
            alpaca.simulator.add(key).quote("AAPL", Decimal(99), Decimal(100), Decimal(1000))
        url = alpaca.simulator.url
        with serving(
            tmp_path / "data", ALPACA_PAPER_URL=url, ALPACA_LIVE_URL=url, **settings_of(urls)
        ) as platform:
            (made,) = platform.provision(document("trading_live"))["organizations"]
            accounts = {each["name"]: each["id"] for each in made["accounts"]}
            keys = {each["environment"]: each["api_key"] for each in made["api_keys"]}
            yield Trader(platform, alpaca, accounts, keys)


def connected(trader: Trader) -> None:
    for name in ("alpaca paper", "alpaca live"):
        trader.until_connection(name, "credential_missing")
        trader.store(name, ACCOUNTS[name][1].upper())
    prices = {"bid": "99", "ask": "100", "bid_size": "1000", "ask_size": "1000"}
    answer = trader.platform.client.put(
        "/v1/paper/quotes/AAPL", json=prices, headers=trader.headers("paper")
    )
    assert answer.status_code < 300, answer.text
    for name in ACCOUNTS:
        trader.until_connection(name, "connected")


def event_fields_of_a_trade(trader: Trader, name: str) -> dict[str, set[str]]:
    """The fields of each kind of event that a filled order makes."""
    url = f"/v1/accounts/{trader.accounts[name]}/events"
    with trader.platform.client.stream(
        "GET", url, headers=trader.headers(name), timeout=LIMIT_SECONDS
    ) as answer:
        reader = Reader(answer)
        intent = trader.submit(name, create(market("3"))).json()["intent_id"]
        fields: dict[str, set[str]] = {}
        statuses: list[str] = []
        while "FILLED" not in statuses or not {"broker_trade", "broker_position"} <= fields.keys():
            (event,) = reader.take(1)
            body = event.data.get(event.kind, {})
            fields.setdefault(event.kind, set()).update(body)
            statuses.append(body.get("order_status", "").removeprefix("ORDER_STATUS_"))
    order = trader.until_order(name, intent, "FILLED")
    assert (order["average_price"], order["filled_quantity"], order["flags"]) == ("100", "3", [])
    return fields


def test_real_accounts_trade_like_the_paper_broker(trader: Trader) -> None:
    connected(trader)
    fields_by_account = {name: event_fields_of_a_trade(trader, name) for name in ACCOUNTS}
    # A broker may leave them out.
    optional = {"broker_sent_at", "external_order_id", "fee", "reason"}
    for kind in ("broker_order", "broker_trade", "broker_position"):
        assert (
            len({frozenset(fields[kind] - optional) for fields in fields_by_account.values()}) == 1
        ), kind
    shapes = set()
    for name in ACCOUNTS:
        resting = trader.submit(name, create(limit("2", "50"))).json()["intent_id"]
        shapes.add(frozenset(trader.until_order(name, resting, "NEW")))
        assert trader.submit(name, cancel(resting)).status_code == 202
        trader.until_order(name, resting, "CANCELLED")
    assert len(shapes) == 1
    for name in ACCOUNTS:
        assert trader.get(name, "/balances")["currency"] == "USD"
    books = trader.alpaca.simulator.accounts
    assert [len(books[key].arrived) for key in ("PAPER", "LIVE")] == [2, 2], (
        "each at its own environment"
    )

    trader.platform.provision({"organizations": [{"external_id": "o", "entitlements": []}]})
    eventually(
        lambda: trader.submit("alpaca live", create(market("1"))).status_code == 403, LIMIT_SECONDS
    )
    assert trader.submit("alpaca paper", create(market("1"))).status_code == 202
    code, lines = trader.doctor("alpaca live")
    assert code == 1
    assert lines["permission"].startswith("wrong: the organization lacks trading_live")


def test_doctor_says_what_a_real_account_lacks(trader: Trader) -> None:
    name = "alpaca paper"
    books = trader.alpaca.simulator.accounts
    trader.until_connection(name, "credential_missing")
    code, lines = trader.doctor(name)
    assert (code, "none is stored" in lines["credential"]) == (1, True)
    trader.store(name, "PAPER", "WRONG")
    trader.until_connection(name, "credential_rejected")
    code, lines = trader.doctor(name)
    assert (code, lines["credential"].startswith("wrong: the broker refuses the credential")) == (
        1,
        True,
    )
    assert "credential_rejected" in lines["account"]
    trader.alpaca.do(lambda: setattr(books["PAPER"], "secret", "WRONG"))
    assert trader.doctor(name) == (
        0,
        lines
        | {
            "credential": "ok: the broker takes it\n",
            "broker": "ok: executions come from /v2beta1/events/activities\n",
            "trading": "ok: the broker has 0 open orders and 0 positions\n",
        },
    )
    trader.alpaca.do(
        lambda: books["PAPER"].blocks.update(trading_blocked=True, status="ACCOUNT_UPDATED")
    )
    trader.alpaca.do(lambda: setattr(trader.alpaca.simulator, "clock_skew_seconds", 60))
    code, lines = trader.doctor(name)
    assert code == 1
    for text in ("the account is ACCOUNT_UPDATED", "trading is blocked"):
        assert text in lines["trading"]
    (seconds,) = re.findall(r"our clock and Alpaca's differ by (\d+) s", lines["trading"])
    assert abs(int(seconds) - 60) < 5
    trader.alpaca.do(lambda: setattr(trader.alpaca.simulator, "activities_status", 404))
    code, lines = trader.doctor(name)
    assert lines["broker"].startswith("ok: executions come from /v2/account/activities/FILL")
    assert "/v2beta1/events/activities answers 404" in lines["broker"]
    trader.alpaca.do(lambda: setattr(trader.alpaca.simulator, "has_fills", False))
    code, lines = trader.doctor(name)
    assert (code, "/v2/account/activities/FILL 404" in lines["broker"]) == (1, True)
    assert books["PAPER"].arrived == [], "no order is placed"
    nobody = trader.platform.run("doctor", "--account", "01a1dd3b-0e5c-7d53-8a94-4b7a3c1f0b62")
    assert (nobody.returncode, "there is no account" in nobody.stdout) == (1, True)
    assert trader.doctor("paper")[0] == 0


def test_a_trial_proves_the_way_of_an_order_to_a_paper_account_and_back(trader: Trader) -> None:
    connected(trader)
    for name in ("alpaca paper", "paper"):
        code, lines, said = trader.try_account(name)
        assert code == 0, said
        orders = trader.get(name, "/orders")["data"]
        (order,) = [each for each in orders if each["limit_price"] == "1.01"]
        assert (order["order_status"], order["filled_quantity"]) == ("CANCELLED", "0")
        assert lines["connection"].startswith("ok: trading-intents ")
        created = f"BUY 1 AAPL at 1 DAY: NEW, order {order['order_id']}, "
        assert re.match(rf"ok: {created}\S+ at the broker \(\d+\.\d s\)", lines["create"])
        assert lines["look-up"].startswith("ok: by client order id: ACCEPTED")
        assert lines["replace"].startswith("ok: to 1.01: NEW at 1.01 (")
        assert lines["cancel"].startswith("ok: CANCEL: CANCELLED (")
        assert "SECRET" not in said
        assert trader.keys["paper"] not in said
    code, lines, said = trader.try_account("alpaca paper", "--symbol", "BTC/USD")
    assert (code, "BUY 1 BTC/USD at 1 GOOD_TILL_CANCEL: NEW" in lines["create"]) == (0, True), said
    statuses = [
        order.json["status"] for order in trader.alpaca.simulator.accounts["PAPER"].orders.values()
    ]
    assert statuses == ["replaced", "canceled"] * 2
    assert "executions come from /v2beta1/events/activities" in lines["broker"]


def test_a_trial_cancels_its_order_whatever_failed_before(trader: Trader) -> None:
    connected(trader)
    refused = Fault("refuse", takes=False, methods=("PATCH",))
    trader.alpaca.do(lambda: trader.alpaca.simulator.faults.append(refused))
    code, lines, said = trader.try_account("alpaca paper")
    assert code == 1, said
    assert lines["replace"].startswith("wrong: to 1.01: NEW at 1: refused, ")
    assert lines["cancel"].startswith("ok: ")
    (order,) = trader.alpaca.simulator.accounts["PAPER"].orders.values()
    assert order.json["status"] == "canceled"


def test_a_trial_sends_nothing_to_a_live_or_disconnected_account(trader: Trader) -> None:
    connected(trader)
    code, lines, said = trader.try_account("alpaca live")
    assert (code, lines["trial"]) == (
        1,
        "wrong: only for environment paper: nothing was asked or sent\n",
    ), said
    trader.alpaca.do(lambda: setattr(trader.alpaca.simulator, "refuses_streams", True))
    trader.alpaca.do(trader.alpaca.simulator.break_connections)
    trader.until_connection("alpaca paper", "connecting")
    code, lines, said = trader.try_account("alpaca paper")
    assert (code, "connecting: try again when it is connected" in lines["connection"]) == (
        1,
        True,
    ), said
    assert [len(each.arrived) for each in trader.alpaca.simulator.accounts.values()] == [0, 0]
    unnamed = trader.platform.run("doctor", "--try")
    assert (unnamed.returncode, "--try needs --account" in unnamed.stderr) == (2, True)
