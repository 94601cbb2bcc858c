"""Bearer tokens, verified with their issuer's published keys and read into claims. Never logs a
token, nor fetches what it names: its `kid` picks a key, and the key decides the algorithm."""

import asyncio
import math
import re
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol

import httpx
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK, PyJWS, PyJWTError

from trading_intents.clock import Clock
from trading_intents.config import Settings
from trading_intents.errors import Unauthorized, Unavailable
from trading_intents.identity.model import Claims, Scope
from trading_intents.telemetry import Log
from trading_intents.trading import FrozenStruct

MAX_TOKEN_CHARACTERS = 8 * 1024
MAX_KID_CHARACTERS = 256
# Decoders of base64 skip other characters, so that one token would have many spellings.
_TOKEN = re.compile(r"[A-Za-z0-9_.-]+")
MAX_TEXT_CHARACTERS = 255  # of sub and the organization: OpenID Connect's own limit for sub
# Hosts that keep time with NTP differ by less than a second; more would only lengthen the life of a
# stolen token.
LEEWAY_SECONDS = 5
LATEST_SECOND = 253_402_300_799  # the end of year 9999, the last that a datetime can hold

ACCESS_TOKEN_TYPES = frozenset({"at+jwt", "application/at+jwt"})  # RFC 9068
PLAIN_TYPES = frozenset({"", "jwt", "application/jwt"})  # as issuers from before RFC 9068 write it
# OpenID Connect puts these into id and logout tokens only.
ID_TOKEN_CLAIMS = frozenset({"nonce", "at_hash", "c_hash", "s_hash", "events"})
# By these some issuers (Keycloak, Cognito) show that a token is an id token.
ID_TOKEN_SIGNS = (("typ", "ID"), ("token_use", "id"))

MIN_RSA_BITS = 2048
PRIVATE_PARTS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
MAX_KEYS = 100
MAX_KEY_SET_BYTES = 256 * 1024
FETCH_SECONDS = 3.0  # for the whole fetch, name look-up to last byte
REFRESH_SECONDS = 600.0
FIRST_RETRY_SECONDS = 1.0  # while there are no keys
RETRY_SECONDS = 60.0  # while old keys are used
UNKNOWN_KID_SECONDS = 60.0


class KeySource(Protocol):
    async def find(self, kid: str) -> PyJWK | None:
        """Finds the issuer's key of that id, bound to its algorithm; Unavailable when the keys are
        not known."""


class ClaimNames(FrozenStruct):
    """The names of claims, each exact or a dotted path. The defaults are the embedded
    provider's."""

    organization: str = "organization"
    role: str = "role"
    scopes: str = "scope"
    kind: str = "kind"
    # The value of `kind` that means a service account; any other, or none, is a user.
    kind_service: str = "service"


class TokenRules(FrozenStruct):
    issuer: str
    audience: str
    claims: ClaimNames = ClaimNames()
    types: frozenset[str] = ACCESS_TOKEN_TYPES | PLAIN_TYPES


class TokenVerifier:
    def __init__(self, rules: TokenRules, keys: KeySource, clock: Clock, log: Log) -> None:
        self._rules = rules
        self._keys = keys
        self._clock = clock
        self._log = log
        self._jws = PyJWS(algorithms=["EdDSA", "ES256", "RS256"])

    async def verify(self, token: str) -> Claims:
        """Gives the token's claims. Every cause of refusal looks the same to the caller."""
        # Not cached: it takes about 0.2 ms, submits use API keys only, and a cache would have to
        # follow changes of the keys.
        try:
            header = self._read_header(token)
            key = await self._keys.find(header["kid"])
            if key is None:
                _refuse("unknown kid")
            payload = self._read_payload(token, key)
            _check_is_access_token(header, payload)
            return _read_claims(payload, self._rules, self._clock.now().timestamp())
        except _Refused as refusal:
            self._log.debug("token refused", cause=refusal.cause)
            raise Unauthorized(
                "the token does not verify; get a new one", challenge='Bearer error="invalid_token"'
            ) from None

    def _read_header(self, token: str) -> dict[str, Any]:
        if len(token) > MAX_TOKEN_CHARACTERS or not _TOKEN.fullmatch(token):
            _refuse("too long, or not a token")
        try:
            header = self._jws.get_unverified_header(token)
        except PyJWTError:
            _refuse("no readable header")
        if "crit" in header:
            _refuse("crit asks for what we do not know")
        kid = header.get("kid")
        typ = header.get("typ", "")
        if not isinstance(kid, str) or not 0 < len(kid) <= MAX_KID_CHARACTERS:
            _refuse("no acceptable kid")
        if not isinstance(typ, str) or typ.lower() not in self._rules.types:
            _refuse("not the type of an access token")
        return header

    def _read_payload(self, token: str, key: PyJWK) -> dict[str, Any]:
        try:
            payload = msgspec.json.decode(
                self._jws.decode(token, key, algorithms=[key.algorithm_name])
            )
        except PyJWTError:
            _refuse("signature or algorithm does not fit the key")
        except (ValueError, RecursionError):
            _refuse("payload is no JSON")
        if not isinstance(payload, dict):
            _refuse("payload is no object")
        return payload


