"""Books of an account that nobody else works on, and a platform that shows them. When a test is
over they are true."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Databases, Urls
from tests.execution.api_only_platform import ApiOnlyPlatform, open_api_platform
from tests.execution.ledger_invariants import assert_true_books
from tests.execution.recorded_orders import Books, open_books
from tests.kept_connections import keeping
from trading_intents.execution import dispatcher, reconciler
from trading_intents.execution.halting import closing
from trading_intents.execution.halting import worker as halt_worker
from trading_intents.execution.sessions import leases
from trading_intents.outbox import model as outbox_model
from trading_intents.storage.database import Database

SOON_SECONDS = 0.1


@pytest.fixture
async def books(urls: Urls, database: Database) -> AsyncIterator[Books]:
    async with open_books(urls, database) as opened:
        yield opened
        await assert_true_books(database)


@pytest.fixture(scope="session")
async def api_platform(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ApiOnlyPlatform]:
    with databases() as urls, open_api_platform(urls, tmp_path_factory.mktemp("house")) as opened:
        async with keeping(urls.owner, urls.login):
            yield opened


@pytest.fixture
async def shown(api_platform: ApiOnlyPlatform) -> AsyncIterator[Books]:
    """Books of an account that the platform shows."""
    async with api_platform.open_books() as opened:
        yield opened
        await assert_true_books(opened.database)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of this process look again after a tenth of a second, for tests that do not prove how
    often they look, nor that they are signalled: for halts, commands that are due, orders in doubt,
    and accounts that changed."""
    monkeypatch.setattr(halt_worker, "SWEEP_SECONDS", SOON_SECONDS)
    monkeypatch.setattr(halt_worker, "COUNT_SECONDS", SOON_SECONDS)
    monkeypatch.setattr(closing, "PAUSES_SECONDS", (SOON_SECONDS,))
    monkeypatch.setattr(dispatcher, "POLL_SECONDS", SOON_SECONDS)
    monkeypatch.setattr(reconciler, "POLL_SECONDS", SOON_SECONDS)
    monkeypatch.setattr(reconciler, "RARE_POLL_SECONDS", SOON_SECONDS)
    monkeypatch.setattr(leases, "BALANCE_SECONDS", SOON_SECONDS)


@pytest.fixture
def retried_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that failed is sent again after a tenth of a second: not for tests that
    `put_off`."""
    monkeypatch.setattr(outbox_model, "BACKOFF_SECONDS", (SOON_SECONDS,))
