"""Workers and the venue are killed while orders flow: no order twice, no fill lost, no number lost
or used twice."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.brokers.fix.exchange import FixExchange, exchange_in_thread
from tests.brokers.fix.venue import write_profile
from tests.conftest import Urls
from tests.execution.ledger_invariants import assert_true_books
from tests.execution.worker_processes import HURRY_PROOFS
from tests.intents.http_client import Tables, cancel, create, limit
from tests.platform import Platform, serving
from tests.raw_http import QuickClient
from tests.seeds import seeded
from tests.tenants import EVERY_PERMISSION, PLENTY, key
from tests.waiting import eventually
from trading_intents.storage.database import open_database
from trading_intents.telemetry import Metrics, make_log

pytestmark = pytest.mark.slow

SETTLE_SECONDS = 120.0
LIFE_SECONDS = (1.0, 2.5)
AWAY_SECONDS = 0.5
PAUSE_SECONDS = 0.02
ACCOUNTS = 3


@dataclass(kw_only=True)
class Run:
    urls: Urls
    folder: Path
    exchange: FixExchange
    api: Platform
    settings: dict[str, str]
    headers: dict[str, str]
    accounts: list[str]
    tables: Tables
    chance: Random
    over: threading.Event

    def send(self) -> None:
        """Orders, one after the other, until the kills are over; some of them are cancelled a
        moment later."""
        number = 0
        with QuickClient(self.api.url, headers=self.headers, timeout=20) as client:
            while not self.over.is_set():
                url = f"/v1/accounts/{self.accounts[number % ACCOUNTS]}/intents"
                price = self.chance.choice(("100", "98"))
                answer = client.post(url, json=create(limit("10", price), symbol="ACME"))
                assert answer.status_code == 202, answer.text
                if self.chance.random() < 0.3:
                    client.post(url, json=cancel(answer.json()["intent_id"]))
                number += 1
                self.over.wait(PAUSE_SECONDS)

    def kill_workers(self, kills: int) -> None:
        for _ in range(kills):
            with self.worker() as platform:
                until = time.monotonic() + self.chance.uniform(*LIFE_SECONDS)
                eventually(lambda until=until: time.monotonic() > until, LIFE_SECONDS[1] + 5)  # type: ignore[misc] # bound now
                platform.process.kill()
                platform.process.wait()
                # Nobody waits until they expire.
                self.tables.execute("UPDATE leases SET worker_id = NULL")

    def kill_exchange(self, kills: int) -> None:
        never = threading.Event()
        for _ in range(kills):
            never.wait(self.chance.uniform(*LIFE_SECONDS))
            self.exchange.restart(lambda: never.wait(self.chance.uniform(0, AWAY_SECONDS)))

    @contextlib.contextmanager
    def worker(self) -> Iterator[Platform]:
        with serving(self.folder, **self.settings | {"ROLES": "worker"}) as platform:
            yield platform

    def trade(self) -> None:
        """The market comes to every order that rests."""

        def come() -> None:
            for venue in self.exchange.clients.values():
                venue.book.quote("ACME", Decimal(96), Decimal(97), Decimal(1_000_000))

        self.exchange.do(come)

    def settle(self) -> None:
        with self.worker():

            def is_settled() -> bool:
                self.trade()
                self.tables.execute(HURRY_PROOFS)
                return bool(
                    self.tables.value("SELECT count(*) = 0 FROM orders WHERE finished_at IS NULL")
                )

            try:
                eventually(is_settled, SETTLE_SECONDS)
            except AssertionError:
                rows = self.tables.fetch("SELECT * FROM orders WHERE finished_at IS NULL LIMIT 3")
                raise AssertionError((rows, self.exchange.endings[-5:])) from None
            eventually(self.have_same_numbers, SETTLE_SECONDS)

    def have_same_numbers(self) -> bool:
        rows = self.tables.fetch("SELECT sender, next_in, next_out FROM fix_sessions")
        ours = {row["sender"]: (row["next_out"], row["next_in"]) for row in rows}
        numbers = {name: venue.store.numbers for name, venue in self.exchange.clients.items()}
        return ours == {name: (each.next_in, each.next_out) for name, each in numbers.items()}

    def check(self) -> int:
        """Compares the platform's orders with the venue's. Gives their number."""
        rows: dict[str, Any] = {}
        for row in self.tables.fetch(
            """
            SELECT coalesce(client_order_id, order_id::text) AS name, o.*
            FROM orders o LEFT JOIN commands c USING (order_id)
            WHERE action_type = 'CREATE' OR action_type IS NULL
            """
        ):
            rows[row["name"]] = row
        books = [venue.book for venue in self.exchange.clients.values()]
        arrived = [name for book in books for name in book.arrived]
        assert len(arrived) == len(set(arrived)), "an order was sent twice"
        orders = {order.names[0]: order for book in books for order in book.orders.values()}
        for name, row in rows.items():
            order = orders.get(name)
            if order is None:
                reason = (row["order_status"], row["reason"])
                assert reason in {
                    ("CANCELLED", "before_send"),
                    ("REJECTED", "not_delivered"),
                    ("EXPIRED", "stale"),
                }
            else:
                shown = {"2": "FILLED", "4": "CANCELLED"}[order.status]
                assert (row["order_status"], row["filled_quantity"]) == (shown, order.filled), (
                    row,
                    order,
                )
        assert set(orders) <= set(rows)
        assert not [text for text in self.exchange.endings if "too low" in text], (
            "a number was used twice"
        )
        return len(rows)


@contextlib.contextmanager
def running(urls: Urls, folder: Path, chance: Random) -> Iterator[Run]:
    venues = folder / "venues"
    venues.mkdir()
    with exchange_in_thread() as exchange:
        write_profile(venues, exchange.port)
        settings = PLENTY | {
            "DATABASE_URL": urls.login.reveal(),
            "DATABASE_OWNER_URL": urls.owner.reveal(),
        }
        settings |= {"FIX_VENUES": str(venues)}
        with serving(folder / "data", **settings | {"ROLES": "api"}) as api:
            document = {
                "external_id": "o",
                "accounts": [
                    {"name": f"a{n}", "broker": "acme", "environment": "paper"}
                    for n in range(ACCOUNTS)
                ],
                "api_keys": [key("k", "paper", EVERY_PERMISSION)],
            }
            (made,) = api.provision({"organizations": [document]})["organizations"]
            headers = {"x-api-key": made["api_keys"][0]["api_key"]}
            accounts = [each["id"] for each in made["accounts"]]
            for number, account in enumerate(accounts):
                secrets = {"sender_comp_id": f"US{number}", "target_comp_id": "VENUE"}
                url = f"/v1/accounts/{account}/credentials"
                assert (
                    api.client.post(url, json={"secrets": secrets}, headers=headers).status_code
                    == 201
                )
            tables = Tables(urls.owner)
            try:
                yield Run(
                    urls=urls,
                    folder=folder / "data",
                    exchange=exchange,
                    api=api,
                    settings=settings,
                    headers=headers,
                    accounts=accounts,
                    tables=tables,
                    chance=chance,
                    over=threading.Event(),
                )
            finally:
                tables.close()


# Takes more than five seconds: what a killed worker had claimed is another's after CLAIM_SECONDS,
# which are five.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kills", "seed"),
    [(2, 0), *(pytest.param(20, seed, marks=pytest.mark.chaos) for seed in (1, 2, 3))],
)
def test_every_order_is_sent_once_and_every_fill_is_recovered(
    urls: Urls, tmp_path: Path, kills: int, seed: int
) -> None:
    with running(urls, tmp_path, seeded(f"fix {seed}")) as run:
        sending = threading.Thread(target=run.send)
        killing = threading.Thread(target=run.kill_exchange, args=(kills,))
        sending.start()
        killing.start()
        try:
            run.kill_workers(kills)
            with run.worker():
                killing.join()
        finally:
            run.over.set()
            sending.join()
        run.settle()
        count = run.check()

        async def check_books() -> int:
            async with open_database(urls.login, 3, make_log("error"), Metrics()) as database:
                return await assert_true_books(database)

        assert asyncio.run(check_books()) == count
        print(f"\n{count} orders, {len(run.exchange.endings)} sessions")