class _Refused(Exception):
    def __init__(self, cause: str) -> None:
        self.cause = cause


def _refuse(cause: str) -> NoReturn:
    raise _Refused(cause)


def _check_is_access_token(header: dict[str, Any], payload: dict[str, Any]) -> None:
    """Refuses id tokens: they are for the client that requested them, and accepting one would let
    any site's login call us."""
    if header.get("typ", "").lower() in ACCESS_TOKEN_TYPES:
        return
    if ID_TOKEN_CLAIMS & payload.keys() or any(
        payload.get(name) == value for name, value in ID_TOKEN_SIGNS
    ):
        _refuse("an id token")


def _read_claims(payload: dict[str, Any], rules: TokenRules, now: float) -> Claims:
    if _text(payload, "iss") != rules.issuer:
        _refuse("another issuer")
    if rules.audience not in _texts(payload.get("aud"), "aud"):
        _refuse("another audience")
    subject = _text(payload, "sub")
    if subject is None:
        _refuse("no sub")
    names = rules.claims
    is_service = _text(payload, names.kind) == names.kind_service
    return Claims(
        is_service=is_service,
        subject=subject,
        organization=_text(payload, names.organization),
        role=_text(payload, names.role),
        scopes=_read_scopes(payload, names.scopes) if is_service else frozenset(),
        issued_at=datetime.fromtimestamp(_second(payload.get("iat", 0), "iat"), UTC),
        expires_at=_read_expiry(payload, now),
    )


def _read_expiry(payload: dict[str, Any], now: float) -> datetime:
    # Not by PyJWT, which uses the machine's clock.
    for name in ("nbf", "iat"):
        if name in payload and _second(payload[name], name) > now + LEEWAY_SECONDS:
            _refuse(f"{name} lies ahead")
    expiry = _second(payload.get("exp"), "exp")
    if expiry + LEEWAY_SECONDS <= now:
        _refuse("expired")
    return datetime.fromtimestamp(expiry, UTC)


def _read_scopes(payload: dict[str, Any], name: str) -> frozenset[Scope]:
    """Reads the scopes; unknown ones grant nothing."""
    value = _claim(payload, name)
    texts = value.split(" ") if isinstance(value, str) else _texts(value or [], name)
    return frozenset(scope for scope in Scope if scope in texts)


def _claim(payload: dict[str, Any], name: str) -> Any:
    # First, because names like https://example.com/role have dots that are no path.
    if name in payload:
        return payload[name]
    value: Any = payload
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _text(payload: dict[str, Any], name: str) -> str | None:
    value = _claim(payload, name)
    if value is None or value == "":
        return None
    # Printable: a NUL would fail in the database, a line break would split a log line.
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARACTERS or not value.isprintable():
        _refuse(f"{name} is no acceptable text")
    return value


def _texts(value: Any, name: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        _refuse(f"{name} is neither text nor texts")
    return texts


def _second(value: Any, name: str) -> float:
    # NaN is in no range, True is an int.
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= LATEST_SECOND
    ):
        _refuse(f"{name} is no acceptable time")
    return value


