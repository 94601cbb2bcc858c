"""The outbox row: its types, its outcomes, and its transitions. No I/O, no clock."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from trading_intents.ids import OrganizationId
from trading_intents.loops import pause_after
from trading_intents.storage.database import Tx
from trading_intents.trading import FrozenStruct

CLAIM_SECONDS = 5  # an older claim means that no worker is running
HANDLER_SECONDS = 4  # counted from the claim, so that a live worker's claim never looks dead
BACKOFF_SECONDS = (1, 2, 4, 8, 16, 30)  # after the first, second, … attempt; the last one repeats
MAX_ERROR_CHARACTERS = 500


class Queue(StrEnum):
    ACCOUNTS = "accounts"
    INTENTS = "intents"
    USERS = "users"


class Status(StrEnum):
    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"


class OutboxEventType(StrEnum):
    """Event types of the accounts queue, which the health report covers."""

    ACCOUNT_CREATED = "account.created"
    ACCOUNT_UPDATED = "account.updated"
    ACCOUNT_DELETED = "account.deleted"
    CREDENTIAL_CREATED = "credential.created"
    CREDENTIAL_UPDATED = "credential.updated"
    CREDENTIAL_DELETED = "credential.deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRow:
    """`payload` holds ids and versions only: never a secret."""

    queue: Queue
    event_type: str
    organization_id: OrganizationId
    order_key: UUID
    payload: Mapping[str, Any]


class ClaimedRow(FrozenStruct, kw_only=True):
    """A row that this worker has until the claim is older than CLAIM_SECONDS; `token` proves it in
    every later write."""

    id: int
    queue: Queue
    event_type: str
    organization_id: OrganizationId
    order_key: UUID
    payload: dict[str, Any]
    attempts: int  # this one included
    token: UUID

    @property
    def log_fields(self) -> dict[str, object]:
        return {"queue": self.queue, "event_type": self.event_type, "row": self.id}


@dataclass(frozen=True, slots=True)
class Done:
    """The row is handled. `write` runs in the transaction that completes the row, business rows
    first; it may run again."""

    write: Callable[[Tx], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after the back-off; on the last attempt the row fails instead.

    `reason` is kept and shown to operators: never a secret, never what another party sent.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """The handler was not started: the attempt is given back, and the row is due at once."""


RowOutcome = Done | Retry | Release
RowHandler = Callable[[ClaimedRow], Awaitable[Done]]


def backoff_seconds(attempts: int) -> float:
    assert attempts >= 1
    return pause_after(BACKOFF_SECONDS, attempts - 1)


def scrub(text: str) -> str:
    """Makes one line of bounded length; PostgreSQL's text has no NUL."""
    return "".join(c if c.isprintable() else " " for c in text)[:MAX_ERROR_CHARACTERS]


def channel(queue: Queue) -> str:
    """The channel that is notified when this queue has a new row."""
    return f"outbox_{queue}"
