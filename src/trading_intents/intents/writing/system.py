"""Commands that the platform itself records: the CANCEL of an order that must not go on working, and what halts do."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from trading_intents.errors import PlatformError, Unavailable
from trading_intents.intents.model import Cancel, Submission
from trading_intents.intents.writing.batch import BatchDependencies, CommitLost, Receipt, run_batch
from trading_intents.intents.writing.statements import WAIT
from trading_intents.outbox.model import Queue, channel
from trading_intents.storage.pipeline import StatementRefused
from trading_intents.storage.signals import Signals
from trading_intents.stream.model import CHANNEL as STREAM


class PlatformActions:
    def __init__(self, dependencies: BatchDependencies, signals: Signals) -> None:
        self._dependencies, self._signals = dependencies, signals
        self._turn = asyncio.Lock()  # a link is for one caller at a time

    async def cancel(
        self, organization_id: UUID | str, account_id: UUID | str, order_id: UUID | str, once: bool = True
    ) -> bool:
        """As any CANCEL, by the SYSTEM. False: the order is finished, or `once` and is being cancelled already.

        Unavailable: perhaps it was recorded. Ask again: with `once`, a second one is not.
        """
        command = Cancel(str(order_id), once)
        cancel = Submission(str(account_id), str(organization_id), None, command, None, None, None)
        (outcome,) = await self.append([cancel])
        return isinstance(outcome, Receipt)

    async def append(self, submissions: Sequence[Submission]) -> list[Receipt | PlatformError]:
        """Records commands of one account by the SYSTEM in one transaction. Unavailable: perhaps they were recorded."""
        async with self._turn:
            try:
                result = await run_batch(self._dependencies, submissions, WAIT)
            except CommitLost:
                raise Unavailable("the connection to the database was lost; nothing was recorded") from None
            except StatementRefused as refused:
                if refused.is_contention:
                    raise Unavailable("the account is busy: another transaction holds its lock for too long") from None
                raise
        self._signals.notify(channel(Queue.INTENTS))
        self._signals.notify(STREAM)
        return [outcome for outcome in result.outcomes if outcome is not None]

    def close(self) -> None:
        self._dependencies.link.close()
