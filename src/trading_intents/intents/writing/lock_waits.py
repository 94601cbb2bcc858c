"""Commands whose locks other transactions hold: they wait on connections of their own, so that no other command waits
with them. Decides and writes nothing itself."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from trading_intents.clock import Clock
from trading_intents.errors import PlatformError, Unavailable
from trading_intents.intents.model import Submission
from trading_intents.intents.writing.queue import PendingSubmission, SubmissionQueue
from trading_intents.storage.pipeline import Pipeline

MAX_CONNECTIONS = 4
MAX_BATCH = 256
MAX_WAIT_SECONDS = 2.5  # more than the server leaves its locks to a process that stopped: its callers are served

# Writes a batch on that connection, waits a moment for its locks, and gives back what is locked still.
Attempt = Callable[[Pipeline, list[PendingSubmission]], Awaitable[list[PendingSubmission]]]
Fail = Callable[[Sequence[PendingSubmission], PlatformError], None]


class LockWaits:
    """A queue for each organization or account that is held. Each gets its turn, however many stay held."""

    def __init__(self, link: Pipeline, attempt: Attempt, fail: Fail, clock: Clock) -> None:
        self._link, self._attempt, self._fail, self._clock = link, attempt, fail, clock
        self._queues: dict[str, SubmissionQueue] = {}
        self._turns: deque[str] = deque()
        self._links: list[Pipeline] = []  # those that nobody uses
        self._tasks: set[asyncio.Task[None]] = set()

    def queue_for(self, submission: Submission) -> SubmissionQueue | None:
        """Where a new command has to wait; None: neither its account nor its organization is known to be held."""
        return self._queues.get(submission.account_id) or self._queues.get(submission.organization_id)

    def add(self, held_id: str, batch: Sequence[PendingSubmission]) -> None:
        """All of it is of the account or organization that is held."""
        for pending in batch:
            pending.held_since_seconds = self._clock.monotonic()
        if held_id not in self._queues:
            self._queues[held_id] = SubmissionQueue()
            self._turns.append(held_id)
        self._queues[held_id].put_back(batch)
        if len(self._tasks) < MAX_CONNECTIONS:
            task = asyncio.create_task(self._work(self._links.pop() if self._links else self._link.another()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for link in self._links:
            link.close()

    async def _work(self, link: Pipeline) -> None:
        """As long as anything is held."""
        try:
            while self._turns:
                held_id = self._turns.popleft()
                queue = self._queues[held_id]
                queue.put_back(self._in_time(await self._attempt(link, self._in_time(queue.take(MAX_BATCH)))))
                if len(queue):
                    self._turns.append(held_id)
                else:
                    del self._queues[held_id]
        except BaseException:
            link.close()
            raise
        self._links.append(link)

    def _in_time(self, batch: Sequence[PendingSubmission]) -> list[PendingSubmission]:
        """Those that may wait on; the others are told."""
        oldest = self._clock.monotonic() - MAX_WAIT_SECONDS
        late = [pending for pending in batch if pending.held_since_seconds < oldest]
        self._fail(late, Unavailable("the account is busy: another transaction holds its lock for too long"))
        return [pending for pending in batch if pending.held_since_seconds >= oldest]
