"""What the tables behind limits need beside the requests: nothing is counted that no limit needs."""

from trading_intents.controls.limits import store
from trading_intents.storage.database import Pool

UPKEEP_SECONDS = 10.0
MAX_ACCOUNTS = 100
MAX_PRUNED = 5_000


async def keep_tracking(pool: Pool) -> float:
    """Seconds until it is due again."""
    async with pool.transaction(plans="fresh") as tx:
        more = await store.prune_recent(tx, MAX_PRUNED)
        accounts = await store.list_untracking(tx, MAX_ACCOUNTS)
    for account_id in accounts:
        async with pool.transaction(plans="fresh") as tx:
            if await store.lock_untracking(tx, account_id):
                await store.stop_tracking(tx, account_id)
    return 0.0 if more else UPKEEP_SECONDS
