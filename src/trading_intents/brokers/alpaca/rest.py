"""Alpaca's REST requests, each made once, within the credential's rate limit. Says what is certain: that nothing was
sent, that something was answered, or neither."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar, cast

import httpx
import msgspec

from trading_intents.brokers.alpaca import wire
from trading_intents.brokers.alpaca.wire import AlpacaOrder
from trading_intents.brokers.port import AuthFailed, BrokerEvent, BrokerUnavailable, IntegrationContext
from trading_intents.brokers.request_budget import RequestBudget
from trading_intents.clock import rfc3339

TIMEOUT = httpx.Timeout(3.0, connect=1.0, pool=0.5)
NEVER_REACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)  # all else may have arrived
CALL_SECONDS = 3.5
PAGE_ORDERS = 500
MAX_ORDERS = 10_000
MAX_ANSWER_BYTES = 16 << 20
MIN_SKEW = timedelta(seconds=2)  # less cannot be told from the time that an answer takes

T = TypeVar("T")


class NotSent(BrokerUnavailable):
    def __init__(self, message: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class AnswerUnclear(BrokerUnavailable):
    pass


class RestAnswer(NamedTuple):
    """An answer that was read whole, and is neither 401, 429 nor a server's error."""

    status: int
    body: bytes

    def read(self, type_: type[T]) -> T:
        if self.status != 200:
            raise AnswerUnclear(f"Alpaca answers {self.status} {self.refusal.message}".strip())
        try:
            return msgspec.json.decode(self.body, type=type_)
        except msgspec.MsgspecError:
            raise AnswerUnclear("the answer cannot be read") from None

    @property
    def refusal(self) -> wire.Refusal:
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(self.body, type=wire.Refusal)
        return wire.Refusal()


class AlpacaRest:
    def __init__(self, context: IntegrationContext) -> None:
        self.url = context.settings[f"ALPACA_{context.account.environment.upper()}_URL"].rstrip("/")
        self.key, self.secret = (context.secrets[name].reveal() for name in wire.CAPABILITIES.credential_fields)
        self.headers = {"APCA-API-KEY-ID": self.key, "APCA-API-SECRET-KEY": self.secret}
        self.tls = _shared(context, "tls", httpx.create_ssl_context)  # making one takes long
        self.skew = timedelta()  # how far Alpaca's clock is ahead of ours
        credential = blake2b(f"{self.url} {self.key}".encode(), digest_size=16).hexdigest()
        self._budget = _shared(context, credential, lambda: RequestBudget(wire.CAPABILITIES.requests_per_minute or 0))
        self._clock, self._external_id = context.clock, context.account.external_account_id
        self._client = httpx.AsyncClient(headers=self.headers, timeout=TIMEOUT, verify=self.tls, trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    def now(self) -> datetime:
        """By Alpaca's clock."""
        return self._clock.now() + self.skew

    def deadline(self, seconds: float = CALL_SECONDS) -> float:
        return self._clock.monotonic() + seconds

    async def ask(self, method: str, path: str, deadline: float, is_cancel: bool = False, **content: Any) -> RestAnswer:
        now = self._clock.monotonic()
        if self._client.is_closed or deadline <= now:
            raise NotSent("the link is closed, or no time is left")
        if wait := self._budget.take(is_cancel, now):
            raise NotSent("the credential's requests of this minute are used up", wait)
        body = bytearray()
        try:
            request = self._client.stream(method, f"{self.url}{path}", **content)
            async with asyncio.timeout(deadline - now), request as response:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise AnswerUnclear("the answer is too long")
        except NEVER_REACHED as error:
            raise NotSent(f"Alpaca cannot be reached: {type(error).__name__}") from None
        except (httpx.HTTPError, TimeoutError) as error:
            raise AnswerUnclear(f"no answer: {type(error).__name__}") from None
        return self._check(response, bytes(body))

    def _check(self, response: httpx.Response, body: bytes) -> RestAnswer:
        status, now, now_seconds = response.status_code, self._clock.now(), self._clock.monotonic()
        with contextlib.suppress(ValueError):
            skew = parsedate_to_datetime(response.headers.get("date", "")) - now
            self.skew = skew if abs(skew) > MIN_SKEW else timedelta()
        self._budget.learn(status, response.headers, now_seconds, now.timestamp())
        if status == 401:
            raise AuthFailed("Alpaca refuses the credential")
        if status == 429:
            raise NotSent("Alpaca's rate limit is reached", self._budget.take(True, now_seconds))
        if status >= 500:
            raise AnswerUnclear(f"Alpaca answers {status}")
        return RestAnswer(status, body)

    def clock_notice(self) -> tuple[str, ...]:
        return (f"our clock and Alpaca's differ by {abs(self.skew).seconds} s: set up NTP",) if self.skew else ()

    async def read_account(self, deadline: float) -> wire.AlpacaAccount:
        reply = await self.ask("GET", "/v2/account", deadline)
        if reply.status == 403:
            raise AuthFailed("Alpaca forbids the credential: it may be of the other environment")
        account = reply.read(wire.AlpacaAccount)
        if self._external_id and self._external_id not in (account.id, account.account_number):
            raise AuthFailed("the credential is of another account than external_account_id")
        return account

    async def find(self, client_order_id: str, deadline: float) -> AlpacaOrder | None:
        query = {"client_order_id": client_order_id}
        reply = await self.ask("GET", "/v2/orders:by_client_order_id", deadline, params=query)
        return None if reply.refusal.code == wire.NOT_FOUND else reply.read(AlpacaOrder)

    async def get(self, order_id: str, deadline: float, is_cancel: bool = False) -> AlpacaOrder:
        return (await self.ask("GET", f"/v2/orders/{order_id}", deadline, is_cancel)).read(AlpacaOrder)

    async def list_orders(self, deadline: float, **query: str) -> list[AlpacaOrder]:
        orders: list[AlpacaOrder] = []
        while len(orders) < MAX_ORDERS:
            asked = {"limit": PAGE_ORDERS, "direction": "asc", **query}
            page = (await self.ask("GET", "/v2/orders", deadline, params=asked)).read(list[AlpacaOrder])
            orders += page
            if len(page) < PAGE_ORDERS:
                return orders
            query = {"status": query["status"], "after_order_id": page[-1].id}
        raise BrokerUnavailable(f"{MAX_ORDERS} orders, and more")

    async def list_positions(self, taken_at: datetime, deadline: float) -> tuple[BrokerEvent, ...]:
        positions = (await self.ask("GET", "/v2/positions", deadline)).read(list[wire.AlpacaPosition])
        return tuple(wire.position_event(position, taken_at) for position in positions)

    async def list_executions(self, since: datetime, until: datetime, deadline: float) -> list[BrokerEvent]:
        """From the activities, which alone tell busts and corrections, and every execution by its id."""
        path, query = "/v2beta1/events/activities", {"since": rfc3339(since), "until": rfc3339(until)}
        reply = await self.ask("GET", path, deadline, params=query) if since < until else RestAnswer(200, b"")
        if reply.status != 200:
            raise AnswerUnclear(f"Alpaca tells no executions: {path} answers {reply.status}")
        try:
            return wire.activity_events(reply.body)
        except (ValueError, msgspec.MsgspecError) as error:
            raise AnswerUnclear(f"executions cannot be read: {error}") from None


def _shared(context: IntegrationContext, name: str, make: Callable[[], T]) -> T:
    if name not in context.shared:
        context.shared[name] = make()
    return cast(T, context.shared[name])
