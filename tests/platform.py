"""The platform as a user has it: a `trading-intents` process, real HTTP, signals and the command
line."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import httpx
from msgspec import to_builtins
from typer.testing import CliRunner

from tests import fork_server
from tests.raw_http import QuickClient
from trading_intents.app import Infrastructure, open_infrastructure
from trading_intents.config import PREFIX, load
from trading_intents.provision import apply, read_document, user_token
from trading_intents.telemetry import make_log
from trading_intents_client.cli.program import cli

T = TypeVar("T")

START_LIMIT_SECONDS = 60
STOP_LIMIT_SECONDS = 20
COMMAND_LIMIT_SECONDS = 60
PROGRAM = "trading_intents"
INSTALLED = Path(__file__).parent / "installed"  # brokers beside our own
COMMAND = (sys.executable, "-m", PROGRAM)


def environment(data_dir: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Only our own variables: none that the developer's shell happens to set."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    paths = filter(None, (str(INSTALLED), clean.get("PYTHONPATH")))
    clean["PYTHONPATH"] = os.pathsep.join(paths)
    # One process, which is cheaper; tests of several ask for them.
    chosen = {"DATA_DIR": str(data_dir), "HTTP_PORT": "0", "GRPC_PORT": "0", "WORKERS": "0"} | dict(
        settings
    )
    return clean | {PREFIX + name: value for name, value in chosen.items()}


@dataclass(kw_only=True)
class Platform:
    process: fork_server.Fork
    url: str
    client: httpx.Client
    environ: dict[str, str]
    logs: list[str] = field(default_factory=list)
    grpc: str = ""  # the stream's address, in a process with that role

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """One command of `trading-intents`, with the same settings."""
        return run_command(self.environ, *arguments, stdin=stdin)

    def apply(self, document: dict[str, Any]) -> dict[str, Any]:
        done = self.run("admin", "apply", "-", stdin=json.dumps(document))
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def token(self, user: str, organization: str = "") -> str:
        if not self._is_external:
            chosen = ("--organization", organization) if organization else ()
            done = self.run("token", "--user", user, *chosen)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()
        return self._provision(lambda parts: user_token(parts, user, organization or None)).reveal()

    def provision(self, document: dict[str, Any]) -> dict[str, Any]:
        """Does what `apply` does, without the command where that is possible: set-ups need it some
        hundred times."""
        if not self._is_external:
            return self.apply(document)
        wanted = read_document(json.dumps(document).encode())
        answer: dict[str, Any] = to_builtins(self._provision(lambda parts: apply(parts, wanted)))
        return answer

    @property
    def _is_external(self) -> bool:
        """Whether the database is external. A platform that ends while we are connected would leave
        its own to us."""
        return f"{PREFIX}DATABASE_URL" in self.environ

    def _provision(self, work: Callable[[Infrastructure], Awaitable[T]]) -> T:
        async def provision() -> T:
            settings = load(self.environ)
            log = make_log("warning")
            async with open_infrastructure(settings, log, needs_worker=False) as parts:
                return await work(parts)

        return run_apart(provision())

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_LIMIT_SECONDS)


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """In a thread: the caller may have an event loop of its own, as a browser's tests have."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def run_command(
    environ: Mapping[str, str], *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """A command that uses an external database runs in this process: a program takes ten times as
    long. Whoever serves, or starts or joins PostgreSQL, must be a process's main thread."""
    if "serve" in arguments or f"{PREFIX}DATABASE_URL" not in environ:
        return fork_server.run(
            PROGRAM, *arguments, environ=environ, stdin=stdin, limit_seconds=COMMAND_LIMIT_SECONDS
        )
    cleared = dict.fromkeys(name for name in os.environ if name.startswith(PREFIX))
    with (
        mock.patch.object(sys, "path", [*environ["PYTHONPATH"].split(os.pathsep), *sys.path]),
        ThreadPoolExecutor(1) as thread,  # the caller may have an event loop of its own
    ):
        done = thread.submit(
            CliRunner().invoke,
            cli,
            arguments,
            input=stdin,
            env={**cleared, **environ},
            catch_exceptions=False,
        ).result()
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


@contextlib.contextmanager
def serving(data_dir: Path, **settings: str) -> Iterator[Platform]:
    """`trading-intents serve` until the block ends; its log lines are gathered."""
    environ = environment(data_dir, settings)
    logs: list[str] = []
    process = fork_server.Fork(PROGRAM, "serve", environ=environ, stderr=subprocess.PIPE)
    assert process.stderr is not None
    gathering = threading.Thread(target=logs.extend, args=(process.stderr,), daemon=True)
    try:
        logged = _await_serving(process, logs)
        gathering.start()
        with QuickClient(logged["http"], timeout=10) as client:
            yield Platform(
                process=process,
                url=logged["http"],
                client=client,
                environ=environ,
                logs=logs,
                grpc=logged.get("grpc", ""),
            )
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
        if gathering.ident:
            gathering.join()
        process.stderr.close()


def _await_serving(process: fork_server.Fork, logs: list[str]) -> dict[str, str]:
    """The `serving` line, which has the addresses."""
    assert process.stderr is not None
    for line in process.stderr:
        logs.append(line)
        if line.startswith("{") and json.loads(line).get("event") == "serving":
            logged: dict[str, str] = json.loads(line)
            return logged
    process.wait()
    raise AssertionError("the platform did not start:\n" + "".join(logs))
