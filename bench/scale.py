"""Measures what an order costs with more processes: CPU time in the service and in PostgreSQL at a steady rate, with
one API process and one, two and four workers, and with two API processes, each with accounts of its own.

The claim is that it is flat: each within 10 % of one API and one worker. CPU time can be measured beside other work,
rates cannot. `python bench/scale.py`; `SCALE_SECONDS=10` tries it shorter. Exit code 1 when the claim is missed.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from execute import CONNECTIONS, market
from submit import serving

SECONDS = float(os.environ.get("SCALE_SECONDS", "30"))
ORDERS_A_SECOND, ACCOUNTS = 80, 32
MAX_SHARE = 1.1
PROCESSES = [(1, 1), (1, 2), (1, 4), (2, 4)]


class Cost(NamedTuple):
    service_us: float
    postgres_us: float


def measure(apis: int, workers: int) -> Cost:
    with market("api,stream", *["worker"] * workers) as here, ExitStack() as stack:
        benches = [here.bench]
        for number in range(1, apis):
            other = stack.enter_context(serving(here.bench.folder, "api,stream"))
            here.bench.pids += other.pids
            other.folder = here.bench.folder / str(number)  # of its requests
            other.folder.mkdir()
            benches.append(other)
        here.open_accounts(ACCOUNTS)
        rate, count = ORDERS_A_SECOND / apis, int(ORDERS_A_SECOND * SECONDS / apis)
        parts = [
            [here.order(here.accounts[n % (ACCOUNTS // apis) * apis + part], f"S{n % 40}") for n in range(count)]
            for part in range(apis)
        ]
        here.until_finished()
        before = here.bench.cpu()
        with ThreadPoolExecutor(apis) as pool:
            list(pool.map(lambda b, r: b.load(r, CONNECTIONS, SECONDS * 3, rate), benches, parts))
        here.until_finished()
        time.sleep(1)  # what follows the last orders
        spent = [(b - a) / (count * apis) * 1e6 for a, b in zip(before, here.bench.cpu(), strict=True)]
        return Cost(*spent)


def main() -> int:
    costs = {each: measure(*each) for each in PROCESSES}
    base = sum(costs[PROCESSES[0]])
    table = Table("API processes", "workers", "service us", "postgres us", "share", "flat")
    for (apis, workers), cost in costs.items():
        share = sum(cost) / base
        shown = (f"{cost.service_us:.0f}", f"{cost.postgres_us:.0f}", f"{share:.2f}")
        table.add_row(str(apis), str(workers), *shown, "yes" if share <= MAX_SHARE else "NO")
    Console().print(table)
    return 0 if all(sum(cost) <= MAX_SHARE * base for cost in costs.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
