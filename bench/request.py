"""Measures the processor's time of a request in the service: bytes are fed to connections in this
process, without sockets, a database and a client. What a handler would read is there.

`python bench/request.py` prints µs by kind of request, the best of some rounds, on one connection
and on 64 that send side by side. Exit code 1 when a bar is missed.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import uvloop
from rich.console import Console
from rich.table import Table

from trading_intents.accounts.http import account_routes
from trading_intents.accounts.model import Account, AccountId, ConnectionState
from trading_intents.accounts.service import Accounts, AccountTarget
from trading_intents.clock import SystemClock
from trading_intents.config import Rate
from trading_intents.identity.access import RULES, Gate
from trading_intents.identity.keys import digest, make_key
from trading_intents.identity.model import (
    ApiKeyPrincipal,
    ApiKeyRecord,
    Caller,
    KeyId,
    KeyRecord,
    OrganizationRecord,
    Permission,
)
from trading_intents.identity.service import Callers
from trading_intents.ids import OrganizationId
from trading_intents.intents.http import submit_route
from trading_intents.intents.writing.batch import Receipt
from trading_intents.intents.writing.queue import PendingSubmission
from trading_intents.intents.writing.writer import Writer
from trading_intents.loops import collect_rarely
from trading_intents.telemetry import Metrics, make_log
from trading_intents.trading import Environment
from trading_intents.web.limits import Bucket, ClientAddress, Limits
from trading_intents.web.operations import operations_routes
from trading_intents.web.routing import App
from trading_intents.web.server.connection import HttpConnection
from trading_intents.web.server.table import ConnectionLimits, ConnectionTable

ROUNDS = 3
REQUESTS = 4_000
NOW = datetime.now(UTC)
ACCOUNT_ID = AccountId(UUID("01a1ddf6-8899-707d-b118-000000000002"))
ORGANIZATION_ID = OrganizationId(UUID("01a1ddf6-8899-707d-b118-000000000001"))
PLENTY = Rate(1_000_000, 10_000_000)
RECEIPT = Receipt("01a1ddf6-8899-707d-b118-000000000003", 7)
SPEC = {"Limit": {"quantity": "10", "limit_price": "100.25"}}
ORDER = {"symbol": "AAPL", "order_side": "BUY", "spec": SPEC}
SUBMIT = {"command": {"type": "CREATE", "payload": ORDER}, "client_reference_id": "1"}
KEY = make_key(Environment.PAPER).reveal()
ONE = f"/v1/accounts/{ACCOUNT_ID}"
BAR_US = 85


class OneKey(Callers):
    async def _read_key(self, text: str, key_digest: bytes) -> KeyRecord | None:
        organization = OrganizationRecord(
            id=ORGANIZATION_ID,
            provider="local",
            external_id="o",
            name="o",
            entitlements=frozenset(),
            disabled=False,
            created_at=NOW,
        )
        key = ApiKeyRecord(
            id=KeyId(UUID(int=1)),
            organization_id=ORGANIZATION_ID,
            name="k",
            environment=Environment.PAPER,
            permissions=frozenset(Permission),
            disabled=False,
            hint="",
            last_used_at=None,
            expires_at=None,
            user_subject=None,
            created_at=NOW,
            updated_at=NOW,
            version=1,
        )
        principal = ApiKeyPrincipal(key.id, ORGANIZATION_ID, key.environment, key.permissions)
        self._note_verified(key_digest, True)
        return KeyRecord(
            key=key,
            digest=digest(text),
            has_expired=False,
            organization=organization,
            user=None,
            caller=Caller(principal, organization),
        )


class OneAccount:
    account = Account(
        id=ACCOUNT_ID,
        organization_id=ORGANIZATION_ID,
        name="a",
        broker="paper",
        environment=Environment.PAPER,
        external_account_id=None,
        disabled=False,
        connection=next(iter(ConnectionState)),
        has_credential=False,
        created_at=NOW,
        updated_at=NOW,
        closed_at=None,
        version=1,
    )

    async def find(self, target: AccountTarget) -> Account:
        target.check(self.account)
        return self.account

    async def change(self, target: AccountTarget, read_change: Any, expected: Any) -> Account:
        target.check(self.account)
        read_change()
        return self.account

    def connection(self, account: Account) -> ConnectionState:
        return account.connection


class AnsweringWriter:
    """Answers in the loop's next round."""

    submit = Writer.submit

    def enqueue(self, submission: Any, answer: Any) -> PendingSubmission:
        pending = PendingSubmission(submission, answer, 0.0)
        asyncio.get_running_loop().call_soon(pending.reply, RECEIPT)
        return pending