def external_verifier(
    settings: Settings, client: httpx.AsyncClient, clock: Clock, log: Log
) -> TokenVerifier:
    names = ClaimNames(
        organization=settings.identity_claim_organization,
        role=settings.identity_claim_role,
        scopes=settings.identity_claim_scopes,
        kind=settings.identity_claim_kind,
        kind_service=settings.identity_kind_service,
    )
    rules = TokenRules(settings.identity_issuer, settings.identity_audience, names)
    return TokenVerifier(
        rules, JwksSource(settings.identity_jwks_url, client, clock, log), clock, log
    )


class JwksSource:
    """An issuer's keys by URL: fetched again by age and for an unknown kid, and kept while the
    issuer is unavailable."""

    def __init__(self, url: str, client: httpx.AsyncClient, clock: Clock, log: Log) -> None:
        self._url = url
        self._client = client
        self._clock = clock
        self._log = log
        self._keys: dict[str, PyJWK] | None = None
        self._fetched_at = self._tried_at = self._unknown_kid_at = -math.inf
        self._loading: asyncio.Task[None] | None = None

    async def find(self, kid: str) -> PyJWK | None:
        now = self._clock.monotonic()
        pause = FIRST_RETRY_SECONDS if self._keys is None else RETRY_SECONDS
        if now >= self._fetched_at + REFRESH_SECONDS and (
            self._loading or now >= self._tried_at + pause
        ):
            await self._load()
        if self._keys is None:
            raise Unavailable("the identity provider cannot be reached: its keys are not known")
        if kid not in self._keys and (
            self._loading or now >= self._unknown_kid_at + UNKNOWN_KID_SECONDS
        ):
            self._unknown_kid_at = now
            await self._load()
        return self._keys.get(kid)

    async def _load(self) -> None:
        if self._loading is None:
            self._tried_at = self._clock.monotonic()
            self._loading = asyncio.create_task(self._replace_keys())
        # Shielded, so that a cancelled caller does not cancel the fetch for the others.
        await asyncio.shield(self._loading)

    async def _replace_keys(self) -> None:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                self._keys = read_key_set(await self._fetch())
            self._fetched_at = self._clock.monotonic()
            self._log.info("identity provider keys fetched", usable_keys=len(self._keys))
        except (
            httpx.HTTPError,
            OSError,
            ValueError,
            RecursionError,
        ) as error:  # httpx lets errors of TLS out
            self._log.warning(
                "identity provider keys not fetched", error=type(error).__name__, detail=str(error)
            )
        finally:
            self._loading = None

    async def _fetch(self) -> bytes:
        # Compression is refused: a few compressed kilobytes could become gigabytes.
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        body = bytearray()
        async with self._client.stream(
            "GET", self._url, headers=headers, timeout=FETCH_SECONDS, follow_redirects=False
        ) as response:
            if response.status_code != httpx.codes.OK:
                raise ValueError(f"answered {response.status_code}")
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > MAX_KEY_SET_BYTES:
                    raise ValueError("larger than a key set can be")
        return bytes(body)


class _KeySet(msgspec.Struct):
    keys: list[Any]


def read_key_set(body: bytes) -> dict[str, PyJWK]:
    """Reads the usable keys by kid; the first of a kid wins. ValueError when it is no key set."""
    keys: dict[str, PyJWK] = {}
    for jwk in msgspec.json.decode(body, type=_KeySet).keys[:MAX_KEYS]:
        key = read_key(jwk)
        if key is not None and key.key_id:
            keys.setdefault(key.key_id, key)
    return keys


def read_key(jwk: Any) -> PyJWK | None:
    """Binds a published key to its one algorithm; None unless it can be used to verify."""
    match jwk:
        case {"kty": "OKP", "crv": "Ed25519", "kid": str(), "x": str()}:
            algorithm = "EdDSA"
        case {"kty": "EC", "crv": "P-256", "kid": str(), "x": str(), "y": str()}:
            algorithm = "ES256"
        case {"kty": "RSA", "kid": str(), "n": str(), "e": str()}:
            algorithm = "RS256"
        case _:
            return None
    if (
        jwk.get("alg", algorithm) != algorithm
        or jwk.get("use", "sig") != "sig"
        or PRIVATE_PARTS & jwk.keys()
    ):
        return None
    try:
        key = PyJWK(jwk, algorithm)
    except (PyJWTError, ValueError):
        return None
    return None if isinstance(key.key, RSAPublicKey) and key.key.key_size < MIN_RSA_BITS else key
