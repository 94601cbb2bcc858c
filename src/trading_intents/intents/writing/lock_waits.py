"""Commands whose locks other transactions hold. They wait on connections of their own, so that no
other command waits with them. Decides and writes nothing itself."""

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
# Longer than the server leaves locks to a stopped process, so that its callers are served.
MAX_WAIT_SECONDS = 2.5

# Writes a batch on that connection, waits briefly for its locks, and gives back the commands that
# are still locked out.
Attempt = Callable[[Pipeline, list[PendingSubmission]], Awaitable[list[PendingSubmission]]]
Fail = Callable[[Sequence[PendingSubmission], PlatformError], None]


class LockWaits:
    """A queue for each organization, account or key's budget that is locked. A
    batch is taken from each in turn, however many stay locked."""

    def __init__(self, pipeline: Pipeline, attempt: Attempt, fail: Fail, clock: Clock) -> None:
        self._pipeline = pipeline
        self._attempt = attempt
        self._fail = fail
        self._clock = clock
        self._queues: dict[str, SubmissionQueue] = {}
        self._ready: deque[str] = deque()  # of which queue the next batches are taken
        self._idle: list[Pipeline] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def queue_for(self, submission: Submission) -> SubmissionQueue | None:
        """The queue in which a new command has to wait; None if neither its account nor its
        organization is known to be locked."""
        return self._queues.get(submission.account_id) or self._queues.get(
            submission.organization_id
        )

    def add(self, held_id: str, batch: Sequence[PendingSubmission]) -> None:
        """Adds commands, all of them of what is locked."""
        for pending in batch:
            pending.held_since_seconds = self._clock.monotonic()
        if held_id not in self._queues:
            self._queues[held_id] = SubmissionQueue()
            self._ready.append(held_id)
        self._queues[held_id].put_back(batch)
        # A task that has ended is removed a moment later, and takes no queue any more.
        if sum(not task.done() for task in self._tasks) < MAX_CONNECTIONS:
            pipeline = self._idle.pop() if self._idle else self._pipeline.another()
            task = asyncio.create_task(self._work(pipeline))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for pipeline in self._idle:
            pipeline.close()

    async def _work(self, pipeline: Pipeline) -> None:
        try:
            while self._ready:
                held_id = self._ready.popleft()
                queue = self._queues[held_id]
                batch = self._in_time(queue.take(MAX_BATCH))
                still_held = await self._attempt(pipeline, batch)
                queue.put_back(self._in_time(still_held))
                if len(queue):
                    self._ready.append(held_id)
                else:
                    del self._queues[held_id]
        except BaseException:
            pipeline.close()
            raise
        self._idle.append(pipeline)

    def _in_time(self, batch: Sequence[PendingSubmission]) -> list[PendingSubmission]:
        """The commands that may wait longer; the others are answered as unavailable."""
        oldest = self._clock.monotonic() - MAX_WAIT_SECONDS
        late: list[PendingSubmission] = []
        in_time: list[PendingSubmission] = []
        for pending in batch:
            is_late = pending.held_since_seconds < oldest
            (late if is_late else in_time).append(pending)
        busy = "the account or the key is busy: another transaction holds its lock for too long"
        self._fail(late, Unavailable(busy))
        return in_time
