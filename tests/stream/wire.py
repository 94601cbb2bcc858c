"""A StreamEvents call, asked by hand."""

import queue
from collections.abc import Iterator
from typing import Any

from tests.stream.client import ACTION, Client, Follower, kind_of, messages, subscribe
from tests.tenants import Headers


class Wire:
    """A StreamEvents call, asked by hand."""

    def __init__(self, client: Client, caller: Headers) -> None:
        self._asked: queue.Queue[bytes | None] = queue.Queue()
        self.follower: Follower = client.stream(caller, self._requests())

    def _requests(self) -> Iterator[bytes]:
        return iter(self._asked.get, None)

    def subscribe(
        self, account: str = "", kinds: tuple[int, ...] = (ACTION,), **fields: Any
    ) -> None:
        request = messages()["StreamEventsRequest"]()
        request.subscribe.CopyFrom(subscribe(account, kinds, **fields))
        self.send(request.SerializeToString())

    def unsubscribe(self, account: str = "") -> None:
        request = messages()["StreamEventsRequest"]()
        request.unsubscribe.trading_account_id = account
        request.unsubscribe.SetInParent()
        self.send(request.SerializeToString())

    def send(self, data: bytes) -> None:
        self._asked.put(data)

    def finish(self) -> None:
        self._asked.put(None)

    def expect_status(self, text: str) -> None:
        (event,) = self.follower.until(lambda event: kind_of(event) == "status")[-1:]
        assert (kind_of(event), event.status.message) == ("status", text)
