"""Who is `alone` goes first, on three workers; the others begin when they are done, but for who is `quiet`.

All who are quiet begin on one worker: while they wait, the processors are for two others, and never idle.
"""

import os
import tempfile
import time
from collections.abc import Generator
from itertools import groupby
from pathlib import Path

import pytest

SIDES = 3
LIMIT_SECONDS = 600.0
LOOK_SECONDS = 0.05


# Names a file, for every worker the same, that has a byte for each who was alone and is done.
DONE = "TESTS_ALONE_DONE"


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        file, os.environ[DONE] = tempfile.mkstemp()
        os.close(file)
    config.pluginmanager.register(Turns(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))


def pytest_unconfigure() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        Path(os.environ.pop(DONE)).unlink()


def _seconds(alone: list[pytest.Item]) -> float:
    marks = [mark for item in alone if (mark := item.get_closest_marker("exclusive"))]
    return float(sum(mark.kwargs.get("seconds", 1) for mark in marks))


def _parted(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item], list[pytest.Item]]:
    parts: dict[str, list[pytest.Item]] = {"exclusive": [], "idle": [], "": []}
    for item in items:
        parts[next((mark for mark in ("exclusive", "idle") if item.get_closest_marker(mark)), "")].append(item)
    return parts["exclusive"], parts["idle"], parts[""]


class Turns:
    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._done = Path(os.environ[DONE])
        self._left = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Every worker is given an equal part of the items, as they stand: `--dist worksteal`."""
        alone, quiet, rest = _parted(items)
        self._left = len(alone)
        firsts: list[list[pytest.Item]] = [[] for _ in range(self._workers)]
        for _, module in groupby(alone, lambda item: item.path):
            min(firsts[:SIDES], key=_seconds).extend(module)
        # Backwards: those that wait longest are in execution, and are beside who is alone.
        firsts[-1] += sorted(quiet, key=lambda item: item.path, reverse=True)
        ordered: list[pytest.Item] = []
        for worker, first in enumerate(firsts):
            size = (len(items) - len(ordered)) // (self._workers - worker)
            fill = max(0, size - len(first))
            ordered += [*first, *rest[:fill]]
            del rest[:fill]
        items[:] = [*ordered, *rest]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not item.get_closest_marker("exclusive"):
            if not item.get_closest_marker("idle"):
                self._wait()
            return (yield)
        try:
            return (yield)
        finally:
            with self._done.open("ab") as done:
                done.write(b".")

    def _wait(self) -> None:
        limit = time.monotonic() + LIMIT_SECONDS
        while self._done.stat().st_size < self._left:
            assert time.monotonic() < limit, "those who must be alone are not done"
            time.sleep(LOOK_SECONDS)
        self._left = 0
