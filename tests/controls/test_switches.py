"""Switches of the organization and its accounts, and what the controls say together; who may, and
for whom."""

import asyncio
import uuid
from typing import Any

import asyncpg
import pytest

from tests.answer_patterns import STAMP
from tests.conftest import Urls
from tests.controls.calls import URL, TradingClient, code, pointers
from tests.tenants import Tenants
from tests.waiting import eventually

WITHIN_SECONDS = 1.0


@pytest.fixture
def firm(tenants: Tenants) -> Tenants:
    """A tenant of the test's own: its organization's switch and entitlements are nobody else's
    matter."""
    name = f"org_firm_{uuid.uuid4().hex}"
    made = tenants.platform.provision(
        {
            "organizations": [
                {
                    "external_id": name,
                    "entitlements": ["controls_premium"],
                    "users": [{"external_id": "firm-admin", "role": "admin"}],
                    "api_keys": [
                        {
                            "name": "k",
                            "environment": "paper",
                            "permissions": ["control:read", "control:edit"],
                        },
                    ],
                }
            ]
        }
    )["organizations"][0]
    callers = {
        "admin": {"authorization": f"Bearer {tenants.platform.token('firm-admin', name)}"},
        "key": {"x-api-key": made["api_keys"][0]["api_key"]},
    }
    return Tenants(tenants.platform, {"organizations": [made]}, callers)


def put_organization(tenants: Tenants, body: Any, caller: str = "admin", **headers: str) -> Any:
    return tenants.client.put(
        f"{URL}/organization", json=body, headers=tenants.callers[caller] | headers
    )


def get_organization(tenants: Tenants, caller: str = "admin") -> Any:
    return tenants.client.get(f"{URL}/organization", headers=tenants.callers[caller])


def test_the_organizations_switch_holds_for_every_account(firm: Tenants) -> None:
    trading_client = TradingClient(firm)
    other = TradingClient(firm)
    assert code(get_organization(firm)) == (404, "not_found")
    assert code(put_organization(firm, {"manually_disabled": True}, **{"if-match": '"1"'})) == (
        412,
        "version_conflict",
    )
    assert pointers(put_organization(firm, {"manually_disabled": "yes"})) == ["/manually_disabled"]
    answer = put_organization(firm, {"manually_disabled": True, "manual_reason": "audit"})
    control = answer.json()
    assert (answer.status_code, answer.headers["etag"]) == (200, '"1"')
    assert all(STAMP.fullmatch(control[name]) for name in ("created_at", "updated_at"))
    organization = firm.answer["organizations"][0]["id"]
    stamps = {name: control[name] for name in ("created_at", "updated_at")}
    assert control == stamps | {
        "organization_id": organization,
        "manually_disabled": True,
        "manual_reason": "audit",
        "version": 1,
    }
    for caller in ("admin", "key"):
        read = get_organization(firm, caller)
        assert (read.json(), read.headers["etag"]) == (control, '"1"')
    for each in (trading_client, other):
        assert each.evaluate().json() == {
            "allowed": False,
            "triggered": [
                {
                    "reason": "organization_manually_disabled",
                    "scope": {"Organization": organization},
                    "detail": "the organization is disabled: audit",
                }
            ],
        }
    changed = put_organization(firm, {"manually_disabled": False}, **{"if-match": '"1"'}).json()
    assert (changed["version"], "manual_reason" in changed) == (2, False)
    assert put_organization(firm, {"manually_disabled": False}).json() == changed
    assert trading_client.reasons() == []
    assert code(put_organization(firm, {"manually_disabled": True}, "key")) == (401, "unauthorized")


def test_an_accounts_switch_holds_for_that_account(tenants: Tenants) -> None:
    trading_client = TradingClient(tenants)
    other = TradingClient(tenants)
    assert code(trading_client.get("")) == (404, "not_found")
    answer = trading_client.call(
        "PUT", "", {"manually_disabled": True, "manual_reason": "model review"}
    )
    control = answer.json()
    assert (answer.status_code, answer.headers["etag"]) == (200, '"1"')
    stamps = {name: control[name] for name in ("created_at", "updated_at")}
    assert all(STAMP.fullmatch(stamp) for stamp in stamps.values())
    assert control == stamps | {
        "account_id": trading_client.account,
        "organization_id": tenants.organization("org_acme")["id"],
        "manually_disabled": True,
        "manual_reason": "model review",
        "version": 1,
    }
    for caller in ("admin", "member", "read_only", "key_all", "service_all"):
        read = trading_client.get("", caller=caller)
        assert (read.json(), read.headers["etag"]) == (control, '"1"')
        answered = trading_client.evaluate("AAPL", caller).json()
        assert answered["triggered"] == [
            {
                "reason": "account_manually_disabled",
                "scope": {"Account": trading_client.account},
                "detail": "the account is disabled: model review",
            }
        ]
    assert other.reasons("AAPL") == []
    assert (
        trading_client.call("PUT", "", {"manually_disabled": False}, caller="key_all").json()[
            "version"
        ]
        == 2
    )
    assert trading_client.reasons("AAPL") == []


