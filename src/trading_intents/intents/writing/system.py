"""Commands of the platform itself: the CANCEL of an order that must not go on working."""

import asyncio

from trading_intents.errors import Unavailable
from trading_intents.intents.model import Cancel, Submission
from trading_intents.intents.writing.batch import BatchDependencies, CommitLost, Receipt, run_batch
from trading_intents.intents.writing.statements import WAIT
from trading_intents.outbox.model import Queue, channel
from trading_intents.storage.pipeline import StatementRefused
from trading_intents.storage.signals import Signals
from trading_intents.stream.model import CHANNEL as STREAM


class PlatformCancels:
    def __init__(self, dependencies: BatchDependencies, signals: Signals) -> None:
        self._dependencies, self._signals = dependencies, signals
        self._turn = asyncio.Lock()  # a pipeline takes one batch at a time

    async def append(self, organization_id: str, account_id: str, order_id: str) -> bool:
        """Records a CANCEL by the SYSTEM. False: the order is finished, or already being cancelled.

        Unavailable: it may have been recorded. Calling again is safe: a second CANCEL is not recorded.
        """
        cancel = Submission(account_id, organization_id, None, Cancel(order_id), None, None, None)
        async with self._turn:
            try:
                result = await run_batch(self._dependencies, [cancel], WAIT)
            except CommitLost:
                raise Unavailable("the connection to the database was lost; nothing was recorded") from None
            except StatementRefused as refused:
                if refused.is_contention:
                    raise Unavailable("the account is busy: another transaction holds its lock for too long") from None
                raise
        self._signals.notify(channel(Queue.INTENTS))
        self._signals.notify(STREAM)
        return isinstance(result.outcomes[0], Receipt)

    def close(self) -> None:
        self._dependencies.link.close()
