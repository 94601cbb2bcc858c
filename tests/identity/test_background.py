"""Background work of identity: an error that nobody expected is logged, and the work goes on."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from typing import cast

import pytest

from trading_intents.identity import service, users
from trading_intents.identity.service import Callers, keep_reporting
from trading_intents.identity.users import keep_resuming
from trading_intents.storage.database import Pool
from trading_intents.telemetry import Log

WAIT_SECONDS = 10.0


class FailsOnce:
    """Callers and a pool whose first use raises what no handler names."""

    def __init__(self) -> None:
        self.is_first = True
        self.used_again = asyncio.Event()

    async def report_use(self) -> None:
        self._fail_once()

    @contextlib.asynccontextmanager
    async def transaction(self, read_only: bool = False) -> AsyncIterator[None]:
        self._fail_once()
        yield

    def _fail_once(self) -> None:
        if self.is_first:
            self.is_first = False
            raise ZeroDivisionError
        self.used_again.set()


@pytest.mark.parametrize("work", ["reporting", "resuming"])
async def test_an_unexpected_error_does_not_end_background_work(
    monkeypatch: pytest.MonkeyPatch, log: Log, logged: io.StringIO, work: str
) -> None:
    monkeypatch.setattr(service, "LAST_USED_SECONDS", 0.0)
    monkeypatch.setattr(users, "RESUME_SECONDS", 0.0)
    failing = FailsOnce()
    if work == "reporting":
        running = asyncio.create_task(keep_reporting(cast(Callers, failing), log))
    else:
        running = asyncio.create_task(keep_resuming(cast(Pool, failing), None, "local", log))
    again = asyncio.create_task(failing.used_again.wait())
    done, _ = await asyncio.wait(
        [again, running], timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED
    )
    running.cancel()
    await asyncio.wait([running])
    assert done == {again}
    assert "ZeroDivisionError" in logged.getvalue()
