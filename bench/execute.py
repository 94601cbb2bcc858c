"""Measures the whole way of an order: from POST until it is filled, booked and streamed, beside
pgbench's minimal transaction. Run it alone on the machine: `python bench/execute.py`. Exit code 1
when a bar is missed.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
from rich.console import Console
from rich.table import Table

import null_broker
from plot import Bar, draw, show_bars
from submit import STATEMENTS, TABLES, YARDSTICK_CLIENTS, Bench, best, serving
from trading_intents.storage.embedded.cluster import DATABASE, OWNER

PICTURE = Path(__file__).with_name("out") / "execute.png"
ROUNDS = 3
CONNECTIONS = 64
# Accounts, symbols, orders.
WAVES = ((1, 1, 1_000), (8, 40, 2_000), (64, 40, 3_000), (512, 40, 3_000))
MAX_ACCOUNTS = 512
BURST_ORDERS = 4_000
BURST_ACCOUNTS = 64
SUSTAINED_SECONDS = 20.0
QUEUED = 10_000
LONE_ORDERS = 200
IDLE_SECONDS = 10.0
STATISTICS_SECONDS = 12.0  # a server counts a session's transactions up to ten seconds late
WAIT_SECONDS = 120.0
POLL_SECONDS = 0.02


@dataclass
class Wave:
    """The results of a number of orders sent at once."""

    per_second: float
    accepted_per_second: float
    accept_p99_ms: float
    service_us: float
    postgres_us: float
    stale: int
    wal_bytes: float  # of an order, as the row versions
    row_versions: float
    hot_updates: float  # of these, without an entry in any index


class Market:
    """Accounts of one organization at the paper broker, and market orders on them."""

    def __init__(
        self, bench: Bench, client: httpx.Client, database: "psycopg.Connection[Any]"
    ) -> None:
        self.bench = bench
        self.client = client
        self.database = database
        self.accounts: list[str] = []
        self._made = 0  # orders

    def open_accounts(self, number: int, broker: str = "paper") -> None:
        while len(self.accounts) < number:
            body = {"name": f"a{len(self.accounts)}", "broker": broker, "environment": "paper"}
            self.accounts.append(
                self.client.post("/v1/accounts", json=body).raise_for_status().json()["id"]
            )
        self._until("SELECT count(*) FROM accounts WHERE connection <> 'connected'", 0)

    def wave(self, accounts: int, symbols: int, orders: int, seconds: float = 1000.0) -> Wave:
        """POSTs them over many connections as fast as they are taken, and waits until each is
        finished and booked."""
        cpu = self.bench.cpu()
        written = self._written()
        posted = self.bench.load(
            (self.order(self.accounts[n % accounts], f"S{n % symbols}") for n in range(orders)),
            CONNECTIONS,
            seconds,
        )
        count = sum(posted["statuses"].values())
        self.until_finished()
        took = time.time() - posted["began"]
        service, postgres = (
            (b - a) / count * 1e6 for a, b in zip(cpu, self.bench.cpu(), strict=True)
        )
        wal, rows, hot = ((b - a) / count for a, b in zip(written, self._written(), strict=True))
        return Wave(
            per_second=count / took,
            accepted_per_second=posted["per_second"],
            accept_p99_ms=posted["p99_ms"],
            service_us=service,
            postgres_us=postgres,
            stale=self._take_stale(),
            wal_bytes=wal,
            row_versions=rows,
            hot_updates=hot,
        )

    def lone(self, orders: int) -> tuple[list[float], list[float]]:
        """Milliseconds of one order after another: until the broker has it, and until FILLED is on
        the stream."""
        sent = []
        filled = []
        account = self.accounts[0]
        with self.client.stream("GET", f"/v1/accounts/{account}/events", timeout=30) as events:
            lines = events.iter_lines()
            for _ in range(orders):
                began = time.perf_counter()
                at = time.time()
                body = self.order(account, "LONE")["body"]
                answer = self.client.post(f"/v1/accounts/{account}/intents", content=body)
                intent = answer.raise_for_status().json()["intent_id"]
                for line in lines:
                    if intent in line and '"ORDER_STATUS_FILLED"' in line:
                        break
                filled.append((time.perf_counter() - began) * 1000)
                arrived = self._value(
                    "SELECT extract(epoch FROM max(at))::float8 FROM paper_journal"
                )
                sent.append((arrived - at) * 1000)
        return sent, filled

    def stages(self, orders: int) -> dict[str, float]:
        """The stages of the last orders that were sent one by one: medians in milliseconds, by the
        database's clock."""
        rows = self.database.execute(
            """
            SELECT extract(epoch FROM c.sent_at - a.created_at) * 1000,
                extract(epoch FROM j.at - c.sent_at) * 1000,
                   extract(epoch FROM r.at - j.at) * 1000
            FROM orders o
            JOIN actions a ON a.account_id = o.account_id AND a.seq = o.create_seq
            JOIN commands c ON c.order_id = o.order_id
            JOIN paper_journal j ON j.account_id = o.account_id
                AND j.client_order_id = c.client_order_id
            CROSS JOIN LATERAL (
                SELECT max(at) AS at FROM reports WHERE order_id = o.order_id
            ) AS r
            WHERE o.symbol = 'LONE' ORDER BY o.created_at DESC LIMIT %s
            """,
            (orders,),
        ).fetchall()
        names = (
            "decided until its send is marked",
            "until the venue works it",
            "until its fill is recorded",
        )
        return {
            name: float(statistics.median(column))
            for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }

    def sustained(self, seconds: float) -> tuple[float, float]:
        """Intents accepted a second while what was accepted is executed, and the 99th percentile of
        their answers."""
        orders = (
            self.order(self.accounts[n % 64], f"S{n % 40}") for n in range(int(15_000 * seconds))
        )
        posted = self.bench.load(orders, CONNECTIONS, seconds)
        return float(posted["per_second"]), float(posted["p99_ms"])

    def idle_transactions(self) -> float:
        """A second, while nothing happens."""
        query = """
            SELECT sum(xact_commit + xact_rollback)::float8 FROM pg_stat_database
            WHERE datname = current_database()
        """
        time.sleep(STATISTICS_SECONDS)
        before = self._value(query)
        time.sleep(IDLE_SECONDS)
        # The first question was one itself.
        return float((self._value(query) - before - 1) / IDLE_SECONDS)

    def queue(self, account: int, orders: int) -> None:
        self.bench.load(
            (self.order(self.accounts[account], "BUSY") for _ in range(orders)), CONNECTIONS, 1000
        )

    def until_finished(self) -> None:
        """Asks for one open order by its index: counting them would cost more than the orders."""
        self._until(
            "SELECT count(*) FROM (SELECT FROM orders WHERE finished_at IS NULL LIMIT 1) AS open", 0
        )

    def until_sent(self) -> None:
        self._until("SELECT count(*) FROM orders WHERE order_status = 'PENDING_NEW'", 0)

    def is_busy(self) -> bool:
        return bool(
            self._value("SELECT EXISTS (SELECT FROM orders WHERE order_status = 'PENDING_NEW')")
        )

    def cancel_all(self) -> None:
        for account in self.accounts:
            self.client.post(
                f"/v1/accounts/{account}/intents/cancel-all", json={}
            ).raise_for_status()

    def order(self, account: str, symbol: str) -> dict[str, Any]:
        payload = {"symbol": symbol, "order_side": "BUY", "spec": {"Market": {"quantity": "0.01"}}}
        self._made += 1
        key = {"idempotency-key": str(self._made)} if self._made % 2 else {}
        return {
            "path": f"/v1/accounts/{account}/intents",
            "headers": {"x-api-key": self.client.headers["x-api-key"]} | key,
            "body": json.dumps({"command": {"type": "CREATE", "payload": payload}}),
        }

    def _written(self) -> tuple[float, float, float]:
        """Bytes of the log, row versions and those among them that changed no index, so far."""
        row = self.database.execute(
            """
            SELECT pg_current_wal_insert_lsn() - '0/0', sum(n_tup_ins + n_tup_upd + n_tup_del),
                sum(n_tup_hot_upd)
            FROM pg_stat_user_tables WHERE schemaname <> 'yardstick'
            """
        ).fetchone()
        assert row is not None
        return float(row[0]), float(row[1]), float(row[2])

    def _take_stale(self) -> int:
        return int(self._value("SELECT count(*) FROM orders WHERE reason = 'stale'"))

    def _until(self, query: str, value: int) -> None:
        self.bench.own_backends.add(self.database.info.backend_pid)
        began = time.perf_counter()
        while self._value(query) != value:
            assert time.perf_counter() - began < WAIT_SECONDS, query
            time.sleep(POLL_SECONDS)

    def _value(self, query: str) -> Any:
        row = self.database.execute(query).fetchone()
        assert row is not None
        return row[0]


