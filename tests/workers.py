"""Runs tests in processes that are forked when all tests are collected: `pytest --workers 5
--waiters 3`.

A file's tests stay in one process; those marked `slow` or `deadline` are taken one by one, but for
those that share what is made once for their file. Tests of all `sources`, which are parsed once,
stay together. Deadlines run when all others are done, in more processes.
"""

import atexit
import os
import signal
import traceback
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests import fork_server

SHARED = pytest.StashKey[Path]()
NUMBER_BYTES = 4
Unit = list[pytest.Item]
Location = tuple[str, int | None, str]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--workers", type=int, default=0, help="processes that run tests; 0: this one does"
    )
    parser.addoption(
        "--waiters", type=int, default=0, help="processes that begin when only deadlines are left"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.workers and not config.option.collectonly:
        fork_server.start()  # imports our programs while we collect


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if (
        not session.config.option.workers
        or session.config.option.collectonly
        or session.testsfailed
    ):
        return None
    Workers(session).run()
    return True


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The same for all workers of a run."""
    return pytestconfig.stash.get(SHARED, None) or tmp_path_factory.getbasetemp()


class Queue:
    """Units of tests, each of which one worker takes: a pipe that is full of their numbers before
    the first fork."""

    def __init__(self, units: list[Unit]) -> None:
        self._units = units
        self._reader, writer = os.pipe()
        for number in range(len(units)):
            os.write(writer, number.to_bytes(NUMBER_BYTES, "big"))
        os.close(writer)

    def take_all(self) -> Iterator[Unit]:
        while taken := os.read(self._reader, NUMBER_BYTES):
            yield self._units[int.from_bytes(taken, "big")]


@dataclass
class Running:
    """A worker, and the test that it began last."""

    pid: int
    nursery: fork_server.Fork
    nodeid: str = "no test"
    location: Location = ("", None, "")


@dataclass
class Workers:
    """In the process that has collected. A worker's connection ends when the worker does."""

    session: pytest.Session
    running: dict[Connection, Running] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.factory = self.session.config._tmp_path_factory  # type: ignore[attr-defined]  # has no public name
        self.session.config.stash[SHARED] = self.factory.getbasetemp()
        others = defaultdict[Path | str, Unit](list)
        deadlines = defaultdict[Path | str, Unit](list)
        for item in self.session.items:
            is_deadline = item.get_closest_marker("deadline")
            is_long = is_deadline or item.get_closest_marker("slow")
            units = deadlines if is_deadline else others
            unit: Path | str = item.path
            if item.get_closest_marker("sources"):
                unit = "sources"
            elif is_long and not _shares_fixture(item):
                unit = item.nodeid
            units[unit].append(item)
        self.others = Queue(list(others.values()))
        self.deadlines = Queue(list(deadlines.values()))
        # Each worker closes its copy of the writing end when there is no other unit left: the last
        # one lets deadlines begin.
        self.all_closed, self.to_close = os.pipe()
        self.waiters = self.session.config.option.waiters if deadlines else 0

    def run(self) -> None:
        for _ in range(self.session.config.option.workers):
            self._start()
        os.close(self.to_close)
        try:
            while self.running:
                for ready in wait([*self.running, *([self.all_closed] if self.waiters else [])]):
                    if isinstance(ready, Connection):
                        self._read(ready)
                        continue
                    for _ in range(self.waiters):
                        self._start()
                    self.waiters = 0
        finally:
            for running in self.running.values():
                os.kill(running.pid, signal.SIGINT)  # each tears its fixtures down
                os.waitpid(running.pid, 0)

    def _start(self) -> None:
        ours, theirs = Pipe(duplex=False)
        nursery, channel = fork_server.divide()
        pid = os.fork()
        if not pid:
            fork_server.adopt(channel)
            self._work(theirs)
        theirs.close()
        channel.close()
        self.running[ours] = Running(pid, nursery)
        self.count += 1

    def _read(self, connection: Connection) -> None:
        hook = self.session.config.hook
        running = self.running[connection]
        try:
            name, message = connection.recv()
        except EOFError:
            del self.running[connection]
            _, status = os.waitpid(running.pid, 0)
            running.nursery.wait()
            if status:
                hook.pytest_runtest_logreport(
                    report=_crashed(running, os.waitstatus_to_exitcode(status))
                )
            return
        if "report" in message:
            report = hook.pytest_report_from_serializable(
                config=self.session.config, data=message["report"]
            )
            message = {"report": report}
        else:
            running.nodeid = message["nodeid"]
            running.location = message["location"]
        getattr(hook, name)(**message)
        if self.session.shouldfail or self.session.shouldstop:
            for queue in (self.others, self.deadlines):
                list(queue.take_all())

    def _work(self, connection: Connection) -> NoReturn:
        status = 1
        try:
            atexit._clear()  # what is registered is not ours
            folder = self.session.config.stash[SHARED] / f"worker-{self.count}"
            folder.mkdir(mode=0o700)
            self.factory._basetemp = folder
            _replace_terminal(self.session.config, connection)
            self._run_units()
            status = 0
        except KeyboardInterrupt:
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            fork_server.end(status)

    def _run_units(self) -> None:
        item = self.session.items[0]
        try:
            for item, following in self._taken():
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.session.shouldfail or self.session.shouldstop:
                    break
        finally:
            call = pytest.CallInfo.from_call(
                lambda: self.session._setupstate.teardown_exact(None), when="teardown"
            )
            if call.excinfo:
                report = pytest.TestReport.from_item_and_call(item, call)
                self.session.config.hook.pytest_runtest_logreport(report=report)

    def _taken(self) -> Iterator[tuple[pytest.Item, pytest.Item | pytest.Session]]:
        """Tests, each with the node whose fixtures stay; deadlines when nobody has another unit."""
        for queue in (self.others, self.deadlines):
            for unit in queue.take_all():
                yield from zip(unit, [*unit[1:], self.session], strict=True)
            if queue is self.others and self.count < self.session.config.option.workers:
                os.close(self.to_close)
                os.read(self.all_closed, 1)


class Sender:
    """Stands for the terminal in a worker, and hands on what happens."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self._tw = config.get_terminal_writer()

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        self._connection.send(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("pytest_runtest_logreport", {"report": data}))

    def pytest_runtest_logfinish(self, nodeid: str, location: Location) -> None:
        self._connection.send(
            ("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location})
        )


def _replace_terminal(config: pytest.Config, connection: Connection) -> None:
    sender = Sender(config, connection)
    plugins = config.pluginmanager
    for name in ("terminalreporter", "terminalprogress"):
        if plugins.has_plugin(name):
            plugins.unregister(name=name)
    plugins.register(sender, "terminalreporter")
    capture: Any = plugins.get_plugin("capturemanager")
    capture.stop_global_capturing()  # its files are shared with the other workers
    capture.start_global_capturing()
    capture.suspend_global_capture()


def _shares_fixture(item: pytest.Item) -> bool:
    """Whether it uses something that is made once for its file, or that its file makes once."""
    made = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]  # has no public name
    used = [definitions[-1] for definitions in made]
    of_file = item.nodeid.partition("::")[0]
    return any(
        each.scope == "module" or (each.scope != "function" and each.baseid == of_file)
        for each in used
    )


def _crashed(running: Running, status: int) -> pytest.TestReport:
    text = f"the worker ended with {status}, during this test or after it"
    return pytest.TestReport(running.nodeid, running.location, {}, "failed", text, "call")
