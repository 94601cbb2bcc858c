"""A pytest plugin that watches a run of `make chaos`, and reports it as a table and as a picture:
load, faults and latency over time. It changes nothing that a test does."""

import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.seeds import seeded

FAULTS = {signal.SIGKILL: "killed", signal.SIGSTOP: "stopped"}
COLOURS = {"killed": "#c0392b", "stopped": "#d68910", "commits wait": "#7d3c98"}
MIN_REQUESTS = 50  # of a test that is shown though it has no faults
WIDTH = 1400
HEIGHT = 180
LEFT = 70
GAP = 50
NAME_CHARACTERS = 62


class AnsweredRequest(NamedTuple):
    at: float
    seconds: float
    is_answered: bool  # with anything but 5xx


class Fault(NamedTuple):
    at: float
    kind: str


@dataclass
class CompletedTest:
    name: str
    began: float
    ended: float = 0.0
    outcome: str = "passed"


@dataclass
class Recording:
    runs: list[CompletedTest] = field(default_factory=list)
    requests: list[AnsweredRequest] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def of(self, run: CompletedTest) -> "Recording":
        """The requests and faults while this test ran."""
        requests = [each for each in self.requests if run.began <= each.at < run.ended]
        return Recording(
            [run], requests, [each for each in self.faults if run.began <= each.at < run.ended]
        )


RECORDING = Recording()


def note(kind: str) -> None:
    """Notes a fault that is no signal."""
    RECORDING.faults.append(Fault(time.monotonic(), kind))


def quantile_millis(requests: Sequence[AnsweredRequest], share: float) -> float:
    times = sorted(each.seconds for each in requests)
    return 1000 * times[min(len(times) - 1, int(share * len(times)))] if times else 0.0


def table(recording: Recording) -> str:
    """A line for each test with load or faults, and one for all."""
    lines = [("test", "seconds", "requests", "5xx, lost", "p50 ms", "p99 ms", "max ms", "faults")]
    everything = (
        CompletedTest("all", recording.runs[0].began, recording.runs[-1].ended)
        if recording.runs
        else None
    )
    for run in (*recording.runs, *([everything] if everything else ())):
        own = recording.of(run)
        if not own.faults and len(own.requests) < MIN_REQUESTS and run is not everything:
            continue
        kinds = ", ".join(
            f"{count} {kind}" for kind, count in sorted(Counter(f.kind for f in own.faults).items())
        )
        times = [f"{quantile_millis(own.requests, share):.1f}" for share in (0.5, 0.99, 1.0)]
        name = run.name[-NAME_CHARACTERS:] + (
            "" if run.outcome == "passed" else f" ({run.outcome})"
        )
        failed = sum(not each.is_answered for each in own.requests)
        seconds = f"{run.ended - run.began:.0f}"
        requests = str(len(own.requests))
        lines.append((name, seconds, requests, str(failed), *times, kinds))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        [
            cell.ljust(width) if number in (0, 7) else cell.rjust(width)
            for number, (cell, width) in columns
        ]
        for columns in (list(enumerate(zip(line, widths, strict=True))) for line in lines)
    ]
    return "\n".join("  ".join(cells).rstrip() for cells in aligned)


def picture(recording: Recording) -> str:
    """An SVG: requests a second, the 50th and 99th percentile of each second's latency, and a line
    for each fault."""
    began = min((run.began for run in recording.runs), default=0.0)
    length = max([1.0, *(run.ended - began for run in recording.runs)])
    seconds: dict[int, list[AnsweredRequest]] = defaultdict(list)
    for each in recording.requests:
        seconds[int(each.at - began)].append(each)
    curves = [
        (
            "requests a second",
            [("#1f618d", {at: float(len(found)) for at, found in seconds.items()})],
        ),
        (
            "latency, ms: p99 (dark) and p50",
            [
                ("#1e8449", {at: quantile_millis(found, 0.99) for at, found in seconds.items()}),
                ("#82e0aa", {at: quantile_millis(found, 0.5) for at, found in seconds.items()}),
            ],
        ),
    ]
    scale = (WIDTH - LEFT - 10) / length
    parts = [
        part
        for index, (title, lines) in enumerate(curves)
        for part in _curve(index, title, lines, scale, length)
    ]
    bottom = GAP + len(curves) * (HEIGHT + GAP) - 20
    for fault in recording.faults:
        x = LEFT + scale * (fault.at - began)
        colour = COLOURS.get(fault.kind, "#566573")
        title = f"<title>{escape(fault.kind)} at {fault.at - began:.1f} s</title>"
        parts.append(
            f'<line x1="{x:.1f}" y1="{GAP}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}" opacity=".35">{title}</line>'
        )
    for run in recording.runs:
        x = LEFT + scale * (run.began - began)
        width = scale * (run.ended - run.began)
        fill = "#eaecee" if run.outcome == "passed" else "#f5b7b1"
        title = f"<title>{escape(run.name)}: {run.outcome}</title>"
        box = f'x="{x:.1f}" y="{bottom + 6}" width="{width:.1f}" height="14"'
        parts.append(f'<rect {box} fill="{fill}" stroke="#fff">{title}</rect>')
    legend = "  ".join(f'<tspan fill="{colour}">{kind}</tspan>' for kind, colour in COLOURS.items())
    parts.append(
        f'<text x="{LEFT}" y="20">faults: {legend}; below: the tests, over {length:.0f} s</text>'
    )
    size = f'width="{WIDTH}" height="{bottom + 30}"'
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" '
        f'font-size="12">\n{body}\n</svg>\n'
    )


