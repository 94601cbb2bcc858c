"""Organizations to append for, and events to append."""

from collections.abc import AsyncIterator, Callable
from uuid import UUID, uuid4

import asyncpg
import pytest

from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.stream.model import Event, EventType
from trading_intents.trading import Environment

ORGANIZATIONS = 4

EventMaker = Callable[..., Event]


@pytest.fixture
async def owner(owner_url: Secret) -> AsyncIterator[asyncpg.Connection]:
    """A superuser, whom no policy holds back."""
    connection = await asyncpg.connect(owner_url.reveal())
    yield connection
    await connection.close()


@pytest.fixture
async def organizations(owner: asyncpg.Connection) -> list[OrganizationId]:
    ids = [OrganizationId(uuid4()) for _ in range(ORGANIZATIONS)]
    await owner.executemany(
        "INSERT INTO organizations (id, provider, external_id, name) VALUES ($1, 'local', $2, $2)",
        [(id_, str(id_)) for id_ in ids],
    )
    return ids


def event(organization_id: OrganizationId, payload: bytes = b"x", account_id: UUID | None = None) -> Event:
    return Event(organization_id, account_id or uuid4(), Environment.PAPER, EventType.INTENT_ACTION, "AAPL", payload)
