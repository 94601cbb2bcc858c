"""REST requests to a broker, each made once and within its credential's rate limit. Says what is
certain of each: that nothing was sent, what was answered, or neither."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from functools import wraps
from hashlib import blake2b
from math import ceil
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import httpx
import msgspec

from trading_intents.brokers import port
from trading_intents.brokers.port import (
    AuthFailed,
    BrokerEvent,
    BrokerUnavailable,
    CommandResult,
    OrderTicket,
    Outcome,
)
from trading_intents.brokers.sanitizing import cause_of, host_of
from trading_intents.config import PLAIN_URL, is_plain_url
from trading_intents.trading import FrozenStruct

TIMEOUT = httpx.Timeout(3.0, connect=1.0, pool=0.5)
# All else may have arrived.
NEVER_REACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
CALL_SECONDS = 3.5
MAX_ANSWER_BYTES = 16 << 20
MAX_REMEMBERED = 20_000
LIMITED = frozenset({418, 429})  # nothing was done
BACK_OFF = LIMITED | {503}  # whose Retry-After is obeyed
MAX_RETRY_AFTER_SECONDS = 3 * 86_400.0  # the longest ban that venues announce
MIN_SKEW = timedelta(seconds=2)  # less cannot be distinguished from the time that an answer takes

QUOTES = ("USDT", "USDC", "USD", "BTC")  # that coins are traded for

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
T = TypeVar("T")


def url_setting(name: str, meaning: str, default: str) -> port.Setting:
    """A venue's address, over which nobody else can read and change orders."""
    return port.Setting(
        name=name, meaning=meaning, default=default, rule=PLAIN_URL, is_valid=is_plain_url
    )


