"""Measures accepted intents a second over HTTP against pgbench doing the specification's minimal
transaction.

Run it alone on the machine: `python bench/submit.py`. Exit code 1 when a bar is missed. With
`--limits` it compares accounts that have every limit with accounts that have none.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import httpx
from rich.console import Console
from rich.table import Table

from plot import Bar, draw, show_bars
from trading_intents.storage.embedded.cluster import DATABASE, OWNER, Cluster, open_cluster

PICTURE = Path(__file__).with_name("out") / "submit.png"
ROUNDS = 3
SECONDS = 4.0
ACCOUNTS = 64
CONNECTIONS = (1, 16, 64, 256)
MAX_REQUESTS_A_SECOND = 15_000
YARDSTICK_CLIENTS = 32
TICKS = os.sysconf("SC_CLK_TCK")
PLENTY = {
    f"TRADING_INTENTS_RATE_LIMIT_{whose}{kind}": "1000000/1000000"
    for whose in ("", "ORGANIZATION_")
    for kind in ("SUBMITS", "WRITES", "READS")
}
PLENTY |= {"TRADING_INTENTS_HTTP_CONNECTIONS_PER_ADDRESS": "10000"}

# The specification's minimal transaction, whatever more ours does.
TABLES = """
    CREATE SCHEMA yardstick;
    CREATE TABLE yardstick.accounts (id int PRIMARY KEY, organization_id uuid, disabled boolean);
    CREATE TABLE yardstick.controls (account_id int, symbol text, disabled boolean,
        PRIMARY KEY (account_id, symbol));
    CREATE TABLE yardstick.actions (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        account_id int, record text,
                                    created_at timestamptz DEFAULT now());
    CREATE TABLE yardstick.outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        account_id int, payload jsonb,
                                   status text DEFAULT 'pending',
                                       created_at timestamptz DEFAULT now());
    INSERT INTO yardstick.accounts SELECT n, gen_random_uuid(), false FROM generate_series(1, 64) n;
    INSERT INTO yardstick.controls SELECT n, 'AAPL', false FROM generate_series(1, 64) n;
"""
RECORD = json.dumps({"record": "x" * 420})
STATEMENTS = f"""\\set account random(1, 64)
BEGIN;
SELECT organization_id, disabled FROM yardstick.accounts WHERE id = :account;
SELECT disabled FROM yardstick.controls WHERE account_id = :account AND symbol = 'AAPL';
INSERT INTO yardstick.actions (account_id, record) VALUES (:account, '{RECORD}');
INSERT INTO yardstick.outbox (account_id, payload) VALUES (:account, '{{"seq": 1}}');
COMMIT;
"""
ONE_STATEMENT = f"""\\set account random(1, 64)
WITH a AS (SELECT id FROM yardstick.accounts WHERE id = :account),
     c AS (SELECT disabled FROM yardstick.controls WHERE account_id = :account AND symbol = 'AAPL'),
     i AS (INSERT INTO yardstick.actions (account_id, record) SELECT id, '{RECORD}' FROM a)
