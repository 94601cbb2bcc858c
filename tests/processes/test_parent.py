"""`serve` with several roles: a parent, its processes, and what an operator sees of them."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from tests import fork_server
from tests.certificates import make_certificate
from tests.half_sent import HalfSent, demo_key
from tests.platform import PROGRAM, STOP_LIMIT_SECONDS, Platform, environment, run_command, serving
from tests.processes.conftest import is_alive, pids
from tests.storage.conftest import all_gone
from tests.waiting import eventually
from trading_intents import app, config
from trading_intents.config import PREFIX
from trading_intents.processes.command import STOPPED_AT_ONCE
from trading_intents.storage.embedded.server import lock_holder

pytest_plugins = ("tests.started_dirs",)

RESTART_SECONDS = 60  # on a busy machine
LEFT_SECONDS = 5  # docs/operating/install.md says so
CHILDREN = {"api", "worker-1", "worker-2"}


def children_of(parent: int) -> list[int]:
    """Those that it has started as processes of the platform, however far they are."""
    tasks = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in tasks}
    return [pid for pid, command in commands.items() if b"--child" in command]


def metric(platform: Platform, name: str) -> dict[str, float]:
    text = platform.client.get("/metrics").text
    found = re.findall(rf'^{name}{{process="([\w-]+)"}} (\S+)$', text, re.MULTILINE)
    return {process: float(value) for process, value in found}


@pytest.mark.slow
def test_the_metrics_show_every_process(split: Platform) -> None:
    assert metric(split, "ti_process_up") == dict.fromkeys(CHILDREN | {"parent"}, 1.0)
    eventually(lambda: sum(metric(split, "ti_execution_leases").values()) == 1, RESTART_SECONDS)
    assert metric(split, "ti_embedded_postgres_starts_total")["parent"] == 1
    text = split.client.get("/metrics").text
    assert 'ti_process_starts_total{process="parent",child="worker-2"} 1.0' in text
    assert 'ti_http_requests_total{process="api",route="/metrics",status="200"}' in text
    declared = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(declared) == len(set(declared))


@pytest.mark.slow
def test_each_process_serves_its_health_on_loopback(split: Platform) -> None:
    ready = [json.loads(line) for line in split.logs if '"process ready"' in line]
    assert {line["process"] for line in ready} == CHILDREN
    for line in ready:
        answer = httpx.get(f"http://127.0.0.1:{line['port']}/readyz", verify=False)
        assert answer.json() == {"status": "ready"}
        assert (line["process"] == "api") == split.url.endswith(f":{line['port']}")


@pytest.mark.slow
def test_every_line_of_the_one_log_has_its_processes_name(split: Platform) -> None:
    lines = [json.loads(line) for line in list(split.logs)]
    assert {line["process"] for line in lines} == CHILDREN | {"parent"}
    [serving_line] = [line for line in lines if line["event"] == "serving"]
    assert serving_line["process"] == "parent"
    assert (
        serving_line["pid"]
        == split.process.pid
        == int(lock_holder(Path(split.environ[f"{PREFIX}DATA_DIR"])) or 0)
    )


@pytest.mark.slow
def test_a_killed_api_process_comes_back_on_the_same_port_and_callers_wait_for_it(
    split: Platform,
) -> None:
    before = pids(split)
    os.kill(before["api"], signal.SIGKILL)
    with httpx.Client(base_url=split.url, timeout=RESTART_SECONDS, verify=False) as client:
        eventually(lambda: not is_alive(before["api"]), RESTART_SECONDS)
        assert client.get("/readyz").status_code == 200
        assert (
            'ti_process_starts_total{process="parent",child="api"} 2.0'
            in client.get("/metrics").text
        )
    eventually(lambda: pids(split)["api"] != before["api"], RESTART_SECONDS)
    assert pids(split) | {"api": 0} == before | {"api": 0}
    ended = [json.loads(line) for line in list(split.logs) if '"process ended"' in line]
    assert [(line["child"], line["status"], line["level"]) for line in ended] == [
        ("api", -signal.SIGKILL, "error")
    ]


@pytest.mark.slow
def test_doctor_and_the_metrics_name_a_process_that_does_not_answer(split: Platform) -> None:
    environ = split.environ | {f"{PREFIX}HTTP_PORT": split.url.rpartition(":")[2]}
    found = re.findall(
        r"^ok +processes +(.*)$", run_command(environ, "doctor").stdout, re.MULTILINE
    )
    assert set(found) == {f"{name} answers" for name in (*CHILDREN, "parent")}
    frozen = {"worker-2": pids(split)["worker-2"], "parent": split.process.pid}
    for pid in frozen.values():
        os.kill(pid, signal.SIGSTOP)
    try:
        done = run_command(environ, "doctor")
        assert metric(split, "ti_process_up") == {
            "api": 1,
            "worker-1": 1,
            "worker-2": 0,
            "parent": 0,
        }
        assert split.client.get("/readyz").status_code == 200
    finally:
        for pid in frozen.values():
            os.kill(pid, signal.SIGCONT)
    assert done.returncode == 1
    assert (
        set(re.findall(r"^wrong +processes +(\S+) does not answer", done.stdout, re.MULTILINE))
        == frozen.keys()
    )
    eventually(lambda: sum(metric(split, "ti_process_up").values()) == 4, RESTART_SECONDS)


@pytest.mark.slow
def test_a_service_manager_that_signals_every_process_still_lets_them_drain(warm: Path) -> None:
    with (
        serving(warm, WORKERS="1") as platform,
        contextlib.closing(HalfSent(platform.url, demo_key(warm))) as half_sent,
    ):
        for pid in (*pids(platform).values(), platform.process.pid):
            os.kill(pid, signal.SIGTERM)
        eventually(
            lambda: sum('"draining"' in line for line in list(platform.logs)) == 3,
            STOP_LIMIT_SECONDS,
        )
        eventually(lambda: platform.client.get("/readyz").status_code == 503, STOP_LIMIT_SECONDS)
        assert half_sent.finish()[0].startswith(b"HTTP/1.1 200 ")
        assert platform.process.wait(STOP_LIMIT_SECONDS) == 0
    assert [json.loads(line)["status"] for line in platform.logs if '"process ended"' in line] == [
        0,
        0,
    ]
    assert all_gone(warm)


@pytest.mark.slow
def test_a_signal_ends_a_start_whose_processes_are_not_there_yet(warm: Path) -> None:
    environ = environment(warm, {"WORKERS": "1"})
    process = fork_server.Fork(PROGRAM, "serve", environ=environ, stderr=subprocess.PIPE)
    assert process.stderr is not None
    with process.stderr:
        eventually(lambda: len(children_of(process.pid)) == 2, STOP_LIMIT_SECONDS)
        children = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_LIMIT_SECONDS) == 0
        assert '"stopped"' in process.stderr.readlines()[-1]
    assert not any(map(is_alive, children))
    assert all_gone(warm)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        *(pytest.param(each, marks=pytest.mark.chaos) for each in (signal.SIGTERM, signal.SIGHUP)),
    ],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_one_signal_ends_the_processes_and_then_postgresql(
    warm: Path, number: signal.Signals
) -> None:
    # Of REST; health on loopback has none.
    certificate, key = map(str, make_certificate(warm.parent))
    with serving(
        warm, WORKERS="1", HTTP_TLS_CERTIFICATE_FILE=certificate, HTTP_TLS_KEY_FILE=key
    ) as platform:
        assert metric(platform, "ti_process_up") == {"api": 1, "worker-1": 1, "parent": 1}
        children = pids(platform)
        if number == signal.SIGINT:  # a frozen process drains like the others
            os.kill(children["worker-1"], signal.SIGSTOP)
        platform.process.send_signal(number)
        assert platform.process.wait(STOP_LIMIT_SECONDS) == 0
    assert all_gone(warm)
    assert not any(map(is_alive, children.values()))
    lines = [json.loads(line) for line in platform.logs]
    logged = [
        (line["process"], line["event"])
        for line in lines
        if line["event"] in ("draining", "stopped")
    ]
    assert logged[0] == ("parent", "draining")
    assert logged[-1] == ("parent", "stopped")
    assert set(logged) == {
        (name, event) for name in ("parent", *children) for event in ("draining", "stopped")
    }
    assert [line["status"] for line in lines if line["event"] == "process ended"] == [0, 0]


# Takes more than five seconds: five programs are started as a user starts them, each with its
# imports.
@pytest.mark.slow
@pytest.mark.deadline
@pytest.mark.parametrize("how", ["kill", pytest.param("second signal", marks=pytest.mark.chaos)])
def test_a_parent_that_is_killed_leaves_nothing_behind(warm: Path, how: str) -> None:
    with serving(warm, WORKERS="2") as platform:
        children = pids(platform)
        assert children.keys() == CHILDREN
        os.kill(children["worker-1"], signal.SIGSTOP)  # a frozen one neither
        if how == "kill":
            platform.process.kill()
            assert platform.process.wait(STOP_LIMIT_SECONDS) == -signal.SIGKILL
        else:
            os.kill(children["api"], signal.SIGSTOP)
            for _ in range(2):
                platform.process.send_signal(signal.SIGTERM)
                eventually(
                    lambda: any('"draining"' in line for line in list(platform.logs)),
                    STOP_LIMIT_SECONDS,
                )
            assert platform.process.wait(STOP_LIMIT_SECONDS) == STOPPED_AT_ONCE
        eventually(
            lambda: all_gone(warm) and not any(map(is_alive, children.values())), LEFT_SECONDS
        )
    with serving(warm) as again:
        assert again.client.get("/readyz").status_code == 200


# Takes more than five seconds: four programs are started, and PostgreSQL again when its first owner
# was killed.
@pytest.mark.slow
@pytest.mark.deadline
def test_the_parent_takes_postgresql_over_and_no_process_of_its_own_does(warm: Path) -> None:
    with serving(warm) as first, serving(warm, WORKERS="1") as second:
        assert lock_holder(warm) == str(first.process.pid)
        first.process.kill()
        first.process.wait(STOP_LIMIT_SECONDS)
        eventually(lambda: lock_holder(warm) == str(second.process.pid), RESTART_SECONDS)
        eventually(lambda: second.client.get("/readyz").status_code == 200, RESTART_SECONDS)
        starts = {"api": 0, "worker-1": 0, "parent": 1}
        eventually(
            lambda: metric(second, "ti_embedded_postgres_starts_total") == starts, RESTART_SECONDS
        )
        assert second.stop() == 0
    assert all_gone(warm)


@pytest.mark.slow
def test_a_process_that_cannot_start_ends_all_with_its_reason(warm: Path) -> None:
    settings = {"WORKERS": "1", "TLS_CERTIFICATE_FILE": "none.pem", "TLS_KEY_FILE": "none.pem"}
    done = run_command(environment(warm, settings), "serve")
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(said) == 2
    assert said[0].startswith("api: ")
    assert "TRADING_INTENTS_TLS_CERTIFICATE_FILE" in said[0]
    assert "api has not started" in said[1]
    assert done.stderr.count('"process ended"') == 2  # each was started once
    assert all_gone(warm)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HTTP_PORT", "GRPC_PORT"])
def test_a_taken_port_is_refused_before_anything_is_started(
    split: Platform, tmp_path: Path, name: str
) -> None:
    port = (split.url if name == "HTTP_PORT" else split.grpc).rpartition(":")[2]
    done = run_command(environment(tmp_path / "data", {"WORKERS": "1", name: port}), "serve")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"TRADING_INTENTS_{name}" in done.stderr
    assert not (tmp_path / "data").exists()
    again = run_command(split.environ | {f"{PREFIX}{name}": port}, "serve")
    assert f"already running here, pid {split.process.pid}, on " in again.stderr


def test_the_free_port_that_was_found_for_grpc_is_kept_until_its_process_listens() -> None:
    settings = config.load({f"{PREFIX}HTTP_PORT": "0", f"{PREFIX}GRPC_PORT": "0"})
    with contextlib.ExitStack() as sockets, socket.socket() as other, socket.socket() as child:
        _, found = app.take_ports(settings, sockets)
        address = found.grpc_host, found.grpc_port
        with pytest.raises(OSError, match="in use"):
            other.bind(address)
        child.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        child.bind(address)
        child.listen()
        socket.create_connection(address).close()
        child.accept()[0].close()


@pytest.mark.parametrize(
    ("roles", "workers", "cores", "expected"),
    [
        ("api,stream,worker", "", 1, 1),
        ("api,stream,worker", "", 7, 1),
        ("api,stream,worker", "", 8, 2),
        ("stream,worker", "", 16, 4),
        ("api,worker", "", 256, 8),
        ("api,stream,worker", "0", 8, 0),
        ("api,stream,worker", "32", 1, 32),
        ("worker,worker", "4", 8, 0),
        ("api,stream", "4", 8, 0),
    ],
)
def test_workers_are_apart_where_there_are_other_roles(
    monkeypatch: pytest.MonkeyPatch, roles: str, workers: str, cores: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    settings = config.load({f"{PREFIX}ROLES": roles, f"{PREFIX}WORKERS": workers})
    assert settings.count_workers() == expected