class Client(asyncio.Transport):
    """A connection's client, which sends its next request in the round after the answer."""

    def __init__(self, table: ConnectionTable, number: int) -> None:
        super().__init__()
        self._address = f"127.0.1.{number}"
        self.connection = HttpConnection(table)
        self.connection.connection_made(self)
        self.request = b""
        self.left = 0
        self.statuses = set[bytes]()
        self.on_end: Callable[[], None] = lambda: None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._address, 1)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def send(self) -> None:
        size = len(self.request)
        self.connection.get_buffer(-1)[:size] = self.request
        self.connection.buffer_updated(size)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.statuses.add(bytes(data[9:12]))
        self.left -= 1
        if self.left:
            asyncio.get_running_loop().call_soon(self.send)
        else:
            self.on_end()


def written(method: str, path: str, body: bytes = b"") -> bytes:
    length = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nx-api-key: {KEY}\r\n"
    return f"{head}user-agent: bench\r\naccept: */*\r\n{length}\r\n".encode() + body


KINDS = {
    "read": (written("GET", ONE), b"200"),
    "change": (written("PATCH", ONE, b'{"name":"b","disabled":false}'), b"200"),
    "404": (written("GET", "/v1/nothing"), b"404"),
    "422": (written("PATCH", ONE, b'{"nam":"b"}'), b"422"),
    "healthz": (written("GET", "/healthz"), b"200"),
    "submit": (written("POST", f"{ONE}/intents", json.dumps(SUBMIT).encode()), b"202"),
}


class Nobody:
    name = meaning = "anyone"
    public = True
    credentials = ()
    names_organization = False

    def recognize(self, request: object) -> None: ...

    async def identify(self, request: object) -> None: ...

    def permit(self, request: object) -> None: ...


def make_app() -> App:
    clock = SystemClock()
    metrics = Metrics()
    callers = OneKey(cast(Any, None), cast(Any, None), "local", True, clock)
    gates = {name: Gate(rule, callers, frozenset()) for name, rule in RULES.items()}
    limits = Limits(
        dict.fromkeys(Bucket, PLENTY), dict.fromkeys(Bucket, PLENTY), clock, metrics.rate_limited
    )
    accounts = cast(Accounts, OneAccount())
    writer = cast(Writer, AnsweringWriter())

    async def nothing() -> Any:
        return b""

    routes = (
        *account_routes(gates["read_accounts"], gates["write_accounts"], accounts),
        submit_route(gates["submit_intent"], accounts, writer, limits),
        *operations_routes(cast(Any, Nobody()), nothing, nothing, clock),
    )
    return App(
        routes=routes,
        limits=limits,
        client_address=ClientAddress(()),
        clock=clock,
        metrics=metrics,
        log=make_log("error"),
    )


async def measure(clients: list[Client], kind: str) -> float:
    """Gives µs of CPU of a request."""
    request, status = KINDS[kind]
    done = asyncio.Event()
    left = len(clients)

    def end() -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    for client in clients:
        client.request = request
        client.left = REQUESTS // len(clients)
        client.statuses.clear()
        client.on_end = end
    began = time.process_time()
    for client in clients:
        client.send()
    await done.wait()
    took = time.process_time() - began
    assert set().union(*(client.statuses for client in clients)) == {status}
    return took / (REQUESTS // len(clients) * len(clients)) * 1e6


async def run() -> dict[str, list[float]]:
    table = ConnectionTable(make_app(), ConnectionLimits(1000, 1000))
    ticking = asyncio.ensure_future(table.tick())
    clients = [Client(table, number) for number in range(64)]
    best: dict[str, list[float]] = {}
    await measure(clients, "read")
    collect_rarely()
    for _ in range(ROUNDS):
        for kind in KINDS:
            found = [await measure(clients[:1], kind), await measure(clients, kind)]
            best[kind] = [min(pair) for pair in zip(best.get(kind, found), found, strict=True)]
    ticking.cancel()
    return best


def main() -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(run())
    shown = Table("request", "1 connection, µs", "64 connections, µs", "bar")
    for kind, (alone, side_by_side) in found.items():
        shown.add_row(kind, f"{alone:.0f}", f"{side_by_side:.0f}", str(BAR_US))
    Console().print(shown)
    return int(max(max(each) for each in found.values()) > BAR_US)


if __name__ == "__main__":
    sys.exit(main())
