"""The embedded provider: its key file, its tokens, its documents, and who accepts them."""

import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.fakes import ManualClock
from tests.identity.issuer import SigningKey, encode, p256_key
from trading_intents.config import Settings
from trading_intents.errors import StartupRefused, Unauthorized
from trading_intents.identity.model import Scope
from trading_intents.identity.provider import (
    ISSUER_FILE,
    KEY_FILE,
    TOKEN_SECONDS,
    EmbeddedProvider,
    Issuer,
    load_issuer,
)
from trading_intents.identity.tokens import LEEWAY_SECONDS, read_key, read_key_set
from trading_intents.ids import id_maker
from trading_intents.telemetry import Log

PROCESSES = 16


def load(folder: Path, **settings: Any) -> Issuer:
    return load_issuer(Settings(data_dir=folder, **settings))


def make_provider(folder: Path, clock: ManualClock, **changes: Any) -> EmbeddedProvider:
    settings = Settings(data_dir=folder, **changes)
    return EmbeddedProvider(settings, load_issuer(settings), clock, id_maker(clock))


@pytest.fixture
def key(tmp_path: Path) -> Ed25519PrivateKey:
    return load(tmp_path).key


@pytest.fixture
def provider(tmp_path: Path, clock: ManualClock) -> EmbeddedProvider:
    return make_provider(tmp_path, clock)


# The key file


def test_the_key_is_made_once_and_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    assert load(folder).key.private_bytes_raw() == load(folder).key.private_bytes_raw()
    assert set(os.listdir(folder)) == {KEY_FILE, ISSUER_FILE}


def test_only_its_owner_may_read_the_key(tmp_path: Path) -> None:
    load(tmp_path)
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


def test_processes_that_start_together_agree_on_one_key_and_name(tmp_path: Path) -> None:
    start = Barrier(PROCESSES)

    def start_one(number: int) -> tuple[str, bytes]:
        start.wait()
        issuer = load(tmp_path, http_port=9000 + number)
        return issuer.name, issuer.key.private_bytes_raw()

    with ThreadPoolExecutor(PROCESSES) as pool:
        assert len(set(pool.map(start_one, range(PROCESSES)))) == 1
    assert set(os.listdir(tmp_path)) == {KEY_FILE, ISSUER_FILE}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_key_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    load(tmp_path)
    (tmp_path / KEY_FILE).chmod(mode)
    with pytest.raises(StartupRefused, match="chmod 600"):
        load(tmp_path)


OTHER_KIND = p256_key().private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", OTHER_KIND], ids=["empty", "nonsense", "another kind"]
)
def test_a_file_that_is_no_such_key_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / KEY_FILE
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(StartupRefused, match=KEY_FILE):
        load(tmp_path)
    assert path.read_bytes() == content


def test_a_data_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupRefused):
        load(tmp_path / "file")


# Tokens


async def test_a_user_token_says_who_and_for_which_organization(
    provider: EmbeddedProvider, clock: ManualClock, log: Log
) -> None:
    claims = await provider.verifier(log).verify(
        provider.issue_user_token("ada", "org_acme", "admin").reveal()
    )
    assert (claims.is_service, claims.subject) == (False, "ada")
    assert (claims.organization, claims.role) == ("org_acme", "admin")
    assert (claims.expires_at - clock.now()).total_seconds() == TOKEN_SECONDS == 15 * 60


async def test_a_user_token_may_name_no_organization(provider: EmbeddedProvider, log: Log) -> None:
    claims = await provider.verifier(log).verify(
        provider.issue_user_token("ada", None, None).reveal()
    )
    assert (claims.organization, claims.role, claims.scopes) == (None, None, frozenset())


@pytest.mark.parametrize("scopes", [set(), {Scope.INTENT_READ}, set(Scope)], ids=len)
async def test_a_service_token_carries_its_scopes(
    provider: EmbeddedProvider, log: Log, scopes: set[Scope]
) -> None:
    claims = await provider.verifier(log).verify(
        provider.issue_service_token("reporter", scopes).reveal()
    )
    assert (claims.is_service, claims.subject, set(claims.scopes)) == (True, "reporter", scopes)


def test_a_token_is_an_access_token_as_rfc_9068_has_it(provider: EmbeddedProvider) -> None:
    tokens = [
        provider.issue_service_token("reporter", [Scope.INTENT_READ]).reveal() for _ in range(2)
    ]
    header = jwt.get_unverified_header(tokens[0])
    assert header == {"alg": "EdDSA", "typ": "at+jwt", "kid": provider.jwks()["keys"][0]["kid"]}
    one, other = (jwt.decode(token, options={"verify_signature": False}) for token in tokens)
    assert {"iss", "exp", "aud", "sub", "client_id", "iat", "jti"} <= one.keys()
    assert one["jti"] != other["jti"]


def test_a_made_token_is_not_shown_by_accident(provider: EmbeddedProvider) -> None:
    assert "ey" not in f"{provider.issue_user_token('ada', None, None)}"


async def test_a_token_expires(provider: EmbeddedProvider, clock: ManualClock, log: Log) -> None:
    token = provider.issue_user_token("ada", None, None).reveal()
    clock.advance(TOKEN_SECONDS + LEEWAY_SECONDS)
    with pytest.raises(Unauthorized):
        await provider.verifier(log).verify(token)


