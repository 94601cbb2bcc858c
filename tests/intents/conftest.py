"""Desks on a platform that executes nothing, a second process beside it, and an organization
without any plan."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Databases, Urls
from tests.intents.http_client import Tables, TradingClient, open_trading_client
from tests.platform import Platform, serving
from tests.tenants import EVERY_PERMISSION, PLENTY, Tenants, key, made_tenants

OpenClient = Callable[..., TradingClient]
PLAIN = {
    "external_id": "org_plain",
    "users": [{"external_id": "plain-admin", "role": "admin"}],
    "api_keys": [key("paper", "paper", EVERY_PERMISSION), key("live", "live", EVERY_PERMISSION)],
}


@pytest.fixture(scope="session")
def tenants_database(databases: Databases) -> Iterator[Urls]:
    with databases() as urls:
        yield urls


@pytest.fixture(scope="session")
def tenants(tenants_database: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    """As everywhere, but without a worker: orders stay as the writer leaves them."""
    with made_tenants(tenants_database, tmp_path_factory.mktemp("tenants"), ROLES="api") as made:
        yield made


@pytest.fixture(scope="session")
def tables(tenants_database: Urls) -> Iterator[Tables]:
    opened = Tables(tenants_database.owner)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def open_client(tenants: Tenants, tables: Tables) -> OpenClient:
    """Opens clients: `caller` trades on what `admin` makes, the rest is the account's."""

    def opened(**changes: str) -> TradingClient:
        return open_trading_client(tenants, tables, **changes)

    return opened


@pytest.fixture
def trading_client(open_client: OpenClient) -> TradingClient:
    return open_client()


@pytest.fixture(scope="session")
def plain(tenants: Tenants) -> Tenants:
    """The tenants, with an organization that has no entitlement."""
    made = tenants.platform.provision({"organizations": [PLAIN]})["organizations"][0]
    keys = {api_key["name"]: {"x-api-key": api_key["api_key"]} for api_key in made["api_keys"]}

    def callers() -> dict[str, dict[str, str]]:
        admin = {"authorization": f"Bearer {tenants.platform.token('plain-admin', 'org_plain')}"}
        return {"plain_key": keys["paper"], "plain_live": keys["live"], "plain_admin": admin}

    tenants.sign_in(callers)
    return tenants


@pytest.fixture(scope="session")
def second(tenants: Tenants, tenants_database: Urls) -> Iterator[Platform]:
    """Another API process on the same database."""
    data_dir = Path(tenants.platform.environ["TRADING_INTENTS_DATA_DIR"])
    urls = {
        "DATABASE_URL": tenants_database.login.reveal(),
        "DATABASE_OWNER_URL": tenants_database.owner.reveal(),
    }
    with serving(data_dir, **urls, **PLENTY, ROLES="api") as platform:
        yield platform
