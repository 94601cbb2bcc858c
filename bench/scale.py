"""Measures what an order costs with more processes: CPU time in the service and in PostgreSQL at a
steady rate, with one API process and one, two and four workers, and with two API processes, each
with accounts of its own; of one organization, and of many.

The claim is that it is flat: each within 10 % of one API and one worker. CPU time can be measured
beside other work, rates cannot. `python bench/scale.py`; `--one` or `--many` is half of it,
`SCALE_SECONDS=10` tries it shorter. Exit code 1 when the claim is missed.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from execute import CONNECTIONS, Market, market
from submit import serving
from trading_intents.identity.model import PermissionSet

SECONDS = float(os.environ.get("SCALE_SECONDS", "30"))
ORDERS_A_SECOND = 80
ACCOUNTS = 32
ORGANIZATIONS = {"--one": 1, "--many": 16}
MAX_SHARE = 1.1
PROCESSES = [(1, 1), (1, 2), (1, 4), (2, 4)]


class Cost(NamedTuple):
    service_us: float
    postgres_us: float


class Trader(NamedTuple):
    account: str
    key: str


def open_traders(here: Market, organizations: int) -> list[Trader]:
    """The accounts, of each organization in turn: where API processes divide the accounts, they
    divide these too."""
    wanted = [
        {
            "external_id": f"org_{number}",
            "api_keys": [
                {"name": "k", "environment": "paper", "permission_set": PermissionSet.TRADER}
            ],
            "accounts": [
                {"name": f"a{each}", "broker": "paper", "environment": "paper"}
                for each in range(ACCOUNTS // organizations)
            ],
        }
        for number in range(organizations)
    ]
    command = [sys.executable, "-m", "trading_intents", "admin", "apply", "-"]
    environ = os.environ | {"TRADING_INTENTS_DATA_DIR": str(here.bench.folder / "data")}
    applied = subprocess.run(
        command,
        env=environ,
        input=json.dumps({"organizations": wanted}),
        capture_output=True,
        text=True,
        check=True,
    )
    here.open_accounts(0)  # waits until all are connected
    made = [
        [Trader(account["id"], each["api_keys"][0]["api_key"]) for account in each["accounts"]]
        for each in json.loads(applied.stdout)["organizations"]
    ]
    return list(chain.from_iterable(zip(*made, strict=True)))


def order(here: Market, trader: Trader, symbol: str) -> dict[str, Any]:
    made = here.order(trader.account, symbol)
    return made | {"headers": made["headers"] | {"x-api-key": trader.key}}


def measure(organizations: int, apis: int, workers: int) -> Cost:
    with market("api,stream", *["worker"] * workers) as here, ExitStack() as stack:
        benches = [here.bench]
        for number in range(1, apis):
            other = stack.enter_context(serving(here.bench.folder, "api,stream"))
            here.bench.pids += other.pids
            other.folder = here.bench.folder / str(number)  # of its requests
            other.folder.mkdir()
            benches.append(other)
        traders = open_traders(here, organizations)
        rate = ORDERS_A_SECOND / apis
        count = int(ORDERS_A_SECOND * SECONDS / apis)
        parts = [
            [
                order(here, traders[n % (ACCOUNTS // apis) * apis + part], f"S{n % 40}")
                for n in range(count)
            ]
            for part in range(apis)
        ]
        here.until_finished()
        before = here.bench.cpu()
        with ThreadPoolExecutor(apis) as pool:
            list(pool.map(lambda b, r: b.load(r, CONNECTIONS, SECONDS * 3, rate), benches, parts))
        here.until_finished()
        time.sleep(1)  # what follows the last orders
        spent = [
            (b - a) / (count * apis) * 1e6 for a, b in zip(before, here.bench.cpu(), strict=True)
        ]
        return Cost(*spent)


def main() -> int:
    table = Table(
        "organizations", "API processes", "workers", "service us", "postgres us", "share", "flat"
    )
    is_flat = True
    for organizations in [ORGANIZATIONS[each] for each in sys.argv[1:]] or ORGANIZATIONS.values():
        base = 0.0
        for apis, workers in PROCESSES:
            cost = measure(organizations, apis, workers)
            base = base or sum(cost)
            share = sum(cost) / base
            is_flat &= share <= MAX_SHARE
            shown = (
                str(organizations),
                str(apis),
                str(workers),
                f"{cost.service_us:.0f}",
                f"{cost.postgres_us:.0f}",
            )
            table.add_row(*shown, f"{share:.2f}", "yes" if share <= MAX_SHARE else "NO")
    Console().print(table)
    return 0 if is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
