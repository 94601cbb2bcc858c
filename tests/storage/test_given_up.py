"""An attempt to connect that is given up, by its limit or its caller, leaves no socket: not even to
whoever keeps its error, and without the garbage collector, which runs rarely."""

import asyncio
import contextlib
import gc
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Urls
from tests.proxy import Verdict, proxied
from tests.waiting import eventually_async
from trading_intents.errors import Unavailable
from trading_intents.secret import Secret
from trading_intents.storage import pipeline as module
from trading_intents.storage.connections import WalHistory
from trading_intents.storage.database import SERVICE_ROLE, open_pool
from trading_intents.storage.pipeline import Pipeline
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import Metrics, make_log

LIMIT_SECONDS = 10
CHANNEL = "ti_test"
# Words of the message that stays unanswered.
STAGES = {
    "start": b"user\0",
    "set-up": b"lock_timeout",
    "admission": b"pg_is_in_recovery",
    "listening": b"LISTEN",
}


@pytest.fixture(autouse=True)
def without_collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nor by the limit of a request, which closes its connection a little later."""
    monkeypatch.setattr(module, "RUN_LIMIT_SECONDS", 60)
    gc.disable()
    yield
    gc.enable()


async def open_pipeline(url: Secret) -> None:
    with contextlib.closing(Pipeline(url, SERVICE_ROLE, history=WalHistory())) as pipeline:
        await pipeline.connect()


async def open_one_pool(url: Secret) -> None:
    async with open_pool(url, SERVICE_ROLE, 1, Metrics(), WalHistory()):
        pass


async def listen(url: Secret) -> None:
    async with open_signals(url, make_log("error")) as signals:
        signals.subscribe(CHANNEL, lambda: None)
        await asyncio.Event().wait()


def open_sockets(port: int) -> list[int]:
    """This process's descriptors of connections to the port."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile, or is not connected
            if entry.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as each:
                    found += [int(entry.name)] * (each.getpeername()[1:] == (port,))
    return found


CASES = [
    *((open_pipeline, stage) for stage in ("start", "set-up", "admission")),
    *((open_one_pool, stage) for stage in ("start", "set-up", "admission")),
    *((listen, stage) for stage in ("start", "listening")),
]


@pytest.mark.parametrize(("connect", "stage"), CASES)
async def test_a_caller_that_gives_up_leaves_no_socket(
    urls: Urls, connect: Callable[[Secret], Awaitable[None]], stage: str
) -> None:
    with proxied(
        urls.login, lambda data: Verdict.HOLD if STAGES[stage] in data else Verdict.PASS
    ) as (proxy, url):
        task = asyncio.ensure_future(connect(url))
        assert await asyncio.to_thread(proxy.held.wait, LIMIT_SECONDS)
        assert open_sockets(proxy.port)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as kept:
            await task
        await eventually_async(lambda: _is_empty(proxy.port), LIMIT_SECONDS)
    assert kept.value.__traceback__, "kept until here"


async def _is_empty(port: int) -> bool:
    return not open_sockets(port)


@pytest.mark.parametrize("stage", ["start", "set-up", "admission"])
async def test_a_pipeline_that_gives_up_leaves_no_socket(urls: Urls, stage: str) -> None:
    with proxied(
        urls.login, lambda data: Verdict.HOLD if STAGES[stage] in data else Verdict.PASS
    ) as (proxy, url):
        with pytest.raises(Unavailable) as kept:
            await open_pipeline(url)
        assert proxy.held.is_set()
        await eventually_async(lambda: _is_empty(proxy.port), LIMIT_SECONDS)
    assert kept.value.__traceback__, "kept until here"
