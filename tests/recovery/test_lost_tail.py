"""A failover that lost what was committed: the data are marked as after a restore before anything
is sent. One that lost nothing changes nothing."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Urls, copy_folder
from tests.documents import section
from tests.platform import Platform, serving
from tests.proxy import FaultProxy, proxied
from tests.storage.conftest import Start, kill_postgres, query, start
from tests.tenants import EVERY_PERMISSION, key
from tests.waiting import eventually
from trading_intents.secret import Secret
from trading_intents.storage.connections import WalHistory
from trading_intents.storage.database import SERVICE_ROLE, open_pool
from trading_intents.storage.embedded.cluster import open_cluster
from trading_intents.storage.embedded.programs import make_base_backup
from trading_intents.telemetry import Metrics

pytestmark = pytest.mark.slow

__all__ = ["start"]

LIMIT_SECONDS = 30
TITLE = "A `tail_lost` that may be false"
PASSWORDS = "*.password"
SPECS = {
    "market": {"Market": {"quantity": "1"}},
    "far": {"Limit": {"quantity": "1", "limit_price": "1"}},
}
ORGANIZATION = {
    "external_id": "o",
    "accounts": [{"name": "a", "broker": "paper", "environment": "paper"}],
    "api_keys": [key("k", "paper", EVERY_PERMISSION)],
}
RENEWALS = "SELECT string_agg(renewed_by || ': ' || reason, ', ') FROM stream_epoch_renewals"


class Trader:
    """One account of a platform whose database is reached through a proxy."""

    def __init__(self, platform: Platform, proxy: FaultProxy) -> None:
        (made,) = platform.provision({"organizations": [ORGANIZATION]})["organizations"]
        self.platform = platform
        self.proxy = proxy
        self.headers = {"x-api-key": made["api_keys"][0]["api_key"]}
        self.path = f"/v1/accounts/{made['accounts'][0]['id']}"
        eventually(lambda: self.submit("opened") == 202, LIMIT_SECONDS)

    def submit(self, name: str, spec: str = "market") -> int:
        payload = {"symbol": "AAPL", "order_side": "BUY", "spec": SPECS[spec]}
        body = {"command": {"type": "CREATE", "payload": payload}}
        headers = self.headers | {"idempotency-key": name}
        return self.platform.client.post(
            f"{self.path}/intents", json=body, headers=headers
        ).status_code

    def statuses(self) -> list[str]:
        answer = self.platform.client.get(f"{self.path}/orders", headers=self.headers)
        return (
            [order["order_status"] for order in answer.json()["data"]]
            if answer.status_code == 200
            else []
        )

    def metric(self, name: str) -> float:
        lines = self.platform.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def events(self) -> set[str]:
        return {json.loads(line)["event"] for line in self.platform.logs if line.startswith("{")}


@pytest.fixture
def folders(cluster: Path, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Of a server, and of one that takes over from it."""
    primary = copy_folder(cluster, tmp_path / "primary")
    standby = tmp_path / "standby"
    open_cluster(primary, "").allow_base_backups()
    standby.mkdir(mode=0o700)
    for file in primary.glob(PASSWORDS):
        shutil.copy2(file, standby)
    yield primary, standby
    shutil.rmtree(tmp_path, ignore_errors=True)


@contextlib.contextmanager
def trading(tmp_path: Path, owner: Secret, login: Secret) -> Iterator[Trader]:
    with proxied(login) as (proxy, through):
        urls = {"DATABASE_URL": through.reveal(), "DATABASE_OWNER_URL": owner.reveal()}
        with serving(tmp_path / "platform", **urls) as platform:
            yield Trader(platform, proxy)


def copy_server(primary: Path, standby: Path) -> None:
    target = standby / "postgres"
    asyncio.run(make_base_backup(open_cluster(primary, ""), target, None, lambda *_: None))


def fail_over(trader: Trader, standby: Path, start: Start) -> str:
    """To a server that lacks what was committed last; gives its owner's URL."""
    trader.proxy.refuse()
    owner = start(standby).until("url")["owner_url"]
    trader.proxy._target = open_cluster(standby, "").sockets / ".s.PGSQL.5432"
    trader.proxy.work()
    eventually(
        lambda: trader.metric('ti_execution_alerts_total{kind="tail_lost"}') == 1, LIMIT_SECONDS
    )
    return str(owner)


def follow_document(trader: Trader, number: int, old_url: str) -> subprocess.CompletedProcess[str]:
    """Runs what the document's block of that number says, as an operator does."""
    text = section("docs/operating/recover.md", TITLE)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, **trader.platform.environ, "OLD_DATABASE_URL": old_url, "PATH": path}
    commands = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)[number]
    folder = trader.platform.environ["TRADING_INTENTS_DATA_DIR"]
    return subprocess.run(
        ["bash", "-euc", commands], env=environ, cwd=folder, capture_output=True, text=True
    )


