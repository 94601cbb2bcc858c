"""A platform that serves and does not work: what its orders become, the test says, as a worker
would."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from tests.conftest import Urls
from tests.execution.recorded_orders import Books
from tests.kept_connections import open_owner, open_pools
from tests.platform import serving
from tests.tenants import EVERY_PERMISSION, PLENTY, key
from trading_intents.intents.model import Cancel, Close, Command, Create
from trading_intents.telemetry import Metrics

DOCUMENT = {
    "organizations": [
        {
            "external_id": "org_house",
            "entitlements": ["trading_live"],
            "users": [{"external_id": "house-admin", "role": "admin"}],
            "api_keys": [
                key("paper", "paper", EVERY_PERMISSION),
                key("live", "live", EVERY_PERMISSION),
            ],
        },
        {"external_id": "org_neighbour", "api_keys": [key("paper", "paper", EVERY_PERMISSION)]},
    ]
}


@dataclass(kw_only=True)
class ApiOnlyPlatform:
    client: httpx.Client
    urls: Urls
    organization: UUID
    headers: dict[str, str]
    live_headers: dict[str, str]
    neighbours_headers: dict[str, str]

    def open_account(self) -> UUID:
        body = {"name": "account", "broker": "paper", "environment": "paper"}
        answer = self.client.post("/v1/accounts", json=body, headers=self.headers)
        assert answer.status_code == 201, answer.text
        return UUID(answer.json()["id"])

    def get(
        self, account: UUID, path: str, headers: dict[str, str] | None = None, **query: Any
    ) -> httpx.Response:
        return self.client.get(
            f"/v1/accounts/{account}/{path}", params=query, headers=headers or self.headers
        )

    def read(self, account: UUID, path: str, **query: Any) -> Any:
        answer = self.get(account, path, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def pages(self, account: UUID, path: str, **query: Any) -> list[Any]:
        """All of a list."""
        found: list[Any] = []
        while True:
            answer = self.read(account, path, **query)
            found += answer["data"]
            if answer["next_cursor"] is None:
                return found
            query["next_cursor"] = answer["next_cursor"]

    async def commit(
        self, account_id: UUID, command: Command, reference: str | None
    ) -> tuple[UUID, int]:
        body: dict[str, Any] = {
            "command": {"type": type(command).__name__.upper(), "payload": _payload(command)}
        }
        if reference is not None:
            body["client_reference_id"] = reference
        answer = self.client.post(
            f"/v1/accounts/{account_id}/intents", json=body, headers=self.headers
        )
        assert answer.status_code == 202, answer.text
        return UUID(answer.json()["intent_id"]), answer.json()["seq"]

    @contextlib.asynccontextmanager
    async def open_books(self, accounts: int = 1) -> AsyncIterator[Books]:
        made = [self.open_account() for _ in range(accounts)]
        async with (
            open_owner(self.urls.owner) as owner,
            open_pools(self.urls.login, 2, Metrics()) as database,
        ):
            yield Books(owner, self.organization, made, database, self.commit)


def _payload(command: Command) -> dict[str, Any]:
    assert not isinstance(command, Close)
    if isinstance(command, Cancel):
        return {"ref_intent_id": str(command.ref_intent_id)}
    kind = command.spec.kind
    amounts = {
        name: getattr(command.spec, name) for name in ("quantity", "limit_price", "stop_price")
    }
    terms = {name: amount for name, amount in amounts.items() if amount is not None}
    if isinstance(command, Create):
        return {"symbol": command.symbol, "order_side": command.side, "spec": {kind: terms}}
    return {"ref_intent_id": str(command.ref_intent_id), "spec": {kind: terms}}


@contextlib.contextmanager
def open_api_platform(urls: Urls, folder: Path) -> Iterator[ApiOnlyPlatform]:
    settings = {
        "DATABASE_URL": urls.login.reveal(),
        "DATABASE_OWNER_URL": urls.owner.reveal(),
        "ROLES": "api",
    }
    with serving(folder / uuid.uuid4().hex, **settings, **PLENTY) as platform:
        made, neighbour = platform.provision(DOCUMENT)["organizations"]
        paper_key, live_key = made["api_keys"]
        [neighbours_key] = neighbour["api_keys"]
        yield ApiOnlyPlatform(
            client=platform.client,
            urls=urls,
            organization=UUID(made["id"]),
            headers={"x-api-key": paper_key["api_key"]},
            live_headers={"x-api-key": live_key["api_key"]},
            neighbours_headers={"x-api-key": neighbours_key["api_key"]},
        )
