"""A process stops in the middle of a transaction, as on a paused machine or behind a cut network:
its locks are freed in time, and nobody but its own organization waits for them."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Databases, Urls
from tests.intents.http_client import Body, Tables, cancel, create
from tests.old_postgres import postgres_15
from tests.platform import Platform, serving
from tests.proxy import FaultProxy, Verdict, proxied
from tests.tenants import EVERY_PERMISSION, PLENTY, Headers, key
from tests.waiting import eventually
from trading_intents.secret import Secret

SERVED_SECONDS = 3
IDLE = """
    SELECT count(*) AS backends FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid
    WHERE a.datname = current_database() AND a.state = 'idle in transaction'
        AND l.relation = $1::text::regclass AND l.mode LIKE 'Row%'
"""


def start_of_message(data: bytes, offset: int) -> int:
    """The start of the message that has this offset. Bytes that were sent before it may have come
    together with it."""
    start = 0
    while (end := start + 1 + int.from_bytes(data[start + 1 : start + 5])) <= offset:
        start = end
    return start


class Freezer:
    """Stops the process behind the proxy at the moment at which it sends the last of these, one
    after the other."""

    def __init__(self) -> None:
        self.pid = 0
        self.markers: list[bytes] = []

    def look(self, data: bytes) -> Verdict | int:
        if not self.markers or self.markers[0] not in data:
            return Verdict.PASS
        marker = self.markers.pop(0)
        if self.markers:
            return Verdict.PASS
        os.kill(self.pid, signal.SIGSTOP)
        return start_of_message(data, data.index(marker))

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@pytest.fixture
def freezer() -> Freezer:
    return Freezer()


@pytest.fixture(params=["embedded", pytest.param("PostgreSQL 15", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Urls]:
    with ExitStack() as stack:
        if request.param == "embedded":
            yield stack.enter_context(databases())
        else:
            owner = stack.enter_context(postgres_15())
            with closing(Tables(Secret(owner))) as tables:
                tables.fetch("CREATE ROLE app LOGIN")
            yield Urls(Secret(owner), Secret(owner.replace("postgres@", "app@")))


class Market:
    """A process that can be frozen, another one that serves, and two organizations."""

    def __init__(
        self, frozen: Platform, serving: Platform, proxy: FaultProxy, tables: Tables
    ) -> None:
        self.frozen = frozen
        self.serving = serving
        self.proxy = proxy
        self.tables = tables
        account = {"name": "a", "broker": "paper", "environment": "paper"}
        self.callers: dict[str, tuple[Headers, str]] = {}
        for name in ("one", "other"):
            keys = [key("k", "paper", EVERY_PERMISSION)]
            document = {
                "organizations": [{"external_id": name, "accounts": [account], "api_keys": keys}]
            }
            made = serving.provision(document)["organizations"][0]
            headers = {"x-api-key": made["api_keys"][0]["api_key"]}
            self.callers[name] = headers, f"/v1/accounts/{made['accounts'][0]['id']}/intents"

    def post(self, name: str, through: Platform, body: Body) -> httpx.Response:
        headers, url = self.callers[name]
        with httpx.Client(base_url=through.url, timeout=20, verify=False) as client:
            return client.post(url, json=body, headers=headers)

    def submit(self, name: str, through: Platform, symbol: str = "AAPL") -> int:
        return self.post(name, through, create(symbol=symbol)).status_code

    def submit_during(self, waiting: Future[Any]) -> int:
        """Submits for the other organization, again and again until `waiting` is done. Gives the
        number of its commands, more than one: a second one waits for nothing."""
        count = 0
        while not waiting.done():
            assert self.submit("other", self.serving) == 202
            count += 1
        assert count > 1, "the others waited for the lock too"
        return count

    def holds(self, table: str) -> bool:
        """Whether a transaction that nobody goes on with holds rows of it."""
        return bool(self.tables.fetch(IDLE, table)[0]["backends"])

    def recorded(self) -> list[int]:
        """The number of actions of each account, without a gap."""
        rows = self.tables.fetch(
            "SELECT count(*) AS rows, max(seq) AS seq FROM actions GROUP BY account_id ORDER BY 1"
        )
        assert all(row["rows"] == row["seq"] for row in rows)
        return [row["rows"] for row in rows]


@pytest.fixture
def market(
    server: Urls, tmp_path: Path, freezer: Freezer, request: pytest.FixtureRequest
) -> Iterator[Market]:
    roles = getattr(request, "param", "api")
    settings = {"DATABASE_OWNER_URL": server.owner.reveal(), **PLENTY}
    with (
        serving(tmp_path, DATABASE_URL=server.login.reveal(), ROLES="api", **settings) as second,
        proxied(server.login, freezer.look) as (proxy, login),
        serving(tmp_path, DATABASE_URL=login.reveal(), ROLES=roles, **settings) as first,
        closing(Tables(server.owner)) as tables,
    ):
        freezer.pid = first.process.pid
        try:
            yield Market(first, second, proxy, tables)
        finally:
            freezer.thaw()
            proxy.work()


MOMENTS = {
    "before it writes": ("MSFT", b"with_", "account_heads"),
    "before it commits": ("AAPL", b"commit_", "stream_heads"),
}


@pytest.mark.slow
@pytest.mark.deadline
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_organization_is_served_again_in_time_and_the_others_all_along(
    market: Market, freezer: Freezer, moment: str
) -> None:
    symbol, marker, held = MOMENTS[moment]
    assert market.submit("one", market.frozen) == 202
    assert [market.submit("other", market.serving) for _ in range(2)] == [202, 202]
    freezer.markers = [marker]
    with ThreadPoolExecutor(2) as threads:
        frozen = threads.submit(market.submit, "one", market.frozen, symbol)
        assert market.proxy.held.wait(20)
        since = time.monotonic()
        eventually(lambda: market.holds(held), 2)  # its writes may still be under way
        waiting = threads.submit(market.submit, "one", market.serving)
        others = market.submit_during(waiting)
        assert waiting.result() == 202
        assert time.monotonic() - since < SERVED_SECONDS
        market.proxy.work()
        freezer.thaw()
        frozen_status = frozen.result()
    eventually(lambda: market.submit("one", market.frozen) == 202, 5)
    assert market.recorded() == sorted([2 + others, 3 + (frozen_status == 202)])


@pytest.mark.slow
@pytest.mark.deadline
@pytest.mark.parametrize("market", ["worker"], indirect=True)
def test_a_frozen_worker_keeps_an_order_no_longer(market: Market, freezer: Freezer) -> None:
    """It stops before it marks the order as sent, which would be the last statement of its
    transaction."""
    freezer.markers = [b"UPDATE commands SET sent_at"]
    made = market.post("one", market.serving, create())
    assert market.proxy.held.wait(20)
    since = time.monotonic()
    eventually(lambda: market.holds("orders"), 2)  # what it sent just before may still be under way
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(
            market.post, "one", market.serving, cancel(made.json()["intent_id"])
        )
        market.submit_during(waiting)
        assert waiting.result().status_code == 202
    assert time.monotonic() - since < SERVED_SECONDS