INSERT INTO yardstick.outbox (account_id, payload) SELECT id, '{{"seq": 1}}' FROM a;
"""


class Bench:
    def __init__(self, folder: Path, url: str, grpc: str, pid: int) -> None:
        self.folder = folder
        self.url = url
        self.grpc = grpc
        self.pids = [pid]
        self.own_backends: set[int] = set()  # those that serve the bench itself
        self.cluster: Cluster = open_cluster(folder / "data", "")
        self._batch = 0

    def pgbench(self, script: str, clients: int, seconds: float = SECONDS) -> dict[str, float]:
        path = self.folder / "script.sql"
        path.write_text(script)
        done = self._run(
            "pgbench",
            "-n",
            "-M",
            "prepared",
            "-c",
            str(clients),
            "-j",
            "2",
            "-T",
            f"{seconds:.0f}",
            "-f",
            str(path),
        )
        return {
            "per_second": float(re.search(r"tps = ([\d.]+)", done)[1]),  # type: ignore[index]  # pgbench's format
            "p50_ms": float(re.search(r"latency average = ([\d.]+)", done)[1]),  # type: ignore[index]  # likewise
        }

    def psql(self, text: str) -> None:
        self._run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-c", text)

    def _run(self, program: str, *arguments: str) -> str:
        url = self.cluster.url(OWNER, DATABASE).reveal()
        command = [str(self.cluster.binaries / program), *arguments, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def post(
        self, headers: dict[str, str], accounts: list[str], connections: int
    ) -> dict[str, Any]:
        self._batch += 1
        numbers = range(int(MAX_REQUESTS_A_SECOND * SECONDS))
        before = self.cpu()
        result = self.load(
            (self._request(headers, random.choice(accounts), n) for n in numbers),
            connections,
            SECONDS,
        )
        count = sum(result["statuses"].values())
        result["service_us"], result["postgres_us"] = (
            (b - a) / count * 1e6 for a, b in zip(before, self.cpu(), strict=True)
        )
        return result

    def load(
        self,
        requests: Iterable[dict[str, Any]],
        connections: int,
        seconds: float,
        rate: float | None = None,
    ) -> dict[str, Any]:
        """Sends them, each once, for so many seconds at most; with a rate, by the clock."""
        path = self.folder / "requests.jsonl"
        with path.open("w") as out:
            out.writelines(json.dumps(request) + "\n" for request in requests)
        parts = urlsplit(self.url)
        command = [
            sys.executable,
            str(Path(__file__).with_name("load.py")),
            str(parts.hostname),
            str(parts.port),
        ]
        command += [
            str(connections),
            str(seconds),
            str(path),
            *([] if rate is None else [str(rate)]),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120 + (seconds if rate else 0)
        )
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        assert rate or set(result["statuses"]) == {"202"}, result
        return result

    def _request(self, headers: dict[str, str], account: str, number: int) -> dict[str, Any]:
        spec = {
            "Limit": {"quantity": str(number % 900 + 1), "limit_price": f"{100 + number % 97}.25"}
        }
        payload = {"symbol": "AAPL", "order_side": "BUY", "spec": spec}
        body = {
            "command": {"type": "CREATE", "payload": payload},
            "client_reference_id": f"{self._batch}-{number}",
        }
        if number % 2:
            headers = headers | {"idempotency-key": f"{self._batch}-{number}"}
        return {
            "path": f"/v1/accounts/{account}/intents",
            "headers": headers,
            "body": json.dumps(body),
        }

    def cpu(self) -> tuple[float, float]:
        """Seconds of the service's processes and of all of PostgreSQL so far."""
        postmaster = int(
            (self.folder / "data" / "postgres" / "postmaster.pid").read_text().split()[0]
        )
        stats = {pid: _stat(pid) for pid in _pids()}
        service = [
            pid
            for pid in stats
            if postmaster not in (pid, stats[pid][1]) and _is_below(pid, self.pids, stats)
        ]
        backends = [
            pid for pid in stats if stats[pid][1] == postmaster and pid not in self.own_backends
        ]
        # What ended meanwhile is in the postmaster's own count of its children.
        postgres = sum(stats[pid][0] for pid in backends) + _stat(postmaster, with_dead=True)[0]
        return sum(stats[pid][0] for pid in service), postgres


def _is_below(pid: int, ancestors: list[int], stats: dict[int, tuple[float, int]]) -> bool:
    while pid in stats:
        if pid in ancestors:
            return True
        pid = stats[pid][1]
    return False


def _pids() -> Iterator[int]:
    return (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit())


