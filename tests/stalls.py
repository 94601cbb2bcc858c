"""Runs a test once more that failed while the machine stood still, and says so. A process beside
the tests measures it.

A virtual machine may be stopped for seconds: limits of the platform pass then that nothing of the
platform has missed.
"""

import mmap
import os
import signal
import struct
import time
from typing import NoReturn

import pytest
from _pytest.runner import runtestprotocol

TICK_SECONDS = 0.1
STALL_SECONDS = 1.0  # many times what a busy machine makes one small process wait
SECONDS = struct.Struct("d")
RUN_AGAIN = "run again"


class Stalls:
    """Is made before workers are forked, so that all of them see when the last stall ended."""

    def __init__(self) -> None:
        self._ended_at = mmap.mmap(-1, SECONDS.size)
        self.pid = os.fork()
        if not self.pid:
            self._watch(os.getppid())

    def is_any_since(self, seconds: float) -> bool:
        (ended_at,) = SECONDS.unpack(self._ended_at[:])
        return bool(ended_at >= seconds)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _watch(self, parent: int) -> NoReturn:
        while os.getppid() == parent:
            began_at = time.monotonic()
            time.sleep(TICK_SECONDS)
            now = time.monotonic()
            if now - began_at > TICK_SECONDS + STALL_SECONDS:
                self._ended_at[:] = SECONDS.pack(now)
        os._exit(0)


STALLS = pytest.StashKey[Stalls]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    stalls = item.config.stash.get(STALLS, None)
    if stalls is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    began_at = time.monotonic()
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if any(report.failed for report in reports) and stalls.is_any_since(began_at):
        # What a stall has broken may be of the file, or of the run.
        item.session._setupstate.teardown_exact(None)
        item._initrequest()  # type: ignore[attr-defined]  # has no public name
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            report.user_properties.append((RUN_AGAIN, True))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    is_again = (
        report.when == "call"
        and report.passed
        and (RUN_AGAIN, True) in map(tuple, report.user_properties)
    )
    return (RUN_AGAIN, "R", "PASSED WHEN RUN AGAIN") if is_again else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get(RUN_AGAIN, []):
        terminalreporter.write_line(
            f"{report.nodeid} failed while the machine stood still, and passed when run again"
        )
