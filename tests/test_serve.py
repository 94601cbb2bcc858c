"""`trading-intents serve` from start to end, as whoever runs it sees it."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from tests.conftest import Urls
from tests.half_sent import VALIDATE, HalfSent, demo_key
from tests.platform import COMMAND, STOP_LIMIT_SECONDS, Platform, environment, run_command, serving
from tests.storage.conftest import all_gone
from tests.waiting import eventually
from trading_intents import provision
from trading_intents.app import DRAIN_SECONDS
from trading_intents.cli import cli
from trading_intents.config import PREFIX
from trading_intents.errors import StartupRefused
from trading_intents.processes.command import STOPPED_AT_ONCE

pytest_plugins = ("tests.started_dirs",)
pytestmark = pytest.mark.slow

ORPHAN_SECONDS = 2  # docs/operating/install.md says so
TAKE_OVER_SECONDS = 5
ROOT = Path(__file__).parents[1]
COLUMNS = 80
LINES = 24


def answers(platform: Platform, path: str, status: int) -> bool:
    return platform.client.get(path).status_code == status


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_the_second_start_finds_what_the_first_has_made(warm_original: Path, warm: Path) -> None:
    for private in (warm_original, warm_original / "demo.json"):
        assert private.stat().st_mode & 0o077 == 0
    with serving(warm) as second:
        assert second.client.get("/readyz").status_code == 200
        assert demo_key(warm) == demo_key(warm_original)
        validated = second.client.post(VALIDATE, json={"api_key": demo_key(warm)}).json()
        assert (validated["environment"], validated["disabled"]) == ("paper", False)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=["SIGTERM", "SIGINT", "SIGHUP"]
)
def test_a_signal_ends_everything_and_every_log_line_is_json(
    warm: Path, number: signal.Signals
) -> None:
    with serving(warm, LOG_LEVEL="debug") as platform:
        assert not all_gone(warm)
        platform.process.send_signal(number)
        assert platform.process.wait(STOP_LIMIT_SECONDS) == 0
    assert all_gone(warm)
    lines = [json.loads(line) for line in platform.logs]
    assert all(line["timestamp"].endswith("Z") and line["level"] for line in lines)
    logged = [
        line["event"] for line in lines if line["event"] in ("serving", "draining", "stopped")
    ]
    assert logged == ["serving", "draining", "stopped"]


@pytest.mark.deadline
def test_a_kill_leaves_no_postgresql_behind(warm: Path) -> None:
    with serving(warm) as platform:
        platform.process.kill()
        platform.process.wait(STOP_LIMIT_SECONDS)
        eventually(lambda: all_gone(warm), ORPHAN_SECONDS)


@pytest.mark.deadline
def test_a_second_process_joins_and_takes_over(warm: Path) -> None:
    with serving(warm) as first, serving(warm) as second:
        assert "ti_embedded_postgres_starts_total 0.0" in second.client.get("/metrics").text
        first.process.kill()
        first.process.wait(STOP_LIMIT_SECONDS)

        def taken_over() -> bool:
            answer = second.client.post(VALIDATE, json={"api_key": demo_key(warm)})
            assert answer.status_code in (200, 503)
            started = "ti_embedded_postgres_starts_total 1.0" in second.client.get("/metrics").text
            return started and answer.status_code == 200

        eventually(taken_over, TAKE_OVER_SECONDS)
        # Its other parts connect again, too.
        eventually(lambda: answers(second, "/readyz", 200), TAKE_OVER_SECONDS)
        assert second.stop() == 0
    assert all_gone(warm)


def test_a_taken_port_is_refused_in_one_line_that_names_the_setting(
    tmp_path: Path, taken_port: int
) -> None:
    done = run_command(environment(tmp_path / "data", {"HTTP_PORT": str(taken_port)}), "serve")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"port {taken_port} (Address already in use)" in done.stderr
    assert "TRADING_INTENTS_HTTP_PORT" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_second_start_says_that_it_runs_already_and_where(platform: Platform) -> None:
    logged = json.loads(next(line for line in platform.logs if '"serving"' in line))
    folder = platform.environ[f"{PREFIX}DATA_DIR"]
    for name, address in (("HTTP_PORT", platform.url), ("GRPC_PORT", platform.grpc)):
        done = run_command(
            platform.environ | {f"{PREFIX}{name}": address.rpartition(":")[2]}, "serve"
        )
        assert done.returncode == 1
        assert f"already running here, pid {logged['pid']}, on {folder};" in done.stderr
        assert done.stderr.count("\n") == 1


def test_an_unknown_setting_is_warned_of_with_the_nearest_one(
    tmp_path: Path, taken_port: int
) -> None:
    settings = {"HTTP_PORT": str(taken_port), "LOG_LEVLE": "debug"}
    done = CliRunner().invoke(cli, ["serve"], env=environment(tmp_path / "data", settings))
    line = json.loads(done.stderr.splitlines()[0])
    assert (line["level"], line["event"]) == ("warning", "unknown setting")
    assert line["variable"] == "TRADING_INTENTS_LOG_LEVLE"
    assert line["did_you_mean"] == "TRADING_INTENTS_LOG_LEVEL"


def test_a_drain_finishes_what_was_begun_and_takes_nothing_new(warm: Path) -> None:
    key = demo_key(warm)
    with serving(warm) as platform, contextlib.closing(HalfSent(platform.url, key)) as half_sent:
        platform.process.send_signal(signal.SIGTERM)
        eventually(lambda: answers(platform, "/readyz", 503), DRAIN_SECONDS)
        refused = platform.client.post(VALIDATE, json={"api_key": key})
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        assert answers(platform, "/healthz", 200)
        head, body = half_sent.finish()
        assert head.startswith(b"HTTP/1.1 200 ")
        assert json.loads(body)["environment"] == "paper"
        assert platform.process.wait(STOP_LIMIT_SECONDS) == 0
    events = [json.loads(line)["event"] for line in platform.logs]
    assert events[-2:] == ["draining", "stopped"]
    assert all_gone(warm)


@pytest.mark.deadline
def test_a_second_signal_stops_at_once(warm: Path) -> None:
    with serving(warm) as platform, contextlib.closing(HalfSent(platform.url, demo_key(warm))):
        platform.process.send_signal(signal.SIGTERM)
        eventually(lambda: answers(platform, "/readyz", 503), DRAIN_SECONDS)
        platform.process.send_signal(signal.SIGTERM)
        # The half-sent request would hold the drain for all of its time.
        assert platform.process.wait(DRAIN_SECONDS / 2) == STOPPED_AT_ONCE
        eventually(lambda: all_gone(warm), ORPHAN_SECONDS)


def test_a_worker_serves_its_health_but_no_api(warm: Path) -> None:
    with serving(warm, ROLES="worker") as worker:
        own = {"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/", "/page.css"}
        assert {path: worker.client.get(path).status_code for path in own} == dict.fromkeys(
            own, 200
        )
        assert worker.client.get("/openapi.json").json()["paths"].keys() == own
        for method, path in (("GET", "/v1/api-keys"), ("POST", VALIDATE), ("POST", "/oauth/token")):
            assert worker.client.request(method, path).json()["code"] == "not_found"


# Takes more than five seconds: a first start as a user types it, with its initdb and the imports of
# four programs.
@pytest.mark.deadline
def test_a_person_at_a_terminal_is_shown_where_it_is_and_what_to_try(tmp_path: Path) -> None:
    """From the first start on, in a checkout and in a terminal of 80 columns and 24 lines."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    environ = environment(tmp_path / ".data", {})
    del environ[f"{PREFIX}DATA_DIR"], environ[f"{PREFIX}WORKERS"]  # as `make run` has them
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (LINES, COLUMNS))
    process = subprocess.Popen(
        [*COMMAND, "serve"],
        cwd=tmp_path,
        env=environ | {"TERM": "xterm-256color"},
        # Without this Ctrl-C would reach nobody: a terminal's keys signal the session that it
        # controls.
        preexec_fn=lambda: os.login_tty(theirs),
        pass_fds=[theirs],
    )
    os.close(theirs)
    with process, open(ours, "rb+", buffering=0) as terminal:
        shown = read_until(terminal.fileno(), "Ctrl-C ends all of it.")
        assert len(shown.splitlines()) < LINES, shown
        assert max(map(len, shown.splitlines())) <= COLUMNS, shown
        assert "is ready" in shown
        assert '{"' not in shown
        url = re.search(r"HTTP +(http://\S+)", shown)
        address = re.search(r"gRPC +(127\S+)", shown)
        assert url, shown
        assert address, shown
        assert httpx.get(url[1] + "/readyz").status_code == 200
        [place_order] = re.findall(r"^  (\S+trading-intents buy .*)$", shown, re.MULTILINE)
        assert paste(place_order, tmp_path).startswith("BUY 10 AAPL: FILLED 10 at ")
        terminal.write(b"\x03")
        assert process.wait(STOP_LIMIT_SECONDS) == 0
    assert all_gone(tmp_path / ".data")


