"""Jobs that follow a change of an account or credential: the session is updated, and replaced
secrets are deleted."""

from trading_intents.accounts import store
from trading_intents.accounts.vault import Vault
from trading_intents.brokers.registry import Registry
from trading_intents.outbox.model import ClaimedRow, Done, OutboxEventType, RowHandler
from trading_intents.storage.database import Pool, Tx


def account_handlers(worker: Pool, brokers: Registry, vault: Vault) -> dict[str, RowHandler]:
    """One handler for all six event types: it reads the account as it is now, so that a repeat or a
    delay does no harm."""
    needing_credential = [each.name for each in brokers.all() if each.credential_fields]

    async def follow(row: ClaimedRow) -> Done:
        account_id = row.order_key
        async with worker.transaction() as tx:
            discarded = await store.list_discarded(tx, account_id)
            # The session must not go on with them, even if the vault does not forget them.
            if discarded:
                await store.want_session(tx, account_id, needing_credential)
        for secret in discarded:
            await vault.forget(secret, secret.sealed)

        async def write(tx: Tx) -> None:
            await store.want_session(tx, account_id, needing_credential)
            await store.delete_discarded(tx, [secret.id for secret in discarded])

        return Done(write)

    return dict.fromkeys(OutboxEventType, follow)
