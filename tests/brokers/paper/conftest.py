"""A venue with an organization of its own on the session's database: accounts are by new ids, so
tests do not meet."""

from collections.abc import AsyncIterator

import pytest

from tests.brokers.paper.venue import Venue, open_venue
from tests.conftest import Urls


@pytest.fixture
async def venue(tenants_database: Urls) -> AsyncIterator[Venue]:
    async with open_venue(tenants_database.login, tenants_database.owner) as venue:
        yield venue
