"""The tenants are on a platform without a worker: hardly anything is executed here."""

from collections.abc import Iterator

import pytest

from tests.conftest import Databases, Urls
from tests.tenants import Tenants, made_tenants


@pytest.fixture(scope="session")
def tenants_database(databases: Databases) -> Iterator[Urls]:
    with databases() as urls:
        yield urls


@pytest.fixture(scope="session")
def tenants(tenants_database: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    with made_tenants(
        tenants_database, tmp_path_factory.mktemp("tenants"), ROLES="api,stream"
    ) as made:
        yield made
