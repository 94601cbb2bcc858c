"""The route of a submit in the test's own process, for callers that are known at once or are read
first, and all that it leaves."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from prometheus_client import generate_latest

from tests.fakes import ManualClock
from trading_intents.accounts.service import Accounts, AccountTarget
from trading_intents.config import Rate
from trading_intents.errors import NotFound, Unauthorized, Unavailable
from trading_intents.identity.access import RULES, Gate
from trading_intents.identity.model import (
    ApiKeyPrincipal,
    Caller,
    KeyId,
    OrganizationRecord,
    Permission,
)
from trading_intents.identity.service import Callers
from trading_intents.ids import OrganizationId
from trading_intents.intents.http import submit_route
from trading_intents.intents.model import Submission
from trading_intents.intents.writing.batch import Receipt, SubmitOutcome
from trading_intents.intents.writing.queue import PendingSubmission
from trading_intents.intents.writing.writer import Writer
from trading_intents.telemetry import Metrics, make_log
from trading_intents.trading import Environment
from trading_intents.web.limits import Bucket, ClientAddress, Limits
from trading_intents.web.request import Answer, Incoming
from trading_intents.web.routing import App

ORGANIZATION = OrganizationId(UUID("01a1ddf6-8899-707d-b118-000000000001"))
ACCOUNT = "01a1ddf6-8899-707d-b118-000000000002"
KEYS = {
    "good": frozenset({Permission.INTENT_EDIT}),
    "other": frozenset({Permission.INTENT_EDIT}),
    "weak": frozenset(),
}


class FewKeys:
    """Knows them at once, or has to read them."""

    def __init__(self, is_known: bool = True) -> None:
        self.is_known = is_known
        organization = OrganizationRecord(
            id=ORGANIZATION,
            provider="local",
            external_id="o",
            name="o",
            entitlements=frozenset(),
            disabled=False,
            created_at=datetime.now(UTC),
        )
        self.callers = {
            name: Caller(
                ApiKeyPrincipal(
                    KeyId(UUID(int=number)), ORGANIZATION, Environment.PAPER, permissions
                ),
                organization,
            )
            for number, (name, permissions) in enumerate(KEYS.items(), 1)
        }

    def known(self, text: str) -> Caller | None:
        return self.callers.get(text) if self.is_known else None

    def is_verified(self, text: str) -> bool:
        return text in self.callers

    async def by_key(self, text: str) -> Caller:
        await asyncio.sleep(0)
        if text not in self.callers:
            raise Unauthorized
        return self.callers[text]


class NoAccounts:
    async def find(self, target: AccountTarget) -> Any:
        raise NotFound


@dataclass
class ScriptedWriter:
    """Answers each submission with the outcome; None: it has no room."""

    outcome: SubmitOutcome | None
    taken: list[Submission] = field(default_factory=list)
    submit = Writer.submit

    def enqueue(self, submission: Submission, answer: Any) -> PendingSubmission:
        if self.outcome is None:
            raise Unavailable("too many commands are waiting")
        self.taken.append(submission)
        asyncio.get_running_loop().call_soon(answer, self.outcome)
        return PendingSubmission(submission, answer, 0.0)


class Ways:
    """Each instance has limits and metrics of its own, so that two can be compared."""

    def __init__(
        self,
        outcome: SubmitOutcome | None,
        rates: dict[Bucket, Rate],
        shared: dict[Bucket, Rate],
        is_known: bool = True,
    ) -> None:
        self.metrics = Metrics()
        clock = ManualClock()
        keys = FewKeys(is_known)
        self.tasks = 0  # of requests that waited
        plenty = dict.fromkeys(Bucket, Rate(100, 100))
        self.limits = Limits(plenty | rates, plenty | shared, clock, self.metrics.rate_limited)
        self.writer = ScriptedWriter(outcome)
        gate = Gate(RULES["submit_intent"], cast(Callers, keys), frozenset())
        accounts = cast(Accounts, NoAccounts())
        writer = cast(Writer, self.writer)
        route = submit_route(gate, accounts, writer, self.limits)
        self.app = App(
            routes=[route],
            limits=self.limits,
            client_address=ClientAddress(()),
            clock=clock,
            metrics=self.metrics,
            log=make_log("critical"),
        )

    async def ask(self, body: bytes | None, headers: dict[str, str]) -> Answer:
        given = {
            "content-type": "application/json",
            "x-api-key": "good",
            "x-request-id": "mine",
        } | headers
        fields = [(name.encode(), value.encode()) for name, value in given.items()]
        path = f"/v1/accounts/{ACCOUNT}/intents".encode()
        incoming = Incoming(
            method="POST",
            raw_path=path,
            query_string=b"",
            headers=fields,
            body=body,
            peer="127.0.0.1",
            keep_alive=True,
            named=dict(fields),
        )
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        serving = self.app.begin(incoming, answered.set_result)
        self.tasks += serving.task is not None
        return await answered

    def left(self) -> dict[str, str]:
        """Of every bucket of the key and its organization, as headers would show it next."""
        caller = FewKeys().callers["good"]
        keys = (caller.limit_key, caller.organization_limit_key)
        reported = {}
        for bucket in (Bucket.SUBMITS, Bucket.CANCELS):
            if self.limits.left(bucket, *keys) >= 1:
                reported[bucket.value] = dict(self.limits.take(bucket, *keys))[
                    b"ratelimit"
                ].decode()
        return reported

    def counted(self) -> list[str]:
        lines = generate_latest(self.metrics.registry).decode().splitlines()
        return [line for line in lines if line.startswith("ti_")]


def shown(answer: Answer) -> tuple[int, bytes, bytes, list[tuple[bytes, bytes]]]:
    return answer.status, answer.body, answer.content_type, sorted(answer.headers)


RECEIPT = Receipt("01a1ddf6-8899-707d-b118-000000000003", 7)
REPLAYED = Receipt("01a1ddf6-8899-707d-b118-000000000003", 7, replayed=True)