@pytest.mark.parametrize("typ", ["JWT", "id_token", ""])
async def test_only_the_type_that_we_issue_is_taken(
    provider: EmbeddedProvider, key: Ed25519PrivateKey, log: Log, typ: str
) -> None:
    token = provider.issue_user_token("ada", None, None).reveal()
    claims = jwt.decode(token, options={"verify_signature": False})
    kid = provider.jwks()["keys"][0]["kid"]
    signed: dict[str, str] = {
        name: encode(
            {"alg": "EdDSA", "kid": kid, "typ": name}, claims, SigningKey(kid, "EdDSA", key).sign
        )
        for name in (typ, "at+jwt")
    }
    await provider.verifier(log).verify(signed["at+jwt"])
    with pytest.raises(Unauthorized):
        await provider.verifier(log).verify(signed[typ])


async def test_another_folders_key_is_refused(
    provider: EmbeddedProvider, clock: ManualClock, log: Log, tmp_path: Path
) -> None:
    stranger = make_provider(tmp_path / "other", clock)
    with pytest.raises(Unauthorized):
        await provider.verifier(log).verify(stranger.issue_user_token("ada", None, None).reveal())


async def test_a_token_of_another_audience_is_refused(
    provider: EmbeddedProvider, tmp_path: Path, clock: ManualClock, log: Log
) -> None:
    other = make_provider(tmp_path, clock, identity_audience="staging")
    with pytest.raises(Unauthorized):
        await provider.verifier(log).verify(other.issue_user_token("ada", None, None).reveal())


# The issuer


async def test_processes_on_other_ports_that_share_the_folder_take_each_others_tokens(
    provider: EmbeddedProvider, tmp_path: Path, clock: ManualClock, log: Log
) -> None:
    neighbour = make_provider(tmp_path, clock, http_port=9090)
    for one, other in ((provider, neighbour), (neighbour, provider)):
        await one.verifier(log).verify(other.issue_user_token("ada", None, None).reveal())


async def test_a_token_of_another_issuer_is_refused_though_the_key_is_the_same(
    provider: EmbeddedProvider, tmp_path: Path, clock: ManualClock, log: Log
) -> None:
    """Somebody copied the key to another platform with the same audience."""
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    shutil.copy(tmp_path / KEY_FILE, other_folder)
    other = make_provider(other_folder, clock, http_port=9090)
    for one, stranger in ((provider, other), (other, provider)):
        with pytest.raises(Unauthorized):
            await one.verifier(log).verify(stranger.issue_user_token("ada", None, None).reveal())


async def test_an_issuer_that_is_set_is_required(
    tmp_path: Path, clock: ManualClock, log: Log
) -> None:
    named = make_provider(tmp_path, clock, identity_issuer="https://trading.example")
    other = make_provider(tmp_path, clock)
    await named.verifier(log).verify(named.issue_user_token("ada", None, None).reveal())
    with pytest.raises(Unauthorized):
        await named.verifier(log).verify(other.issue_user_token("ada", None, None).reveal())


@pytest.mark.parametrize(
    ("settings", "issuer"),
    [
        ({}, "http://127.0.0.1:8080"),
        ({"http_host": "::1", "http_port": 80}, "http://[::1]:80"),
        ({"identity_issuer": "https://trading.example"}, "https://trading.example"),
    ],
)
def test_the_issuer_is_the_setting_or_the_first_address(
    tmp_path: Path, clock: ManualClock, settings: dict[str, Any], issuer: str
) -> None:
    assert make_provider(tmp_path, clock, **settings).issuer == issuer


@pytest.mark.parametrize("content", [b"", b"a\0b", b"\xff", b"x" * 300])
def test_a_file_that_is_no_issuers_name_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ISSUER_FILE).write_bytes(content)
    with pytest.raises(StartupRefused, match=ISSUER_FILE):
        load(tmp_path)


# Documents


def test_the_key_set_holds_one_public_key_that_others_can_use(provider: EmbeddedProvider) -> None:
    jwks = provider.jwks()
    (jwk,) = jwks["keys"]
    assert set(jwk) == {"kty", "crv", "x", "kid", "alg", "use"}
    assert read_key(jwk) is not None
    assert set(read_key_set(json.dumps(jwks).encode())) == {jwk["kid"]}


def test_the_kid_is_the_thumbprint_of_rfc_8037(clock: ManualClock) -> None:
    # The key and the thumbprint of RFC 8037, appendix A.
    raw = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    issuer = Issuer("http://here", Ed25519PrivateKey.from_private_bytes(raw))
    provider = EmbeddedProvider(Settings(), issuer, clock, id_maker(clock))
    assert provider.jwks()["keys"][0]["kid"] == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_discovery_points_to_where_the_caller_reached_us(provider: EmbeddedProvider) -> None:
    document: dict[str, Any] = provider.discovery()
    assert document["issuer"] == "http://127.0.0.1:8080"
    assert document["token_endpoint"] == "http://127.0.0.1:8080/oauth/token"
    assert document["jwks_uri"] == "http://127.0.0.1:8080/.well-known/jwks.json"
    assert document["grant_types_supported"] == ["client_credentials"]
    assert document["scopes_supported"] == [str(scope) for scope in Scope]
    json.dumps(document)


async def test_settings_for_external_claims_do_not_change_the_embedded_tokens(
    tmp_path: Path, clock: ManualClock, log: Log
) -> None:
    provider = make_provider(tmp_path, clock, identity_claim_role="sub", identity_claim_kind="role")
    claims = await provider.verifier(log).verify(
        provider.issue_user_token("ada", "org_acme", "service").reveal()
    )
    assert (claims.is_service, claims.role) == (False, "service")