class NotSent(BrokerUnavailable):
    """Provably nothing reached the broker, or it said that it did nothing and may be asked
    again."""

    def __init__(self, message: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class AnswerUnclear(BrokerUnavailable):
    """The request may have arrived, and what became of it is not known."""


class NotServed(AnswerUnclear):
    """The broker has no such list."""


def remember(kept: dict[str, T], key: str, value: T) -> None:
    """Keeps the last MAX_REMEMBERED."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > MAX_REMEMBERED:
        del kept[next(iter(kept))]


class Endable(Protocol):
    """A session whose commands are REST requests. `ended` is why none can be sent any more."""

    ended: Exception | None

    def end(self, reason: Exception) -> None: ...


S = TypeVar("S", bound=Endable)
SendCall = Callable[[S, OrderTicket, float], Coroutine[Any, Any, CommandResult]]


def answered(send: SendCall[S]) -> SendCall[S]:
    @wraps(send)
    async def answer(self: S, ticket: OrderTicket, deadline: float) -> CommandResult:
        try:
            if self.ended:
                raise NotSent(str(self.ended))
            return await send(self, ticket, deadline)
        except NotSent as error:
            wait = error.retry_after_seconds
            return CommandResult(
                outcome=Outcome.NOT_SENT, message=str(error), retry_after_seconds=wait
            )
        except AuthFailed as error:
            self.end(error)
            return CommandResult(outcome=Outcome.NOT_SENT, message=str(error))
        except AnswerUnclear as error:
            return CommandResult(outcome=Outcome.UNKNOWN, message=str(error))

    return answer


def rejected(code: str, message: str = "", updates: tuple[BrokerEvent, ...] = ()) -> CommandResult:
    return CommandResult(outcome=Outcome.REJECTED, code=code, message=message, updates=updates)


class BrokerRow(FrozenStruct):
    """A row of a broker's: one with a number that no venue means cannot be read."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            amount = getattr(self, name)
            if isinstance(amount, Decimal) and not port.is_sane(amount):
                raise ValueError("a number that no venue means")


def pair_of(symbol: str) -> str:
    """The pair of a coin and its quote that a symbol such as BTCUSD means."""
    for quote in QUOTES:
        coin = symbol.removesuffix(quote)
        if coin not in ("", symbol) and "/" not in symbol:
            return f"{coin}/{quote}"
    return symbol


def execution_event(
    broker: str,
    kind: port.EventKind,
    exec_id: str | None,
    previous_id: str | None,
    quantity: Decimal | None,
    price: Decimal | None,
) -> BrokerEvent:
    """A fill, a bust or a correction. ValueError: it lacks what makes it one execution and no
    other."""
    is_fill = kind is port.EventKind.FILL
    is_bust = kind is port.EventKind.FILL_BUST
    has_ids = exec_id and (is_fill or previous_id)
    has_numbers = is_bust or (quantity and price is not None)
    if not has_ids or not has_numbers:
        raise ValueError(f"an execution without its id or its numbers: {kind}")
    return BrokerEvent(
        kind=kind,
        dedupe_key=f"{broker}:{exec_id}",
        exec_id=exec_id,
        replaces=None if is_fill else previous_id,
        quantity=None if is_bust or quantity is None else abs(quantity),
        price=None if is_bust else price,
    )


class _Named(BrokerRow):
    id: str


def id_of(row: msgspec.Raw) -> str:
    """The id after which the next page begins."""
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(row, type=_Named).id
    raise AnswerUnclear("the last row of a page cannot be read")


def is_uuid(name: str) -> bool:
    return len(name) == 36 and name.count("-") == 4


class Refusal(FrozenStruct, kw_only=True):
    code: int = 0
    message: str = ""


class RestAnswer(NamedTuple):
    """An answer that was read whole, and is neither 401, 418, 429 nor a server's error."""

    status: int
    body: bytes

    @property
    def refusal(self) -> Refusal:
        """The reason of a refusal; an empty one if it is no refusal."""
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(self.body, type=Refusal)
        return Refusal()

    def read(self, type_: type[T]) -> T:
        """The body of a 200."""
        if self.status != 200:
            raise AnswerUnclear(f"the broker answers {self.status}")
        try:
            return msgspec.json.decode(self.body, type=type_)
        except msgspec.MsgspecError:
            raise AnswerUnclear("the answer cannot be read") from None


class RequestBudget:
    """The requests that a credential may still make in this minute, of all its accounts in this
    process together: by the broker's count where its answers have one (`X-RateLimit-Remaining`,
    `-Reset`). A tenth is kept for CANCELs. Before the end of a Retry-After there is none, for
    CANCELs neither: venues ban those who do not wait."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left = per_minute
        self._resets_seconds = 0.0
        self._barred_until_seconds = 0.0

    def barred_seconds(self, now_seconds: float) -> int:
        return max(0, ceil(self._barred_until_seconds - now_seconds))

    def take(self, is_cancel: bool, now_seconds: float) -> int:
        """Takes a request, or gives the seconds until one may be free."""
        if barred_seconds := self.barred_seconds(now_seconds):
            return barred_seconds
        if now_seconds >= self._resets_seconds:
            self._left = self._per_minute
            self._resets_seconds = now_seconds + 60
        if self._left <= (0 if is_cancel else self._per_minute // 10):
            return max(1, ceil(self._resets_seconds - now_seconds))
        self._left -= 1
        return 0

    def learn(
        self, status: int, headers: Mapping[str, str], now_seconds: float, unix_seconds: float
    ) -> None:
        """A limit that does not say until when is over after a second. `unix_seconds` is by the
        broker's clock."""
        if status in BACK_OFF:
            retry_after = _retry_after_seconds(headers.get("retry-after", ""), unix_seconds)
            until_seconds = now_seconds + min(retry_after, MAX_RETRY_AFTER_SECONDS)
            self._barred_until_seconds = max(self._barred_until_seconds, until_seconds)
        reset = headers.get("x-ratelimit-reset", "")
        left = headers.get("x-ratelimit-remaining", "")
        is_limit = status in LIMITED
        if is_limit or (reset.isdecimal() and left.isdecimal()):
            seconds = int(reset) - unix_seconds if reset.isdecimal() else 1.0
            self._resets_seconds = now_seconds + min(60.0, max(1.0, seconds))
            self._left = 0 if is_limit else int(left)


def _retry_after_seconds(text: str, unix_seconds: float) -> float:
    """Reads a Retry-After, which has seconds or a date; gives 0 if it has neither."""
    with contextlib.suppress(ValueError):
        if text.isdecimal():
            return int(text)
        return max(0.0, parsedate_to_datetime(text).timestamp() - unix_seconds)
    return 0


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


class RestClient:
    def __init__(
        self,
        context: port.IntegrationContext,
        url: str,
        headers: Mapping[str, str],
        requests_per_minute: int,
    ) -> None:
        """Sessions of the same URL and headers share a budget."""
        self.url = url.rstrip("/")
        self.headers = dict(headers)
        self.host = host_of(url)
        self.tls = context.share("tls", httpx.create_ssl_context)  # making one takes long
        self.skew = timedelta()  # how far the broker's clock is ahead of ours
        credential = _digest(repr((self.url, sorted(headers.items()))).encode())
        self._budget = context.share(credential, lambda: RequestBudget(requests_per_minute))
        self._clock = context.clock
        self._in_flight = 0
        self._is_closed = False
        self._unreadable: dict[str, str | None] = {}  # by a digest of the row; None: it was named
        self._client = httpx.AsyncClient(
            headers=self.headers, timeout=TIMEOUT, verify=self.tls, trust_env=False
        )

    def read_rows(self, rows: Iterable[bytes | msgspec.Raw], type_: type[T]) -> list[T]:
        """Those that can be read; the others are named by `take_unreadable`."""
        found = list[T]()
        for row in rows:
            try:
                found.append(msgspec.json.decode(row, type=type_))
            except msgspec.MsgspecError as error:
                self.leave_out(bytes(row), f"{type_.__name__}: {error}")
        return found

    def read_events(
        self,
        rows: Iterable[bytes | msgspec.Raw],
        type_: type[T],
        events_of: Callable[[T], Iterable[BrokerEvent]],
    ) -> list[BrokerEvent]:
        """The events of rows; those of a row that `events_of` refuses (ValueError) are left out
        likewise."""
        events = list[BrokerEvent]()
        for row in self.read_rows(rows, type_):
            try:
                events += events_of(row)
            except ValueError as error:
                self.leave_out(repr(row).encode(), f"{type_.__name__}: {error}")
        return events

    def leave_out(self, row: bytes, why: str) -> None:
        digest = _digest(row)
        if digest not in self._unreadable:
            remember(self._unreadable, digest, why)

    def take_unreadable(self) -> tuple[str, ...]:
        """The rows that were left out, each once."""
        taken = tuple(why for why in self._unreadable.values() if why)
        self._unreadable = dict.fromkeys(self._unreadable)
        return taken

    async def read_pages(
        self, path: str, deadline: float, query: Mapping[str, str | int], size: int, max_rows: int
    ) -> list[msgspec.Raw]:
        """All rows of a list of which each page begins after the id that `page_token` names."""
        rows = list[msgspec.Raw]()
        query = {**query, "page_size": size}
        while len(rows) < max_rows:
            answer = await self.ask("GET", path, deadline, params=query)
            if answer.status != 200:
                raise NotServed(f"{path} {answer.status}")
            page = answer.read(list[msgspec.Raw])
            rows += page
            if len(page) < size:
                return rows
            query["page_token"] = id_of(page[-1])
        raise BrokerUnavailable(f"{max_rows} rows, and more: {path}")

    async def close(self) -> None:
        """Requests that are under way end first: a connection that one of them opens would stay
        open."""
        self._is_closed = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._is_closed and not self._in_flight:
            # Cancelled, it would leave connections open.
            await asyncio.shield(self._client.aclose())

    def now(self) -> datetime:
        """By the broker's clock."""
        return self._clock.now() + self.skew

    def deadline(self, seconds: float = CALL_SECONDS) -> float:
        return self._clock.monotonic() + seconds

    @property
    def barred_seconds(self) -> int:
        """The seconds for which the broker wants to be left alone, by streams too."""
        return self._budget.barred_seconds(self._clock.monotonic())

    async def ask(
        self, method: str, path: str, deadline: float, is_cancel: bool = False, **content: Any
    ) -> RestAnswer:
        """NotSent, AnswerUnclear or AuthFailed, where there is no answer that means something."""
        now = self._clock.monotonic()
        if self._is_closed or deadline <= now:
            raise NotSent("the session is closed, or no time is left")
        if wait := self._budget.take(is_cancel, now):
            raise NotSent("the credential's requests of this minute are used up", wait)
        self._in_flight += 1
        try:
            return await self._request(method, path, deadline - now, content)
        finally:
            self._in_flight -= 1
            await self._close_if_unused()

    async def _request(
        self, method: str, path: str, limit_seconds: float, content: Mapping[str, Any]
    ) -> RestAnswer:
        body = bytearray()
        began = self._clock.now()
        try:
            request = self._client.stream(method, f"{self.url}{path}", **content)
            async with asyncio.timeout(limit_seconds), request as response:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise AnswerUnclear("the answer is too long")
        except NEVER_REACHED as error:
            raise NotSent(f"{self.host} cannot be reached: {cause_of(error)}") from None
        except (httpx.HTTPError, OSError) as error:  # httpx lets errors of TLS out
            raise AnswerUnclear(f"no answer from {self.host}: {cause_of(error)}") from None
        return self._check(response, bytes(body), began)

    def _check(self, response: httpx.Response, body: bytes, began: datetime) -> RestAnswer:
        status = response.status_code
        now = self._clock.now()
        now_seconds = self._clock.monotonic()
        with contextlib.suppress(ValueError):
            date = parsedate_to_datetime(response.headers.get("date", ""))
            skew = date - max(began, min(date, now))  # between the two no clock is off
            self.skew = skew if abs(skew) > MIN_SKEW else timedelta()
        self._budget.learn(status, response.headers, now_seconds, self.now().timestamp())
        if status == 401:
            raise AuthFailed("the broker refuses the credential")
        if status in LIMITED:
            raise NotSent(
                "the broker's rate limit is reached", self._budget.take(True, now_seconds)
            )
        if status >= 500:
            raise AnswerUnclear(f"{self.host} answers {status}")
        return RestAnswer(status, body)
