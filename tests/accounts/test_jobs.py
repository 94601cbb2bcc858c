"""Jobs after a change of an account: its session is notified, whatever the vault does."""

from collections.abc import Mapping
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.arranged import set_credential
from tests.execution.in_process_execution import open_in_process
from trading_intents.accounts.jobs import account_handlers
from trading_intents.accounts.vault import SecretRef
from trading_intents.brokers.registry import Registry
from trading_intents.errors import Unavailable
from trading_intents.ids import OrganizationId
from trading_intents.outbox.model import ClaimedRow, OutboxEventType, Queue
from trading_intents.secret import Secret
from trading_intents.storage.database import Database


class KeepingVault:
    """Forgets nothing, as one whose policy does not let us delete."""

    async def seal(self, ref: SecretRef, secrets: Mapping[str, Secret]) -> bytes:
        raise NotImplementedError

    async def open(self, ref: SecretRef, sealed: bytes) -> dict[str, Secret]:
        raise NotImplementedError

    async def forget(self, ref: SecretRef, sealed: bytes) -> None:
        raise Unavailable("the vault cannot be used: it refuses the request")


async def test_a_vault_that_forgets_nothing_keeps_no_session_from_a_change(
    urls: Urls, database: Database
) -> None:
    async with open_in_process(urls) as in_process:
        await set_credential(in_process, "old")
        owner = in_process.in_process_writer.owner
        writer = in_process.in_process_writer
        await owner.execute("UPDATE sealed_secrets SET discarded = true")
        before = await owner.fetchval("SELECT link_generation FROM accounts")
        follow = account_handlers(
            database.worker, Registry([in_process.venue.integration]), KeepingVault()
        )
        row = ClaimedRow(
            id=1,
            queue=Queue.ACCOUNTS,
            event_type=OutboxEventType.CREDENTIAL_UPDATED,
            organization_id=OrganizationId(writer.organization),
            order_key=in_process.account,
            payload={},
            attempts=1,
            token=UUID(int=1),
        )
        with pytest.raises(Unavailable):
            await follow[OutboxEventType.CREDENTIAL_UPDATED](row)
        assert await owner.fetchval("SELECT link_generation FROM accounts") == before + 1
        assert await in_process.in_process_writer.count("sealed_secrets") == 1
