"""Limits of the three levels from outside: put, read, removed; versions, callers, and what each
field takes."""

from typing import Any
from uuid import uuid4

import pytest

from tests.answer_patterns import STAMP
from tests.controls.calls import URL, TradingClient, code, pointers
from tests.tenants import Tenants

AMOUNTS = {
    "max_order_quantity": "10.5",
    "max_order_notional": "1000",
    "price_collar_bps": 200,
    "allow_short": False,
}
OPEN = {"max_open_orders": 5, "max_position_quantity": "100"}
FULL = (
    AMOUNTS
    | OPEN
    | {
        "max_orders_per_minute": 60,
        "allowed_symbols": ["AAPL", "MSFT"],
        "duplicate_window_millis": 500,
        "max_daily_loss": "5000",
        "timezone": "America/New_York",
    }
)
FIELDS: dict[str, dict[str, Any]] = {
    "organization": AMOUNTS,
    "account": FULL,
    "symbol": AMOUNTS | OPEN,
}


@pytest.fixture
def trading_client(tenants: Tenants) -> TradingClient:
    return TradingClient(tenants)


@pytest.fixture(params=FIELDS)
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def path(trading_client: TradingClient, level: str) -> str:
    account = f"{URL}/accounts/{trading_client.account}"
    paths = {
        "organization": f"{URL}/organization/limits",
        "account": f"{account}/limits",
        "symbol": f"{account}/symbols/aapl/limits",
    }
    return paths[level]


def call(
    trading_client: TradingClient,
    method: str,
    level: str,
    body: Any = None,
    caller: str = "",
    **more: str,
) -> Any:
    tenants = trading_client.tenants
    headers = (tenants.callers[caller] if caller else trading_client.headers) | {
        name.replace("_", "-"): value for name, value in more.items()
    }
    return tenants.client.request(method, path(trading_client, level), json=body, headers=headers)


@pytest.fixture(autouse=True)
def removed(tenants: Tenants) -> Any:
    """The organization is every test's: nothing is on it that another file left, and nothing is
    left on it."""
    tenants.client.delete(f"{URL}/organization/limits", headers=tenants.callers["admin"])
    yield
    tenants.client.delete(f"{URL}/organization/limits", headers=tenants.callers["admin"])


def test_a_put_creates_and_replaces_and_omitted_fields_are_cleared(
    tenants: Tenants, trading_client: TradingClient, level: str
) -> None:
    answer = call(trading_client, "PUT", level, FIELDS[level])
    shown = answer.json()
    assert (answer.status_code, answer.headers["etag"]) == (200, '"1"')
    assert call(trading_client, "GET", level).json() == shown
    owner = {"organization_id": tenants.organization("org_acme")["id"]}
    owner |= {} if level == "organization" else {"account_id": trading_client.account}
    owner |= {"symbol": "AAPL"} if level == "symbol" else {}
    stamps = {name: shown.pop(name) for name in ("created_at", "updated_at")}
    assert all(STAMP.fullmatch(stamp) for stamp in stamps.values())
    assert shown == owner | FIELDS[level] | {"version": 1}
    again = call(trading_client, "PUT", level, FIELDS[level])
    assert again.json() == shown | stamps, "a put that changes nothing keeps the version"
    replaced = call(
        trading_client, "PUT", level, {"max_order_quantity": "7.50", "allow_short": None}
    )
    assert replaced.json() | {"updated_at": ""} == owner | {
        "max_order_quantity": "7.5",
        "created_at": stamps["created_at"],
        "updated_at": "",
        "version": 2,
    }
    assert call(trading_client, "PUT", level, {}).json()["version"] == 3


def test_limits_are_removed_by_their_version(trading_client: TradingClient, level: str) -> None:
    assert code(call(trading_client, "GET", level)) == (404, "not_found")
    assert code(call(trading_client, "DELETE", level)) == (404, "not_found")
    assert code(call(trading_client, "PUT", level, {}, if_match='"1"')) == (412, "version_conflict")
    assert call(trading_client, "PUT", level, FIELDS[level]).status_code == 200
    assert code(call(trading_client, "PUT", level, {}, if_match='"2"')) == (412, "version_conflict")
    assert code(call(trading_client, "DELETE", level, if_match='"2"')) == (412, "version_conflict")
    assert call(trading_client, "PUT", level, {}, if_match='"1"').json()["version"] == 2
    assert call(trading_client, "DELETE", level, if_match='"2"').status_code == 204
    assert code(call(trading_client, "GET", level)) == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"max_order_quantity": "0"}, "/max_order_quantity"),
        ({"max_order_quantity": "-1"}, "/max_order_quantity"),
        ({"max_order_quantity": 10}, "/max_order_quantity"),
        ({"max_order_notional": "1e3"}, "/max_order_notional"),
        ({"price_collar_bps": 0}, "/price_collar_bps"),
        ({"price_collar_bps": 10_001}, "/price_collar_bps"),
        ({"max_open_orders": 0}, "/max_open_orders"),
        ({"max_position_quantity": ""}, "/max_position_quantity"),
        ({"max_orders_per_minute": 0}, "/max_orders_per_minute"),
        ({"max_orders_per_minute": 100_001}, "/max_orders_per_minute"),
        ({"allow_short": "no"}, "/allow_short"),
        ({"allowed_symbols": ["AAPL", "no symbol"]}, "/allowed_symbols/1"),
        ({"allowed_symbols": [f"S{n}" for n in range(1_001)]}, "/allowed_symbols"),
        ({"duplicate_window_millis": 60_001}, "/duplicate_window_millis"),
        ({"max_daily_loss": "1", "timezone": "Mars/Base"}, "/timezone"),
        ({"timezone": "UTC"}, "/timezone"),
        ({"max_orders": 1}, "/max_orders"),
    ],
)
def test_a_bad_limit_is_refused_at_its_field(
    trading_client: TradingClient, body: Any, pointer: str
) -> None:
    assert pointers(call(trading_client, "PUT", "account", body)) == [pointer]


