"""Changes to keys, roles, scopes, organizations and entitlements hold within one second on every
process."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import Urls
from tests.platform import Platform, serving
from tests.tenants import PLENTY, Headers, Tenants
from tests.waiting import eventually

WITHIN_SECONDS = 1.0

pytestmark = pytest.mark.deadline


@pytest.fixture(scope="module")
def second(tenants: Tenants, tenants_database: Urls) -> Iterator[Platform]:
    """Another process on the same database and data folder."""
    data_dir = Path(tenants.platform.environ["TRADING_INTENTS_DATA_DIR"])
    urls = {
        "DATABASE_URL": tenants_database.login.reveal(),
        "DATABASE_OWNER_URL": tenants_database.owner.reveal(),
    }
    with serving(data_dir, **urls, **PLENTY, ROLES="api") as platform:
        yield platform


def status(
    client: httpx.Client,
    headers: Headers,
    path: str = "/v1/organizations/by-provider/local/org_acme",
) -> int:
    return client.get(path, headers=headers).status_code


def within_a_second(condition: Callable[[], bool]) -> None:
    """Asks all the time, so that every process has cached the key when the change comes."""
    eventually(condition, WITHIN_SECONDS)


def detail(client: httpx.Client, headers: Headers) -> str:
    """The refusal of a key at an endpoint for users: for its kind while the key is valid, else for
    the key itself."""
    text: str = client.get("/v1/api-keys", headers=headers).json()["detail"]
    return text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["disable", "delete", "organization"])
def test_a_key_is_refused_by_every_process(tenants: Tenants, second: Platform, how: str) -> None:
    tenant = f"org_{how}"
    document = {"external_id": tenant, "users": [{"external_id": f"{how}-admin", "role": "admin"}]}
    made = tenants.platform.provision(
        {
            "organizations": [
                document
                | {"api_keys": [{"name": "bot", "environment": "paper", "permissions": []}]}
            ]
        }
    )["organizations"][0]["api_keys"][0]
    admin = {"authorization": f"Bearer {tenants.platform.token(f'{how}-admin', tenant)}"}
    key = {"x-api-key": made["api_key"]}
    clients = (tenants.client, second.client)
    assert [detail(c, key) for c in clients] == [
        "this endpoint does not take this kind of credential; it takes an admin"
    ] * 2
    url = f"/v1/api-keys/{made['id']}"
    if how == "disable":
        assert tenants.client.patch(url, json={"disabled": True}, headers=admin).status_code == 200
    elif how == "delete":
        assert tenants.client.delete(url, headers=admin).status_code == 204
    else:
        tenants.platform.provision({"organizations": [{"external_id": tenant, "disabled": True}]})
    changed_at = time.monotonic()
    if how != "organization":
        assert detail(tenants.client, key) == "the API key does not verify", (
            "the process that changed it knows at once"
        )
    for client in clients:
        within_a_second(lambda client=client: detail(client, key) == "the API key does not verify")  # type: ignore[misc]  # bound now
    assert time.monotonic() - changed_at < WITHIN_SECONDS + 0.5


def test_a_role_is_the_databases_not_the_tokens(tenants: Tenants, second: Platform) -> None:
    def set_role(role: str) -> None:
        users = [{"external_id": "changing", "role": role}]
        tenants.platform.provision({"organizations": [{"external_id": "org_acme", "users": users}]})

    set_role("admin")
    headers = {"authorization": f"Bearer {tenants.platform.token('changing', 'org_acme')}"}
    assert [status(c, headers, "/v1/api-keys") for c in (tenants.client, second.client)] == [
        200,
        200,
    ]
    set_role("member")
    for client in (tenants.client, second.client):
        within_a_second(lambda client=client: status(client, headers, "/v1/api-keys") == 403)  # type: ignore[misc]  # bound now


def test_a_disabled_service_account_is_refused(tenants: Tenants, second: Platform) -> None:
    document = {"service_accounts": [{"client_id": "leaver", "scopes": ["intent:read"]}]}
    made = tenants.platform.provision(document)["service_accounts"][0]
    grant = {"grant_type": "client_credentials"}
    auth = ("leaver", made["client_secret"])
    token = tenants.client.post("/oauth/token", data=grant, auth=auth).json()["access_token"]
    headers = {"authorization": f"Bearer {token}"}
    assert [status(c, headers) for c in (tenants.client, second.client)] == [200, 200]
    tenants.platform.provision({"service_accounts": [{"client_id": "leaver", "disabled": True}]})
    for client in (tenants.client, second.client):
        within_a_second(lambda client=client: status(client, headers) == 401)  # type: ignore[misc]  # bound now
    assert tenants.client.post("/oauth/token", data=grant, auth=auth).status_code == 401