def _stat(pid: int, with_dead: bool = False) -> tuple[float, int]:
    """CPU seconds and the parent's pid; nothing of a process that just ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0
    ticks = (
        int(fields[11]) + int(fields[12]) + (int(fields[13]) + int(fields[14]) if with_dead else 0)
    )
    return ticks / TICKS, int(fields[1])


@contextmanager
def serving(
    folder: Path, roles: str = "api", beside: Bench | None = None, **settings: str
) -> Iterator[Bench]:
    """A process with these roles; `beside` another one, on its database."""
    environ = (
        os.environ
        | PLENTY
        | {
            "TRADING_INTENTS_DATA_DIR": str(folder / "data"),
            "TRADING_INTENTS_HTTP_PORT": "0",
            "TRADING_INTENTS_GRPC_PORT": "0",
            "TRADING_INTENTS_ROLES": roles,
        }
        | {
            name if name == "PYTHONPATH" else f"TRADING_INTENTS_{name}": value
            for name, value in settings.items()
        }
    )
    command = [sys.executable, "-m", "trading_intents", "serve"]
    process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        serving_line = next(json.loads(line) for line in process.stderr if '"serving"' in line)
        threading.Thread(target=sys.stderr.writelines, args=(process.stderr,), daemon=True).start()
        if beside:
            beside.pids.append(process.pid)
        yield beside or Bench(
            folder, serving_line["http"], serving_line.get("grpc", ""), process.pid
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def provision(bench: Bench) -> tuple[dict[str, str], list[str]]:
    key = json.loads((bench.folder / "data" / "demo.json").read_bytes())["api_key"]
    headers = {"x-api-key": key}
    with httpx.Client(base_url=bench.url, headers=headers) as client:
        made = [
            client.post(
                "/v1/accounts", json={"name": f"a{n}", "broker": "paper", "environment": "paper"}
            ).json()["id"]
            for n in range(ACCOUNTS)
        ]
        for account in made:
            control = f"/v1/controls/accounts/{account}/symbols/AAPL"
            client.put(control, json={"manually_disabled": False}).raise_for_status()
    return headers, made


# All of them, and nothing reaches any.
EVERY_LIMIT = {
    "max_order_quantity": "1000000",
    "max_order_notional": "100000000000",
    "price_collar_bps": 10_000,
    "max_open_orders": 100_000,
    "max_position_quantity": "100000000000",
    "max_orders_per_minute": 100_000,
    "allow_short": False,
    "allowed_symbols": ["AAPL"],
    "duplicate_window_millis": 1,
    "max_daily_loss": "100000000000",
}
MIN_SHARE_WITH_LIMITS = 0.85
LIMIT_ROUNDS = 7


def compare_limits() -> int:
    """Accepted intents a second of accounts with every limit, of those without any. Both are
    measured right after each other, and the median of these shares counts: a machine has faster and
    slower minutes."""
    with ExitStack() as stack:
        folders = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ti-bench-")))
            for _ in range(2)
        ]
        plain = stack.enter_context(serving(folders[0]))
        bench = stack.enter_context(serving(folders[1]))
        free = provision(plain)
        limited = provision(bench)
        with httpx.Client(base_url=bench.url, headers=limited[0]) as client:
            client.put("/v1/reference-prices/AAPL", json={"price": "150"}).raise_for_status()
            for account in limited[1]:
                client.put(
                    f"/v1/controls/accounts/{account}/limits", json=EVERY_LIMIT
                ).raise_for_status()
        rounds: dict[str, list[dict[str, Any]]] = {"none": [], "every limit": []}
        for _ in range(LIMIT_ROUNDS):
            for what, one, accounts in (("none", plain, free), ("every limit", bench, limited)):
                one.psql("CHECKPOINT")
                rounds[what].append(one.post(*accounts, 64))
    table = Table("limits", "per second", "p50 ms", "p99 ms", "service µs", "postgres µs")
    for what, found in rounds.items():
        keys = ("per_second", "p50_ms", "p99_ms", "service_us", "postgres_us")
        table.add_row(what, *(f"{median(each[key] for each in found):.2f}" for key in keys))
    pairs = zip(rounds["every limit"], rounds["none"], strict=True)
    shares = [
        limited_round["per_second"] / free_round["per_second"]
        for limited_round, free_round in pairs
    ]
    found_shares = ", ".join(f"{each:.2f}" for each in shares)
    Console().print(
        table,
        f"shares {found_shares}: median {median(shares):.2f}, at least {MIN_SHARE_WITH_LIMITS}",
    )
    return int(median(shares) < MIN_SHARE_WITH_LIMITS)


def main() -> int:
    if "--limits" in sys.argv[1:]:
        return compare_limits()
    with tempfile.TemporaryDirectory(prefix="ti-bench-") as name, serving(Path(name)) as bench:
        bench.psql(TABLES)
        headers, accounts = provision(bench)
        yardstick = []
        one_client = []
        one = []
        posts: dict[int, list[dict[str, Any]]] = {n: [] for n in CONNECTIONS}
        for _ in range(ROUNDS):
            # So that what the last round logged can be used again, as it is in a long run.
            bench.psql("CHECKPOINT")
            yardstick.append(bench.pgbench(STATEMENTS, YARDSTICK_CLIENTS))
            one.append(bench.pgbench(ONE_STATEMENT, YARDSTICK_CLIENTS))
            one_client.append(bench.pgbench(STATEMENTS, 1))
            for connections in CONNECTIONS:
                posts[connections].append(bench.post(headers, accounts, connections))
    return report(yardstick, one, one_client, posts)


def best(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return max(rounds, key=lambda r: r["per_second"])


def report(
    yardstick: list[dict[str, float]],
    one: list[dict[str, float]],
    one_client: list[dict[str, float]],
    posts: dict[int, list[dict[str, Any]]],
) -> int:
    out = Console()
    base = best(yardstick)["per_second"]
    raw = Table("work", "per second", "ratio", "p50 ms", "p99 ms", "service µs", "postgres µs")
    p50 = f"{best(yardstick)['p50_ms']:.2f}"
    raw.add_row("pgbench, statements, 32 clients", f"{base:.0f}", "1.00", p50)
    per_second = best(one)["per_second"]
    raw.add_row("pgbench, one statement", f"{per_second:.0f}", f"{per_second / base:.2f}")
    alone = best(one_client)
    p50 = f"{alone['p50_ms']:.2f}"
    raw.add_row("pgbench, statements, 1 client", f"{alone['per_second']:.0f}", "", p50)
    for connections, rounds in posts.items():
        top = best(rounds)
        raw.add_row(
            f"POST intents, {connections} connections",
            f"{top['per_second']:.0f}",
            f"{top['per_second'] / base:.2f}",
            f"{top['p50_ms']:.2f}",
            f"{top['p99_ms']:.2f}",
            f"{top['service_us']:.0f}",
            f"{top['postgres_us']:.0f}",
        )
    out.print(raw)
    at_64 = best(posts[64])
    p50_ms = min(r["p50_ms"] for r in posts[1])
    bars = [
        Bar(
            "accepted/s at 64 connections, x yardstick", at_64["per_second"] / base, 1.1, 4.0, True
        ),
        Bar(
            "p50 of 1 connection / pgbench of 1 client",
            p50_ms / alone["p50_ms"],
            6.0,
            1.5,
            False,
        ),
    ]
    draw(PICTURE, f"bench/submit.py: the write path (yardstick {base:.0f}/s)", bars)
    out.print(f"drawn in {PICTURE}")
    return show_bars(out, bars)


if __name__ == "__main__":
    sys.exit(main())
