"""The report of `make chaos`, on a run of two small tests: one that does harm under load, one that
comes too late."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.chaos.report import (
    AnsweredRequest,
    CompletedTest,
    Fault,
    Recording,
    picture,
    quantile_millis,
    table,
)

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 60
FEW_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # it starts in half the time
HARMFUL = """
import http.server, os, signal, subprocess, sys, threading, time
import httpx

class Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if self.path == "/away" else 200)
        self.end_headers()
    def log_message(self, *_): pass

def test_harm():
    server = http.server.HTTPServer(("127.0.0.1", 0), Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child, httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", verify=False) as client:
        for path in ("/", "/away"):
            client.get(path)
        child.send_signal(signal.SIGSTOP)
        child.kill()
    server.shutdown()
    server.server_close()
    time.sleep(float(os.environ["CHAOS_SECONDS"]))  # so that the next one is too late

def test_late():
    raise AssertionError("it has run")
"""


def test_a_run_is_shown_as_a_table_and_as_a_picture(tmp_path: Path) -> None:
    (tmp_path / "test_harmful.py").write_text(HARMFUL)
    report = tmp_path / "report.svg"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.chaos.report",
            "-c",
            "/dev/null",
            "--rootdir",
            ".",
            "-q",
        ],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "CHAOS_SECONDS": "0.1", "CHAOS_REPORT": str(report)}
        | FEW_PLUGINS,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert "1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    header, harmful, everything = [
        line for line in done.stdout.splitlines() if "  " in line and "[100%]" not in line
    ]
    assert header.split()[:3] == ["test", "seconds", "requests"]
    assert harmful.split()[0].endswith("test_harmful.py::test_harm")
    for line in (harmful, everything):
        assert line.split()[2:4] == ["2", "1"]
        assert line.endswith("1 killed, 1 stopped")
    titles = [
        element.text
        for element in ElementTree.parse(report).iter("{http://www.w3.org/2000/svg}title")
    ]
    assert [str(title).split()[0] for title in titles] == [
        "stopped",
        "killed",
        "test_harmful.py::test_harm:",
    ]


def test_the_picture_and_the_table_show_each_second() -> None:
    requests = [AnsweredRequest(10 + n / 10, 0.001 * (n + 1), n != 3) for n in range(100)]
    recording = Recording(
        [CompletedTest("a & b", 10, 20), CompletedTest("idle", 20, 21)],
        requests,
        [Fault(12.5, "commits wait")],
    )
    assert [quantile_millis(requests, share) for share in (0.5, 0.99, 1.0)] == pytest.approx(
        [51, 100, 100]
    )
    lines = table(recording).splitlines()
    assert [line.split("  ")[0].strip() for line in lines] == ["test", "a & b", "all"]
    assert "commits wait" in lines[1]
    drawn = ElementTree.fromstring(picture(recording))
    curves = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(curve.attrib["points"].split()) for curve in curves] == [10, 10, 10]


def test_a_run_without_tests_is_reported_too() -> None:
    assert len(table(Recording()).splitlines()) == 1
    ElementTree.fromstring(picture(Recording()))