def test_a_number_for_an_amount_is_refused_with_the_reason(
    trading_client: TradingClient, level: str
) -> None:
    for name in sorted(
        FIELDS[level].keys() & {"max_order_quantity", "max_position_quantity", "max_daily_loss"}
    ):
        for number in (10, 10.5):
            (error,) = call(trading_client, "PUT", level, {name: number}).json()["errors"]
            assert error["pointer"] == f"/{name}"
            assert "decimal strings" in error["detail"]


def test_a_level_takes_only_its_own_fields(trading_client: TradingClient) -> None:
    for level, fields in FIELDS.items():
        for name in FULL.keys() - fields.keys():
            assert pointers(call(trading_client, "PUT", level, {name: FULL[name]})) == [f"/{name}"]


def test_the_edges_of_every_field_are_taken(trading_client: TradingClient) -> None:
    lowest = {
        "max_order_quantity": "0.000000000000000001",
        "price_collar_bps": 1,
        "max_open_orders": 1,
        "max_orders_per_minute": 1,
        "allowed_symbols": [],
        "duplicate_window_millis": 1,
    }
    highest = {
        "max_order_quantity": "999999999999999999.999999999999999999",
        "price_collar_bps": 10_000,
        "max_open_orders": 100_000,
        "max_orders_per_minute": 100_000,
        "allowed_symbols": sorted(f"S{n}" for n in range(1_000)),
        "duplicate_window_millis": 60_000,
    }
    for body in (lowest, highest):
        shown = call(trading_client, "PUT", "account", body).json()
        assert {name: shown[name] for name in body} == body


def test_another_tenants_account_looks_like_none(trading_client: TradingClient) -> None:
    for tail in ("/limits", "/symbols/AAPL/limits"):
        for method, body in (("GET", None), ("PUT", {}), ("DELETE", None)):
            answers = []
            for account in (trading_client.account, str(uuid4())):
                answer = trading_client.tenants.client.request(
                    method,
                    f"{URL}/accounts/{account}{tail}",
                    json=body,
                    headers=trading_client.tenants.callers["other_admin"],
                )
                answered = answer.json()
                answered.pop("request_id")
                answers.append((answer.status_code, answered))
            assert answers[0] == answers[1]
            assert answers[0][0] == 404


def test_who_writes_and_who_reads(trading_client: TradingClient, level: str) -> None:
    body = FIELDS[level]
    is_organization = level == "organization"
    writers = {"admin": 200, "member": 403, "read_only": 403, "none": 401}
    writers |= (
        dict.fromkeys(("service_all", "key_all"), 401)
        if is_organization
        else {"service_all": 403, "key_all": 200}
    )
    writers |= {
        "key_live": 401 if is_organization else 403,
        "key_none": 401 if is_organization else 403,
    }
    for caller, status in writers.items():
        assert call(trading_client, "PUT", level, body, caller).status_code == status, caller
        if status != 200:
            assert call(trading_client, "DELETE", level, caller=caller).status_code == status, (
                caller
            )
    readers = dict.fromkeys(("admin", "member", "read_only", "service_all", "key_all"), 200)
    readers |= {
        "key_live": 200 if is_organization else 403,
        "key_none": 403,
        "service_none": 403,
        "none": 401,
    }
    for caller, status in readers.items():
        assert call(trading_client, "GET", level, caller=caller).status_code == status, caller


def test_limits_take_the_premium_entitlement(tenants: Tenants, level: str) -> None:
    poor = TradingClient(tenants, "other_admin")
    for method, body in (("GET", None), ("PUT", {}), ("PUT", {"nonsense": 1}), ("DELETE", None)):
        assert code(call(poor, method, level, body)) == (403, "entitlement_required")


def test_a_closed_account_keeps_its_limits(trading_client: TradingClient) -> None:
    assert call(trading_client, "PUT", "account", FULL).status_code == 200
    client = trading_client.tenants.client
    headers = trading_client.headers
    assert (
        client.delete(f"/v1/accounts/{trading_client.account}", headers=headers).status_code == 204
    )
    assert code(call(trading_client, "PUT", "account", {})) == (409, "account_closed")
    assert code(call(trading_client, "DELETE", "account")) == (409, "account_closed")
    assert call(trading_client, "GET", "account").status_code == 200
