"""Every way to talk a token past the verifier that we know of, through a real issuer on
loopback."""

import base64
import dataclasses
import hmac
import io
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.fakes import ManualClock
from tests.identity.conftest import MakeVerifier, Refused
from tests.identity.issuer import Issuer, SigningKey, ed25519_key, encode, p256_key, rsa_key
from trading_intents.config import Settings
from trading_intents.identity.model import Claims, Scope
from trading_intents.identity.tokens import (
    LEEWAY_SECONDS,
    MAX_KID_CHARACTERS,
    MAX_TOKEN_CHARACTERS,
    TokenVerifier,
)

BAD_SIGNATURE = "signature or algorithm does not fit the key"
ALGORITHMS = ("EdDSA", "ES256", "RS256")

# What is accepted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_token_of_each_algorithm_verifies(
    issuer: Issuer,
    verifier: TokenVerifier,
    clock: ManualClock,
    keys: dict[str, SigningKey],
    algorithm: str,
) -> None:
    assert await verifier.verify(issuer.token(key=keys[algorithm])) == Claims(
        is_service=False,
        subject="ada",
        organization="org_acme",
        role="admin",
        scopes=frozenset(),
        issued_at=clock.now(),
        expires_at=clock.now() + timedelta(seconds=900),
    )


@pytest.mark.parametrize("typ", [None, "JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt"])
async def test_an_external_issuer_may_name_the_type_or_not(
    issuer: Issuer, verifier: TokenVerifier, typ: str | None
) -> None:
    await verifier.verify(issuer.token(typ=typ))


@pytest.mark.parametrize("aud", ["trading-intents", ["other", "trading-intents"]])
async def test_the_audience_may_be_one_of_several(
    issuer: Issuer, verifier: TokenVerifier, aud: Any
) -> None:
    await verifier.verify(issuer.token(issuer.claims(aud=aud)))


async def test_a_user_may_have_no_organization_and_no_role(
    issuer: Issuer, verifier: TokenVerifier
) -> None:
    claims = await verifier.verify(issuer.token(issuer.claims(organization=None, role="")))
    assert (claims.organization, claims.role) == (None, None)


async def test_an_unknown_role_is_kept_as_it_is(issuer: Issuer, verifier: TokenVerifier) -> None:
    assert (await verifier.verify(issuer.token(issuer.claims(role="emperor")))).role == "emperor"


@pytest.mark.parametrize(
    "scope",
    ["intent:read openid credential:read", ["intent:read", "credential:read", "INTENT:EDIT"]],
)
async def test_a_service_account_has_the_scopes_that_we_know(
    issuer: Issuer, verifier: TokenVerifier, scope: Any
) -> None:
    claims = await verifier.verify(issuer.token(issuer.claims(kind="service", scope=scope)))
    assert claims.is_service
    assert claims.scopes == {Scope.INTENT_READ, Scope.CREDENTIAL_READ}


async def test_scopes_of_a_user_grant_nothing(issuer: Issuer, verifier: TokenVerifier) -> None:
    claims = await verifier.verify(
        issuer.token(issuer.claims(scope="credential:read", kind="Service"))
    )
    assert (claims.is_service, claims.scopes) == (False, frozenset())


async def test_claims_are_found_by_exact_name_or_dotted_path(
    issuer: Issuer, make_verifier: MakeVerifier, settings: Settings
) -> None:
    verifier = make_verifier(
        dataclasses.replace(
            settings,
            identity_claim_organization="https://example.com/org",
            identity_claim_role="resource.trading.role",
            identity_claim_scopes="permissions",
            identity_claim_kind="gty",
            identity_kind_service="client-credentials",
        )
    )
    answered: dict[str, Any] = {
        "https://example.com/org": "o1",
        "resource": {"trading": {"role": "member"}},
    }
    claims = await verifier.verify(issuer.token(issuer.claims(**answered)))
    assert (claims.organization, claims.role) == ("o1", "member")
    answered = {
        "gty": "client-credentials",
        "permissions": ["stream:read"],
        "resource": "no object",
    }
    claims = await verifier.verify(issuer.token(issuer.claims(**answered)))
    assert (claims.is_service, claims.scopes, claims.role) == (
        True,
        frozenset({Scope.STREAM_READ}),
        None,
    )


