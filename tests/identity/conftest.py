"""An issuer, a clock that stands still, and a verifier of that issuer's tokens."""

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import httpx
import pytest

from tests.fakes import ManualClock
from tests.identity.issuer import Issuer, SigningKey, ed25519_key, p256_key, rsa_key
from trading_intents.config import Settings
from trading_intents.errors import Unauthorized
from trading_intents.identity.tokens import TokenVerifier, external_verifier
from trading_intents.telemetry import Log, make_log

MakeVerifier = Callable[[Settings], TokenVerifier]
Refused = Callable[[str], Awaitable[str]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def keys() -> dict[str, SigningKey]:
    return {key.algorithm: key for key in (ed25519_key("ed"), p256_key("ec"), rsa_key("rsa"))}


@pytest.fixture
def issuer(clock: ManualClock, keys: dict[str, SigningKey]) -> Iterator[Issuer]:
    with Issuer(clock, *keys.values()) as issuer:
        yield issuer


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    # Certificates are not read, as that takes longer than most tests: loopback speaks plain http.
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        yield client


@pytest.fixture
def logged() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(logged: io.StringIO) -> Log:
    return make_log("debug", logged)


@pytest.fixture
def settings(issuer: Issuer) -> Settings:
    return Settings(identity_issuer=issuer.url, identity_jwks_url=issuer.jwks_url)


@pytest.fixture
def make_verifier(client: httpx.AsyncClient, clock: ManualClock, log: Log) -> MakeVerifier:
    return lambda settings: external_verifier(settings, client, clock, log)


@pytest.fixture
def verifier(make_verifier: MakeVerifier, settings: Settings) -> TokenVerifier:
    return make_verifier(settings)


@pytest.fixture
def refused(verifier: TokenVerifier, logged: io.StringIO) -> Refused:
    """Refuses a token, makes sure that the caller learns nothing, and returns the cause from the
    log."""

    async def refuse(token: str) -> str:
        with pytest.raises(Unauthorized) as caught:
            await verifier.verify(token)
        assert caught.value.detail == "the token does not verify; get a new one"
        assert caught.value.headers == {"www-authenticate": 'Bearer error="invalid_token"'}
        assert caught.value.__cause__ is None
        cause: str = json.loads(logged.getvalue().splitlines()[-1])["cause"]
        return cause

    return refuse
