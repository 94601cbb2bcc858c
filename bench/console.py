"""Measures the console in Chromium against its bars: frames and memory with 5,000 orders and 500
events a second.

Run it alone on the machine, after `make browser`: `python bench/console.py`. Exit code 1 when a bar
is missed.
`python bench/console.py 15` tries it for 15 seconds.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table

ORDERS = 5_000
SECONDS = 60
EVENTS_A_SECOND = 500
SENDERS = 4
FRAME_P99_BAR_MILLIS = 100
FRAME_MAX_BAR_MILLIS = 500
MEMORY_BAR = 1.25  # at the end, of what it was a third of the way in
PREFIX = "TRADING_INTENTS_"
LIMITS = [
    f"RATE_LIMIT_{whose}{kind}"
    for whose in ("", "ORGANIZATION_")
    for kind in ("SUBMITS", "READS", "WRITES")
]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
]
FLAGS += [
    "--js-flags=--expose-gc",
    "--enable-precise-memory-info",
    "--disable-component-update",
    "--disable-sync",
]
WATCH_FRAMES = """() => {
  window.frames_seen = [];
  let last = performance.now();
  const watch = (now) => {
    window.frames_seen.push(now - last);
    last = now;
    requestAnimationFrame(watch);
  };
  requestAnimationFrame((now) => { last = now; requestAnimationFrame(watch); });
}"""
HEAP = "() => { gc(); return performance.memory.usedJSHeapSize / 1048576; }"


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    settings = {"DATA_DIR": str(folder), "HTTP_PORT": "0", "GRPC_PORT": "0"} | dict.fromkeys(
        LIMITS, "100000/100000"
    )
    environ = os.environ | {PREFIX + name: value for name, value in settings.items()}
    command = [sys.executable, "-m", "trading_intents", "serve"]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        serving_line = next(json.loads(line) for line in process.stderr if '"serving"' in line)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        try:
            yield serving_line["http"]
        finally:
            process.terminate()


class Load:
    """Market orders from a few senders, at a rate or as fast as they are taken."""

    def __init__(self, url: str, key: str, account: str) -> None:
        self._url = f"{url}/v1/accounts/{account}/intents"
        self._headers = {"x-api-key": key}

    def send(self, orders: int, per_second: float | None = None) -> None:
        threads = [
            threading.Thread(target=self._work, args=(orders // SENDERS, per_second))
            for _ in range(SENDERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, orders: int, per_second: float | None) -> None:
        started = time.monotonic()
        with httpx.Client(headers=self._headers, timeout=30, verify=False) as client:
            for index in range(orders):
                if per_second:
                    time.sleep(max(0.0, started + index * SENDERS / per_second - time.monotonic()))
                side = "BUY" if index % 2 else "SELL_SHORT"
                spec = {"Market": {"quantity": "1"}}
                payload = {"symbol": f"S{index % 50}", "order_side": side, "spec": spec}
                client.post(self._url, json={"command": {"type": "CREATE", "payload": payload}})


def events_shown(url: str) -> float:
    text = httpx.get(f"{url}/metrics", verify=False).text
    return float(
        next(
            line.split()[1]
            for line in text.splitlines()
            if line.startswith("ti_stream_events_total ")
        )
    )


def measure(url: str, key: str, seconds: float) -> dict[str, float]:
    account = httpx.get(f"{url}/v1/accounts", headers={"x-api-key": key}, verify=False).json()[
        "data"
    ][0]["id"]
    load = Load(url, key, account)
    load.send(ORDERS)
    program = shutil.which("chromium")
    assert program, "chromium is missing: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{url}/console")
        page.get_by_label("API key or user's token").fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.locator(".connection.live").wait_for(timeout=60_000)
        shown = page.locator(".tools .hint").inner_text()
        per_second = EVENTS_A_SECOND / events_of_an_order(load, url)
        sender = threading.Thread(target=load.send, args=(int(per_second * seconds), per_second))
        before = events_shown(url)
        started = time.monotonic()
        page.evaluate(WATCH_FRAMES)
        sender.start()
        heaps = [scroll(page, seconds / 3) for _ in range(3)]
        frames: list[float] = sorted(page.evaluate("window.frames_seen"))
        rate = (events_shown(url) - before) / (time.monotonic() - started)
        sender.join()
        browser.close()
    middle = frames[len(frames) * 99 // 100]
    worst = frames[-1]
    orders = float(shown.split()[0])
    return {
        "orders": orders,
        "events": rate,
        "p99": middle,
        "max": worst,
        "heap": heaps[0],
        "heap_end": heaps[-1],
    }


def events_of_an_order(load: Load, url: str) -> float:
    before = events_shown(url)
    load.send(200, 100)
    time.sleep(1)
    return max(1.0, (events_shown(url) - before) / 200)


def scroll(page: Any, seconds: float) -> float:
    """A person who looks through the list meanwhile; then the heap in MiB."""
    ends = time.monotonic() + seconds
    page.locator(".grid.blotter").focus()
    while time.monotonic() < ends:
        page.keyboard.press("PageDown")
        page.wait_for_timeout(200)
    page.keyboard.press("Home")
    heap: float = page.evaluate(HEAP)
    return heap


def report(found: dict[str, float]) -> int:
    rows = (
        ("orders on the page", found["orders"], ORDERS, found["orders"] >= ORDERS),
        ("events/s", found["events"], EVENTS_A_SECOND, found["events"] >= EVENTS_A_SECOND * 0.9),
        ("frame p99 ms", found["p99"], FRAME_P99_BAR_MILLIS, found["p99"] <= FRAME_P99_BAR_MILLIS),
        (
            "longest frame ms",
            found["max"],
            FRAME_MAX_BAR_MILLIS,
            found["max"] <= FRAME_MAX_BAR_MILLIS,
        ),
        (
            f"heap at the end MiB (from {found['heap']:.0f})",
            found["heap_end"],
            found["heap"] * MEMORY_BAR,
            found["heap_end"] <= found["heap"] * MEMORY_BAR,
        ),
    )
    table = Table("console", "measured", "bar", "met")
    for name, measured, bar, is_met in rows:
        table.add_row(name, f"{measured:,.0f}", f"{bar:,.0f}", "yes" if is_met else "NO")
    Console().print(table)
    return 0 if all(row[3] for row in rows) else 1


def main(seconds: float) -> int:
    with tempfile.TemporaryDirectory(prefix="ti-bench-") as name, serving(Path(name)) as url:
        key = json.loads((Path(name) / "demo.json").read_text())["api_key"]
        return report(measure(url, key, seconds))


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
