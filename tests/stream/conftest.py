"""Organizations to append for, events to append, and clients on the session's platform."""

from collections.abc import AsyncIterator, Callable, Iterator
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.conftest import Urls
from tests.intents.http_client import Tables, TradingClient, open_trading_client
from tests.kept_connections import open_owner
from tests.stream.client import Client
from tests.tenants import Tenants
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.storage.database import Pool, Tx
from trading_intents.stream.log import LoggedEvent, read_after
from trading_intents.stream.model import Event, EventType
from trading_intents.trading import Environment

ORGANIZATIONS = 4

OpenClient = Callable[..., TradingClient]


@pytest.fixture
async def owner(owner_url: Secret) -> AsyncIterator[asyncpg.Connection]:
    """A superuser, whom no policy holds back."""
    async with open_owner(owner_url) as connection:
        yield connection


@pytest.fixture
async def organizations(owner: asyncpg.Connection) -> list[OrganizationId]:
    ids = [OrganizationId(uuid4()) for _ in range(ORGANIZATIONS)]
    await owner.executemany(
        "INSERT INTO organizations (id, provider, external_id, name) VALUES ($1, 'local', $2, $2)",
        [(id_, str(id_)) for id_ in ids],
    )
    return ids


def event(
    organization_id: OrganizationId, payload: bytes = b"x", account_id: UUID | None = None
) -> Event:
    return Event(
        organization_id=str(organization_id),
        account_id=str(account_id or uuid4()),
        environment=Environment.PAPER,
        kind=EventType.INTENT_ACTION,
        symbol="AAPL",
        payload=payload,
    )


async def read_page(
    reader: Tx | Pool, organization_id: OrganizationId, after: int, limit: int
) -> list[LoggedEvent]:
    _, pages = await read_after(reader, {organization_id: after}, limit)
    return pages.get(organization_id, [])


@pytest.fixture(scope="session")
def tables(tenants_database: Urls) -> Iterator[Tables]:
    opened = Tables(tenants_database.owner)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def nothing_left_at_work(request: pytest.FixtureRequest) -> Iterator[None]:
    """The session's worker looks every second at what rests in an account's book, for as long as it
    has the account."""
    tables = request.getfixturevalue("tables") if "tenants" in request.fixturenames else None
    yield
    if tables is not None:
        tables.execute(
            """
            UPDATE accounts SET closed_at = clock_timestamp(), link_generation = link_generation + 1
            WHERE closed_at IS NULL AND id IN (SELECT account_id FROM orders)
            """
        )


@pytest.fixture(scope="session")
def open_client(tenants: Tenants, tables: Tables) -> OpenClient:
    """Opens clients: `caller` trades on what `admin` makes, the rest is the account's."""

    def opened(**changes: str) -> TradingClient:
        return open_trading_client(tenants, tables, **changes)

    return opened


@pytest.fixture
def trading_client(open_client: OpenClient) -> TradingClient:
    return open_client()


@pytest.fixture
def client(tenants: Tenants) -> Iterator[Client]:
    client = Client(tenants.platform.grpc)
    yield client
    client.close()
