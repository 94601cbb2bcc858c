"""Health of a process and of the outbox, and tokens of the embedded identity provider."""

from datetime import datetime

from msgspec import Struct


class Health(Struct, frozen=True, kw_only=True):
    """The health that a process reports."""

    status: str


class OutboxEntry(Struct, frozen=True, kw_only=True):
    """The rows of a status and type of event."""

    status: str
    event_type: str
    count: int
    oldest_created_at: datetime
    max_attempts: int
    oldest_claimed_at: datetime | None = None


class OutboxHealth(Struct, frozen=True, kw_only=True):
    """The backlog of the accounts queue, over all organizations."""

    entries: tuple[OutboxEntry, ...]
    pending: int
    processing: int
    failed: int
    completed: int
    oldest_claim_at: datetime | None = None
    oldest_failed_at: datetime | None = None
    oldest_pending_at: datetime | None = None


class IssuedToken(Struct, frozen=True, kw_only=True):
    """A bearer token; the token is left out of the repr."""

    access_token: str
    token_type: str
    expires_in: int
    scope: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}(expires_in={self.expires_in}, scope={self.scope!r})"
