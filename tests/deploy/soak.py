"""Run as a program: a cluster under a steady load for hours, with failovers in it. What must stay
as it is, memory, descriptors, rows, log and the cost of a page, is sampled, shown and drawn.

Usage: SOAK_SECONDS=7200 python -m tests.deploy.soak PICTURE
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import cycle, pairwise
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.table import Table

from tests.deploy.cluster import COMMAND_SECONDS, Cluster, Load, check, loaded, running_cluster
from tests.deploy.cluster_faults import FAULTS, QUICK
from tests.waiting import eventually

SECONDS = float(os.environ.get("SOAK_SECONDS", "7200"))
ORDERS_A_SECOND = 200
TRADERS = 8
CALLERS = 5
WORKERS = 4
SAMPLES = 240
FAILOVERS = 8
PAGES = 10
MAX_GROWTH = 1.25  # of the last quarter beside the second
ROLES = {
    "API": ("api-1", "api-2"),
    "worker": tuple(f"worker-{number + 1}" for number in range(WORKERS)),
}
MEASURED = """
    SELECT (SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0) FROM commands),
           (SELECT sum((pgstattuple_approx(oid)).dead_tuple_count) FROM pg_class
            WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace),
           pg_current_wal_insert_lsn() - '0/0', pg_database_size(current_database()),
               (SELECT count(*) FROM orders)
"""
VACUUM_SECONDS = 120  # autovacuum looks once a minute: by then it has passed every table
RATIOS = {"WAL kB an order": "log", "kB an order": "size"}
# A command is there for a moment; a quarter of a short run may have no vacuum.
LONG_SECONDS = 2400
SHORTLY_INFORMATIVE = ("dead rows", *RATIOS) if SECONDS < LONG_SECONDS else ()
INFORMATIVE = ("oldest command s", *SHORTLY_INFORMATIVE)
WIDTH = 1000
ROW = 110
LEFT = 190
INK = "#202124"
FAINT = "#dadce0"
LINE = "#1a73e8"
FAULT = "#c62828"

Sample = dict[str, float]


def sample(cluster: Cluster, trader: dict[str, str], began_at: float) -> Sample:
    taken: Sample = {"at": time.monotonic() - began_at}
    for role, nodes in ROLES.items():
        found = [_process(cluster, node) for node in nodes]
        taken |= {
            f"{role} MB": max(memory for memory, _ in found),
            f"{role} files": max(files for _, files in found),
        }
    oldest, dead, log, size, orders = map(float, cluster.run("sql", MEASURED).split("|"))
    taken |= {
        "oldest command s": oldest,
        "dead rows": dead,
        "log": log,
        "size": size,
        "orders": orders,
    }
    taken["page ms"] = _page_millis(cluster, trader)
    return taken


def _page_millis(cluster: Cluster, trader: dict[str, str]) -> float:
    """The best of some pages of orders, on one connection."""
    url = f"https://10.0.0.10/v1/accounts/{trader['account']}/orders?order=desc"
    curl = (
        "curl",
        "-sk",
        "-w",
        "%{http_code} %{time_total}\n",
        "-H",
        f"x-api-key: {trader['key']}",
    )
    shown: list[str] = []

    def is_shown() -> bool:
        lines = cluster.run("on", "lb", *curl, *("-o", "/dev/null", url) * PAGES).splitlines()
        shown.extend(seconds for code, seconds in map(str.split, lines) if code == "200")
        return bool(shown)

    eventually(is_shown, COMMAND_SECONDS)  # a failover may have been a moment ago
    return min(map(float, shown)) * 1000


def _process(cluster: Cluster, node: str) -> tuple[float, float]:
    """Megabytes of memory and open files of the node's platform."""
    pid = (cluster.folder / "run" / f"{node}-serve.pid").read_text().strip()
    status = Path("/proc", pid, "status").read_text().split()
    return float(status[status.index("VmRSS:") + 1]) / 1024, float(
        len(os.listdir(f"/proc/{pid}/fd"))
    )


