"""A process with a parent: it gets its part on the command line, says when it serves, and dies with
its parent."""

import asyncio
import ctypes
import os
import signal
import socket
import sys
from functools import partial

import msgspec
from prometheus_client import CollectorRegistry

from trading_intents import app
from trading_intents.config import Settings
from trading_intents.telemetry import Log, merge_metrics, render_metrics
from trading_intents.web.operations import read_metrics

PARENT = "parent"  # as a process's name
READY = b"ready"
PR_SET_PDEATHSIG = 1
SCRAPE_LIMIT_SECONDS = 1.0


class ChildPart(msgspec.Struct, frozen=True):
    name: str
    parent: int  # its pid
    listener: int  # the descriptor of the socket on which this process serves HTTP
    # Where the metrics of the other processes are; of the process that shows all of them.
    others: dict[str, str] = {}

    def die_with_parent(self) -> None:
        """Has the kernel kill this process when its parent ends, also while it is stopped or
        hangs."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != self.parent:
            sys.exit("the parent is gone")


async def serve_child(part: ChildPart, settings: Settings, log: Log, stop: asyncio.Event) -> None:
    ready = os.dup(sys.stdout.fileno())
    # Lines that a broker's library prints belong to the log.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    async def prepare(infra: app.Infrastructure) -> None:
        """Does nothing: the parent has."""

    def notify_parent(*_: object) -> None:
        log.info("process ready", pid=os.getpid(), port=listener.getsockname()[1])
        os.write(ready, READY)
        os.close(ready)

    listener = socket.socket(fileno=part.listener)
    await app.serve(
        settings,
        log,
        stop,
        prepare,
        greet=notify_parent,
        given=listener,
        render=partial(_render_all, part) if part.others else render_metrics,
    )


async def _render_all(part: ChildPart, registry: CollectorRegistry) -> bytes:
    own = (await render_metrics(registry)).decode()
    reading = [read_metrics(url, SCRAPE_LIMIT_SECONDS) for url in part.others.values()]
    others = zip(part.others, await asyncio.gather(*reading), strict=True)
    return merge_metrics({part.name: own, **dict(others)}).encode()
