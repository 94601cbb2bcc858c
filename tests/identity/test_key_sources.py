"""The sources of verification keys: which keys are taken, how often they are fetched, and what an
absent issuer means."""

import asyncio
import gzip
import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import ManualClock
from tests.identity.conftest import Refused
from tests.identity.issuer import Issuer, SigningKey, ed25519_key, p256_key, rsa_key
from tests.identity.texts import ANY_TEXT
from trading_intents.config import PREFIX, load
from trading_intents.errors import StartupRefused, Unavailable
from trading_intents.identity.tokens import (
    FIRST_RETRY_SECONDS,
    MAX_KEY_SET_BYTES,
    REFRESH_SECONDS,
    RETRY_SECONDS,
    UNKNOWN_KID_SECONDS,
    JwksSource,
    TokenVerifier,
    read_key,
    read_key_set,
)
from trading_intents.telemetry import Log

ED = ed25519_key("ed")
EC = p256_key("ec")
RSA = rsa_key("rsa")


@pytest.fixture
def source(issuer: Issuer, client: httpx.AsyncClient, clock: ManualClock, log: Log) -> JwksSource:
    return JwksSource(issuer.jwks_url, client, clock, log)


# How often keys are fetched


async def test_keys_are_fetched_once_and_used_until_they_age(
    issuer: Issuer, verifier: TokenVerifier, clock: ManualClock
) -> None:
    for _ in range(5):
        await verifier.verify(issuer.token())
    assert issuer.fetches == 1
    clock.advance(REFRESH_SECONDS)
    await verifier.verify(issuer.token())
    assert issuer.fetches == 2


async def test_a_thousand_random_kids_cause_two_fetches(issuer: Issuer, refused: Refused) -> None:
    for number in range(1_000):
        assert await refused(issuer.token(kid=f"kid-{number}")) == "unknown kid"
    assert issuer.fetches == 2


async def test_a_thousand_random_kids_at_once_cause_two_fetches(
    issuer: Issuer, source: JwksSource
) -> None:
    found = await asyncio.gather(*(source.find(f"kid-{number}") for number in range(1_000)))
    assert found == [None] * 1_000
    assert issuer.fetches == 2


async def test_an_unknown_kid_may_ask_again_after_a_minute(
    issuer: Issuer, source: JwksSource, clock: ManualClock
) -> None:
    await source.find("other")
    clock.advance(UNKNOWN_KID_SECONDS - 1)
    await source.find("other")
    assert issuer.fetches == 2
    clock.advance(1)
    await source.find("other")
    assert issuer.fetches == 3


async def test_a_new_key_is_found_by_everyone_who_brings_it(
    issuer: Issuer, source: JwksSource
) -> None:
    await source.find("ed")
    issuer.published.append(ed25519_key("new").public())
    found = await asyncio.gather(*(source.find("new") for _ in range(50)))
    assert all(key is not None for key in found)
    assert issuer.fetches == 2


async def test_a_removed_key_stops_working_when_the_keys_are_refreshed(
    issuer: Issuer, verifier: TokenVerifier, refused: Refused, clock: ManualClock
) -> None:
    await verifier.verify(issuer.token())
    issuer.published = issuer.published[1:]
    clock.advance(REFRESH_SECONDS)
    assert await refused(issuer.token()) == "unknown kid"


async def test_a_caller_that_goes_away_does_not_take_the_keys_from_others(
    issuer: Issuer, source: JwksSource
) -> None:
    issuer.open.clear()
    impatient = asyncio.create_task(source.find("ed"))
    patient = asyncio.create_task(source.find("ed"))
    await asyncio.sleep(0)
    impatient.cancel()
    issuer.open.set()
    assert await patient is not None
    assert impatient.cancelled()
    assert issuer.fetches == 1


# When the issuer is away or answers nonsense


async def test_old_keys_keep_working_while_the_issuer_is_away(
    issuer: Issuer, verifier: TokenVerifier, clock: ManualClock
) -> None:
    await verifier.verify(issuer.token())
    issuer.status = 500
    for _ in range(10):
        clock.advance(REFRESH_SECONDS)
        await verifier.verify(issuer.token())
    issuer.close()
    clock.advance(REFRESH_SECONDS)
    await verifier.verify(issuer.token())


async def test_an_issuer_that_is_away_is_asked_once_a_minute(
    issuer: Issuer, source: JwksSource, clock: ManualClock
) -> None:
    await source.find("ed")
    issuer.status = 503
    clock.advance(REFRESH_SECONDS)
    for _ in range(10):
        await source.find("ed")
    assert issuer.fetches == 2
    clock.advance(RETRY_SECONDS)
    await source.find("ed")
    assert issuer.fetches == 3


async def test_without_any_keys_the_answer_is_unavailable_and_recovers(
    issuer: Issuer, verifier: TokenVerifier, clock: ManualClock
) -> None:
    issuer.status = 503
    for _ in range(3):
        with pytest.raises(Unavailable):
            await verifier.verify(issuer.token())
    assert issuer.fetches == 1
    issuer.status = 200
    clock.advance(FIRST_RETRY_SECONDS)
    await verifier.verify(issuer.token())


