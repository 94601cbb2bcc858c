"""GET /v1/organizations/by-provider: service accounts read any, users their own, nobody learns of
others."""

import httpx
import pytest

from tests.answer_patterns import STAMP
from tests.tenants import Tenants

URL = "/v1/organizations/by-provider"


def test_a_service_account_reads_any_organization(tenants: Tenants) -> None:
    for external_id in ("org_acme", "org_other", "org_closed"):
        answer = tenants.client.get(
            f"{URL}/local/{external_id}", headers=tenants.callers["service_unnamed"]
        )
        shown = answer.json()
        made = tenants.organization(external_id)
        assert answer.status_code == 200
        assert STAMP.fullmatch(shown.pop("created_at"))
        assert shown == {
            "id": made["id"],
            "external_id": external_id,
            "name": made["name"],
            "provider": "local",
            "disabled": external_id == "org_closed",
        }


@pytest.mark.parametrize("caller", ["admin", "member", "read_only", "no_org"])
def test_a_user_reads_what_they_belong_to_and_nothing_else(tenants: Tenants, caller: str) -> None:
    headers = tenants.callers[caller]
    assert tenants.client.get(f"{URL}/local/org_acme", headers=headers).status_code == 200
    other = tenants.client.get(f"{URL}/local/org_other", headers=headers)
    unknown = tenants.client.get(f"{URL}/local/org_unknown", headers=headers)
    assert other.status_code == unknown.status_code == 404
    assert other.json() | {"request_id": ""} == unknown.json() | {"request_id": ""}


@pytest.mark.parametrize(
    "path", ["auth0/org_acme", "LOCAL/org_acme", "local/ORG_ACME", "local/%00", "local/'; --"]
)
def test_another_provider_or_spelling_is_not_found(tenants: Tenants, path: str) -> None:
    assert (
        tenants.client.get(f"{URL}/{path}", headers=tenants.callers["service_all"]).status_code
        == 404
    )


def test_a_service_account_may_read_an_organization_whose_id_has_a_slash(tenants: Tenants) -> None:
    tenants.platform.provision({"organizations": [{"external_id": "a/b c"}]})
    answer = tenants.client.get(f"{URL}/local/a%2Fb%20c", headers=tenants.callers["service_all"])
    assert (answer.status_code, answer.json()["name"]) == (200, "a/b c")


@pytest.mark.parametrize(
    ("named", "status"),
    [("nonsense", 400), ("018f0000-0000-7000-8000-000000000000", 404), ("", 400)],
)
def test_the_organization_a_service_account_names_must_be_an_id(
    tenants: Tenants, named: str, status: int
) -> None:
    headers = tenants.callers["service_unnamed"] | {"x-organization-id": named}
    answer = tenants.client.get("/v1/accounts", headers=headers)
    assert answer.status_code == status
    assert "ratelimit" in answer.headers, "it counts in the limits of its own"


def test_the_organization_header_of_anyone_else_is_ignored(tenants: Tenants) -> None:
    (admin,) = tenants.callers["admin"].items()
    for named in (tenants.organization("org_other")["id"], "nonsense", ""):
        headers = [admin, ("x-organization-id", named), ("x-organization-id", named)]
        shown = httpx.get(f"{tenants.platform.url}/v1/api-keys", headers=headers).json()["data"]
        assert {k["organization_id"] for k in shown} == {tenants.organization("org_acme")["id"]}
