"""ccxt as a translator: it says where a request goes, signs it and reads the answer. The request is
made by our RestClient, once, which knows whether it may have arrived."""

import json
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import ccxt.async_support as ccxt

from trading_intents.brokers.port import AuthFailed, BrokerUnavailable
from trading_intents.brokers.rest_client import AnswerUnclear, NotSent, RestClient
from trading_intents_ccxt.venues import Venue

T = TypeVar("T")
Row = dict[str, Any]
TIMEOUT_MILLIS = 3_000
# ccxt's classes of what a venue says by which it refuses; anything else proves nothing.
REFUSALS = (
    ccxt.AccountSuspended,
    ccxt.ArgumentsRequired,
    ccxt.BadRequest,
    ccxt.InsufficientFunds,
    ccxt.InvalidOrder,
    ccxt.NotSupported,
    ccxt.OperationRejected,
    ccxt.PermissionDenied,
)
NOTHING_DONE = (ccxt.DDoSProtection, ccxt.InvalidNonce, ccxt.RateLimitExceeded)


class Refused(Exception):
    """The venue's definite no, or ccxt's own, before anything was sent."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class IdTaken(Refused):
    """The venue has an order of this client order id."""


@dataclass
class Call:
    deadline: float
    is_cancel: bool
    is_sent: bool = False  # or may be


_CALL: ContextVar[Call] = ContextVar("_CALL")


class OverRest:
    """Replaces the transport of ccxt's class of a venue, which sends a DELETE again when a kept
    connection breaks."""

    venue: Venue
    rest: RestClient

    async def fetch(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
    ) -> object:
        call = _CALL.get()
        own = cast(Any, self)
        if not url.startswith(f"{self.rest.url}/"):
            raise NotSent("the request is for another host")
        path = url.removeprefix(self.rest.url)
        content = {"headers": headers, "content": body}
        call.is_sent = True
        try:
            answer = await self.rest.ask(method, path, call.deadline, call.is_cancel, **content)
        except NotSent:
            call.is_sent = False
            raise
        text = answer.body.decode(errors="replace")
        said = own.parse_json(text)
        if said is None:
            raise AnswerUnclear(f"{self.rest.host} answers {answer.status} without JSON")
        try:
            own.handle_errors(answer.status, "", url, method, {}, text, said, headers, body)
            own.handle_http_status_code(answer.status, "", url, method, text)
        except ccxt.BaseError as error:
            raise meaning_of(self.venue, error, said) from None
        return said

    def on_json_response(self, response_body: str) -> object:
        """A number with decimals stays a text: a float would change it."""
        return json.loads(response_body, parse_float=str)

    def milliseconds(self) -> int:
        """By the venue's clock, for its limit on a request's age."""
        return int(self.rest.now().timestamp() * 1_000)

    def parse_orders(self, orders: Any, market: Any = None, *rest: Any, **more: Any) -> list[Row]:
        return self._read(cast(Any, self).parse_order, orders, market)

    def parse_trades(self, trades: Any, market: Any = None, *rest: Any, **more: Any) -> list[Row]:
        return self._read(cast(Any, self).parse_trade, trades, market)

    def _read(self, parse: Any, rows: Sequence[Row], market: Any) -> list[Row]:
        """Neither sorted nor filtered. A row that ccxt cannot read has no fields: it is left out by
        the reader of the list, which counts all rows."""
        found = list[Row]()
        for row in rows:
            try:
                found.append(parse(row, market))
            except Exception:  # whatever ccxt's arithmetic raises
                found.append({"info": row})
        return found


def code_of(said: object) -> str:
    match said:
        case {"data": [{"sCode": str(code)}, *_]} if code:
            return code
        case {"code": code} | {"retCode": code}:
            return str(code)
    return ""


def message_of(said: object) -> str:
    match said:
        case {"data": [{"sMsg": str(text)}, *_]} if text:
            return text
        case {"msg": str(text)} | {"retMsg": str(text)}:
            return text
    return ""


def meaning_of(venue: Venue, error: Exception, said: object) -> Exception:
    """Says what an answer proves: the venue's own code decides before the class that ccxt gives it."""
    code = code_of(said)
    message = message_of(said)
    if venue.duplicates & {code, message}:
        return IdTaken(code, message)
    if code in venue.doubts:
        return AnswerUnclear(f"{venue.id} does not know what became of it: {code} {message}")
    if code in venue.nothing_done or isinstance(error, NOTHING_DONE):
        return NotSent(f"{venue.id} did nothing: {code} {message}", 1)
    if type(error) is ccxt.AuthenticationError:
        return AuthFailed(f"{venue.id} refuses the credential: {code} {message}")
    if code in venue.absences or (code and isinstance(error, REFUSALS)):
        return Refused(code, message)
    return AnswerUnclear(f"{venue.id} answers {type(error).__name__}: {code} {message}")


def make_exchange(venue: Venue, rest: RestClient, secrets: Mapping[str, str]) -> Any:
    """An object of ccxt's class of the venue. It opens nothing."""
    ways = {"venue": venue, "rest": rest}
    made = type(venue.id, (OverRest, getattr(ccxt, venue.id)), ways)
    keys = {theirs: secrets[ours] for ours, theirs in venue.credentials.items()}
    config = {"number": str, "timeout": TIMEOUT_MILLIS, "enableRateLimit": False}
    exchange = made({**keys, **config, "options": {**venue.options, "maxRetriesOnFailure": 0}})
    exchange.urls["api"] = {name: rest.url + path for name, path in venue.paths.items()}
    exchange.has["fetchCurrencies"] = False
    assert exchange.precisionMode == ccxt.TICK_SIZE
    return exchange


async def ask(work: Awaitable[T], deadline: float, is_cancel: bool = False) -> T:
    """Runs a call of ccxt's: Refused, NotSent, AuthFailed or AnswerUnclear. Of what goes wrong in
    ccxt itself, it matters whether the request was sent before."""
    call = Call(deadline, is_cancel)
    before = _CALL.set(call)
    try:
        return await work
    except (Refused, AuthFailed, BrokerUnavailable):
        raise
    except Exception as error:
        if call.is_sent:
            raise AnswerUnclear(f"the answer cannot be read: {error!r}") from error
        raise Refused(type(error).__name__, str(error)) from None
    finally:
        _CALL.reset(before)