def test_evaluating_answers_every_control_that_says_no(firm: Tenants) -> None:
    trading_client = TradingClient(firm)
    assert trading_client.evaluate("AAPL").json() == {"allowed": True, "triggered": []}
    trading_client.put("AAPL", reason="earnings")
    trading_client.patch("AAPL", {"trading_end": "00:00:00"})
    trading_client.call("PUT", "", {"manually_disabled": True})
    put_organization(firm, {"manually_disabled": True})
    wide = ["organization_manually_disabled", "account_manually_disabled"]
    assert trading_client.reasons("aapl") == [
        *wide,
        "symbol_manually_disabled",
        "outside_trading_window",
    ]
    assert trading_client.reasons("MSFT") == wide
    assert trading_client.reasons() == wide
    answered = trading_client.evaluate("aapl").json()["triggered"]
    symbol = {"Symbol": {"account_id": trading_client.account, "symbol": "AAPL"}}
    assert [t["scope"] for t in answered[2:]] == [symbol, symbol]
    assert answered[2]["detail"] == "the symbol is disabled: earnings"
    put_organization(firm, {"manually_disabled": False})
    trading_client.call("PUT", "", {"manually_disabled": False})
    trading_client.put("AAPL", disabled=False)
    assert trading_client.reasons("AAPL") == ["outside_trading_window"]
    trading_client.patch("AAPL", {"clear": ["trading_end"]})
    assert trading_client.reasons("AAPL") == []


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/account_id"),
        ({"account_id": None}, "/account_id"),
        ({"account_id": 5}, "/account_id"),
        ({"account_id": "nonsense"}, "/account_id"),
        ({"account_id": "{upper}"}, "/account_id"),
        ({"account_id": "{plain}\n"}, "/account_id"),
        ({"account_id": "{plain}", "symbol": ""}, "/symbol"),
        ({"account_id": "{plain}", "symbol": " AAPL"}, "/symbol"),
        ({"account_id": "{plain}", "symbol": "A" * 33}, "/symbol"),
        ({"account_id": "{plain}", "symbol": "A\x00"}, "/symbol"),
        ({"account_id": "{plain}", "symbol": 5}, "/symbol"),
        ({"account_id": "{plain}", "now": "2026-01-05T00:00:00Z"}, "/now"),
        ([], ""),
    ],
)
def test_a_bad_question_is_refused_at_its_field(tenants: Tenants, body: Any, pointer: str) -> None:
    account = str(uuid.uuid4())  # unknown, but a broken rule is answered first
    if isinstance(body, dict) and isinstance(body.get("account_id"), str):
        body = body | {
            "account_id": body["account_id"].format(plain=account, upper=account.upper())
        }
    answer = tenants.client.post(f"{URL}/evaluate", json=body, headers=tenants.callers["admin"])
    assert pointers(answer) == [pointer]


ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("PUT", "", {"manually_disabled": True}),
    ("GET", "/symbols", None),
    ("GET", "/symbols/AAPL", None),
    ("PUT", "/symbols/AAPL", {"manually_disabled": True}),
    ("DELETE", "/symbols/AAPL", None),
    ("PATCH", "/symbols/AAPL/time", {"trading_start": "09:30:00"}),
]


@pytest.mark.parametrize(("method", "tail", "body"), ROUTES)
def test_another_tenants_account_is_not_found(
    tenants: Tenants, method: str, tail: str, body: Any
) -> None:
    theirs = TradingClient(tenants, "other_admin")
    unknown = f"{URL}/accounts/{uuid.uuid4()}{tail}"
    for sent in (body, body and {"nonsense": 1}):
        answer = theirs.call(method, tail, sent, caller="admin")
        nobodys = tenants.client.request(
            method, unknown, json=sent, headers=tenants.callers["admin"]
        )
        assert answer.status_code == 404
        assert answer.json() | {"request_id": ""} == nobodys.json() | {"request_id": ""}
    for spelling in (
        theirs.account.upper(),
        theirs.account.replace("-", ""),
        f"%7B{theirs.account}%7D",
    ):
        url = f"{URL}/accounts/{spelling}{tail}"
        assert (
            tenants.client.request(
                method, url, json=body, headers=tenants.callers["other_admin"]
            ).status_code
            == 404
        )


