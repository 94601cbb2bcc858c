"""Halts over HTTP: who may halt and resume, what is refused meanwhile, and the events."""

import asyncio
import json
import uuid
from typing import Any

import asyncpg
import httpx
import pytest

from tests.answer_patterns import STAMP
from tests.conftest import Urls
from tests.controls.calls import URL, TradingClient, code, pointers
from tests.stream.sse_reader import following
from tests.tenants import EVERY_PERMISSION, Tenants
from tests.waiting import eventually, eventually_async

WAIT_SECONDS = 30.0
WHY = {"reason": "model review"}


@pytest.fixture(scope="module")
def firm(tenants: Tenants) -> Tenants:
    """A tenant of our own, without any entitlement: its organization's halt is nobody else's
    matter."""
    name = f"org_halts_{uuid.uuid4().hex}"
    keys = {
        "key": [str(each) for each in EVERY_PERMISSION],
        "key_controls": ["control:edit", "control:read"],
        "key_reads": ["control:read"],
        "key_trades": ["intent:edit"],
    }
    made = tenants.platform.provision(
        {
            "organizations": [
                {
                    "external_id": name,
                    "entitlements": [],
                    "users": [{"external_id": "halts-admin", "role": "admin"}],
                    "api_keys": [
                        {"name": each, "environment": "paper", "permissions": granted}
                        for each, granted in keys.items()
                    ]
                    + [
                        {
                            "name": "key_live",
                            "environment": "live",
                            "permissions": list(EVERY_PERMISSION),
                        }
                    ],
                }
            ]
        }
    )["organizations"][0]
    callers = {each["name"]: {"x-api-key": each["api_key"]} for each in made["api_keys"]}
    callers["admin"] = {"authorization": f"Bearer {tenants.platform.token('halts-admin', name)}"}
    return Tenants(tenants.platform, {"organizations": [made]}, callers)


def create(client: TradingClient, caller: str = "key", symbol: str = "AAPL", **command: Any) -> Any:
    payload = {
        "symbol": symbol,
        "order_side": "BUY",
        "spec": {"Limit": {"quantity": "1", "limit_price": "0.01"}},
    }
    return submit(client, {"type": "CREATE", "payload": payload}, caller)


def submit(client: TradingClient, command: dict[str, Any], caller: str = "key") -> Any:
    return client.tenants.client.post(
        f"/v1/accounts/{client.account}/intents",
        json={"command": command},
        headers=client.tenants.callers[caller],
    )


def status(client: TradingClient, order: str) -> Any:
    path = f"/v1/accounts/{client.account}/orders/{order}"
    return client.tenants.client.get(path, headers=client.headers).json()["order_status"]


def halt(client: TradingClient, caller: str = "admin", **body: Any) -> Any:
    return client.call("POST", "/halt", WHY | body, caller)


def halt_organization(
    tenants: Tenants, method: str = "POST", path: str = "halt", caller: str = "admin"
) -> Any:
    body = {"json": WHY} if path == "halt" and method == "POST" else {}
    return tenants.client.request(
        method, f"{URL}/organization/{path}", headers=tenants.callers[caller], **body
    )


def reasons(answer: Any) -> list[str]:
    assert code(answer) == (409, "control_rejected"), answer.text
    return [answered["reason"] for answered in answer.json()["triggered"]]


def test_a_halted_account_refuses_new_orders_and_changes_until_it_is_resumed(firm: Tenants) -> None:
    client = TradingClient(firm)
    other = TradingClient(firm)
    order = create(client).json()["intent_id"]
    eventually(lambda: status(client, order) == "NEW", WAIT_SECONDS)
    answer = halt(client, cancel_orders=False)
    made = answer.json()
    assert (answer.status_code, made["state"]) == (202, "done")
    refused = create(client)
    assert "triggered" not in refused.json()["detail"]
    assert refused.json()["detail"] == refused.json()["triggered"][0]["detail"], (
        "a sentence for people"
    )
    assert refused.json()["triggered"] == [
        {
            "reason": "account_halted",
            "scope": {"Account": client.account},
            "detail": "the account is halted: model review",
        }
    ]
    spec = {"Limit": {"quantity": "2", "limit_price": "0.01"}}
    replace = {"type": "REPLACE", "payload": {"ref_intent_id": order, "spec": spec}}
    assert reasons(submit(client, replace)) == ["account_halted"]
    assert create(other).status_code == 202
    assert (
        submit(client, {"type": "CANCEL", "payload": {"ref_intent_id": order}}).status_code == 202
    )
    resumed = client.call("POST", "/resume")
    assert (resumed.status_code, resumed.json()["state"], resumed.json()["id"]) == (
        200,
        "resumed",
        made["id"],
    )
    assert create(client).status_code == 202


