"""GET /v1/accounts/outbox/health. Must never show an organization, an account, a payload or an
error's text."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec

from trading_intents.outbox.model import OutboxEventType, Status
from trading_intents.outbox.operators import read_health
from trading_intents.outbox.queue import HealthRow
from trading_intents.storage.database import Pool
from trading_intents.web.problem import PLAIN_500
from trading_intents.web.request import Answer, Request, answer_json, show_as
from trading_intents.web.routes import Operation, Policy, Route, Tag

Int32 = Annotated[int, msgspec.Meta(extra_json_schema={"format": "int32"})]
Int64 = Annotated[int, msgspec.Meta(extra_json_schema={"format": "int64"})]


class OutboxHealthEntry(msgspec.Struct, kw_only=True):
    status: Status
    event_type: OutboxEventType
    count: Int64
    oldest_created_at: str
    max_attempts: Int32
    oldest_claimed_at: str | None = None


class OutboxHealthResponse(msgspec.Struct, kw_only=True):
    entries: list[OutboxHealthEntry]
    pending: Int64
    processing: Int64
    failed: Int64
    completed: Int64
    oldest_claim_at: str | None = None
    oldest_failed_at: str | None = None
    oldest_pending_at: str | None = None


def outbox_routes(policy: Policy, pool: Pool) -> tuple[Route, ...]:
    @Operation(
        tag=Tag.OPERATIONS, answer=OutboxHealthResponse, error_shape=PLAIN_500, any_query=True
    )
    async def get_outbox_health(request: Request) -> Answer:
        """Read how the accounts queue is doing, across all organizations."""
        return answer_json(_show(await read_health(pool)))

    return (Route("GET", "/v1/accounts/outbox/health", policy, get_outbox_health),)


def _show(rows: Sequence[HealthRow]) -> OutboxHealthResponse:
    """All but the entries is derived from them, so that they can never disagree."""
    counts = dict.fromkeys(Status, 0)
    oldest: dict[Status, datetime] = {}
    for row in rows:
        status = Status(row.status)
        counts[status] += row.count
        since = row.oldest_claimed_at if status is Status.PROCESSING else row.oldest_created_at
        assert since is not None
        oldest[status] = min(since, oldest.get(status, since))
    return show_as(
        OutboxHealthResponse,
        entries=[show_as(OutboxHealthEntry, row) for row in rows],
        **counts,
        oldest_claim_at=oldest.get(Status.PROCESSING),
        oldest_failed_at=oldest.get(Status.FAILED),
        oldest_pending_at=oldest.get(Status.PENDING),
    )
