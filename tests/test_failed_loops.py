"""A loop of the process that fails ends the process: half of one would look as if it worked."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Urls
from tests.platform import environment
from trading_intents import app
from trading_intents.config import load
from trading_intents.errors import InternalError
from trading_intents.execution.dispatcher import Dispatcher
from trading_intents.execution.sessions.leases import Leases
from trading_intents.intents.writing.writer import Writer
from trading_intents.loops import start_loop, watch_loops
from trading_intents.outbox.worker import Worker
from trading_intents.provision import prepare_demo
from trading_intents.storage.signals import Signals
from trading_intents.stream.hub import Hub
from trading_intents.telemetry import make_log
from trading_intents.web.server.table import ConnectionTable

LOOPS: list[tuple[type, str]] = [
    (Writer, "run"),
    (Hub, "run"),
    (Signals, "run"),
    (ConnectionTable, "tick"),
    (Worker, "_claim_until_stopped"),
    (Dispatcher, "_run"),
    (Leases, "_write_states"),
]


@pytest.mark.parametrize(
    ("owner", "name"), LOOPS, ids=[f"{owner.__name__}.{name}" for owner, name in LOOPS]
)
async def test_a_loop_that_fails_ends_the_process(
    urls: Urls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    fail = asyncio.Event()

    async def run(*_: Any) -> None:
        await fail.wait()
        raise KeyError("an error that nobody expected")

    monkeypatch.setattr(owner, name, run)
    monkeypatch.setattr(app, "collect_rarely", lambda: None)  # it would hold for the tests after it
    settings = load(environment(tmp_path, {"DATABASE_URL": urls.login.reveal()}))

    def greet(*_: Any) -> None:
        fail.set()

    with (
        pytest.raises(InternalError, match="has failed, so the process has ended"),
        (tmp_path / "log").open("w") as out,
    ):
        await app.serve(settings, make_log(stream=out), asyncio.Event(), prepare_demo, greet)
    assert '"loop failed"' in (tmp_path / "log").read_text()
    assert "an error that nobody expected" in (tmp_path / "log").read_text()


async def _return() -> None:
    pass


async def _fail() -> None:
    raise KeyError("fault")


async def _cancelled_by_another() -> None:
    other = asyncio.create_task(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(other.cancel)
    await other


async def _cancelled() -> None:
    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)  # type: ignore[union-attr]  # there is one
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("work", "found"),
    [
        (_return, []),
        (_cancelled, []),
        (_fail, ["_fail"]),
        (_cancelled_by_another, ["_cancelled_by_another"]),
    ],
)
async def test_only_an_end_that_nobody_asked_for_is_a_failure(
    work: Callable[[], Coroutine[Any, Any, None]], found: list[str]
) -> None:
    failed: list[str] = []
    watch_loops(lambda name, _: failed.append(name))
    await asyncio.gather(start_loop(work()), return_exceptions=True)
    assert failed == found
