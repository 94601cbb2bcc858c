"""The whole platform with accounts at simulated venues: an API process, workers that are killed, and
a market that moves."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from simulator import Simulator
from simulators import SIMULATORS
from spot_book import BASE, SpotBook
from stage import SYMBOL
from tests.conftest import Urls
from tests.execution.worker_processes import WorkerProcesses
from tests.intents.http_client import Tables
from tests.platform import serving
from tests.seeds import seeded
from tests.tenants import EVERY_PERMISSION, PLENTY, key

from trading_intents.orders.facts import client_order_id
from trading_intents.trading import Environment
from trading_intents_ccxt.venues import VENUES

MARKET_SECONDS = 0.05
CASH = Decimal(100_000_000)


@dataclass(kw_only=True)
class VenueProcesses(WorkerProcesses):
    simulators: list[Simulator]  # in the order of the accounts

    @contextlib.contextmanager
    def market(self) -> Iterator[None]:
        """Prices around 100, and sizes that fill orders in parts."""
        over = threading.Event()
        chance = seeded("market")

        def move() -> None:
            while not over.wait(MARKET_SECONDS):
                for simulator in self.simulators:
                    bid = Decimal(100) + Decimal(chance.randrange(-300, 300)) / 100
                    size = Decimal(chance.choice((1, 3, 100)))
                    simulator.book.quote(bid, bid + Decimal("0.05"), size)

        thread = threading.Thread(target=move)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def fill_all(self) -> None:
        """Fills all that still works: the BUYs by a low market, then the SELLs by a high one."""
        for simulator in self.simulators:
            for price in (Decimal(10), Decimal(1_000)):
                simulator.book.quote(price, price, Decimal(1_000_000))

    def check_books(self) -> None:
        """Every order is at the venue once, or was never sent; every execution is booked once; the
        position is what the venue holds, fees of coins with it."""
        query = "SELECT action_id, intent_id FROM actions WHERE action_type = 'CREATE'"
        names = {
            client_order_id(row["action_id"]): row["intent_id"] for row in self.tables.fetch(query)
        }
        booked = dict[object, list[tuple[Decimal, Decimal]]]()
        for row in self.tables.fetch("SELECT * FROM trades WHERE quantity > 0"):
            assert "gap" not in row["flags"], row
            booked.setdefault(row["order_id"], []).append((row["quantity"], row["price"]))
        at_venues = dict[object, list[tuple[Decimal, Decimal]]]()
        for account, simulator in zip(self.accounts, self.simulators, strict=True):
            arrived = simulator.book.arrived
            assert len(arrived) == len(set(arrived)), "an id was sent twice"
            for order in simulator.book.orders:
                fills = [(trade.quantity, trade.price) for trade in order.trades]
                assert names[order.name] not in at_venues, "an order is at the venue twice"
                at_venues[names[order.name]] = fills
            gained = simulator.book.held[BASE] - SpotBook(CASH).held[BASE]
            held = self.tables.value(
                "SELECT quantity FROM holdings WHERE account_id = $1::text::uuid AND symbol = $2",
                account,
                SYMBOL,
            )
            assert (held or 0) == gained, f"we hold {held}, the venue {gained}"
        for row in self.orders().values():
            if row["order_id"] not in at_venues:
                assert row["order_status"] in ("EXPIRED", "REJECTED", "CANCELLED"), row
            fills = at_venues.pop(row["order_id"], [])
            assert sorted(booked.get(row["order_id"], [])) == sorted(fills), row
        assert not at_venues, "a venue has orders that are none of ours"


@contextlib.contextmanager
def open_venue_processes(
    urls: Urls, folder: Path, venues: list[str], **settings: str
) -> Iterator[VenueProcesses]:
    with contextlib.ExitStack() as stack:
        chosen = PLENTY | {
            "DATABASE_URL": urls.login.reveal(),
            "DATABASE_OWNER_URL": urls.owner.reveal(),
        }
        simulators = list[Simulator]()
        for name in venues:
            simulators.append(SIMULATORS[name](SpotBook(CASH)))
            url = stack.enter_context(simulators[-1].serving())
            chosen |= {VENUES[name].setting(Environment.PAPER): url}
        roles = {"ROLES": "api"} | chosen | settings
        api = stack.enter_context(serving(folder, **roles))
        accounts = [
            {"name": name, "broker": VENUES[name].name, "environment": "paper"} for name in venues
        ]
        document = {
            "external_id": "o",
            "accounts": accounts,
            "api_keys": [key("k", "paper", EVERY_PERMISSION)],
        }
        made = api.provision({"organizations": [document]})["organizations"][0]
        headers = {"x-api-key": made["api_keys"][0]["api_key"]}
        ids = [account["id"] for account in made["accounts"]]
        for account, simulator in zip(ids, simulators, strict=True):
            stored = api.client.post(
                f"/v1/accounts/{account}/credentials",
                json={"secrets": dict(simulator.credentials)},
                headers=headers,
            )
            assert stored.status_code == 201, stored.text
        opened = VenueProcesses(
            urls=urls,
            folder=folder,
            api=api,
            headers=headers,
            accounts=ids,
            tables=Tables(urls.owner),
            settings=chosen,
            simulators=simulators,
        )
        stack.callback(opened.tables.close)
        yield opened
