"""A FIX account from outside, beside an Alpaca and a paper account in one process; what operators
see of it."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.accounts.provisioned import settings_of
from tests.brokers.alpaca.threaded import ThreadedSimulator, simulating_in_thread
from tests.brokers.fix.acceptor import MemoryStore
from tests.brokers.fix.exchange import FixExchange, exchange_in_thread
from tests.brokers.fix.venue import write_profile
from tests.conftest import Urls
from tests.doctor_lines import lines_of
from tests.intents.http_client import Tables, cancel, create, limit, market, replace
from tests.platform import Platform, run_command, serving
from tests.tenants import EVERY_PERMISSION, key
from tests.waiting import eventually
from trading_intents.testing.broker_suite import StageFault

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 20.0
BROKERS = ("acme", "alpaca", "paper")
SECRETS = {
    "acme": {
        "sender_comp_id": "US",
        "target_comp_id": "VENUE",
        "username": "ada",
        "password": "pass-4711",
    },
    "alpaca": {"api_key_id": "PAPER", "api_secret": "SECRET"},
}


@dataclass
class SideBySide:
    platform: Platform
    exchange: FixExchange
    alpaca: ThreadedSimulator
    accounts: dict[str, str]
    headers: dict[str, str]

    def submit(self, broker: str, body: dict[str, Any]) -> str:
        url = f"/v1/accounts/{self.accounts[broker]}/intents"
        answer = self.platform.client.post(url, json=body, headers=self.headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["intent_id"])

    def get(self, broker: str, path: str = "") -> Any:
        return self.platform.client.get(
            f"/v1/accounts/{self.accounts[broker]}{path}", headers=self.headers
        ).json()

    def until_order(self, broker: str, intent: str, status: str, **more: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def reached() -> bool:
            orders = self.get(broker, "/orders")["data"]
            found.update(next((each for each in orders if each["intent_id"] == intent), {}))
            wanted = {"order_status": status} | more
            return {name: found.get(name) for name in wanted} == wanted

        eventually(reached, LIMIT_SECONDS)
        return found

    def store(self, broker: str) -> None:
        url = f"/v1/accounts/{self.accounts[broker]}/credentials"
        answer = self.platform.client.post(
            url, json={"secrets": SECRETS[broker]}, headers=self.headers
        )
        assert answer.status_code == 201, answer.text

    def until_connection(self, broker: str, wanted: str) -> None:
        eventually(lambda: self.get(broker)["connection"] == wanted, LIMIT_SECONDS)


@pytest.fixture
def side_by_side(urls: Urls, tmp_path: Path) -> Iterator[SideBySide]:
    """One process, which has all roles, and an account at each kind of broker."""
    venues = tmp_path / "venues"
    venues.mkdir()
    with simulating_in_thread() as alpaca, exchange_in_thread() as exchange:
        alpaca.simulator.add("PAPER").quote("AAPL", Decimal(99), Decimal(100), Decimal(1000))
        write_profile(venues, exchange.port, has_password=True)
        urls_of_venues = {
            "ALPACA_PAPER_URL": alpaca.simulator.url,
            "FIX_VENUES": str(venues),
            "WORKERS": "0",
        }
        with serving(tmp_path / "data", **urls_of_venues, **settings_of(urls)) as platform:
            document = {
                "external_id": "o",
                "accounts": [
                    {"name": name, "broker": name, "environment": "paper"} for name in BROKERS
                ],
                "api_keys": [key("k", "paper", EVERY_PERMISSION)],
            }
            (made,) = platform.provision({"organizations": [document]})["organizations"]
            headers = {"x-api-key": made["api_keys"][0]["api_key"]}
            accounts = {each["name"]: each["id"] for each in made["accounts"]}
            trading = SideBySide(platform, exchange, alpaca, accounts, headers)
            for broker in SECRETS:
                trading.store(broker)
            prices = {"bid": "99", "ask": "100", "bid_size": "1000", "ask_size": "1000"}
            platform.client.put("/v1/paper/quotes/AAPL", json=prices, headers=headers)
            for broker in BROKERS:
                trading.until_connection(broker, "connected")
            exchange.do(
                lambda: exchange.clients["US"].book.quote(
                    "AAPL", Decimal(99), Decimal(100), Decimal(1000)
                )
            )
            yield trading


def test_one_process_trades_at_three_kinds_of_brokers(side_by_side: SideBySide) -> None:
    trading = side_by_side
    shapes = set()
    for broker in BROKERS:
        filled = trading.until_order(broker, trading.submit(broker, create(market("3"))), "FILLED")
        assert (filled["average_price"], filled["filled_quantity"], filled["flags"]) == (
            "100",
            "3",
            [],
        )
        resting = trading.submit(broker, create(limit("2", "50")))
        shapes.add(frozenset(trading.until_order(broker, resting, "NEW")))
        trading.submit(broker, replace(resting, limit("4", "51")))
        trading.until_order(broker, resting, "NEW", quantity="4", limit_price="51")
        trading.submit(broker, cancel(resting))
        trading.until_order(broker, resting, "CANCELLED")
        (position,) = trading.get(broker, "/positions")["data"]
        assert (position["symbol"], position["quantity"]) == ("AAPL", "3")
    assert len(shapes) == 1


def test_operators_see_the_session(side_by_side: SideBySide, urls: Urls) -> None:
    trading = side_by_side
    trading.until_order("acme", trading.submit("acme", create(market("3"))), "FILLED")
    done = trading.platform.run("doctor", "--account", trading.accounts["acme"])
    assert done.returncode == 0, done.stdout
    assert re.search(
        r"FIX\.4\.4 US to VENUE: next in \d+, next out 4, epoch 1", lines_of(done.stdout)["broker"]
    )
    log = trading.platform.run("fix", "log", trading.accounts["acme"])
    lines = [line.split("\t") for line in log.stdout.splitlines()]
    types = [(line[1], re.findall(r"\|35=(\w+)\|", line[3])[0]) for line in lines]
    assert types == [("out", "A"), ("in", "A"), ("out", "D"), ("in", "8"), ("in", "8")], log.stdout
    assert [line[2] for line in lines if line[1] == "out"] == ["1.1", "1.3"]
    assert "554=***" in lines[0][3]
    assert (
        trading.platform.run("fix", "log", trading.accounts["acme"], "--limit", "1").stdout.count(
            "\n"
        )
        == 1
    )
    trading.exchange.do(lambda: trading.exchange.clients["US"].cut())
    trading.submit("acme", create(limit("1", "50")))
    text = trading.platform.client.get("/metrics").text
    assert 'ti_fix_incidents_total{incident="gap"}' in text
    assert "pass-4711" not in log.stdout + text + "".join(trading.platform.logs)
    tables = Tables(urls.owner)
    assert (
        tables.value("SELECT count(*) FROM fix_out WHERE position('pass-4711'::bytea IN raw) > 0")
        == 0
    )
    tables.close()


def test_operators_reset_the_numbers_by_agreement(side_by_side: SideBySide) -> None:
    trading = side_by_side
    exchange = side_by_side.exchange

    def reset(*more: str) -> str:
        done = trading.platform.run(
            "fix", "reset", trading.accounts["acme"], "--reason", "agreed with Bob", *more
        )
        return f"{done.returncode} {done.stdout}{done.stderr}"

    assert "the session is logged on" in reset()
    exchange.do(lambda: exchange.clients["US"].faults.append(StageFault.LOSE_COMMAND))
    trading.until_order("acme", trading.submit("acme", create(limit("1", "50"))), "UNKNOWN")
    asyncio.run_coroutine_threadsafe(exchange.kill(), exchange.loop).result(LIMIT_SECONDS)
    eventually(lambda: trading.get("acme")["connection"] != "connected", LIMIT_SECONDS)
    assert "1 commands have no answer yet" in reset()
    done = reset("--give-up-unanswered")
    assert done.startswith(
        "0 the next logon has number 1, of epoch 2; 1 commands are never sent again"
    ), done
    exchange.do(lambda: setattr(exchange.clients["US"], "store", MemoryStore()))
    asyncio.run_coroutine_threadsafe(exchange.start(), exchange.loop).result(LIMIT_SECONDS)
    trading.until_connection("acme", "connected")
    trading.until_order("acme", trading.submit("acme", create(market("3"))), "FILLED")
    assert [each.message.type for each in exchange.clients["US"].store.received].count("D") == 1, (
        "none is sent again"
    )
    log = trading.platform.run("fix", "log", trading.accounts["acme"]).stdout
    assert re.search(r"out\t2\.0\tnumbers reset by \w+: agreed with Bob\n.*\tout\t2\.1\t", log), log


def test_a_trial_proves_the_venue(side_by_side: SideBySide) -> None:
    trading = side_by_side
    login = {
        "TRADING_INTENTS_URL": trading.platform.url,
        "TRADING_INTENTS_API_KEY": trading.headers["x-api-key"],
    }
    done = run_command(
        trading.platform.environ | login, "doctor", "--account", trading.accounts["acme"], "--try"
    )
    lines = lines_of(done.stdout)
    assert done.returncode == 0, done.stdout
    assert [
        name
        for name in ("create", "look-up", "replace", "cancel")
        if not lines[name].startswith("ok")
    ] == []
    assert "ACCEPTED" in lines["look-up"]


def test_a_wrong_venue_file_leaves_the_others(urls: Urls, tmp_path: Path) -> None:
    write_profile(tmp_path, 1)
    (tmp_path / "broken.toml").write_text('extends = "nothing"')
    (tmp_path / "Big Bank.toml").write_text('extends = "generic44"\nhost = "h"\nport = 1')
    with serving(tmp_path / "data", FIX_VENUES=str(tmp_path), **settings_of(urls)) as platform:
        (made,) = platform.provision(
            {
                "organizations": [
                    {"external_id": "o", "api_keys": [key("k", "paper", EVERY_PERMISSION)]}
                ]
            }
        )["organizations"]
        headers = {"x-api-key": made["api_keys"][0]["api_key"]}
        brokers = platform.client.get("/v1/brokers", headers=headers).json()["data"]
        assert {"acme", "paper"} <= {each["name"] for each in brokers}
        assert not {"broken", "Big Bank"} & {each["name"] for each in brokers}
    (line,) = [line for line in platform.logs if "broker left out" in line and '"fix"' in line][:1]
    assert "broken.toml" in line
    assert "Big Bank.toml" in line
