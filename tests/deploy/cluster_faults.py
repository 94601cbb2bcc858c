"""The faults of a cluster, by name."""

import time
from collections.abc import Callable

from tests.deploy.cluster import COMMAND_SECONDS, Cluster
from tests.seeds import seeded
from tests.waiting import eventually

CUT_SECONDS = 15
LAG_SECONDS = (0.5, 3.0)
LAGS = 8
Fault = Callable[[Cluster], object]


def wait_for_other(cluster: Cluster, fault: str) -> str:
    before = cluster.run("primary")
    cluster.run(*fault.split(), *([before] if fault in ("cut", "lose") else ()))
    eventually(lambda: cluster.has_other_primary(before), COMMAND_SECONDS)
    return before


def lose_primary(cluster: Cluster) -> None:
    before = wait_for_other(cluster, "lose")
    cluster.run("start", before)


def lose_leading_primary(cluster: Cluster) -> None:
    """It has written what no standby has: that was never answered, and keeps none from taking
    over."""
    cluster.run("withhold")
    lose_primary(cluster)


def cut_primary(cluster: Cluster) -> None:
    before = wait_for_other(cluster, "cut")
    cluster.run("join", before)


def lag(cluster: Cluster) -> None:
    chance = seeded("lags")
    for _ in range(LAGS):
        cluster.run("lag", f"{chance.uniform(*LAG_SECONDS):.2f}")


def cut(node: str) -> Fault:
    def fault(cluster: Cluster) -> None:
        cluster.run("cut", node)
        time.sleep(CUT_SECONDS)  # a fault that lasts
        cluster.run("join", node)

    return fault


FAULTS: dict[str, Fault] = {
    "switchover": lambda it: wait_for_other(it, "switchover"),
    "primary killed": lambda it: wait_for_other(it, "kill-primary"),
    "primary's machine lost": lose_primary,
    "primary's machine lost, ahead of the others": lose_leading_primary,
    "primary cut off": cut_primary,
    "standbys lag": lag,
    "worker cut off": cut("worker-1"),
    "API cut off": cut("api-1"),
    "HAProxy restarted": lambda it: it.run("restart-front"),
}
QUICK = ("switchover", "primary killed")