def test_another_tenants_account_cannot_be_asked_about(tenants: Tenants) -> None:
    theirs = TradingClient(tenants, "other_admin")
    assert code(theirs.evaluate("AAPL", "admin")) == (404, "not_found")
    assert code(theirs.evaluate("AAPL", "key_live")) == (404, "not_found")


@pytest.mark.parametrize(("method", "tail", "body"), ROUTES)
def test_a_key_acts_on_its_own_environment_only(
    tenants: Tenants, method: str, tail: str, body: Any
) -> None:
    live = TradingClient(tenants, broker="remote", environment="live")
    for sent in (body, body and {"nonsense": 1}):
        assert code(live.call(method, tail, sent, caller="key_all")) == (403, "forbidden")
    assert live.call(method, tail, body, caller="key_live").status_code in (200, 404)
    assert code(live.evaluate(caller="key_all")) == (403, "forbidden")
    assert live.evaluate(caller="key_live").status_code == 200


@pytest.mark.parametrize(("method", "tail", "body"), ROUTES)
def test_controls_take_the_premium_entitlement(
    tenants: Tenants, method: str, tail: str, body: Any
) -> None:
    poor = TradingClient(tenants, "other_admin")
    for sent in (body, body and {"nonsense": 1}):
        answer = poor.call(method, tail, sent)
        assert code(answer) == (403, "entitlement_required")
        assert "controls_premium" in answer.json()["detail"]


def test_the_rest_takes_the_premium_entitlement_too(tenants: Tenants) -> None:
    poor = TradingClient(tenants, "other_admin")
    assert code(poor.evaluate()) == (403, "entitlement_required")
    assert code(tenants.client.post(f"{URL}/evaluate", json={}, headers=poor.headers)) == (
        403,
        "entitlement_required",
    )
    assert code(get_organization(tenants, "other_admin")) == (403, "entitlement_required")
    for body in ({"manually_disabled": True}, {"nonsense": 1}):
        assert code(put_organization(tenants, body, "other_admin")) == (403, "entitlement_required")


def test_a_closed_accounts_controls_are_read_and_not_written(tenants: Tenants) -> None:
    trading_client = TradingClient(tenants)
    trading_client.put("AAPL")
    trading_client.patch("AAPL", {"trading_end": "00:00:00"})
    trading_client.call("PUT", "", {"manually_disabled": True})
    assert (
        tenants.client.delete(
            f"/v1/accounts/{trading_client.account}", headers=trading_client.headers
        ).status_code
        == 204
    )
    for method, tail, body in ROUTES:
        answer = trading_client.call(method, tail, body)
        if method == "GET":
            assert answer.status_code == 200
        else:
            assert code(answer) == (409, "account_closed")
        if body:
            assert code(trading_client.call(method, tail, {"nonsense": 1})) == (
                422,
                "validation_failed",
            )
    assert code(trading_client.call("DELETE", "/symbols/MSFT")) == (404, "not_found")
    assert len(trading_client.reasons("AAPL")) == 3


@pytest.mark.deadline
def test_controls_stay_in_force_when_the_entitlement_lapses(
    firm: Tenants, tenants_database: Urls
) -> None:
    trading_client = TradingClient(firm)
    trading_client.put("AAPL")

    async def entitle(entitlements: list[str]) -> None:
        connection = await asyncpg.connect(tenants_database.owner.reveal())
        organization = firm.answer["organizations"][0]["id"]
        await connection.execute(
            "UPDATE organizations SET entitlements = $2 WHERE id = $1", organization, entitlements
        )
        await connection.close()

    asyncio.run(entitle([]))
    eventually(lambda: bool(trading_client.evaluate("AAPL").status_code == 403), WITHIN_SECONDS)
    assert code(trading_client.put("AAPL", disabled=False)) == (403, "entitlement_required")
    asyncio.run(entitle(["controls_premium"]))
    eventually(lambda: bool(trading_client.evaluate("AAPL").status_code == 200), WITHIN_SECONDS)
    assert trading_client.reasons("AAPL") == ["symbol_manually_disabled"]