@contextmanager
def market(*roles: str, **settings: str) -> Iterator[Market]:
    """A fresh platform: a process for each of `roles`."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ti-bench-")))
        settings |= {"PYTHONPATH": null_broker.install(folder)}
        bench = stack.enter_context(serving(folder, roles[0], None, **settings))
        for others in roles[1:]:
            stack.enter_context(serving(folder, others, bench, **settings))
        key = json.loads((folder / "data" / "demo.json").read_bytes())["api_key"]
        headers = {"x-api-key": key, "content-type": "application/json"}
        client = stack.enter_context(httpx.Client(base_url=bench.url, headers=headers, timeout=60))
        url = bench.cluster.url(OWNER, DATABASE).reveal()
        database = stack.enter_context(closing(psycopg.connect(url, autocommit=True)))
        database.execute("SET row_security = off")
        bench.psql(TABLES)
        yield Market(bench, client, database)


def measure_one_process() -> dict[str, Any]:
    with market("api,stream,worker") as here:
        found: dict[str, Any] = {
            "yardstick": [],
            "one_client": [],
            "waves": {wave: [] for wave in WAVES},
        }
        here.open_accounts(1)
        here.lone(20)
        found["idle"] = here.idle_transactions()
        for _ in range(ROUNDS):
            here.bench.psql("CHECKPOINT")
            found["yardstick"].append(here.bench.pgbench(STATEMENTS, YARDSTICK_CLIENTS))
            found["one_client"].append(here.bench.pgbench(STATEMENTS, 1))
            found.setdefault("lone", []).append(here.lone(LONE_ORDERS))
            for wave in WAVES:
                here.open_accounts(wave[0])
                found["waves"][wave].append(here.wave(*wave))
        found["stages"] = here.stages(LONE_ORDERS)
        found["burst"] = here.wave(BURST_ACCOUNTS, 40, BURST_ORDERS)
        here.queue(1, QUEUED)
        found["beside"] = here.lone(10)
        here.until_finished()
        found["sustained"] = here.sustained(SUSTAINED_SECONDS)
        return found


def measure_worker_apart() -> list[Wave]:
    with market("api,stream", "worker") as here:
        here.open_accounts(64)
        return [here.wave(64, 40, 3_000) for _ in range(ROUNDS)]


def measure_null_broker() -> list[Wave]:
    """The platform without the paper venue."""
    with market("api,stream,worker") as here:
        here.open_accounts(64, null_broker.NAME)
        return [here.wave(64, 40, 3_000) for _ in range(ROUNDS)]


def main() -> int:
    return report(measure_one_process(), measure_worker_apart(), measure_null_broker())


def report(found: dict[str, Any], apart: list[Wave], null: list[Wave]) -> int:
    out = Console()
    base = best(found["yardstick"])["per_second"]
    one_client = best(found["one_client"])["p50_ms"]
    out.print(f"yardstick {base:.0f}/s, pgbench of 1 client {one_client:.2f} ms")
    waves = best_waves(found, apart, null)
    out.print(table_of(waves, base))
    lone = min(found["lone"], key=lambda each: statistics.median(each[1]))
    sent, filled = (statistics.median(each) for each in lone)
    late = statistics.quantiles(lone[1], n=100)[98]
    beside = statistics.median(found["beside"][1])
    middle = waves["64 x 40"]
    stages = Table("a lone order", "ms")
    for name, millis in found["stages"].items():
        stages.add_row(name, f"{millis:.2f}")
    stages.add_row("POST until FILLED is on the stream", f"{filled:.2f}")
    out.print(stages)
    bars = [
        Bar("filled and booked/s, 64 x 40, x yardstick", middle.per_second / base, 0.25, 0.4, True),
        Bar(
            "512 x 40 / 8 x 40",
            waves["512 x 40"].per_second / waves["8 x 40"].per_second,
            0.8,
            0.9,
            True,
        ),
        Bar("service CPU an order, microseconds", middle.service_us, 700, 440, False),
        Bar("PostgreSQL CPU an order, microseconds", middle.postgres_us, 550, 360, False),
        Bar("stale in a burst", found["burst"].stale, 0, 0, False),
        Bar("lone POST until submit, p50, x pgbench of 1 client", sent / one_client, 12, 8, False),
        Bar("lone POST until FILLED, p50, likewise", filled / one_client, 25, 20, False),
        Bar("its p99 / p50", late / filled, 3, 2, False),
        Bar(
            "accepted/s while workers execute, x yardstick",
            found["sustained"][0] / base,
            0.45,
            1.0,
            True,
        ),
        Bar("its p99, milliseconds", found["sustained"][1], 100, 40, False),
        Bar("a lone order beside 10,000 queued / without them", beside / filled, 10, 4, False),
        Bar("transactions/s of an idle platform", found["idle"], 5, 2, False),
    ]
    draw(PICTURE, f"bench/execute.py: the whole way (yardstick {base:.0f}/s)", bars)
    out.print(f"drawn in {PICTURE}")
    return show_bars(out, bars)


def best_waves(found: dict[str, Any], apart: list[Wave], null: list[Wave]) -> dict[str, Wave]:
    rounds = {
        f"{accounts} x {symbols}": each for (accounts, symbols, _), each in found["waves"].items()
    }
    rounds["64 x 40, worker apart"] = apart
    rounds["64 x 40, null broker"] = null
    waves = {name: max(each, key=lambda wave: wave.per_second) for name, each in rounds.items()}
    waves[f"burst of {BURST_ORDERS}, 64 x 40"] = found["burst"]
    return waves


def table_of(waves: dict[str, Wave], base: float) -> Table:
    table = Table(
        "accounts x symbols",
        "filled and booked/s",
        "ratio",
        "accepted/s",
        "service us",
        "postgres us",
        "WAL bytes",
        "row versions (HOT)",
        "stale",
    )
    for name, each in waves.items():
        table.add_row(
            name,
            f"{each.per_second:.0f}",
            f"{each.per_second / base:.3f}",
            f"{each.accepted_per_second:.0f}",
            f"{each.service_us:.0f}",
            f"{each.postgres_us:.0f}",
            f"{each.wal_bytes:.0f}",
            f"{each.row_versions:.1f} ({each.hot_updates:.1f})",
            str(each.stale),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
