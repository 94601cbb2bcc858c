"""The cluster of several machines, in namespaces of one, and what can happen to its machines under
load: nothing that was answered is lost, nothing is sent twice, streams go on by their cursors."""

import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.cluster import COMMAND_SECONDS, Cluster, Load, check, loaded, running_cluster
from tests.deploy.cluster_faults import FAULTS, QUICK, Fault, wait_for_other
from tests.seeds import seeded
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

# For writes after a switchover or the end of a primary's PostgreSQL, on a quiet machine.
BAR_SECONDS = 5.0
LIMIT_SECONDS = 20.0  # for the same on any machine


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o711)  # the nodes run as nobody
    with running_cluster(tmp_path / "cluster") as made:
        yield made


def test_the_end_of_one_cluster_leaves_those_beside_it_alone(tmp_path: Path) -> None:
    own = Cluster(tmp_path / "cluster")
    own.make_namespace("net")
    others = [own.make_namespace("net", f"{own.name}{more}") for more in ("0", "x")]
    try:
        own.run("down")
        listed = subprocess.run(
            ["ip", "netns", "list"], check=True, capture_output=True, text=True
        ).stdout
        assert {f"{own.name}-net", *others} & set(listed.split()) == set(others)
    finally:
        for name in others:
            subprocess.run(["ip", "netns", "del", name], check=True)


def make_fault(cluster: Cluster, load: Load, fault: Fault) -> tuple[float, float]:
    """Makes a fault; gives the times at which it began and at which orders were accepted again."""
    cluster.run("healthy")
    load.until_more()
    began_at = time.monotonic()
    fault(cluster)
    load.until_more()
    return began_at, time.monotonic()


def longest_pause(accepted: list[dict[str, Any]], began_at: float, ended_at: float) -> float:
    times: list[float] = sorted(
        each["at"] for each in accepted if began_at - 1 <= each["at"] <= ended_at
    )
    return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


def test_no_fault_of_a_machine_loses_or_doubles_an_order(cluster: Cluster) -> None:
    names = seeded("cluster").sample(list(FAULTS), len(FAULTS))
    with loaded(cluster, cluster.provision(4), callers=2, pause_seconds=0.2) as load:
        spans = {name: make_fault(cluster, load, FAULTS[name]) for name in names}
        cluster.run("healthy")
        accepted, summary = load.finish()
    pauses = {name: longest_pause(accepted, *span) for name, span in spans.items()}
    print(
        "",
        *(f"{name}: no order accepted for {pause:.1f} s" for name, pause in pauses.items()),
        summary,
        sep="\n",
    )
    check(cluster, accepted, summary)
    late = {name: pauses[name] for name in QUICK if pauses[name] > BAR_SECONDS}
    print("bar:", f"missed, {late}" if late else "kept")
    assert max(pauses[name] for name in QUICK) < LIMIT_SECONDS


def test_a_failover_that_lost_orders_is_marked_as_a_restore(cluster: Cluster) -> None:
    """In asynchronous mode: decision 0050."""
    traders = cluster.provision(2)
    with loaded(cluster, traders, callers=2, pause_seconds=0.2) as load:
        cluster.run("asynchronous")
        cluster.run("detach")
        load.until_more()  # which the primary alone has
        wait_for_other(cluster, "lose")
        renewed = "SELECT count(*) FROM stream_epoch_renewals WHERE renewed_by = 'failover'"
        eventually(lambda: cluster.count(renewed) == 1, COMMAND_SECONDS)
        accepted = {json.loads(line)["intent"] for line in load.lines}
    lost = len(accepted) - cluster.count("SELECT count(*) FROM orders")
    print(f"{lost} of {len(accepted)} accepted orders were lost")
    assert lost > 0
    halted = """
        SELECT count(DISTINCT organization_id) FROM halts
        WHERE reason = 'restored' AND resumed_at IS NULL
    """
    assert cluster.count(halted) == len(traders), "and nothing is sent until somebody has looked"
    sent_twice = (
        "SELECT count(*) - count(DISTINCT client_order_id) FROM paper_journal WHERE NOT duplicate"
    )
    assert cluster.count(sent_twice) == 0
    assert cluster.count("SELECT count(*) FROM stream_epoch_renewals") == 1
