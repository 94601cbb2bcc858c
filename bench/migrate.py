"""Measures how long submits wait while a large table is migrated: 1,000,000 orders, and callers
beside it.

Made-up migrations make an index of a million Idempotency-Keys, and add a column to the orders and
fill it, both in steps; then the same is done at once, for comparison. `python bench/migrate.py`;
`MIGRATE_ORDERS=20000` tries it with fewer. Exit code 1 when a submit took longer than a second in
steps, or was refused.
"""

import asyncio
import http.client
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
from rich.console import Console
from rich.table import Table

from submit import ACCOUNTS, Bench, provision, serving
from trading_intents.storage.embedded.cluster import DATABASE, LOGIN, OWNER
from trading_intents.storage.migrate import FOLDER, migrate
from trading_intents.telemetry import make_log

ORDERS = int(os.environ.get("MIGRATE_ORDERS", "1000000"))
CALLERS = 8
PAUSE_SECONDS = 0.02
QUIET_SECONDS = 5.0
MAX_SECONDS = 1.0
FILL_LIMIT_SECONDS = 1800.0
# Evenly over the accounts, with a key for each second one, as if all had been filled a month ago.
FILL = """
    CREATE TEMP TABLE made AS
    SELECT a.id AS account_id, a.organization_id, s AS seq, gen_random_uuid() AS intent_id,
           now() - interval '30 days' + s * interval '1 second' AS at,
           CASE WHEN s % 2 = 0 THEN gen_random_uuid()::text END AS key
    FROM accounts a CROSS JOIN generate_series(1, {each}) AS s;
    INSERT INTO actions (account_id, seq, intent_id, action_id, organization_id, action_type,
                         idempotency_key, body_digest, created_at, record, hash, stream_seq)
    SELECT account_id, seq, intent_id, intent_id, organization_id, 'CREATE', key,
           CASE WHEN key <> '' THEN ''::bytea END, at, repeat('x', 420), repeat('0', 64), seq
    FROM made;
    INSERT INTO orders (order_id, account_id, organization_id, environment, broker, create_seq,
                        command_seq, symbol, order_status, order_type, order_side, time_in_force,
                        route_strategy, quantity, filled_quantity, received_at, created_at,
                        updated_at, finished_at, client_order_id)
    SELECT intent_id, account_id, organization_id, 'paper', 'paper', seq, seq, 'SYM' || seq % 50,
           'FILLED', 'MARKET', 'BUY', 'DAY', 'SMART', 10, 10, at, at, at, at, intent_id
    FROM made;
    UPDATE account_heads SET seq = {each};
"""
INDEX = """-- In steps
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS in_steps;
CREATE UNIQUE INDEX CONCURRENTLY in_steps
ON actions (
    account_id, idempotency_key,
    (((created_at AT TIME ZONE 'UTC')::date - date '2020-01-01') / 400)
)
WHERE idempotency_key IS NOT NULL;
"""
FILLED_COLUMN = """-- In steps
ALTER TABLE orders ADD COLUMN IF NOT EXISTS filled_in_steps text;
ALTER TABLE orders NO FORCE ROW LEVEL SECURITY;
CREATE TEMP TABLE progress AS SELECT '00000000-0000-0000-0000-000000000000'::uuid AS order_id;
WITH next AS MATERIALIZED (
    SELECT order_id FROM orders WHERE order_id > (SELECT order_id FROM progress) ORDER BY order_id
    LIMIT 1000
), moved AS (
    UPDATE progress SET order_id = (SELECT order_id FROM next ORDER BY order_id DESC LIMIT 1)
    WHERE EXISTS (SELECT FROM next)
)
UPDATE orders SET filled_in_steps = symbol FROM next WHERE orders.order_id = next.order_id;
ALTER TABLE orders FORCE ROW LEVEL SECURITY;
"""
AT_ONCE = {
    "index at once": "CREATE INDEX at_once ON actions (account_id, idempotency_key, created_at);",
    "column at once": """
        ALTER TABLE orders ADD COLUMN filled_at_once text;
        UPDATE orders SET filled_at_once = symbol;
    """,
}


