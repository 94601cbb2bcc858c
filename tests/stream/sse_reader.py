"""Reads the event stream as text."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.tenants import Headers, Tenants

LIMIT_SECONDS = 30.0


@dataclass(frozen=True)
class ReceivedEvent:
    kind: str
    id: str
    data: Any


class Reader:
    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._events = self._read()

    def _read(self) -> Iterator[ReceivedEvent]:
        fields: dict[str, str] = {}
        for line in self.answer.iter_lines():
            name, _, value = line.partition(": ")
            if line and name:
                assert name not in fields
                fields[name] = value
            elif fields:
                yield ReceivedEvent(
                    fields.pop("event"), fields.pop("id", ""), json.loads(fields.pop("data"))
                )
                assert not fields

    def take(self, count: int) -> list[ReceivedEvent]:
        return [next(self._events) for _ in range(count)]

    def until(self, kind: str) -> list[ReceivedEvent]:
        found = self.take(1)
        while found[-1].kind != kind:
            found += self.take(1)
        return found

    def rest(self) -> list[ReceivedEvent]:
        return list(self._events)


@contextmanager
def following(
    tenants: Tenants, caller: Headers, account: str, last: str = "", **query: str
) -> Iterator[Reader]:
    headers = caller | ({"last-event-id": last} if last else {})
    url = f"/v1/accounts/{account}/events"
    with (
        httpx.Client(base_url=tenants.platform.url, timeout=LIMIT_SECONDS, verify=False) as client,
        client.stream("GET", url, headers=headers, params=query) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        yield Reader(answer)


def new_caller(tenants: Tenants) -> tuple[Headers, str]:
    """A key that has no stream yet, not even one that was just closed; and its id."""
    body = {"name": "streams", "environment": "paper", "permissions": ["stream:read"]}
    made = tenants.client.post("/v1/api-keys", json=body, headers=tenants.callers["admin"]).json()
    return {"x-api-key": made["api_key"]}, made["id"]
