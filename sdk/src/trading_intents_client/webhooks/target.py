"""Sends signed events to one URL. A complete answer of 2xx within the time limit is a delivery; all
else is none."""

import asyncio
import ipaddress
import time
from collections.abc import Callable
from typing import Self

import httpx

from trading_intents_client.errors import NotConfigured
from trading_intents_client.transport.http import REQUEST_ERRORS
from trading_intents_client.webhooks.signing import WebhookSigner

ATTEMPT_SECONDS = 15.0
MAX_ANSWER_BYTES = 1 << 16


class WebhookTarget:
    """The receiver of events. Only its host is shown: a path or a query may hold a secret of the
    receiver's."""

    def __init__(
        self,
        url: str,
        signer: WebhookSigner,
        attempt_seconds: float = ATTEMPT_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._url = check_target(url)
        self._signer = signer
        self._attempt_seconds = attempt_seconds
        self._now = now
        is_tls = self._url.scheme == "https"
        # Plain HTTP stays on this machine: no proxy of the environment, and no certificates to
        # read.
        self._http = httpx.AsyncClient(timeout=attempt_seconds, trust_env=is_tls, verify=is_tls)

    @property
    def host(self) -> str:
        return self._url.netloc.decode()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def post(self, event_id: str, body: bytes) -> str | None:
        """One try. None: it was delivered; else why not, without anything that the target
        answered."""
        headers = self._signer.headers(event_id, int(self._now()), body) | {
            "user-agent": "trading-intents-forward"
        }
        try:
            async with asyncio.timeout(self._attempt_seconds):
                return await self._post(headers, body)
        except TimeoutError:
            return f"had no answer within {self._attempt_seconds:g} s"
        except REQUEST_ERRORS as error:
            return f"had no answer ({type(error).__name__})"

    async def _post(self, headers: dict[str, str], body: bytes) -> str | None:
        # Redirects are not followed: the signed event is for this URL alone.
        async with self._http.stream("POST", self._url, content=body, headers=headers) as response:
            size = 0
            # To the end, so that the connection can be used again.
            async for chunk in response.aiter_raw():
                size += len(chunk)
                if size > MAX_ANSWER_BYTES:
                    break
            return None if response.is_success else f"was answered by {response.status_code}"


def check_target(text: str) -> httpx.URL:
    """HTTPS, or HTTP to this machine: what is signed can still be read on the way."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        raise NotConfigured(
            "the target's URL cannot be read; it must be like https://example.com/hooks"
        ) from None
    if url.userinfo:
        raise NotConfigured(
            "the target's URL must not hold a user or password: lists of processes show it"
        )
    if url.scheme not in ("http", "https") or not url.host:
        raise NotConfigured("the target's URL must be like https://example.com/hooks")
    if url.scheme == "http" and not _is_loopback(url.host):
        raise NotConfigured(
            "the target's URL must be https; http is for this machine, as "
            "http://127.0.0.1:9000/hooks"
        )
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
