"""Sends requests: one connection pool for each process and event loop, retries, and typed
answers."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import msgspec

from trading_intents_client.errors import (
    AnswerLost,
    Cancelled,
    ClientClosed,
    TradingError,
    UnexpectedAnswer,
    Unreachable,
)
from trading_intents_client.transport.credentials import ClientCredentials, Endpoint
from trading_intents_client.transport.problems import error_of
from trading_intents_client.transport.retries import (
    Repeat,
    may_be_carried_out,
    may_repeat,
    pause_seconds,
)
from trading_intents_client.types.operations import IssuedToken

CONNECT_SECONDS = 2.0
READ_SECONDS = 10.0
MAX_CONNECTIONS = 100
MAX_RETRIES = 2
# The stream has a heartbeat after 10 seconds without events.
STREAM_READ_SECONDS = 25.0
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
# httpx lets errors of TLS out, and under uvloop an AttributeError of a connection that was reset at
# once.
REQUEST_ERRORS = (httpx.HTTPError, OSError, AttributeError)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Timeouts, retries and transports of requests."""

    connect_seconds: float = CONNECT_SECONDS
    read_seconds: float = READ_SECONDS
    max_retries: int = MAX_RETRIES
    organization_id: str | None = None
    transport: httpx.AsyncBaseTransport | None = None
    grpc_target: str | None = None


@dataclass(frozen=True)
class _Session:
    """Connections of one process and event loop: others cannot use them."""

    pid: int
    loop: asyncio.AbstractEventLoop
    http: httpx.AsyncClient
    streams: httpx.AsyncClient
    order_waits: dict[str, Any] = field(default_factory=dict)


class Transport:
    def __init__(self, endpoint: Endpoint, options: Options) -> None:
        self._endpoint = endpoint
        self.options = options
        self._session: _Session | None = None
        self._is_closed = False
        self.grpc_pid: int | None = None  # the process in which gRPC was used
        # Sessions of a parent process. They stay: closing one would take its sockets from the
        # parent's event loop.
        self._inherited: list[_Session] = []
        if isinstance(endpoint.credentials, ClientCredentials):
            endpoint.credentials.bind(self.fetch_token, time.monotonic)

    @property
    def url(self) -> str:
        return self._endpoint.url

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    async def aclose(self) -> None:
        session = self._session
        self._session = None
        self._is_closed = True
        if session is not None and session.pid == os.getpid():
            for waits in session.order_waits.values():
                await waits.aclose()
            await session.http.aclose()
            await session.streams.aclose()

    def order_waits(self) -> dict[str, Any]:
        """The waits for orders, by account: they belong to an event loop, as the connections do."""
        return self._here().order_waits

    def _http(self) -> httpx.AsyncClient:
        return self._here().http

    def _here(self) -> _Session:
        session = self._session
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise ClientClosed("the client is closed")
        if session is not None and session.pid == os.getpid() and session.loop is loop:
            return session
        if session is not None and session.pid != os.getpid():
            self._inherited.append(session)
        # Streams keep their connections: in a pool of their own, however many, they keep no command
        # waiting.
        self._session = _Session(os.getpid(), loop, self._open(MAX_CONNECTIONS), self._open(None))
        return self._session

    def _open(self, max_connections: int | None) -> httpx.AsyncClient:
        options = self.options
        headers = {"user-agent": "trading-intents-client"}
        if options.organization_id:
            headers["x-organization-id"] = options.organization_id
        return httpx.AsyncClient(
            base_url=self._endpoint.url,
            headers=headers,
            timeout=httpx.Timeout(options.read_seconds, connect=options.connect_seconds),
            limits=httpx.Limits(max_connections=max_connections),
            # Certificates are not read for plain HTTP: that takes longer than many requests.
            verify=httpx.URL(self._endpoint.url).scheme == "https",
            transport=options.transport,
        )

    async def call(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: Repeat = Repeat.WRITE,
    ) -> T:
        """One request, repeated where that is safe; its answer as `kind`."""
        response = await self.send(
            method, path, body=body, params=params, headers=headers, repeat=repeat
        )
        return read_answer(response, kind)

    async def submit(
        self, path: str, kind: type[T], body: Any, idempotency_key: str
    ) -> tuple[T, bool]:
        """A command under its key, also when it is asked again; and whether the answer is that of
        an earlier one."""
        headers = {"idempotency-key": idempotency_key}
        try:
            response = await self.send(
                "POST", path, body=body, headers=headers, repeat=Repeat.KEYED
            )
            return read_answer(response, kind), response.headers.get(
                "idempotent-replayed"
            ) == "true"
        except TradingError as error:
            error.idempotency_key = idempotency_key
            raise
        except asyncio.CancelledError as error:
            # The same error, as asyncio knows its cancellations by their exact class.
            raise error from Cancelled(idempotency_key)

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: Repeat = Repeat.WRITE,
    ) -> httpx.Response:
        if method == "GET":
            repeat = Repeat.READ
        content = None if body is None else msgspec.json.encode(body)
        given = dict(headers or {}) | ({} if body is None else {"content-type": "application/json"})
        tries = 0
        is_lost = False
        while True:
            tries += 1
            failure = await self._try(method, path, content, params, given)
            if isinstance(failure, httpx.Response):
                return failure
            is_lost |= may_be_carried_out(failure)
            failure.may_be_recorded = is_lost and repeat is not Repeat.READ
            pause = pause_seconds(failure, tries, random.random)
            if tries > self.options.max_retries or pause is None or not may_repeat(failure, repeat):
                raise failure
            await asyncio.sleep(pause)

    async def _try(
        self,
        method: str,
        path: str,
        content: bytes | None,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
    ) -> httpx.Response | TradingError:
        try:
            response = await self._http().request(
                method,
                path,
                content=content,
                params=params,
                headers=headers,
                auth=self._endpoint.credentials,
            )
        except REQUEST_ERRORS as error:
            return failure_of(error, self.url)
        except TradingError as error:  # of the request for a token
            return error
        return response if response.is_success else error_of(response)

    async def fetch_token(
        self, client_id: str, client_secret: str, scope: str | None = None
    ) -> IssuedToken:
        """Client credentials (RFC 6749, section 4.4)."""
        form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        try:
            response = await self._http().post(
                "/oauth/token", data=form, auth=httpx.BasicAuth(client_id, client_secret)
            )
        except REQUEST_ERRORS as error:
            raise failure_of(error, self.url) from None
        if not response.is_success:
            raise error_of(response)
        return read_answer(response, IssuedToken)

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], headers: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of an answer without end. Errors of the network are TradingErrors."""
        timeout = httpx.Timeout(STREAM_READ_SECONDS, connect=self.options.connect_seconds)
        try:
            async with self._here().streams.stream(
                "GET",
                path,
                params=params,
                headers=headers,
                timeout=timeout,
                auth=self._endpoint.credentials,
            ) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                yield response.aiter_bytes()
        except REQUEST_ERRORS as error:
            raise failure_of(error, self.url) from None


def failure_of(error: Exception, url: str) -> TradingError:
    cause = str(error) or type(error).__name__
    if isinstance(error, NOT_SENT):
        return Unreachable(f"no connection to {url}: {cause}")
    return AnswerLost(f"no answer from {url}: {cause}")


def read_answer(response: httpx.Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(response.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        failure = UnexpectedAnswer(
            f"{response.url.path} answered something else: {error}", status=response.status_code
        )
        failure.request_id = response.headers.get("x-request-id")
        failure.may_be_recorded = response.is_success and response.request.method != "GET"
        raise failure from None
