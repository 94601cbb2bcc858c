"""Trades through the cluster's HAProxy until it is interrupted, in its network, and follows the
streams, every other one by gRPC: a line of JSON for each order that was accepted, and one at the
end. Each order has its Idempotency-Key, and is tried until it is answered; each stream goes on
after its last cursor."""

import asyncio
import base64
import itertools
import json
import signal
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx

from trading_intents.stream import trading_pb2

URL = "https://10.0.0.10"
GRPC = "10.0.0.10:5051"
BACKOFF = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000)]
KINDS = "intent_action,broker_order,broker_trade,broker_position,balance,halt"
SPEC = {"Market": {"quantity": "1"}}
BODY = {
    "command": {"type": "CREATE", "payload": {"symbol": "AAPL", "order_side": "BUY", "spec": SPEC}}
}
ENDED = ("FILLED", "EXPIRED", "REJECTED", "CANCELLED")
PAUSE_SECONDS = 0.05  # after an error
ANSWER_SECONDS = 10.0
QUIET_SECONDS = 30.0
ENDS_SECONDS = 180.0  # for what was accepted


@dataclass(kw_only=True)
class Trader:
    """One account: orders of several callers, and its stream."""

    name: str
    key: str
    account: str
    answers: Counter[str] = field(default_factory=Counter)
    streams: Counter[str] = field(default_factory=Counter)
    unsettled: set[str] = field(default_factory=set)  # seen once: accepted, or ended on the stream
    by_grpc: bool = False
    cursor: str | None = None
    events: int = 0

    async def submit(
        self, client: httpx.AsyncClient, caller: int, pause_seconds: float, over: asyncio.Event
    ) -> None:
        path = f"/v1/accounts/{self.account}/intents"
        headers = {"x-api-key": self.key}
        for number in itertools.count():
            began_at = time.monotonic()
            if over.is_set():
                return
            name = f"{self.name}-{caller}-{number}"
            while (
                intent := await self._ask(client, path, headers | {"idempotency-key": name})
            ) is None:
                await asyncio.sleep(PAUSE_SECONDS)
            self.unsettled ^= {intent}
            line = {
                "at": time.monotonic(),
                "began_at": began_at,
                "trader": self.name,
                "key": name,
                "intent": intent,
            }
            print(json.dumps(line), flush=True)
            await asyncio.sleep(max(0.0, began_at + pause_seconds - time.monotonic()))

    async def _ask(
        self, client: httpx.AsyncClient, path: str, headers: dict[str, str]
    ) -> str | None:
        try:
            answer = await client.post(path, json=BODY, headers=headers)
        except httpx.TransportError as error:
            self.answers[type(error).__name__] += 1
            return None
        self.answers[str(answer.status_code)] += 1
        return answer.json()["intent_id"] if answer.status_code == 202 else None

    async def follow(self, client: httpx.AsyncClient, channel: grpc.aio.Channel) -> None:
        while True:
            try:
                async for event in (
                    self._grpc_events(channel) if self.by_grpc else self._events(client)
                ):
                    self._note(event)
                self.streams["end"] += 1
            except (httpx.TransportError, TimeoutError) as error:
                self.streams[type(error).__name__] += 1
            except grpc.aio.AioRpcError as error:
                is_gone = error.code() is grpc.StatusCode.OUT_OF_RANGE
                self.streams["410" if is_gone else error.code().name] += 1
                self.cursor = None if is_gone else self.cursor
            await asyncio.sleep(PAUSE_SECONDS)

    async def _grpc_events(self, channel: grpc.aio.Channel) -> AsyncIterator[dict[str, Any]]:
        kinds = trading_pb2.EventType.keys()[1:]
        asked = trading_pb2.Subscribe(
            trading_account_id=self.account, subscriptions=kinds, resume_after=self.cursor or ""
        )
        subscribe = channel.unary_stream(
            "/trading.TradingService/SubscribeEvents",
            request_serializer=trading_pb2.Subscribe.SerializeToString,
            response_deserializer=trading_pb2.TradingEvent.FromString,
        )
        call = subscribe(asked, metadata=(("x-api-key", self.key),))
        self.streams["gRPC"] += 1
        while True:
            async with asyncio.timeout(QUIET_SECONDS):
                event: Any = await call.read()
            if event is grpc.aio.EOF:
                return
            if event.cursor:
                order = event.broker_order
                status = trading_pb2.OrderStatus.Name(order.order_status)
                yield {
                    "cursor": event.cursor,
                    "broker_order": {"order_status": status, "intent_id": order.intent_id},
                }

    async def _events(self, client: httpx.AsyncClient) -> AsyncIterator[dict[str, Any]]:
        headers = {"x-api-key": self.key} | ({"last-event-id": self.cursor} if self.cursor else {})
        path = f"/v1/accounts/{self.account}/events?kinds={KINDS}"
        limits = httpx.Timeout(QUIET_SECONDS)
        async with client.stream("GET", path, headers=headers, timeout=limits) as answer:
            self.streams[str(answer.status_code)] += 1
            if answer.status_code == 410:
                self.cursor = None
            if answer.status_code == 200:
                async for line in answer.aiter_lines():
                    if line.startswith("data: ") and "cursor" in (
                        event := json.loads(line.removeprefix("data: "))
                    ):
                        yield event

    def _note(self, event: dict[str, Any]) -> None:
        if self.cursor is not None and _seq(event["cursor"]) != _seq(self.cursor) + 1:
            self.streams["hole"] += 1
        self.cursor = event["cursor"]
        self.events += 1
        order = event.get("broker_order", {})
        if order.get("order_status", "").removeprefix("ORDER_STATUS_") in ENDED:
            self.unsettled ^= {order["intent_id"]}


def _seq(cursor: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(cursor)[16:])


async def main(certificate: str, callers: int, pause_seconds: float, traders: list[Trader]) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, over.set)
    context = ssl.create_default_context(cafile=certificate)
    limits = httpx.Limits(max_connections=None)
    trusted = grpc.ssl_channel_credentials(Path(certificate).read_bytes())
    async with (
        httpx.AsyncClient(
            base_url=URL, verify=context, timeout=ANSWER_SECONDS, limits=limits
        ) as client,
        grpc.aio.secure_channel(GRPC, trusted, BACKOFF) as channel,
    ):
        following = [asyncio.create_task(trader.follow(client, channel)) for trader in traders]
        submitting = (
            each.submit(client, number, pause_seconds, over)
            for each in traders
            for number in range(callers)
        )
        await asyncio.gather(*submitting)
        late_at = time.monotonic() + ENDS_SECONDS
        while any(trader.unsettled for trader in traders) and time.monotonic() < late_at:
            await asyncio.sleep(PAUSE_SECONDS)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    summary: dict[str, object] = {
        "answers": sum((trader.answers for trader in traders), Counter()),
        "streams": sum((trader.streams for trader in traders), Counter()),
        "events": sum(trader.events for trader in traders),
        "not_ended": sum(len(trader.unsettled) for trader in traders),
    }
    print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    given["traders"] = [
        Trader(**each, by_grpc=bool(n % 2)) for n, each in enumerate(given["traders"])
    ]
    asyncio.run(main(**given))
