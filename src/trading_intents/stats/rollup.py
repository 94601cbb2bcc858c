"""Adds the actions of the log and the entries of counts to the buckets, each exactly once. Changes no action."""

from trading_intents.stats import store
from trading_intents.storage.database import Tx

BEHIND_ACTIONS = 100  # a read counts so few actions itself; rolling them up at once would cost more
ROUND_ACCOUNTS = 20
ROUND_ACTIONS_EACH = 1_000
ROUND_ENTRIES = 20_000  # the more at once, the fewer buckets change for each


async def add_entries(tx: Tx) -> bool:
    """Moves entries into the buckets, at most ROUND_ENTRIES. True: there may be more."""
    return await store.move_entries(tx, ROUND_ENTRIES) == ROUND_ENTRIES


async def roll_up(tx: Tx) -> bool:
    """Counts what is new, up to ROUND_ACTIONS_EACH actions of ROUND_ACCOUNTS accounts. True: there may be more.

    The heads move in the same transaction, under their locks: every action is counted exactly once, whoever dies when.
    What another process is counting is left to it.
    """
    await store.insert_heads(tx, BEHIND_ACTIONS)
    counted = await store.count_actions(tx, ROUND_ACCOUNTS, BEHIND_ACTIONS, ROUND_ACTIONS_EACH)
    return len(counted) == ROUND_ACCOUNTS or ROUND_ACTIONS_EACH in counted
