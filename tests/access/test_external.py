"""An external issuer by configuration, through the same verifier: a loopback one with its own
keys."""

import base64
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.access.oidc_provider import running_provider
from tests.conftest import Databases, Urls
from tests.identity.issuer import Issuer, encode, p256_key
from tests.platform import Platform, serving
from tests.raw_http import RawHttp
from tests.tenants import PLENTY, Headers
from tests.waiting import eventually
from trading_intents.clock import SystemClock

URL = "/v1/organizations/by-provider/acme-id"
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer(SystemClock(), p256_key()) as issuer:
        yield issuer


@pytest.fixture(scope="module")
def platform(
    issuer: Issuer, databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    settings = PLENTY | {
        "IDENTITY_PROVIDER_NAME": "acme-id",
        "IDENTITY_ISSUER": issuer.url,
        "IDENTITY_JWKS_URL": issuer.jwks_url,
        "IDENTITY_CLAIM_ORGANIZATION": "https://acme.example/org",
        "IDENTITY_CLAIM_ROLE": "acme.role",
    }
    with databases() as urls:
        settings |= {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
        with serving(tmp_path_factory.mktemp("external"), **settings, ROLES="api") as platform:
            platform.provision({"organizations": [{"external_id": "o1"}, {"external_id": "o2"}]})
            yield platform


def bearer(issuer: Issuer, **claims: Any) -> Headers:
    return {"authorization": f"Bearer {issuer.token(issuer.claims(**claims))}"}


def user(issuer: Issuer, role: str | None = "admin", organization: str | None = "o1") -> Headers:
    answered = {
        "https://acme.example/org": organization,
        "acme": {"role": role},
        "organization": None,
        "role": None,
    }
    return bearer(issuer, **answered)


def test_users_and_service_accounts_of_an_external_issuer(
    platform: Platform, issuer: Issuer
) -> None:
    client = platform.client

    def status(path: str, headers: Headers) -> int:
        return client.get(path, headers=headers).status_code

    assert status("/v1/api-keys", user(issuer)) == 200
    assert status("/v1/api-keys", user(issuer, "member")) == 403
    assert status("/v1/api-keys", user(issuer, "emperor")) == 403
    assert status("/v1/api-keys", user(issuer, None)) == 403
    assert status("/v1/api-keys", user(issuer, organization="unknown")) == 401
    assert status("/v1/api-keys", user(issuer, organization=None)) == 401
    health = "/v1/accounts/outbox/health"
    assert status(health, user(issuer, organization="unknown")) == 403
    assert status(health, user(issuer, organization=None)) == 401
    assert status(f"{URL}/o1", user(issuer)) == 200
    assert status(f"{URL}/o2", user(issuer)) == 404
    service = bearer(issuer, kind="service", scope="intent:read", organization=None, role=None)
    assert status(f"{URL}/o2", service) == 200
    assert status("/v1/organizations/by-provider/local/o2", service) == 404


def test_a_session_key_ends_with_its_token_and_live_takes_a_young_one(
    platform: Platform, issuer: Issuer
) -> None:
    now = int(SystemClock().now().timestamp())
    answered = {
        "https://acme.example/org": "o1",
        "acme": {"role": "admin"},
        "organization": None,
        "role": None,
    }

    def open_session(environment: str, **claims: Any) -> Any:
        body = {"environment": environment}
        return platform.client.post(
            "/v1/api-keys/session", json=body, headers=bearer(issuer, **answered | claims)
        )

    def seconds(made: Any) -> float:
        return datetime.fromisoformat(made.json()["expires_at"]).timestamp() - now

    assert seconds(open_session("paper", exp=now + 600)) == 600
    assert 12 * 3600 <= seconds(open_session("paper", exp=now + 24 * 3600)) < 12 * 3600 + 60
    assert open_session("live", iat=now - 500).status_code == 201
    for claims in ({"iat": now - 700}, {"iat": None}):
        refused = open_session("live", **claims)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert open_session("paper", **claims).status_code == 201
    assert open_session("paper", acme={"role": "member"}).status_code == 403
    platform.provision({"organizations": [{"external_id": "o1", "member_trading": True}]})
    eventually(lambda: open_session("paper", acme={"role": "member"}).status_code == 201, 5)


def test_sign_out_by_the_other_signature_of_a_token_ends_its_session_key(
    platform: Platform, issuer: Issuer
) -> None:
    """A signature (r, s) of ES256 can be written as (r, n - s), which verifies too."""
    first = user(issuer)
    signed, _, signature = first["authorization"].rpartition(".")
    decoded = base64.urlsafe_b64decode(signature + "==")
    other = P256_ORDER - int.from_bytes(decoded[32:])
    rewritten = base64.urlsafe_b64encode(decoded[:32] + other.to_bytes(32)).rstrip(b"=")
    second = {"authorization": f"{signed}.{rewritten.decode()}"}
    url = "/v1/api-keys/session"
    made = platform.client.post(url, json={"environment": "paper"}, headers=second)
    key = {"x-api-key": made.json()["api_key"]}
    assert platform.client.get("/v1/caller", headers=key).status_code == 200
    assert platform.client.delete(url, headers=first).status_code == 204
    eventually(lambda: platform.client.get("/v1/caller", headers=key).status_code == 401, 5)


def test_the_embedded_provider_is_not_there(platform: Platform) -> None:
    assert platform.client.post("/oauth/token").status_code == 404
    assert platform.client.get("/.well-known/jwks.json").status_code == 404
    assert platform.run("token", "--user", "ada").returncode == 1


@pytest.mark.parametrize("kids", [300, pytest.param(3_000, marks=pytest.mark.chaos)])
def test_hundreds_of_unknown_kids_cause_two_fetches_at_most(
    platform: Platform, issuer: Issuer, kids: int
) -> None:
    before = issuer.fetches
    header = {"alg": "ES256", "typ": "JWT"}
    claims = issuer.claims()
    with RawHttp(platform.url) as line:
        for n in range(kids):
            token = encode(
                header | {"kid": f"../../{n}?url=http://127.0.0.1/x'--"},
                claims,
                issuer.keys[0].sign,
            )
            assert line.get("/v1/api-keys", {"authorization": f"Bearer {token}"}).status_code == 401
    assert issuer.fetches - before <= 2
    assert set(issuer.paths) == {"/jwks"}


@pytest.mark.slow
def test_the_openid_provider_of_npm_is_understood(urls: Urls, tmp_path: Any) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs Node.js and npm: apt-get install nodejs npm")
    found = subprocess.run(
        ["npm", "ls", "-g", "--parseable", "oidc-provider"], capture_output=True, text=True
    )
    if not found.stdout.strip():
        pytest.skip("needs oidc-provider: npm install -g oidc-provider")
    folder = found.stdout.strip().splitlines()[0]
    with running_provider(folder, tmp_path) as provider:
        settings = {
            "DATABASE_URL": urls.login.reveal(),
            "DATABASE_OWNER_URL": urls.owner.reveal(),
            "IDENTITY_PROVIDER_NAME": "acme-id",
            "IDENTITY_ISSUER": provider.issuer,
            "IDENTITY_JWKS_URL": f"{provider.issuer}/jwks",
            "IDENTITY_CLAIM_SCOPES": "scope",
        }
        with serving(tmp_path / "data", **settings) as platform:
            platform.provision({"organizations": [{"external_id": "o1"}]})
            headers = {"authorization": f"Bearer {provider.client_token()}"}
            assert platform.client.get(f"{URL}/o1", headers=headers).status_code == 200