async def test_an_issuer_that_refuses_connections_is_unavailable(
    issuer: Issuer, verifier: TokenVerifier
) -> None:
    issuer.close()
    with pytest.raises(Unavailable):
        await verifier.verify(issuer.token())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b"\xff",
        b"[" * 100_000,
        b'{"keys": []}' + b" " * MAX_KEY_SET_BYTES,
    ],
    ids=lambda body: repr(body[:12]),
)
async def test_an_answer_that_is_no_key_set_changes_nothing(
    issuer: Issuer, source: JwksSource, clock: ManualClock, body: bytes
) -> None:
    await source.find("ed")
    issuer.body = body
    clock.advance(REFRESH_SECONDS)
    assert await source.find("ed") is not None
    assert issuer.fetches == 2


async def test_a_compressed_bomb_is_never_unpacked(issuer: Issuer, source: JwksSource) -> None:
    issuer.headers = {"content-encoding": "gzip"}
    issuer.body = gzip.compress(b'{"keys": []}')
    with pytest.raises(Unavailable):
        await source.find("ed")


async def test_a_redirect_is_not_followed(issuer: Issuer, source: JwksSource) -> None:
    issuer.status = 302
    issuer.headers = {"location": issuer.url + "/elsewhere"}
    with pytest.raises(Unavailable):
        await source.find("ed")
    assert issuer.paths == ["/jwks"]


# Which keys are taken


def changed(key: SigningKey, **changes: Any) -> dict[str, Any]:
    return key.public() | changes


@pytest.mark.parametrize(
    "jwk",
    [
        {"kty": "oct", "kid": "ed", "k": "c2VjcmV0", "alg": "HS256"},
        changed(ED, use="enc"),
        changed(ED, alg="HS256"),
        changed(ED, alg="ES256"),
        changed(ED, crv="Ed448"),
        changed(ED, crv="X25519"),
        changed(ED, d="c2VjcmV0"),
        changed(ED, kid=None),
        changed(ED, kid=1),
        changed(ED, x=1),
        changed(ED, x="AA"),
        changed(ED, x="!"),
        changed(ED, x="\u00e9"),
        changed(EC, crv="P-384"),
        changed(EC, crv="secp256k1"),
        changed(EC, y=EC.public()["x"]),
        changed(RSA, alg="RS512"),
        changed(RSA, alg="RSA-OAEP"),
        changed(RSA, p="AA"),
        changed(RSA, e="AA"),
        changed(RSA, n=""),
        rsa_key("weak", 1024).public(),
        {},
        [],
        None,
        "ed",
    ],
)
def test_a_key_that_is_not_fit_to_verify_with_is_ignored(jwk: Any) -> None:
    assert read_key(jwk) is None
    good = [key.public() for key in (ED, EC, RSA)]
    assert set(read_key_set(json.dumps({"keys": [jwk, *good]}).encode())) == {"ed", "ec", "rsa"}


def test_of_two_keys_with_one_kid_the_first_is_taken() -> None:
    keys = [ED.public(), ed25519_key("ed").public()]
    first = read_key(ED.public())
    assert first is not None
    assert read_key_set(json.dumps({"keys": keys}).encode())["ed"].key == first.key


@given(
    st.dictionaries(
        st.sampled_from(["kty", "crv", "kid", "x", "y", "n", "e", "alg", "use"]),
        ANY_TEXT | st.none(),
    )
)
def test_no_key_breaks_reading(jwk: dict[str, Any]) -> None:
    for key in (ED, EC, RSA):
        read_key(key.public() | jwk)


# Settings


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"PROVIDER_NAME": "acme"}, "IDENTITY_ISSUER"),
        ({"PROVIDER_NAME": "acme", "ISSUER": "https://acme.example"}, "IDENTITY_JWKS_URL"),
        ({"PROVIDER_NAME": "acme", "JWKS_URL": "https://acme.example/jwks"}, "IDENTITY_ISSUER"),
        ({"JWKS_URL": "https://acme.example/jwks"}, "IDENTITY_JWKS_URL"),
        ({"USERS_URL": "https://acme.example/users"}, "IDENTITY_USERS_URL"),
        (
            {"PROVIDER_NAME": "acme", "ISSUER": "i", "JWKS_URL": "http://acme.example/jwks"},
            "IDENTITY_JWKS_URL",
        ),
        (
            {"PROVIDER_NAME": "acme", "ISSUER": "i", "JWKS_URL": "file:///etc/passwd"},
            "IDENTITY_JWKS_URL",
        ),
        (
            {"PROVIDER_NAME": "acme", "ISSUER": "i", "JWKS_URL": "http://[::1/jwks"},
            "IDENTITY_JWKS_URL",
        ),
    ],
)
def test_a_half_configured_issuer_is_refused_at_start(environ: dict[str, str], named: str) -> None:
    with pytest.raises(StartupRefused, match=named):
        load({f"{PREFIX}IDENTITY_{name}": value for name, value in environ.items()})


@pytest.mark.parametrize(
    "url", ["https://acme.example/jwks", "http://127.0.0.1:9/jwks", "http://[::1]:9/jwks"]
)
def test_a_fully_configured_issuer_is_taken(url: str) -> None:
    environ = {"PROVIDER_NAME": "acme", "ISSUER": "https://acme.example", "JWKS_URL": url}
    assert load({f"{PREFIX}IDENTITY_{n}": v for n, v in environ.items()}).identity_jwks_url == url
