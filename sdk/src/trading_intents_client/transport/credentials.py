"""The caller's credentials: an API key, a bearer token, or client credentials whose tokens are
renewed. Never shows a secret."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from trading_intents_client.errors import NotConfigured
from trading_intents_client.types.operations import IssuedToken

DEMO_URL = "http://127.0.0.1:8080"
DATA_DIR = ".data"
DEMO_FILE = "demo.json"
DEMO_URL_FILE = "demo-url"  # where the platform of this folder was last started
URL_VARIABLE = "TRADING_INTENTS_URL"
KEY_VARIABLE = "TRADING_INTENTS_API_KEY"
DATA_DIR_VARIABLE = "TRADING_INTENTS_DATA_DIR"
MAX_PORTS = 1 << 16
RENEW_BEFORE_SECONDS = 60
MIN_USE_SHARE = 0.5  # of a token that lives less than twice that long


class Credentials(httpx.Auth):
    """Adds the caller's credential to a request, and nothing else holds it."""

    async def metadata(self) -> list[tuple[str, str]]:
        """The credential as gRPC metadata."""
        request = httpx.Request("GET", "http://metadata")
        flow = self.async_auth_flow(request)
        await anext(flow)
        await flow.aclose()
        return [
            (name, request.headers[name])
            for name in ("x-api-key", "authorization")
            if name in request.headers
        ]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class ApiKeyCredentials(Credentials):
    """An API key, `tip_paper_...` or `tip_live_...`."""

    def __init__(self, api_key: str) -> None:
        self._api_key = check_header(api_key, "API key")

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        request.headers["x-api-key"] = self._api_key
        yield request


class BearerCredentials(Credentials):
    """A token, or a function that gives one whenever a request needs it."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        self._token = token

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        token = self._token if isinstance(self._token, str) else self._token()
        request.headers["authorization"] = f"Bearer {check_header(token, 'token')}"
        yield request


class ClientCredentials(Credentials):
    """A service account: its tokens are fetched when one is needed and renewed before they end."""

    def __init__(self, client_id: str, client_secret: str, scope: str | None = None) -> None:
        self._client_id = client_id
        self._client_secret = client_secret
        self._scope = scope
        self._token = ""
        self._renew_at = 0.0

    def bind(self, fetch: "TokenFetch", monotonic: Callable[[], float]) -> None:
        """The client that uses these credentials says how a token is fetched, and what time it
        is."""
        self._fetch = fetch
        self._monotonic = monotonic

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        if self._monotonic() >= self._renew_at:
            asked_at = self._monotonic()
            issued = await self._fetch(self._client_id, self._client_secret, self._scope)
            seconds = max(
                issued.expires_in - RENEW_BEFORE_SECONDS, issued.expires_in * MIN_USE_SHARE
            )
            self._token = issued.access_token
            self._renew_at = asked_at + seconds
        request.headers["authorization"] = f"Bearer {self._token}"
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED:
            # The issuer may have changed its keys: the next request fetches another token.
            self._renew_at = 0.0


TokenFetch = Callable[[str, str, str | None], Awaitable[IssuedToken]]


@dataclass(frozen=True)
class Endpoint:
    """The platform's URL, and the caller's credentials."""

    url: str
    credentials: Credentials


def find_endpoint(
    url: str | None,
    api_key: str | None,
    credentials: Credentials | None,
    environ: Mapping[str, str],
) -> Endpoint:
    """From arguments, else the environment, else the demo of a `make run` in this folder."""
    if api_key is not None and credentials is not None:
        raise NotConfigured("give an api_key or credentials, not both")
    found_url = check_url((environ.get(URL_VARIABLE) or _demo_url(environ)) if url is None else url)
    if credentials is not None:
        return Endpoint(found_url, credentials)
    key = (environ.get(KEY_VARIABLE) or _demo_key(environ)) if api_key is None else api_key
    return Endpoint(found_url, ApiKeyCredentials(key))


def check_header(secret: str, what: str) -> str:
    """Refuses what no header can hold. HTTP libraries would show it in their error."""
    if not (secret and secret.isascii() and secret.isprintable()):
        raise NotConfigured(
            f"the {what} is empty, or has a line break or another character that no header can hold"
        )
    return secret


def check_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise NotConfigured(f"the URL {url!r} cannot be read: {error}") from None
    if (
        parsed.scheme not in ("http", "https")
        or not parsed.host
        or not 0 < (parsed.port or 1) < MAX_PORTS
    ):
        raise NotConfigured(
            f"the URL {url!r} must be like {DEMO_URL} or https://trading.example.com"
        )
    return url


def _demo_url(environ: Mapping[str, str]) -> str:
    try:
        return (
            Path(environ.get(DATA_DIR_VARIABLE, DATA_DIR), DEMO_URL_FILE).read_text().strip()
            or DEMO_URL
        )
    except (OSError, ValueError):
        return DEMO_URL


def _demo_key(environ: Mapping[str, str]) -> str:
    file = Path(environ.get(DATA_DIR_VARIABLE, DATA_DIR), DEMO_FILE)
    try:
        return str(json.loads(file.read_text())["api_key"])
    except (OSError, ValueError, KeyError, TypeError):
        raise NotConfigured(
            f"no API key: pass api_key, set {KEY_VARIABLE}, or work in the folder in which "
            f"`make run` made {file}"
        ) from None
