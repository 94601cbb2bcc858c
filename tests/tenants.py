"""One platform with two tenants, an internal organization, and every kind of caller."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Databases, Urls
from tests.platform import Platform, run_apart, serving
from trading_intents.app import open_infrastructure
from trading_intents.config import load
from trading_intents.identity.model import Entitlement, Permission, Scope
from trading_intents.identity.provider import TOKEN_SECONDS
from trading_intents.provision import user_token
from trading_intents.telemetry import make_log

Headers = dict[str, str]
RENEW_SECONDS = TOKEN_SECONDS / 3
EVERY_PERMISSION = list(Permission)
EVERY_SCOPE = list(Scope)
KINDS = ("SUBMITS", "CANCELS", "WRITES", "READS")
LIMITS = (*KINDS, "FAILURES", *(f"ORGANIZATION_{kind}" for kind in KINDS))
SHARED_PLATFORMS = {"working_tenants", "platform"}  # the latter is that of tests/started_dirs.py
PLENTY = {f"RATE_LIMIT_{limit}": "100000/100000" for limit in LIMITS}


def key(
    name: str, environment: str = "paper", permissions: list[Permission] | None = None
) -> dict[str, Any]:
    return {"name": name, "environment": environment, "permissions": permissions or []}


DOCUMENT: dict[str, Any] = {
    "organizations": [
        {
            "external_id": "org_acme",
            "name": "Acme",
            "entitlements": list(Entitlement),
            "users": [
                {"external_id": f"acme-{role}", "role": role}
                for role in ("admin", "member", "read_only")
            ],
            "api_keys": [
                key("all", "paper", EVERY_PERMISSION),
                key("live", "live", EVERY_PERMISSION),
                key("none"),
                key("disabled", "paper", EVERY_PERMISSION) | {"disabled": True},
            ],
        },
        {
            "external_id": "org_other",
            "name": "Other",
            "users": [{"external_id": "other-admin", "role": "admin"}],
            "api_keys": [key("all", "paper", EVERY_PERMISSION)],
        },
        {
            "external_id": "org_closed",
            "disabled": True,
            "users": [{"external_id": "closed-admin", "role": "admin"}],
            "api_keys": [key("all", "paper", EVERY_PERMISSION)],
        },
        {
            "external_id": "org_internal",
            "entitlements": ["controls_premium"],
            "users": [{"external_id": "internal-admin", "role": "admin"}],
        },
    ],
    "service_accounts": [
        {"client_id": "reader", "scopes": EVERY_SCOPE},
        {"client_id": "nobody", "scopes": []},
    ],
}


USERS: tuple[tuple[str, str | None], ...] = (
    ("acme-admin", "org_acme"),
    ("acme-member", "org_acme"),
    ("acme-read_only", "org_acme"),
    ("acme-admin", None),
    ("closed-admin", "org_closed"),
    ("internal-admin", "org_internal"),
    ("other-admin", "org_other"),
)


@dataclass
class Tenants:
    platform: Platform
    answer: dict[str, Any]
    callers: dict[str, Headers] = field(default_factory=dict)
    _sign_ins: list[Callable[[], dict[str, Headers]]] = field(default_factory=list)
    _signed_in_at: float = field(default_factory=time.monotonic)

    def sign_in(self, callers: Callable[[], dict[str, Headers]]) -> None:
        """Adds callers whose tokens are renewed while the session lasts."""
        self._sign_ins.append(callers)
        self.callers |= callers()

    def renew(self) -> None:
        if time.monotonic() - self._signed_in_at > RENEW_SECONDS:
            self._signed_in_at = time.monotonic()
            for callers in self._sign_ins:
                self.callers |= callers()

    @property
    def client(self) -> Any:
        return self.platform.client

    def organization(self, external_id: str) -> dict[str, Any]:
        found: dict[str, Any] = next(
            o for o in self.answer["organizations"] if o["external_id"] == external_id
        )
        return found

    def api_key(self, external_id: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(
            k for k in self.organization(external_id)["api_keys"] if k["name"] == name
        )
        return found

    def service_token(self, client_id: str) -> str:
        account = next(a for a in self.answer["service_accounts"] if a["client_id"] == client_id)
        answer = self.client.post(
            "/oauth/token",
            data={"grant_type": "client_credentials"},
            auth=(client_id, account["client_secret"]),
        )
        assert answer.status_code == 200, answer.text
        token: str = answer.json()["access_token"]
        return token


@contextmanager
def made_tenants(urls: Urls, folder: Path, **changes: str) -> Iterator[Tenants]:
    settings = PLENTY | {
        "DATABASE_URL": urls.login.reveal(),
        "DATABASE_OWNER_URL": urls.owner.reveal(),
        "INTERNAL_ORGANIZATIONS": "org_internal",
    }
    with serving(folder, **settings | changes) as platform:
        made = Tenants(platform, platform.provision(DOCUMENT))
        made.sign_in(lambda: _callers(made))
        yield made


@pytest.fixture(scope="session")
def working_database(databases: Databases) -> Iterator[Urls]:
    with databases() as urls:
        yield urls


@pytest.fixture(scope="session")
def working_tenants(
    working_database: Urls, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tenants]:
    with made_tenants(working_database, tmp_path_factory.mktemp("tenants")) as made:
        yield made


@pytest.fixture(scope="session")
def tenants_database(working_database: Urls) -> Urls:
    return working_database


@pytest.fixture(scope="session")
def tenants(working_tenants: Tenants) -> Tenants:
    """On a platform that executes orders. A folder that needs no worker has its own."""
    return working_tenants


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that share a platform with a worker come last: it lives until all tests are done, and
    even idle takes of the processor, the more the more accounts tests have made."""
    last = {
        item.path
        for item in items
        if not SHARED_PLATFORMS.isdisjoint(getattr(item, "fixturenames", ()))
    }
    items.sort(key=lambda item: item.path in last)


