"""Adds the actions of the log and the entries of counts to the buckets, each exactly once. Changes no action."""

from trading_intents.stats import store
from trading_intents.storage.database import Tx

BEHIND_ACTIONS = 100  # a read counts so few actions itself; rolling them up at once would cost more
ROUND_ACCOUNTS = 20
ROUND_ACTIONS_EACH = 1_000
ROUND_ENTRIES = 5_000


async def add_entries(tx: Tx) -> bool:
    """Moves entries into the buckets, at most ROUND_ENTRIES. True: there may be more."""
    return await store.move_entries(tx, ROUND_ENTRIES) == ROUND_ENTRIES


async def roll_up(tx: Tx) -> bool:
    """Counts what is new, up to ROUND_ACTIONS_EACH actions of ROUND_ACCOUNTS accounts. True: there may be more.

    The heads move in the same transaction, under their locks: every action is counted exactly once, whoever dies when.
    What another process is counting is left to it.
    """
    behind = await store.list_behind(tx, ROUND_ACCOUNTS, BEHIND_ACTIONS)
    if not behind:
        return False
    await store.insert_heads(tx, behind)
    heads = await store.lock_heads(tx, behind)
    most = await store.count_actions(tx, heads, ROUND_ACTIONS_EACH) if heads else 0
    return most == ROUND_ACTIONS_EACH or len(heads) == ROUND_ACCOUNTS
