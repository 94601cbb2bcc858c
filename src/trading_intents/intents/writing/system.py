"""Commands that the platform itself records: the CANCEL of an order that must not go on working,
and what halts do."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID
from weakref import WeakValueDictionary

from trading_intents.controls.rules import RulesCache
from trading_intents.errors import OutcomeUnknown, PlatformError, Unavailable
from trading_intents.intents.model import Cancel, Submission
from trading_intents.intents.writing.batch import CommitLost, Receipt, run_batch
from trading_intents.intents.writing.state import BatchDependencies
from trading_intents.intents.writing.statements import WAIT
from trading_intents.outbox.model import Queue, channel
from trading_intents.storage.pipeline import StatementRefused
from trading_intents.storage.signals import Signals
from trading_intents.stream.model import CHANNEL as STREAM

MAX_CONNECTIONS = 4


class PlatformActions:
    """Commands of one account are recorded one after another. An account whose lock is held delays
    no other, unless MAX_CONNECTIONS of them are locked: then for as long as one attempt waits."""

    def __init__(self, dependencies: BatchDependencies, signals: Signals) -> None:
        self._signals = signals
        pipelines = [dependencies.pipeline]
        while len(pipelines) < MAX_CONNECTIONS:
            pipelines.append(dependencies.pipeline.another())
        self._dependencies = [
            replace(dependencies, pipeline=pipeline, rules=RulesCache()) for pipeline in pipelines
        ]
        self._free: asyncio.LifoQueue[BatchDependencies] = asyncio.LifoQueue()
        for each in reversed(self._dependencies):
            self._free.put_nowait(each)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by account

    async def cancel(
        self,
        organization_id: UUID | str,
        account_id: UUID | str,
        order_id: UUID | str,
        once: bool = True,
    ) -> bool:
        """As any CANCEL, by the SYSTEM. False: the order is finished, or `once` and is being
        cancelled already.

        OutcomeUnknown: perhaps it was recorded. Ask again: with `once`, a second one is not.
        """
        command = Cancel(str(order_id), once)
        cancel = Submission(
            account_id=str(account_id),
            organization_id=str(organization_id),
            key_id=None,
            command=command,
            client_reference_id=None,
            idempotency_key=None,
            body_digest=None,
        )
        (outcome,) = await self.append([cancel])
        return isinstance(outcome, Receipt)

    async def append(self, submissions: Sequence[Submission]) -> list[Receipt | PlatformError]:
        """Records commands of one account by the SYSTEM in one transaction. Unavailable: nothing
        was recorded. OutcomeUnknown: perhaps they were."""
        async with self._locks.setdefault(submissions[0].account_id, asyncio.Lock()):
            dependencies = await self._free.get()
            try:
                result = await run_batch(dependencies, submissions, WAIT)
            except CommitLost:
                raise OutcomeUnknown from None
            except StatementRefused as refused:
                if refused.is_contention:
                    raise Unavailable(
                        "the account is busy: another transaction holds its lock for too long"
                    ) from None
                raise
            finally:
                self._free.put_nowait(dependencies)
        self._signals.notify(channel(Queue.INTENTS), [submissions[0].organization_id])
        self._signals.notify(STREAM, [submissions[0].organization_id])
        return [outcome for outcome in result.outcomes if outcome is not None]

    def close(self) -> None:
        for dependencies in self._dependencies:
            dependencies.pipeline.close()
