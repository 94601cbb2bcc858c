"""Every caller at every endpoint, against a table written by hand from the contract; in two orders,
one in chaos."""

import random
import uuid
from typing import Any

import pytest

from tests.tenants import EVERY_PERMISSION, EVERY_SCOPE, Tenants
from trading_intents.identity.access import RULES
from trading_intents.identity.model import Permission, Scope

# What each caller gets at an endpoint of each policy: a status, or ok for "let through" (then 2xx, 404, 409 or 422).
# fmt: off
CALLERS = (                     "none", "both", "key_all", "key_live", "key_none", "key_disabled", "key_closed", "admin", "member", "read_only", "no_org", "closed_admin", "internal_admin", "service_all", "service_none", "service_unnamed")  # noqa: E501 - a table
EXPECTED = {
    "outbox_health":              "401 401 401 401 401 401 401 403 403 403 401 401  ok  ok 403  ok",
    "submit_intent":              "401 400  ok  ok 403 401 401 401 401 401 401 401 401 401 401 401",
    "read_intents":               "401 400  ok  ok 403 401 401  ok  ok  ok 401 401  ok  ok 403 400",
    "write_controls":             "401 400  ok  ok 403 401 401  ok 403 403 401 401  ok 403 403 403",
    "write_organization_control": "401 400 401 401 401 401 401  ok 403 403 401 401  ok 401 401 401",
    "read_controls":              "401 400  ok  ok 403 401 401  ok  ok  ok 401 401  ok  ok 403 400",
    "halt_account":               "401 400  ok  ok 403 401 401  ok 403 403 401 401  ok 401 401 401",
    "halt_organization":          "401 400 401 401 401 401 401  ok 403 403 401 401  ok 401 401 401",
    "read_halts":                 "401 400  ok  ok 403 401 401  ok  ok  ok 401 401  ok  ok 403 400",
    "organization_by_provider":   "401 400 401 401 401 401 401  ok  ok  ok  ok 401  ok  ok  ok  ok",
    "delete_current_user":        "401 401 401 401 401 401 401  ok  ok  ok 401 401  ok 401 401 401",
    "write_accounts":             "401 400  ok  ok 403 401 401  ok 403 403 401 401  ok 403 403 403",
    "write_credentials":          "401 400  ok  ok 403 401 401  ok 403 403 401 401  ok 403 403 403",
    "read_accounts":              "401 400  ok  ok 403 401 401  ok  ok  ok 401 401  ok  ok 403 400",
    "api_keys":                   "401 400 401 401 401 401 401  ok 403 403 401 401  ok 401 401 401",
    "read_key_limits":            "401 400 403 403 403 401 401  ok 403 403 401 401  ok 401 401 401",
    "open_session":               "401 400 401 401 401 401 401  ok 403 403 401 401  ok 401 401 401",
    "end_session":                "401 400 401 401 401 401 401  ok  ok  ok 401 401  ok 401 401 401",
    "paper_quotes":               "401 400  ok 403 403 401 401  ok 403 403 401 401  ok 401 401 401",
    "read_paper_quotes":          "401 400  ok 403 403 401 401  ok  ok  ok 401 401  ok  ok 403 400",
    "write_reference_prices":     "401 400  ok  ok 403 401 401  ok 403 403 401 401  ok 401 401 401",
    "brokers":                    "401 400  ok  ok  ok 401 401  ok  ok  ok  ok 401  ok  ok  ok  ok",
    "read_caller":                "401 400  ok  ok  ok 401 401  ok  ok  ok  ok 401  ok  ok  ok  ok",
    "stream":                     "401 400  ok  ok 403 401 401  ok  ok  ok 401 401  ok  ok 403 400",
}
# fmt: on
# The permission of an API key and the scope of a service account that an endpoint of each policy takes: this one alone.
ONE_GRANT = {
    "outbox_health": (None, "credential:read"),
    "submit_intent": ("intent:edit", None),
    "read_intents": ("intent:read", "intent:read"),
    "write_controls": ("control:edit", None),
    "read_controls": ("control:read", "control:read"),
    "halt_account": ("control:edit", None),
    "read_halts": ("control:read", "control:read"),
    "write_accounts": ("account:edit", None),
    "write_credentials": ("credential:edit", None),
    "read_accounts": ("account:read", "account:read"),
    "paper_quotes": ("account:edit", None),
    "read_paper_quotes": ("account:read", "account:read"),
    "write_reference_prices": ("control:edit", None),
    "stream": ("stream:read", "stream:read"),
}
LET_THROUGH = {200, 201, 202, 204, 404, 409, 422}