@pytest.fixture(autouse=True)
def renewed_tokens(request: pytest.FixtureRequest) -> None:
    """The whole suite may take longer than a token holds."""
    if "tenants" in request.fixturenames:
        request.getfixturevalue("tenants").renew()


async def _user_tokens(tenants: Tenants) -> list[str]:
    """As `trading-intents token` prints them, but all of them at one go."""
    async with open_infrastructure(load(tenants.platform.environ), make_log("warning")) as parts:
        return [
            (await user_token(parts, user, organization)).reveal() for user, organization in USERS
        ]


def _callers(tenants: Tenants) -> dict[str, Headers]:
    def with_key(organization: str, name: str) -> Headers:
        return {"x-api-key": tenants.api_key(organization, name)["api_key"]}

    def bearer(token: str) -> Headers:
        return {"authorization": f"Bearer {token}"}

    acme = {"x-organization-id": tenants.organization("org_acme")["id"]}
    reader = bearer(tenants.service_token("reader"))
    admin, member, read_only, no_org, closed, internal, other = map(
        bearer, run_apart(_user_tokens(tenants))
    )
    return {
        "none": {},
        "both": with_key("org_acme", "all") | admin,
        "key_all": with_key("org_acme", "all"),
        "key_live": with_key("org_acme", "live"),
        "key_none": with_key("org_acme", "none"),
        "key_disabled": with_key("org_acme", "disabled"),
        "key_closed": with_key("org_closed", "all"),
        "admin": admin,
        "member": member,
        "read_only": read_only,
        "no_org": no_org,
        "closed_admin": closed,
        "internal_admin": internal,
        "service_all": reader | acme,
        "service_none": bearer(tenants.service_token("nobody")) | acme,
        "service_unnamed": reader,
        "other_key": with_key("org_other", "all"),
        "other_admin": other,
    }
