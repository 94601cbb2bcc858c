"""An account and whoever trades on it over HTTP: the bodies, the calls, and the tables as a
superuser sees them."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx

from tests.journal import OF_ACCOUNT, read_messages
from tests.tenants import Headers, Tenants
from trading_intents.secret import Secret

Body = dict[str, Any]
REMOTE_SECRETS = {"api_key_id": "id", "api_secret": "secret"}
TABLES = ("actions", "orders", "refusals", "commands", "reports")
FINAL_STATUSES = ("FILLED", "CANCELLED", "EXPIRED", "REJECTED")


def market(quantity: Any = "10", **more: Any) -> Body:
    return {"Market": {"quantity": quantity} | more}


def limit(quantity: Any = "10", limit_price: Any = "187.5", **more: Any) -> Body:
    return {"Limit": {"quantity": quantity, "limit_price": limit_price} | more}


def stop(quantity: Any = "10", stop_price: Any = "180", **more: Any) -> Body:
    return {"Stop": {"quantity": quantity, "stop_price": stop_price} | more}


def stop_limit(
    quantity: Any = "10", stop_price: Any = "180", limit_price: Any = "179", **more: Any
) -> Body:
    return {
        "StopLimit": {"quantity": quantity, "stop_price": stop_price, "limit_price": limit_price}
        | more
    }


def create(spec: Any = None, symbol: Any = "AAPL", order_side: Any = "BUY", **more: Any) -> Body:
    payload = {"symbol": symbol, "order_side": order_side, "spec": spec or market()} | more
    return {"command": {"type": "CREATE", "payload": payload}}


def replace(intent_id: Any, spec: Body) -> Body:
    return {"command": {"type": "REPLACE", "payload": {"ref_intent_id": intent_id, "spec": spec}}}


def cancel(intent_id: Any) -> Body:
    return {"command": {"type": "CANCEL", "payload": {"ref_intent_id": intent_id}}}


class Tables:
    """The database behind the platform's back. For synchronous tests: it has a loop of its own."""

    def __init__(self, url: Secret) -> None:
        self._loop = asyncio.new_event_loop()
        self._connection: asyncpg.Connection = self._loop.run_until_complete(
            asyncpg.connect(url.reveal())
        )

    def fetch(self, query: str, *args: object) -> list[dict[str, Any]]:
        return [
            dict(row) for row in self._loop.run_until_complete(self._connection.fetch(query, *args))
        ]

    def value(self, query: str, *args: object) -> Any:
        return self._loop.run_until_complete(self._connection.fetchval(query, *args))

    def execute(self, query: str, *args: object) -> None:
        self._loop.run_until_complete(self._connection.execute(query, *args))

    def counts(self) -> dict[str, int]:
        """Rows of all that a submit may write, of everyone."""
        return {table: self.value(f"SELECT count(*) FROM {table}") for table in TABLES}

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._connection.close())
            self._loop.close()


@dataclass
class TradingClient:
    client: httpx.Client
    headers: Headers
    account: Body
    tables: Tables

    @property
    def url(self) -> str:
        return f"/v1/accounts/{self.account['id']}/intents"

    def submit(self, body: Body, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(self.url, json=body, headers=self.headers | named)

    def accepted(self, body: Body, **headers: str) -> Body:
        """The action's record, of a command that is taken."""
        answer = self.submit(body, **headers)
        assert answer.status_code == 202, answer.text
        said: Body = answer.json()
        assert set(said) == {"intent_id", "seq"}
        record: Body = self.get(f"/{said['intent_id']}").json()
        assert (record["intent_id"], record["seq"]) == (said["intent_id"], said["seq"])
        return record

    def refused(self, body: Body, **headers: str) -> tuple[int, str]:
        """The status and code, of a command that writes nothing (but for what the controls
        refuse)."""
        before = self.tables.counts()
        answer = self.submit(body, **headers)
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        after = self.tables.counts()
        assert after.pop("refusals") - before.pop("refusals") == (
            problem["code"] == "control_rejected"
        )
        assert after == before, {t: (before[t], after[t]) for t in after if before[t] != after[t]}
        return answer.status_code, problem["code"]

    def get(self, tail: str = "", **query: Any) -> httpx.Response:
        return self.client.get(self.url + tail, headers=self.headers, params=query)

    def order(self, intent_id: str) -> Body:
        (row,) = self.tables.fetch(
            "SELECT * FROM orders WHERE order_id = $1::text::uuid", intent_id
        )
        return row

    def set_order(self, intent_id: str, status: str) -> None:
        """As the execution side would."""
        self.tables.execute(
            """
            UPDATE orders SET order_status = $2::text, version = version + 1,
                pending_replace_seq = NULL,
                cancel_requested = cancel_requested AND $2 <> 'NEW',
                finished_at = CASE WHEN $2 IN ('FILLED', 'CANCELLED', 'EXPIRED', 'REJECTED')
                    THEN clock_timestamp() END
            WHERE order_id = $1::text::uuid
            """,
            intent_id,
            status,
        )

    def queued(self) -> list[Body]:
        return self.tables.fetch(
            "SELECT * FROM queue_rows WHERE queue = 'intents' AND lane = $1::text::uuid ORDER BY id",
            self.account["id"],
        )

    def events(self) -> list[Any]:
        reports = self.tables.fetch(OF_ACCOUNT, self.account["id"])
        return [each.event for each in read_messages(reports)]

    def actions(self, page: int = 100) -> list[Body]:
        """The whole log, page by page."""
        found: list[Body] = []
        query: dict[str, Any] = {"limit": page}
        while True:
            answer = self.get(**query).json()
            found += answer["data"]
            if answer["next_cursor"] is None:
                return found
            query["next_cursor"] = answer["next_cursor"]


def open_trading_client(
    tenants: Tenants, tables: Tables, caller: str = "key_all", admin: str = "admin", **changes: Any
) -> TradingClient:
    """A new account; a remote one gets its credential."""
    body = {"name": "account", "broker": "paper", "environment": "paper"} | changes
    answer = tenants.client.post("/v1/accounts", json=body, headers=tenants.callers[admin])
    assert answer.status_code == 201, answer.text
    trading_client = TradingClient(tenants.client, tenants.callers[caller], answer.json(), tables)
    if body["broker"] in ("remote", "alpaca"):
        url = f"/v1/accounts/{trading_client.account['id']}/credentials"
        stored = tenants.client.post(
            url, json={"secrets": REMOTE_SECRETS}, headers=tenants.callers[admin]
        )
        assert stored.status_code == 201, stored.text
    return trading_client


def pointers(answer: httpx.Response) -> list[str]:
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), answer.text
    return [error["pointer"] for error in answer.json()["errors"]]


def enum_name(message: Any, field: str) -> str:
    """The value's name as REST has it: without its type's prefix."""
    enum = message.DESCRIPTOR.fields_by_name[field].enum_type
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    return str(enum.values_by_number[getattr(message, field)].name.removeprefix(prefix))


def dumps(body: Any) -> bytes:
    return json.dumps(body).encode()


def given(message: Any, names: Iterable[str]) -> dict[str, Any]:
    """The fields of a message, None for an optional one that is absent."""
    return {name: getattr(message, name) if message.HasField(name) else None for name in names}