# Forged algorithms and headers


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "", None, ["EdDSA"], 1])
@pytest.mark.parametrize("signature", [b"", b"x"])
async def test_alg_none_is_refused_in_any_case(
    issuer: Issuer, refused: Refused, alg: Any, signature: bytes
) -> None:
    header = {"alg": alg, "typ": "JWT", "kid": "ed"}
    assert await refused(encode(header, issuer.claims(), lambda _: signature)) == BAD_SIGNATURE


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("forged", ["HS256", "HS384", "HS512"])
async def test_a_public_key_is_no_shared_secret(
    issuer: Issuer, refused: Refused, keys: dict[str, SigningKey], algorithm: str, forged: str
) -> None:
    key = keys[algorithm]
    public = key.private.public_key()
    spellings = [
        public.public_bytes(form, PublicFormat.SubjectPublicKeyInfo)
        for form in (Encoding.PEM, Encoding.DER)
    ]
    for secret in [*spellings, json.dumps(key.public()).encode()]:

        def sign(message: bytes, secret: bytes = secret) -> bytes:
            return hmac.digest(secret, message, "sha" + forged[2:])

        for alg in (forged, algorithm):
            header = {"alg": alg, "typ": "JWT", "kid": key.kid}
            assert await refused(encode(header, issuer.claims(), sign)) == BAD_SIGNATURE


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_the_algorithm_must_be_the_one_of_the_key(
    issuer: Issuer, refused: Refused, keys: dict[str, SigningKey], algorithm: str
) -> None:
    for alg in {*ALGORITHMS, "RS384", "PS256", "ES384", "ES256K", algorithm.lower()} - {algorithm}:
        assert await refused(issuer.token(key=keys[algorithm], alg=alg)) == BAD_SIGNATURE


@pytest.mark.parametrize("make_key", [ed25519_key, p256_key, rsa_key])
async def test_another_key_under_a_known_kid_is_refused(
    issuer: Issuer, refused: Refused, make_key: Callable[[], SigningKey]
) -> None:
    assert await refused(issuer.token(key=make_key())) == BAD_SIGNATURE


@pytest.mark.parametrize("crit", [["exp"], ["b64"], [], None, "exp", ["unheard-of"]], ids=repr)
async def test_a_critical_header_is_refused(
    issuer: Issuer, refused: Refused, keys: dict[str, SigningKey], crit: Any
) -> None:
    header = {"alg": "EdDSA", "typ": "JWT", "kid": "ed", "crit": crit, "exp": 1}
    assert (
        await refused(encode(header, issuer.claims(), keys["EdDSA"].sign)) == "no readable header"
    )


async def test_a_critical_header_that_the_library_knows_is_refused_too(
    issuer: Issuer, refused: Refused
) -> None:
    assert "crit" in await refused(issuer.token(crit=["b64"], b64=True))


async def test_an_unencoded_payload_is_refused(issuer: Issuer, refused: Refused) -> None:
    assert await refused(issuer.token(b64=False)) == "no readable header"


@pytest.mark.parametrize("name", ["jku", "x5u", "jwk", "x5c"])
async def test_a_key_that_the_token_brings_along_is_never_looked_at(
    issuer: Issuer, verifier: TokenVerifier, refused: Refused, name: str
) -> None:
    stranger = ed25519_key("stranger")
    answered: Any = {"jwk": stranger.public(), "x5c": ["MIIB"]}.get(name, issuer.url + "/evil")
    assert await refused(issuer.token(key=stranger, **{name: answered})) == "unknown kid"
    assert await refused(issuer.token(key=stranger, kid="ed", **{name: answered})) == BAD_SIGNATURE
    # Signed by a published key it is just noise.
    await verifier.verify(issuer.token(**{name: answered}))
    assert set(issuer.paths) == {"/jwks"}


@pytest.mark.parametrize(
    "kid",
    [
        "../../etc/passwd",
        "/dev/null",
        "' OR '1'='1",
        "ed'--",
        "http://127.0.0.1/jwks",
        "ed\x00",
        "ED",
        " ed",
        "\ud800",
    ],
    ids=ascii,
)
async def test_a_kid_is_only_a_name(issuer: Issuer, refused: Refused, kid: str) -> None:
    assert await refused(issuer.token(kid=kid)) == "unknown kid"
    assert set(issuer.paths) == {"/jwks"}


@pytest.mark.parametrize(
    "kid",
    [None, "", "k" * (MAX_KID_CHARACTERS + 1), 1, ["ed"], {"ed": 1}, True],
    ids=lambda kid: str(kid)[:9],
)
async def test_a_kid_of_no_acceptable_form_is_not_even_looked_for(
    issuer: Issuer, refused: Refused, kid: Any
) -> None:
    assert await refused(issuer.token(kid=kid)) in ("no acceptable kid", "no readable header")
    assert issuer.fetches == 0