def _curve(
    index: int, title: str, lines: list[tuple[str, dict[int, float]]], scale: float, length: float
) -> Iterator[str]:
    top = GAP + index * (HEIGHT + GAP)
    most = max((value for _, values in lines for value in values.values()), default=0.0) or 1.0
    yield f'<text x="{LEFT}" y="{top - 6}">{title}, at most {most:.0f}</text>'
    yield f'<rect x="{LEFT}" y="{top}" width="{scale * length:.1f}" height="{HEIGHT}" fill="none" stroke="#ccc"/>'
    yield f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{most:.0f}</text>'
    for colour, values in lines:
        # A stretch of seconds without a gap is a line of its own.
        for _, stretch in groupby(enumerate(sorted(values)), key=lambda item: item[1] - item[0]):
            ats = [at for _, at in stretch]
            points = " ".join(
                f"{LEFT + scale * (at + 0.5):.1f},{top + HEIGHT * (1 - values[at] / most):.1f}"
                for at in ats
            )
            yield (
                f'<polyline points="{points}" fill="none" stroke="{colour}" '
                'stroke-linecap="round"/>'
            )


def pytest_configure() -> None:
    """Watches every request that httpx sends from here, and every signal."""
    kill = os.kill
    send = httpx.Client.send
    send_async = httpx.AsyncClient.send

    def kill_and_note(pid: int, number: int) -> None:
        kill(pid, number)
        if number in FAULTS:
            note(FAULTS[signal.Signals(number)])

    def add(began: float, answer: httpx.Response | None) -> None:
        is_answered = answer is not None and answer.status_code < 500
        RECORDING.requests.append(AnsweredRequest(began, time.monotonic() - began, is_answered))

    def send_and_note(self: httpx.Client, *arguments: Any, **options: Any) -> httpx.Response:
        began = time.monotonic()
        answer = None
        try:
            answer = send(self, *arguments, **options)
            return answer
        finally:
            add(began, answer)

    async def send_and_note_async(
        self: httpx.AsyncClient, *arguments: Any, **options: Any
    ) -> httpx.Response:
        began = time.monotonic()
        answer = None
        try:
            answer = await send_async(self, *arguments, **options)
            return answer
        finally:
            add(began, answer)

    os.kill = kill_and_note
    httpx.Client.send = send_and_note  # type: ignore[method-assign]  # measured, not replaced
    httpx.AsyncClient.send = send_and_note_async  # type: ignore[method-assign]  # likewise


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A run that is cut short takes other tests with another seed; tests of a file stay
    together."""
    if os.environ.get("CHAOS_SECONDS"):
        files = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
        seeded("order").shuffle(files)
        items[:] = [item for group in files for item in group]


def pytest_runtest_setup() -> None:
    if time.monotonic() - RECORDING.runs[0].began >= float(
        os.environ.get("CHAOS_SECONDS") or "inf"
    ):
        pytest.skip("CHAOS_SECONDS are over")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    run = CompletedTest(item.nodeid, time.monotonic())
    RECORDING.runs.append(run)
    try:
        return (yield)
    finally:
        run.ended = time.monotonic()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome != "passed":
        RECORDING.runs[-1].outcome = report.outcome


def pytest_terminal_summary(terminalreporter: Any) -> None:
    RECORDING.runs[:] = [run for run in RECORDING.runs if run.outcome != "skipped"]
    file = Path(os.environ.get("CHAOS_REPORT") or "chaos-report.svg")
    file.write_text(picture(RECORDING))
    terminalreporter.section("chaos")
    terminalreporter.write_line(table(RECORDING))
    terminalreporter.write_line(f"load, faults and latency over time: {file.absolute()}")
