"""An organization of others is looked for like one that does not exist: the server reads the
same rows."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from trading_intents.errors import NotFound
from trading_intents.identity.model import Caller, UserPrincipal
from trading_intents.identity.service import Organizations
from trading_intents.secret import Secret
from trading_intents.storage.database import Database, Tx

MADE = """
    INSERT INTO organizations (id, provider, external_id, name) VALUES
        ('00000000-0000-0000-0000-000000000001', 'local', 'own', 'own'),
        ('00000000-0000-0000-0000-000000000002', 'local', 'foreign', 'foreign');
    INSERT INTO users (id, provider, external_id)
    VALUES ('00000000-0000-0000-0000-000000000003', 'local', 'ada');
    INSERT INTO memberships (user_id, organization_id, role)
    SELECT u.id, o.id, 'member' FROM users u, organizations o WHERE o.external_id = 'own'
"""
READ_COUNTS = """
    SELECT relname::text, seq_scan + idx_scan, seq_tup_read + idx_tup_fetch
    FROM pg_stat_xact_user_tables ORDER BY relname
"""
Counts = dict[str, tuple[int, int]]


class OneTransaction:
    """A pool all of whose transactions are this one."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    @contextlib.asynccontextmanager
    async def transaction(self, **_: Any) -> AsyncIterator[Tx]:
        yield self._tx


async def read_counts(tx: Tx) -> Counts:
    """Scans and rows read by table."""
    rows = await tx.fetch(READ_COUNTS)
    return {name: (scans, read) for name, scans, read in (row.values() for row in rows)}


async def count_read(organizations: Organizations, tx: Tx, external_id: str) -> Counts:
    before = await read_counts(tx)
    caller = Caller(UserPrincipal("ada", None, None), None)
    with pytest.raises(NotFound):
        await organizations.by_provider(caller, "local", external_id)
    counts = {}
    for name, (scans, read) in (await read_counts(tx)).items():
        scans_before, read_before = before.get(name, (0, 0))
        counts[name] = (scans - scans_before, read - read_before)
    return counts


async def test_an_organization_of_others_is_looked_for_like_an_unknown_one(
    database: Database, owner_url: Secret
) -> None:
    owner = await asyncpg.connect(owner_url.reveal())
    await owner.execute(MADE)
    await owner.close()
    async with database.service.transaction(read_only=True) as tx:
        organizations: Any = Organizations(OneTransaction(tx), "local")  # type: ignore[arg-type]  # all that it uses
        for external_id in ("foreign", "unknown"):  # plans are made
            await count_read(organizations, tx, external_id)
        foreign = await count_read(organizations, tx, "foreign")
        assert foreign == await count_read(organizations, tx, "unknown")
        assert foreign["organizations"] == (1, 1), "the user's own"
        own = Caller(UserPrincipal("ada", None, None), None)
        found = await organizations.by_provider(own, "local", "own")
        assert found.id == UUID(int=1)