def test_a_halted_organization_refuses_the_orders_of_every_account(firm: Tenants) -> None:
    clients = [TradingClient(firm), TradingClient(firm)]
    assert halt(clients[0], cancel_orders=False).status_code == 202
    answer = halt_organization(firm)
    try:
        assert answer.status_code == 202
        assert answer.json()["scope"] == {"Organization": firm.answer["organizations"][0]["id"]}
        # Halts of an account and of its organization are independent.
        assert reasons(create(clients[0])) == ["organization_halted", "account_halted"]
        assert reasons(create(clients[1])) == ["organization_halted"]
    finally:
        assert halt_organization(firm, path="resume").status_code == 200
    assert reasons(create(clients[0])) == ["account_halted"]
    assert create(clients[1]).status_code == 202


def test_evaluate_answers_halts(tenants: Tenants) -> None:
    client = TradingClient(tenants)
    assert client.reasons("AAPL") == []
    assert halt(client).status_code == 202
    assert client.reasons("AAPL") == client.reasons() == ["account_halted"]


def test_a_halt_says_what_it_is(firm: Tenants) -> None:
    client = TradingClient(firm)
    made = halt(client, cancel_orders=False).json()
    admin = made.pop("principal_id")
    assert made["created_at"] == made["updated_at"]
    assert all(STAMP.fullmatch(made.pop(name)) for name in ("created_at", "updated_at"))
    assert made.pop("id")
    assert made == {
        "scope": {"Account": client.account},
        "reason": "model review",
        "cancel_orders": False,
        "close_positions": False,
        "state": "done",
        "orders": 0,
        "orders_done": 0,
        "positions": 0,
        "positions_done": 0,
        "waiting": [],
        "principal_type": "USER",
        "resumed_at": None,
    }
    assert admin == "halts-admin"
    by_key = halt(TradingClient(firm), "key_controls", cancel_orders=False).json()
    assert by_key["principal_type"] == "API_KEY"
    assert by_key["principal_id"] in {
        each["id"] for each in firm.answer["organizations"][0]["api_keys"]
    }


def test_a_second_call_answers_the_halt_that_stands_and_may_add_closing(firm: Tenants) -> None:
    client = TradingClient(firm)
    first = halt(client)
    assert first.status_code == 202
    again = halt(client, "key", reason="another")
    assert again.status_code == 200
    assert (again.json()["id"], again.json()["reason"]) == (first.json()["id"], "model review")
    assert again.json()["close_positions"] is False
    added = halt(client, close_positions=True)
    assert (added.status_code, added.json()["id"]) == (200, first.json()["id"])
    assert added.json()["close_positions"] is True
    assert halt(client).json()["close_positions"] is True  # nothing is taken away


def test_of_halts_at_once_one_stands(firm: Tenants) -> None:
    client = TradingClient(firm)

    async def ask() -> list[httpx.Response]:
        url = f"{firm.platform.url}{URL}/accounts/{client.account}/halt"
        async with httpx.AsyncClient(timeout=10, headers=client.headers, verify=False) as asking:
            return await asyncio.gather(*(asking.post(url, json=WHY) for _ in range(16)))

    answers = asyncio.run(ask())
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [202]
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_of_resumes_at_once_one_ends_the_halt(firm: Tenants) -> None:
    client = TradingClient(firm)
    assert halt(client, cancel_orders=False).status_code == 202

    async def ask() -> list[httpx.Response]:
        url = f"{firm.platform.url}{URL}/accounts/{client.account}/resume"
        async with httpx.AsyncClient(timeout=10, headers=client.headers, verify=False) as asking:
            return await asyncio.gather(*(asking.post(url) for _ in range(16)))

    answers = asyncio.run(ask())
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 15
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} == {
        "not_halted"
    }


def test_the_halt_that_stands_is_read_else_the_last(firm: Tenants) -> None:
    client = TradingClient(firm)
    assert code(client.get("/halt")) == (404, "not_found")
    assert code(client.call("POST", "/resume")) == (409, "not_halted")
    first = halt(client, cancel_orders=False).json()
    assert client.get("/halt").json() == first
    resumed = client.call("POST", "/resume").json()
    assert client.get("/halt").json() == resumed
    assert STAMP.fullmatch(resumed["resumed_at"])
    assert code(client.call("POST", "/resume")) == (409, "not_halted")
    second = halt(client, cancel_orders=False).json()
    assert second["id"] != first["id"]
    assert client.get("/halt").json() == second


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"reason": ""}, "/reason"),
        ({"reason": "x" * 501}, "/reason"),
        ({"reason": "a\x00b"}, "/reason"),
        ({"reason": None}, "/reason"),
        ({"cancel_orders": False, "close_positions": True}, "/close_positions"),
        ({"cancel_orders": "yes"}, "/cancel_orders"),
        ({"close": True}, "/close"),
    ],
)
def test_what_breaks_a_rule_halts_nothing(
    firm: Tenants, body: dict[str, Any], pointer: str
) -> None:
    client = TradingClient(firm)
    assert pointers(halt(client, **body)) == [pointer]
    assert code(client.get("/halt")) == (404, "not_found")