# Claims


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("iss", "another issuer"),
        ("aud", "aud is neither"),
        ("exp", "exp is no acceptable time"),
        ("sub", "no sub"),
    ],
)
async def test_a_required_claim_must_be_there(
    issuer: Issuer, refused: Refused, name: str, cause: str
) -> None:
    assert cause in await refused(issuer.token(issuer.claims(**{name: None})))
    assert cause in await refused(issuer.token(issuer.claims() | {name: None}))


@pytest.mark.parametrize("name", ["iss", "aud", "exp", "sub"])
@pytest.mark.parametrize("value", ["", [], {}, 0, False, ["other", 1]], ids=repr)
async def test_a_required_claim_must_be_of_its_form(
    issuer: Issuer, refused: Refused, name: str, value: Any
) -> None:
    await refused(issuer.token(issuer.claims(**{name: value})))


@pytest.mark.parametrize("iss", ["{}/", "{}.evil.example", " {}", "HTTP{}", "other"])
async def test_the_issuer_is_compared_to_the_letter(
    issuer: Issuer, refused: Refused, iss: str
) -> None:
    assert (
        await refused(issuer.token(issuer.claims(iss=iss.format(issuer.url)))) == "another issuer"
    )


@pytest.mark.parametrize(
    "aud", ["other", "trading-intents ", ["Trading-Intents"], "trading-intents-admin", []]
)
async def test_the_audience_is_compared_to_the_letter(
    issuer: Issuer, refused: Refused, aud: Any
) -> None:
    assert await refused(issuer.token(issuer.claims(aud=aud))) == "another audience"


async def test_a_token_ends_at_its_expiry_and_a_small_leeway(
    issuer: Issuer, verifier: TokenVerifier, refused: Refused, clock: ManualClock
) -> None:
    token = issuer.token()
    clock.advance(900 + LEEWAY_SECONDS - 1)
    await verifier.verify(token)
    clock.advance(1)
    assert await refused(token) == "expired"


@pytest.mark.parametrize("name", ["nbf", "iat"])
async def test_a_token_of_the_future_waits_for_its_time(
    issuer: Issuer, verifier: TokenVerifier, refused: Refused, clock: ManualClock, name: str
) -> None:
    token = issuer.token(issuer.claims(**{name: int(clock.now().timestamp()) + 60}))
    assert await refused(token) == f"{name} lies ahead"
    clock.advance(60 - LEEWAY_SECONDS)
    await verifier.verify(token)


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize(
    "text",
    [
        "-1",
        "1e18",
        "1e308",
        '"1767628800"',
        "true",
        "{}",
        "[1]",
        "18446744073709551616",
        "253402300800",
    ],
)
async def test_a_time_out_of_range_is_refused(
    issuer: Issuer, refused: Refused, name: str, text: str
) -> None:
    claims = json.dumps(issuer.claims(**{name: "HERE"})).replace('"HERE"', text)
    assert await refused(issuer.token(claims.encode())) == f"{name} is no acceptable time"


@pytest.mark.parametrize(
    "text", ["1e999", "NaN", "Infinity", "-Infinity", "9" * 5000], ids=lambda text: text[:9]
)
async def test_a_number_that_is_none_is_refused(
    issuer: Issuer, refused: Refused, text: str
) -> None:
    claims = json.dumps(issuer.claims(exp="HERE")).replace('"HERE"', text)
    assert await refused(issuer.token(claims.encode())) == "payload is no JSON"


async def test_a_time_may_have_a_fraction(
    issuer: Issuer, verifier: TokenVerifier, clock: ManualClock
) -> None:
    exp = clock.now().timestamp() + 0.5
    assert (
        await verifier.verify(issuer.token(issuer.claims(exp=exp)))
    ).expires_at.timestamp() == exp


@pytest.mark.parametrize("name", ["sub", "organization", "role", "kind"])
@pytest.mark.parametrize(
    "value",
    ["a\x00b", "a\nb", "\u202e", "x" * 256, 7, ["admin"], {"a": 1}, True],
    ids=lambda value: ascii(value)[:9],
)
async def test_a_claim_that_is_no_clean_text_is_refused(
    issuer: Issuer, refused: Refused, name: str, value: Any
) -> None:
    assert (
        await refused(issuer.token(issuer.claims(**{name: value})))
        == f"{name} is no acceptable text"
    )