def test_the_table_has_a_row_for_every_policy() -> None:
    assert set(EXPECTED) | {"public"} == set(RULES)
    assert {len(row.split()) for row in EXPECTED.values()} == {len(CALLERS)}
    assert set(ONE_GRANT) == {
        rule.name for rule in RULES.values() if isinstance(rule.key, Permission)
    } | {rule.name for rule in RULES.values() if isinstance(rule.service, Scope)}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.chaos)])
def test_every_caller_at_every_endpoint_is_answered_as_the_table_says(
    tenants: Tenants, seed: int
) -> None:
    cases = [
        (method, path, operation, caller, expected)
        for path, item in tenants.client.get("/openapi.json").json()["paths"].items()
        for method, operation in item.items()
        if operation["x-policy"] != "public"
        for caller, expected in zip(CALLERS, EXPECTED[operation["x-policy"]].split(), strict=True)
        # It would delete the caller.
        if (operation["x-policy"], expected) != ("delete_current_user", "ok")
    ]
    random.Random(seed).shuffle(cases)
    wrong = []
    for method, path, operation, caller, expected in cases:
        answer = call(tenants, method, path, operation, tenants.callers[caller])
        fits = (
            answer.status_code in LET_THROUGH
            if expected == "ok"
            else answer.status_code == int(expected)
        )
        if not fits:
            wrong.append(
                f"{method} {path} as {caller}: {answer.status_code}, not {expected}: {answer.text}"
            )
        if answer.status_code == 401:
            assert answer.headers["www-authenticate"]
    assert cases
    assert not wrong, "\n".join(wrong)


def test_no_cache_keeps_what_a_credential_opens(tenants: Tenants) -> None:
    """Also no refusal: a cache that kept a 404 would answer it to others."""
    kept = []
    for path, item in tenants.client.get("/openapi.json").json()["paths"].items():
        if "get" not in item or item["get"]["x-policy"] == "public":
            continue
        for caller in ("none", "key_all", "key_none", "admin"):
            answer = call(tenants, "get", path, item["get"], tenants.callers[caller])
            if answer.headers.get_list("cache-control") != ["no-store"]:
                kept.append((path, caller))
    assert kept == []


def test_an_endpoint_takes_one_permission_and_one_scope_and_no_other(tenants: Tenants) -> None:
    client = tenants.client
    admin = tenants.callers["admin"]
    granted: dict[tuple[int, str], dict[str, str]] = {}
    for permission in EVERY_PERMISSION:
        body = {"name": permission, "environment": "paper", "permissions": [permission]}
        granted[0, permission] = {
            "x-api-key": client.post("/v1/api-keys", json=body, headers=admin).json()["api_key"]
        }
    accounts = [{"client_id": f"only-{scope}", "scopes": [scope]} for scope in EVERY_SCOPE]
    organization = {"x-organization-id": tenants.organization("org_acme")["id"]}
    for made in tenants.platform.provision({"service_accounts": accounts})["service_accounts"]:
        grant = {"grant_type": "client_credentials", "client_id": made["client_id"]}
        token = client.post(
            "/oauth/token", data=grant | {"client_secret": made["client_secret"]}
        ).json()
        granted[1, token["scope"]] = organization | {
            "authorization": f"Bearer {token['access_token']}"
        }
    wrong = []
    for path, item in client.get("/openapi.json").json()["paths"].items():
        for method, operation in item.items():
            if operation["x-policy"] not in ONE_GRANT:
                continue
            taken = set()
            for (kind, name), headers in granted.items():
                status = call(tenants, method, path, operation, headers).status_code
                if status in LET_THROUGH:
                    taken.add((kind, name))
                elif status not in (401, 403):
                    wrong.append(f"{method} {path} with {name}: {status}")
            if taken != {
                (kind, name) for kind, name in enumerate(ONE_GRANT[operation["x-policy"]]) if name
            }:
                wrong.append(f"{method} {path} takes {taken}")
    assert not wrong, "\n".join(wrong)


def call(
    tenants: Tenants, method: str, path: str, operation: dict[str, Any], headers: dict[str, str]
) -> Any:
    """With ids that nobody has and an empty body: let through means not found, or a broken rule."""
    for parameter in operation["parameters"]:
        path = path.replace(f"{{{parameter['name']}}}", str(uuid.uuid4()))
    body: dict[str, Any] = {"json": {}} if "requestBody" in operation else {}
    return tenants.client.request(method, path, headers=headers, **body)