def test_a_reason_has_up_to_500_characters(firm: Tenants) -> None:
    assert halt(TradingClient(firm), reason="x" * 500, cancel_orders=False).status_code == 202


def test_stopping_needs_no_plan_but_the_permission(firm: Tenants) -> None:
    client = TradingClient(firm)
    assert code(halt(client, "key_reads")) == (403, "forbidden")
    assert code(halt(client, "key_trades")) == (403, "forbidden")
    assert code(halt(client, "key_live")) == (403, "forbidden")
    assert code(halt(client, "key_controls", close_positions=True)) == (403, "forbidden")
    assert code(client.call("POST", "/resume", caller="key_reads")) == (403, "forbidden")
    assert halt(client, "key_controls").status_code == 202
    assert halt(client, "key", close_positions=True).status_code == 200
    assert client.get("/halt").status_code == 200
    assert client.call("GET", "/halt", caller="key_reads").status_code == 200
    assert code(client.call("GET", "/halt", caller="key_live")) == (403, "forbidden")
    assert code(client.call("POST", "/resume", caller="key_live")) == (403, "forbidden")
    assert client.call("POST", "/resume", caller="key_controls").status_code == 200


def test_another_tenants_account_is_not_halted(firm: Tenants, tenants: Tenants) -> None:
    client = TradingClient(firm)
    for method, tail, body in (
        ("POST", "/halt", WHY),
        ("GET", "/halt", None),
        ("POST", "/resume", None),
    ):
        url = f"{URL}/accounts/{client.account}{tail}"
        answer = tenants.client.request(method, url, json=body, headers=tenants.callers["admin"])
        assert code(answer) == (404, "not_found")
    assert create(client).status_code == 202


def test_a_closed_account_is_not_halted(firm: Tenants) -> None:
    client = TradingClient(firm)
    assert (
        firm.client.delete(f"/v1/accounts/{client.account}", headers=client.headers).status_code
        == 204
    )
    assert code(halt(client)) == (409, "account_closed")
    assert code(client.call("POST", "/resume")) == (409, "account_closed")


def test_an_account_that_is_closed_in_a_halt_stays_halted(firm: Tenants) -> None:
    client = TradingClient(firm)
    made = halt(client, cancel_orders=False).json()
    assert (
        firm.client.delete(f"/v1/accounts/{client.account}", headers=client.headers).status_code
        == 204
    )
    assert code(client.call("POST", "/resume")) == (409, "account_closed")
    assert client.get("/halt").json() == made


def test_every_change_of_a_halt_is_on_the_stream(firm: Tenants) -> None:
    client = TradingClient(firm)
    with following(firm, client.headers, client.account, kinds="halt") as reader:
        reader.until("status")
        made = halt(client, "key").json()
        answered = [reader.take(1)[0].data["halt"]]
        while answered[-1]["state"] != "done":
            answered.append(reader.take(1)[0].data["halt"])
        client.call("POST", "/resume")
        answered.append(reader.take(1)[0].data["halt"])
    assert [each["state"] for each in answered] == ["cancelling", "done", "resumed"]
    assert {each["id"] for each in answered} == {made["id"]}
    assert answered[0]["account_id"] == client.account
    assert (answered[0]["principal_id"], answered[0]["reason"]) == (
        made["principal_id"],
        "model review",
    )


def is_done(firm: Tenants) -> bool:
    return bool(halt_organization(firm, "GET").json()["state"] == "done")


async def test_a_key_sees_what_accounts_of_its_environment_wait_for(
    firm: Tenants, tenants_database: Urls
) -> None:
    paper = TradingClient(firm).account
    live = TradingClient(firm, broker="alpaca", environment="live").account
    found = halt_organization(firm).json()
    # After that no worker writes to it any more.
    await eventually_async(lambda: asyncio.to_thread(is_done, firm), WAIT_SECONDS)
    waiting = [
        {"account_id": each, "reason": "cancel_pending", "order_id": str(uuid.uuid4())}
        for each in (paper, live)
    ]
    connection = await asyncpg.connect(tenants_database.owner.reveal())
    try:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(
            "UPDATE halts SET waiting = $2::jsonb WHERE id = $1::text::uuid",
            found["id"],
            json.dumps(waiting),
        )
        shown = {
            caller: [
                each["account_id"]
                for each in halt_organization(firm, "GET", caller=caller).json()["waiting"]
            ]
            for caller in ("admin", "key_reads", "key_live")
        }
        assert shown == {"admin": [paper, live], "key_reads": [paper], "key_live": [live]}
    finally:
        await connection.close()
        assert halt_organization(firm, path="resume").status_code == 200