def test_a_terminal_that_closes_drains_what_was_begun(warm: Path) -> None:
    """It sends SIGHUP more than once, the end of its session SIGTERM, and nothing can be written to
    it any more."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "serve"],
        env=environment(warm, {}) | {"TERM": "xterm-256color"},
        preexec_fn=lambda: os.login_tty(theirs),
        pass_fds=[theirs],
    )
    os.close(theirs)
    with process:
        shown = read_until(ours, "Ctrl-C ends all of it.")
        url = re.search(r"HTTP +(http://127\.0\.0\.1:\d+)", shown)
        assert url
        with contextlib.closing(HalfSent(url[1], demo_key(warm))) as half_sent:
            os.close(ours)
            eventually(lambda: httpx.get(url[1] + "/readyz").status_code == 503, DRAIN_SECONDS)
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGTERM)
            assert half_sent.finish()[0].startswith(b"HTTP/1.1 200 ")
        assert process.wait(STOP_LIMIT_SECONDS) == 0
    assert all_gone(warm)


def test_a_process_that_ignores_the_hangup_goes_on(warm: Path) -> None:
    with subprocess.Popen(
        ["nohup", *COMMAND, "serve"],
        env=environment(warm, {}),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ) as process:
        assert process.stderr is not None
        logged = next(line for line in process.stderr if b'"serving"' in line)
        process.send_signal(signal.SIGHUP)
        assert httpx.get(json.loads(logged)["http"] + "/readyz").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert b'"draining"' in process.stderr.read()
        assert process.wait(STOP_LIMIT_SECONDS) == 0


def paste(command: str, folder: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_until(file: int, goal: str) -> str:
    """The text that a terminal shows up to the goal, without its colours."""
    shown = b""
    while goal.encode() not in shown:
        shown += os.read(file, 65536)
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")


def test_an_external_database_gets_no_demo_and_no_server(tmp_path: Path, urls: Urls) -> None:
    folder = tmp_path / "data"
    with serving(
        folder, DATABASE_URL=urls.login.reveal(), DATABASE_OWNER_URL=urls.owner.reveal()
    ) as platform:
        assert platform.client.get("/readyz").status_code == 200
        done = platform.run("token", "--user", "demo", "--organization", "demo")
        assert done.returncode == 1
        assert "no user demo" in done.stderr
        assert not {"postgres", "postgres.lock", "demo.json"} & {
            path.name for path in folder.iterdir()
        }


def test_a_demo_file_without_a_key_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text('{"api_key": "nonsense"}')
    with pytest.raises(StartupRefused, match="holds no API key"):
        provision._demo_key(tmp_path, make=True)