@dataclass
class Submits:
    """The time that each submit took, and the answers other than 202."""

    seconds: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def sent(self, bench: Bench, headers: dict[str, str], accounts: list[str]) -> Iterator[None]:
        """By all callers, until the block ends."""
        stopping = threading.Event()

        def run(number: int) -> None:
            payload = {
                "symbol": "AAPL",
                "order_side": "BUY",
                "spec": {"Limit": {"quantity": "1", "limit_price": "1"}},
            }
            body = json.dumps({"command": {"type": "CREATE", "payload": payload}})
            parts = urlsplit(bench.url)
            with closing(
                http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
            ) as connection:
                for count in range(sys.maxsize):
                    key = {"idempotency-key": f"{id(self)}-{number}-{count}"} if count % 2 else {}
                    account = accounts[(count * CALLERS + number) % len(accounts)]
                    path = f"/v1/accounts/{account}/intents"
                    began = time.perf_counter()
                    connection.request(
                        "POST", path, body, headers | key | {"content-type": "application/json"}
                    )
                    answer = connection.getresponse()
                    text = answer.read().decode()
                    self.seconds.append(time.perf_counter() - began)
                    if answer.status != 202:
                        self.refused[text] += 1
                    if stopping.wait(PAUSE_SECONDS):
                        return

        callers = [threading.Thread(target=run, args=(number,)) for number in range(CALLERS)]
        for caller in callers:
            caller.start()
        try:
            yield
        finally:
            stopping.set()
            for caller in callers:
                caller.join()


def main() -> int:
    out = Console()
    table = Table(
        "while", "seconds", "submits", "p50 ms", "p99 ms", "worst ms", "over 1 s", "refused"
    )
    missed = False
    with tempfile.TemporaryDirectory(prefix="ti-bench-") as name, serving(Path(name)) as bench:
        headers, accounts = provision(bench)
        owner, login = (bench.cluster.url(each, DATABASE) for each in (OWNER, LOGIN))

        async def run(text: str) -> None:
            connection = await asyncpg.connect(owner.reveal())
            await connection.execute(text, timeout=FILL_LIMIT_SECONDS)
            await connection.close()

        began = time.perf_counter()
        asyncio.run(run(FILL.format(each=ORDERS // ACCOUNTS)))
        out.print(f"{ORDERS:,} orders were made in {time.perf_counter() - began:.0f} s")
        folder = Path(name) / "migrations"
        shutil.copytree(FOLDER, folder)
        version = len(list(FOLDER.glob("*.sql")))

        def in_steps(text: str) -> None:
            nonlocal version
            version += 1
            (folder / f"{version:04}_bench.sql").write_text(text)
            asyncio.run(migrate(owner, login, make_log("error"), folder, needs_worker=False))

        work = {
            "nothing": lambda: time.sleep(QUIET_SECONDS),
            "index in steps": lambda: in_steps(INDEX),
            "column in steps": lambda: in_steps(FILLED_COLUMN),
        } | {
            what: (lambda text=text: asyncio.run(run(f"BEGIN; {text} COMMIT")))
            for what, text in AT_ONCE.items()
        }
        for what, do in work.items():
            submits = Submits()
            began = time.perf_counter()
            with submits.sent(bench, headers, accounts):
                do()
            took = time.perf_counter() - began
            worst = max(submits.seconds)
            late = statistics.quantiles(submits.seconds, n=100)[98]
            shown = (
                f"{each * 1000:.0f}" for each in (statistics.median(submits.seconds), late, worst)
            )
            counts = sum(each > MAX_SECONDS for each in submits.seconds), submits.refused.total()
            table.add_row(what, f"{took:.1f}", str(len(submits.seconds)), *shown, *map(str, counts))
            if what not in AT_ONCE:
                missed |= worst > MAX_SECONDS or bool(submits.refused)
                for answer in submits.refused:
                    out.print(answer)
    out.print(table)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
