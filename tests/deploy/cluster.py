"""The cluster of `deploy/try.sh`, for tests: its commands, and a load that trades and follows the
streams meanwhile."""

import contextlib
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
from tests.tenants import EVERY_PERMISSION, PLENTY, key
from tests.waiting import eventually
from trading_intents.config import PREFIX

START_SECONDS = 600
COMMAND_SECONDS = 120
STOP_SECONDS = 60
LOAD = Path(__file__).with_name("cluster_load.py")
PROGRAMS = ("etcd", "patroni", "haproxy", "ip", "openssl", "curl")

# HAProxy or a process was away; a request or stream of a machine that was cut off ended by the
# reader's own limit.
EXPECTED_ANSWERS = {
    "202",
    "502",
    "503",
    "504",
    "ReadTimeout",
    "ConnectError",
    "ReadError",
    "RemoteProtocolError",
}


class Cluster:
    def __init__(self, folder: Path, workers: int = 2, **settings: str) -> None:
        self.folder = folder
        self.name = f"t{os.getpid()}"  # beside others on this machine
        own = {"TRY_NAME": self.name, "TRY_DIR": str(folder), "WORKERS": str(workers)}
        self._environ = (
            os.environ | own | {PREFIX + name: value for name, value in settings.items()}
        )

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
        if (
            os.getuid() != 0
            or subprocess.run(["ip", "netns", "add", made], check=False).returncode != 0
        ):
            pytest.skip("no network namespaces of one's own here")
        return made

    def has_other_primary(self, before: str) -> bool:
        try:
            return self.run("primary") != before
        except AssertionError:  # there is none
            return False

    def count(self, statement: str) -> int:
        return int(self.run("sql", statement))

    def provision(self, traders: int) -> list[dict[str, str]]:
        """As many organizations, each with an account and a key."""
        organizations = [
            {
                "external_id": f"o{number}",
                "accounts": [{"name": "a", "broker": "paper", "environment": "paper"}],
                "api_keys": [key("k", "paper", EVERY_PERMISSION)],
            }
            for number in range(traders)
        ]
        text = self.run(
            "platform",
            "api-1",
            "admin",
            "apply",
            "-",
            stdin=json.dumps({"organizations": organizations}),
        )
        made = json.loads(text)["organizations"]
        return [
            {
                "name": each["external_id"],
                "key": each["api_keys"][0]["api_key"],
                "account": each["accounts"][0]["id"],
            }
            for each in made
        ]


class Load:
    """`cluster_load.py` at work. Its lines are gathered."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.lines: list[str] = []
        self._process = process
        self._reading = threading.Thread(target=self.lines.extend, args=(process.stdout,))
        self._reading.start()

    def until_more(self, more: int = 10) -> None:
        """Waits until further orders are accepted."""
        count = len(self.lines)
        eventually(lambda: len(self.lines) >= count + more, COMMAND_SECONDS)

    def finish(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Ends the load, and gives the accepted orders and the summary."""
        self._process.send_signal(2)
        self._reading.join()
        *accepted, summary = [json.loads(line) for line in self.lines]
        return accepted, summary


@contextlib.contextmanager
def running_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """`folder` and those above it can be entered by others: the nodes run as nobody."""
    for program in PROGRAMS:
        find(program)
    made = Cluster(folder, workers, **PLENTY)
    subprocess.run(["ip", "netns", "del", made.make_namespace("net")], check=True)
    try:
        made.run("up", limit_seconds=START_SECONDS)
        yield made
    finally:
        made.run("down")


@contextlib.contextmanager
def loaded(
    cluster: Cluster, traders: list[dict[str, str]], callers: int, pause_seconds: float
) -> Iterator[Load]:
    """Each caller of an account submits an order, and the next one when that was accepted and the
    pause is over."""
    given = {
        "certificate": str(cluster.folder / "tls" / "server.pem"),
        "callers": callers,
        "traders": traders,
    }
    command = [sys.executable, str(LOAD), json.dumps(given | {"pause_seconds": pause_seconds})]
    arguments = ["ip", "netns", "exec", f"{cluster.name}-lb", *command]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Load(process)
        finally:
            process.kill()


def check(cluster: Cluster, accepted: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    """Nothing that was accepted is lost, nothing was sent twice, and the streams had every
    event."""
    assert set(summary["answers"]) <= EXPECTED_ANSWERS
    assert summary["not_ended"] == 0, "of what was accepted, as the streams say"
    assert not {"hole", "410"} & set(summary["streams"]), "every event came once, in order"
    assert {"200", "gRPC"} <= set(summary["streams"]), "by both ways"
    assert (
        len({each["intent"] for each in accepted})
        == len({each["key"] for each in accepted})
        == len(accepted)
    )
    assert cluster.count("SELECT count(*) FROM orders") == len(accepted)
    assert cluster.count("SELECT count(*) FROM actions WHERE action_type = 'CREATE'") == len(
        accepted
    )
    sent_twice = (
        "SELECT count(*) - count(DISTINCT client_order_id) FROM paper_journal WHERE NOT duplicate"
    )
    assert cluster.count(sent_twice) == 0
    assert cluster.count("SELECT count(*) FROM stream_epoch_renewals") == 0, (
        "no failover lost anything"
    )
    cluster.run("platform", "worker-1", "audit", "verify")
