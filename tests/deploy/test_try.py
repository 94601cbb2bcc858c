"""The cluster of several machines, in namespaces of one: a switchover and a killed primary under load lose nothing that
was answered, and send nothing twice."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.programs import DEPLOY, ROOT, find
from tests.seeds import seeded
from tests.tenants import EVERY_PERMISSION, key
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1500)]

START_SECONDS, COMMAND_SECONDS, SETTLED_SECONDS = 600, 120, 300
LOAD_SECONDS = 60
LOAD = Path(__file__).with_name("cluster_load.py")
DOCUMENT: dict[str, Any] = {
    "external_id": "o",
    "accounts": [{"name": "a", "broker": "paper", "environment": "paper"}],
    "api_keys": [key("k", "paper", EVERY_PERMISSION)],
}


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"t{os.getpid()}"  # beside others on this machine
        self._environ = os.environ | {"TRY_NAME": self.name, "TRY_DIR": str(folder), "WORKERS": "2"}

    def run(self, *arguments: str, stdin: str = "", limit_seconds: int = COMMAND_SECONDS) -> str:
        done = subprocess.run(
            [str(DEPLOY / "try.sh"), *arguments],
            env=self._environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=limit_seconds,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def make_namespace(self, node: str, name: str | None = None) -> str:
        made = f"{name or self.name}-{node}"
        if os.getuid() != 0 or subprocess.run(["ip", "netns", "add", made], check=False).returncode != 0:
            pytest.skip("no network namespaces of one's own here")
        return made

    def has_other_primary(self, before: str) -> bool:
        try:
            return self.run("primary") != before
        except AssertionError:  # there is none
            return False

    def count(self, statement: str) -> int:
        return int(self.run("sql", statement))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    for program in ("etcd", "patroni", "haproxy", "ip", "openssl", "curl"):
        find(program)
    made = Cluster(tmp_path / "cluster")
    subprocess.run(["ip", "netns", "del", made.make_namespace("net")], check=True)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o711)  # the nodes run as nobody
    try:
        made.run("up", limit_seconds=START_SECONDS)
        yield made
    finally:
        made.run("down")


def test_the_end_of_one_cluster_leaves_those_beside_it_alone(tmp_path: Path) -> None:
    own = Cluster(tmp_path / "cluster")
    own.make_namespace("net")
    others = [own.make_namespace("net", f"{own.name}{more}") for more in ("0", "x")]
    try:
        own.run("down")
        listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
        assert {f"{own.name}-net", *others} & set(listed.split()) == set(others)
    finally:
        for name in others:
            subprocess.run(["ip", "netns", "del", name], check=True)


def until_more(lines: list[str]) -> None:
    """Until orders are accepted that were not when this began."""
    count = len(lines)
    eventually(lambda: len(lines) >= count + 5, COMMAND_SECONDS)


def test_a_failover_loses_nothing_and_sends_nothing_twice(cluster: Cluster) -> None:
    text = cluster.run("platform", "api-1", "admin", "apply", "-", stdin=json.dumps({"organizations": [DOCUMENT]}))
    made = json.loads(text)["organizations"][0]
    api_key, account = made["api_keys"][0]["api_key"], made["accounts"][0]["id"]
    certificate = str(cluster.folder / "tls" / "server.pem")
    command = [sys.executable, str(LOAD), api_key, account, str(LOAD_SECONDS), certificate]
    arguments = ["ip", "netns", "exec", f"{cluster.name}-lb", *command]
    lines: list[str] = []
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as load:
        reading = threading.Thread(target=lines.extend, args=(load.stdout,))
        reading.start()
        for fault in seeded("failovers").sample(["switchover", "kill-primary"], 2):
            until_more(lines)
            before = cluster.run("primary")
            cluster.run(fault)
            eventually(lambda before=before: cluster.has_other_primary(before), COMMAND_SECONDS)  # type: ignore[misc]  # bound now
            until_more(lines)
            print(f"\n{fault}: {before}, then {cluster.run('primary')}")
        reading.join()
    *accepted, told = [json.loads(line) for line in lines]
    print(told)
    assert set(told["answers"]) <= {"202", "503", "504"}, "HAProxy or the platform, and nobody else, was away"
    names = {each["key"] for each in accepted}
    recorded = "SELECT count(*) FROM actions WHERE idempotency_key LIKE 'order-%'"
    eventually(lambda: cluster.count(recorded) == len(names) == len(accepted), COMMAND_SECONDS)
    open_orders = "SELECT count(*) FROM orders WHERE order_status NOT IN ('FILLED', 'EXPIRED', 'REJECTED')"
    eventually(lambda: cluster.count(open_orders) == 0, SETTLED_SECONDS)
    sent_twice = "SELECT count(*) - count(DISTINCT client_order_id) FROM paper_journal WHERE NOT duplicate"
    assert cluster.count(sent_twice) == 0
    cluster.run("platform", "worker-1", "audit", "verify")