def test_a_failover_that_lost_a_tail_halts_and_sends_nothing(
    folders: tuple[Path, Path], start: Start, tmp_path: Path
) -> None:
    primary, standby = folders
    said = start(primary).until("url")
    with trading(tmp_path, Secret(said["owner_url"]), Secret(said["url"])) as trader:
        assert trader.submit("far", "far") == 202
        eventually(lambda: sorted(trader.statuses()) == ["FILLED", "NEW"], LIMIT_SECONDS)
        copy_server(primary, standby)
        assert trader.submit("lost") == 202
        eventually(lambda: trader.statuses().count("FILLED") == 2, LIMIT_SECONDS)
        owner = fail_over(trader, standby, start)
        assert "committed work lost" in trader.events()
        eventually(lambda: trader.submit("after") != 503, LIMIT_SECONDS)
        assert trader.submit("after") == 409, "every organization is halted"
        assert sorted(trader.statuses()) == ["FILLED", "NEW"]
        assert asyncio.run(query(owner, RENEWALS)).startswith("failover: ")
        marked = "SELECT count(*) FROM orders WHERE is_restored"
        assert asyncio.run(query(owner, marked)) == 1, "that of the open order"
        assert asyncio.run(query(owner, "SELECT lost_tail FROM stream_epoch")) is None
        proved = follow_document(trader, 0, said["url"])
        assert (proved.returncode, "it is missing: the log is cut off" in proved.stdout) == (
            1,
            True,
        )


def test_a_false_alarm_is_proved_and_ended_as_the_document_says(
    folders: tuple[Path, Path], start: Start, tmp_path: Path
) -> None:
    """Only renewals of leases are lost."""
    primary, standby = folders
    said = start(primary).until("url")
    with trading(tmp_path, Secret(said["owner_url"]), Secret(said["url"])) as trader:
        eventually(lambda: trader.statuses() == ["FILLED"], LIMIT_SECONDS)
        copy_server(primary, standby)
        renewed = "SELECT max(expires_at)::text FROM workers"
        copied = asyncio.run(query(said["owner_url"], renewed))
        eventually(lambda: asyncio.run(query(said["owner_url"], renewed)) != copied, LIMIT_SECONDS)
        fail_over(trader, standby, start)
        eventually(lambda: trader.submit("halted") == 409, LIMIT_SECONDS)
        proved = follow_document(trader, 0, said["url"])
        assert (proved.returncode, proved.stderr) == (0, ""), proved.stdout
        assert "0 accounts damaged" in proved.stdout
        ended = follow_document(trader, 1, said["url"])
        assert ended.returncode == 0, ended.stderr
        assert trader.submit("resumed") == 202
        eventually(lambda: trader.statuses() == ["FILLED", "FILLED"], LIMIT_SECONDS)


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.chaos)])
def test_a_crash_that_lost_nothing_changes_nothing(
    folders: tuple[Path, Path], start: Start, tmp_path: Path, rounds: int
) -> None:
    primary, _ = folders
    server = start(primary)
    said = server.until("url")
    with trading(tmp_path, Secret(said["owner_url"]), Secret(said["url"])) as trader:
        for number in range(rounds):
            assert trader.submit(f"before-{number}") == 202
            kill_postgres(primary)
            server.until("started")
            eventually(lambda number=number: trader.submit(f"after-{number}") == 202, LIMIT_SECONDS)  # type: ignore[misc]  # bound now
        assert asyncio.run(query(said["owner_url"], RENEWALS)) is None
        assert trader.metric('ti_execution_alerts_total{kind="tail_lost"}') == 0


async def test_nothing_counts_as_seen_that_is_not_on_the_disk(urls: Urls) -> None:
    """A COMMIT waits neither for the disk nor for a standby if its transaction wrote nothing,
    though it may have an id: a row that it was to change was changed by another meanwhile. Then
    others' writes are not there yet."""
    history = WalHistory()
    with psycopg.connect(urls.owner.reveal(), autocommit=True) as other:
        async with open_pool(urls.login, SERVICE_ROLE, 1, Metrics(), history) as pool:
            for _ in range(20):
                other.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 1000))")
                async with pool.transaction() as tx:
                    await tx.fetchval("SELECT pg_current_xact_id()")
                flushed = other.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchone()
                assert flushed
                assert 0 < history.seen <= flushed[0]


@pytest.mark.parametrize(
    ("epoch", "began", "now", "is_lost"),
    [
        ("e", "100", "900", False),  # the same server
        ("e", "300", "900", False),  # another took over with all of it
        ("e", "201", "201", False),
        ("e", "200", "900", True),  # the COMMIT itself is missing
        ("e", "150", "900", True),
        ("e", None, "900", False),  # restarted in peace
        ("e", None, "200", True),  # an old copy
        ("marked", "150", "900", False),
    ],
)
def test_a_server_is_judged_by_where_its_history_ends(
    epoch: str, began: str | None, now: str, is_lost: bool
) -> None:
    history = WalHistory()
    assert history.find_lost_tail(history.seen, "e", "100", "120") is None
    history.note("200")
    history.note("150")
    assert bool(history.find_lost_tail(history.seen, epoch, began, now)) is is_lost
    assert bool(history.find_lost_tail(history.seen, epoch, began, now)) is is_lost, (
        "as long as it is the same"
    )