@pytest.mark.parametrize("scope", [7, {"intent:read": 1}, ["intent:read", 7], True])
async def test_scopes_of_another_form_are_refused(
    issuer: Issuer, refused: Refused, scope: Any
) -> None:
    assert "scope is neither" in await refused(
        issuer.token(issuer.claims(kind="service", scope=scope))
    )


@pytest.mark.parametrize(
    "mark", [{"nonce": "n"}, {"at_hash": "h"}, {"typ": "ID"}, {"token_use": "id"}, {"events": {}}]
)
async def test_an_id_token_is_no_access_token(
    issuer: Issuer, refused: Refused, mark: dict[str, Any]
) -> None:
    assert await refused(issuer.token(issuer.claims(**mark))) == "an id token"
    assert await refused(issuer.token(issuer.claims(**mark), typ=None)) == "an id token"


async def test_an_id_token_for_a_client_has_another_audience(
    issuer: Issuer, refused: Refused
) -> None:
    assert (
        await refused(issuer.token(issuer.claims(aud="web-client", azp="trading-intents")))
        == "another audience"
    )


@pytest.mark.parametrize(
    "typ", ["id_token", "id+jwt", "logout+jwt", "dpop+jwt", "secevent+jwt", 1, ["JWT"]]
)
async def test_a_token_of_another_type_is_refused(
    issuer: Issuer, refused: Refused, typ: Any
) -> None:
    assert await refused(issuer.token(typ=typ)) == "not the type of an access token"


# Tokens that are none


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"1", b"null", b"{", b'{"sub": "\xff"}', b"[" * 3000, b'{"a":' * 900]
)
async def test_a_payload_that_is_no_object_is_refused(
    issuer: Issuer, refused: Refused, payload: bytes
) -> None:
    assert "payload is no" in await refused(issuer.token(payload))


async def test_a_token_over_the_size_limit_is_refused_before_it_is_read(
    issuer: Issuer, refused: Refused
) -> None:
    assert "too long" in await refused(
        issuer.token(issuer.claims(padding="x" * MAX_TOKEN_CHARACTERS))
    )
    assert "too long" in await refused("x" * 10_000_000)
    assert issuer.fetches == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token + " ",
        lambda token: " " + token,
        lambda token: token + "\n",
        lambda token: token + ".",
        lambda token: token[:-2],
        lambda token: token.rpartition(".")[0],
        lambda token: token.rpartition(".")[0] + ".",
        lambda token: token.replace(".", "..", 1),
        lambda token: token + "\u00e9",
        lambda token: token + "\ud800",
        lambda token: "Bearer " + token,
        lambda token: "",
        lambda token: "..",
        lambda token: "a.b.c",
        lambda token: "W10.e30.AA",
    ],
)
async def test_a_damaged_token_is_refused(
    issuer: Issuer, refused: Refused, change: Callable[[str], str]
) -> None:
    await refused(change(issuer.token()))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("added", ["=", "==", "====", "=A", "+", "/", "~", "\n", " "])
async def test_a_token_has_no_other_spelling(
    issuer: Issuer, refused: Refused, keys: dict[str, SigningKey], algorithm: str, added: str
) -> None:
    """Decoders of base64 skip what is no base64, so that each of these verified."""
    head, payload, signature = issuer.token(key=keys[algorithm]).split(".")
    for token in (f"{head}.{payload}.{signature}{added}", f"{head}.{payload}.{added}{signature}"):
        assert await refused(token) == "too long, or not a token"
    assert issuer.fetches == 0


async def test_claims_changed_after_signing_are_refused(issuer: Issuer, refused: Refused) -> None:
    head, _, signature = issuer.token().split(".")
    for changed in (issuer.claims(role="member"), issuer.claims(sub="eve")):
        payload = base64.urlsafe_b64encode(json.dumps(changed).encode()).rstrip(b"=").decode()
        assert await refused(f"{head}.{payload}.{signature}") == BAD_SIGNATURE


async def test_a_refusal_logs_its_cause_and_nothing_of_the_token(
    issuer: Issuer, refused: Refused, logged: io.StringIO
) -> None:
    token = issuer.token(issuer.claims(sub="marked-subject", exp=1))
    assert await refused(token) == "expired"
    assert "marked-subject" not in logged.getvalue()
    assert not any(part in logged.getvalue() for part in token.split("."))
