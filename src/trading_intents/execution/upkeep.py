"""Background work of a worker on all features' tables: rolls up counts, prunes old rows, records
equity and checks invariants."""

import asyncio

from trading_intents.balances.store import prune_points
from trading_intents.clock import Clock
from trading_intents.controls.limits.equity import EquityRecorder
from trading_intents.execution.checking.invariants import InvariantCheck
from trading_intents.intents import store
from trading_intents.loops import repeat
from trading_intents.outbox.outcomes import log_failures
from trading_intents.prices.model import PriceRules
from trading_intents.stats import store as stats_store
from trading_intents.storage.database import Pool
from trading_intents.telemetry import Log, Metrics

# A read of the stats adds what is not rolled up yet. Every bucket that a roll-up changes costs more
# than all else of an entry, and the longer entries wait, the more of them one change of a bucket
# has.
ROLL_SECONDS = 60.0
# Finding the accounts that are behind reads all heads, so it is done less often when there are very
# many.
ROLL_SHARE = 20
PRUNE_SECONDS = 600.0
RETRY_SECONDS = 5.0
KEEP_REFUSALS_DAYS = 30
KEEP_MINUTES_DAYS = 30  # of equity; hours and days are kept for ever


async def keep_execution(
    pool: Pool, prices: PriceRules, clock: Clock, metrics: Metrics, log: Log
) -> None:
    """Runs until cancelled."""

    async def roll() -> float:
        started_seconds = clock.monotonic()
        async with pool.transaction(plans="fresh") as tx:
            more = [await stats_store.add_entries(tx), await stats_store.roll_up(tx)]
        if any(more):
            return 0.0
        metrics.stats_rolled_at.set_to_current_time()
        return max(ROLL_SECONDS, ROLL_SHARE * (clock.monotonic() - started_seconds))

    async def prune() -> float:
        async with pool.transaction(plans="fresh") as tx:
            more = [
                await store.prune_refusals(tx, KEEP_REFUSALS_DAYS),
                await stats_store.prune(tx),
                await prune_points(tx, KEEP_MINUTES_DAYS),
            ]
        return 0.0 if any(more) else PRUNE_SECONDS

    on_error = log_failures(log, "upkeep failed")
    invariants = InvariantCheck(pool, clock, metrics, log)
    equity = EquityRecorder(pool, prices)
    async with asyncio.TaskGroup() as group:
        for work in (roll, prune, invariants.check, equity.record):
            group.create_task(repeat(work, RETRY_SECONDS, on_error))