def soak(cluster: Cluster, picture: Path) -> bool:
    """Whether all is flat. Figures and picture are there whatever the check finds after them."""
    # PostgreSQL's own count of dead rows is each node's, and a guess.
    cluster.run("sql", "CREATE EXTENSION pgstattuple")
    traders = cluster.provision(TRADERS)
    samples = list[Sample]()
    faults = list[float]()
    began_at = time.monotonic()
    kinds = cycle(QUICK)
    with loaded(cluster, traders, CALLERS, TRADERS * CALLERS / ORDERS_A_SECOND) as load:
        while (now := time.monotonic() - began_at) < SECONDS:
            if now > (len(faults) + 1) * SECONDS / (FAILOVERS + 1):
                faults.append(now)
                fail_over(cluster, load, next(kinds))
            samples.append(sample(cluster, traders[0], began_at))
            due_at = began_at + len(samples) * SECONDS / SAMPLES
            eventually(lambda due_at=due_at: time.monotonic() >= due_at, SECONDS)  # type: ignore[misc]  # bound now
        cluster.run("healthy")
        accepted, summary = load.finish()
    print(summary, f"{len(accepted) / SECONDS:.0f} orders/s")
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.with_suffix(".json").write_text(json.dumps({"samples": samples, "faults": faults}))
    rates = f"{len(accepted) / SECONDS:.0f} orders/s accepted of {ORDERS_A_SECOND} offered"
    draw(picture, f"{SECONDS / 60:.0f} minutes, {rates}; red: a failover", derive(samples), faults)
    print(f"drawn in {picture}")
    is_flat = report(samples)
    check(cluster, accepted, summary)
    return is_flat


def fail_over(cluster: Cluster, load: Load, kind: str) -> None:
    cluster.run("healthy")
    FAULTS[kind](cluster)
    load.until_more()


def derive(samples: list[Sample]) -> dict[str, list[float]]:
    """Each measure over time; bytes of the log and of the tables for each order since the sample
    before."""
    names = [name for name in samples[0] if name not in ("at", "log", "size", "orders")]
    series = {name: [each[name] for each in samples[1:]] for name in names}
    return series | {name: [mean([a, b], name) for a, b in pairwise(samples)] for name in RATIOS}


def mean(samples: list[Sample], name: str) -> float:
    """Bytes for each of the orders between the first sample and the last."""
    first = samples[0]
    last = samples[-1]
    source = RATIOS[name]
    return (last[source] - first[source]) / 1024 / max(1, last["orders"] - first["orders"])


def typical(samples: list[Sample], name: str) -> float:
    """The median, which a failover or a busy moment does not move; of the log the lower quartile:
    after a checkpoint each page that changes is logged whole once, and how many checkpoints fall
    into a quarter is chance. Of dead rows the height from which they fall: the jobs that delete and
    the vacuum each come once a minute, and how long a row is dead depends on the seconds between
    the two."""
    if name == "dead rows":
        peaks: dict[int, float] = {}
        for each in samples:
            passed = int(each["at"] // VACUUM_SECONDS)
            peaks[passed] = max(peaks.get(passed, 0.0), each[name])
        return statistics.median(peaks.values())
    if name not in RATIOS:
        return statistics.median(each[name] for each in samples)
    if name == "kB an order":
        return mean(samples, name)
    return statistics.quantiles([mean([a, b], name) for a, b in pairwise(samples)], n=4)[0]


def draw(path: Path, title: str, series: dict[str, list[float]], faults: list[float]) -> None:
    picture = Image.new("RGB", (WIDTH, 50 + ROW * len(series)), "white")
    pen = ImageDraw.Draw(picture)
    font = ImageFont.load_default(14)
    pen.text((20, 15), title, INK, font)
    for number, (name, values) in enumerate(series.items()):
        top = 50 + number * ROW
        high = max(*values, 1e-9) * 1.1
        pen.text((20, top + 30), f"{name}\n{values[-1]:.1f}", INK, font)
        pen.line((LEFT, top + ROW - 15, WIDTH - 20, top + ROW - 15), FAINT)
        for fault in faults:
            x = LEFT + fault / SECONDS * (WIDTH - LEFT - 20)
            pen.line((x, top, x, top + ROW - 15), FAULT)
        step = (WIDTH - LEFT - 20) / max(1, len(values) - 1)
        points = [
            (LEFT + n * step, top + (ROW - 15) * (1 - value / high))
            for n, value in enumerate(values)
        ]
        pen.line(points, LINE, 2)
    picture.save(path)


def report(samples: list[Sample]) -> bool:
    table = Table("measure", "second quarter", "last quarter", "growth", "flat")
    is_flat = True
    quarter = max(3, len(samples) // 4)
    for name in derive(samples):
        second, last = (
            typical(part, name) for part in (samples[quarter : 2 * quarter], samples[-quarter:])
        )
        grown = last / second if second else 1.0
        counts = name not in INFORMATIVE
        is_flat &= grown <= MAX_GROWTH or not counts
        verdict = ("yes" if grown <= MAX_GROWTH else "NO") if counts else ""
        table.add_row(name, f"{second:.1f}", f"{last:.1f}", f"{grown:.2f}", verdict)
    Console().print(table)
    return is_flat


def main(picture: str) -> int:
    with tempfile.TemporaryDirectory(prefix="ti-soak-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o711)
        try:
            with running_cluster(Path(folder, "cluster"), WORKERS) as cluster:
                return 0 if soak(cluster, Path(picture)) else 1
        finally:
            subprocess.run(["chown", "-R", "root", folder], check=False)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
