"""The queue of commands that wait to be written: CANCELs first, then as many others, from the
organizations in turn."""

from collections.abc import Callable, Iterable

from trading_intents.errors import Unavailable
from trading_intents.intents.model import Cancel, Submission
from trading_intents.intents.writing.batch import SubmitOutcome
from trading_intents.loops import FairQueue

MAX_WAITING = 5_000
CANCEL_RESERVE = MAX_WAITING // 10  # slots that only CANCELs may take


class PendingSubmission:
    """A command and the caller who waits for its outcome."""

    __slots__ = (
        "answer",
        "held_id",
        "held_since_seconds",
        "is_abandoned",
        "is_cancel",
        "lost_commits",
        "organization_id",
        "queue",
        "since_seconds",
        "skips",
        "submission",
    )

    def __init__(
        self, submission: Submission, answer: Callable[[SubmitOutcome], None], since_seconds: float
    ) -> None:
        self.submission = submission
        self.answer = answer
        self.since_seconds = self.held_since_seconds = since_seconds
        self.organization_id = submission.organization_id
        self.is_cancel = isinstance(submission.command, Cancel)
        self.lost_commits = 0
        self.held_id = submission.account_id  # the account, or the key, that a batch found locked
        self.skips = 0  # how often it did
        self.queue: SubmissionQueue | None = None  # None: a batch has taken it
        self.is_abandoned = False

    def abandon(self) -> None:
        """The caller has hung up. A command that no batch has taken by then leaves its queue and is
        not recorded."""
        self.is_abandoned = True
        if self.queue:
            self.queue.remove(self)
            self.reply_unrecorded()

    def reply_unrecorded(self) -> None:
        """A drain waits until all are answered, also those whose callers have gone."""
        self.reply(Unavailable("the caller has gone; the command was not recorded"))

    def reply(self, outcome: SubmitOutcome) -> None:
        """Answers the caller once; a second answer would be taken for that of the caller's next
        request."""
        answer = self.answer
        self.answer = _ignore
        answer(outcome)


def _ignore(_: SubmitOutcome) -> None:
    """Replaces `answer` after the first call."""


class SubmissionQueue:
    """An organization may take as many slots as it leaves free for the others, for CANCELs and for
    other commands each. So there is always a slot for an organization's first command, whatever the
    others hold."""

    def __init__(self) -> None:
        self._cancels = FairQueue[str, PendingSubmission]()
        self._others = FairQueue[str, PendingSubmission]()

    def __len__(self) -> int:
        return self._cancels.count + self._others.count

    def __bool__(self) -> bool:
        """An empty queue is true as well, so that `or` does not pass over it."""
        return True

    def put(self, pending: PendingSubmission) -> None:
        """Unavailable: there is no free slot."""
        limit = MAX_WAITING if pending.is_cancel else MAX_WAITING - CANCEL_RESERVE
        queue = self._queue_of(pending)
        own = queue.count_of(pending.organization_id)
        if own >= limit - len(self):
            kind = "CANCELs" if pending.is_cancel else "CREATEs and REPLACEs"
            raise Unavailable(
                f"the queue of {kind} is full: of the {limit} commands that may wait in this "
                f"process, {len(self)} do, {own} of them {kind} of this organization; try again"
            )
        queue.append(pending.organization_id, pending)
        pending.queue = self

    def put_back(self, batch: Iterable[PendingSubmission]) -> None:
        """Puts commands that were taken from here before all others of their organizations, in this
        order."""
        for pending in reversed([*batch]):
            if pending.is_abandoned:
                pending.reply_unrecorded()
            else:
                self._queue_of(pending).append(pending.organization_id, pending, is_first=True)
                pending.queue = self

    def take(
        self, count: int, may_take: Callable[[str], bool] | None = None
    ) -> list[PendingSubmission]:
        """Takes at most `count` commands, one of each organization in turn that may. CANCELs leave
        half of the slots to the others: a cancel-all is hundreds of them, and may be repeated."""
        cancels = min(self._cancels.count, count - min(self._others.count, count // 2))
        batch: list[PendingSubmission] = []
        for queue, slots in ((self._cancels, cancels), (self._others, count - cancels)):
            while slots and (pending := queue.pop(may_take)):
                slots -= 1
                pending.queue = None
                batch.append(pending)
        return batch

    def remove(self, pending: PendingSubmission) -> None:
        self._queue_of(pending).remove(pending.organization_id, pending)
        pending.queue = None

    def _queue_of(self, pending: PendingSubmission) -> FairQueue[str, PendingSubmission]:
        return self._cancels if pending.is_cancel else self._others


def group_by(
    batch: Iterable[PendingSubmission], key: Callable[[PendingSubmission], str]
) -> dict[str, list[PendingSubmission]]:
    groups: dict[str, list[PendingSubmission]] = {}
    for pending in batch:
        groups.setdefault(key(pending), []).append(pending)
    return groups
