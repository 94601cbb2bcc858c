"""Session keys: a person at the console trades by a key of their own, for as long as they may and
are signed in."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.tenants import Headers, Tenants
from tests.waiting import eventually

URL = "/v1/api-keys/session"
VALIDATE = "/api/v1/auth/api-key/validate"
TRADER = ["account:read", "control:read", "intent:edit", "intent:read", "stream:read"]


class Office:
    """An organization of its own with an admin, a member and an account."""

    def __init__(self, tenants: Tenants, name: str) -> None:
        self.tenants = tenants
        self.name = f"org_{name}"
        self.admin = f"{name}-admin"
        self.member = f"{name}-member"
        made = self.apply(
            accounts=[{"name": "sim", "broker": "paper", "environment": "paper"}],
            member_trading=True,
        )
        self.account_id = made["accounts"][0]["id"]
        self.set_roles(admin="admin", member="member")

    def apply(self, **changes: Any) -> Any:
        document = {"organizations": [{"external_id": self.name} | changes]}
        return self.tenants.platform.provision(document)["organizations"][0]

    def set_roles(self, **roles: str) -> None:
        self.apply(
            users=[{"external_id": getattr(self, who), "role": role} for who, role in roles.items()]
        )

    def sign_in(self, user: str) -> Headers:
        return {"authorization": f"Bearer {self.tenants.platform.token(user, self.name)}"}

    def open(self, headers: Headers, environment: str = "paper") -> Any:
        return self.tenants.client.post(URL, json={"environment": environment}, headers=headers)

    def buy(self, key: Any) -> int:
        payload = {"symbol": "AAPL", "order_side": "BUY", "spec": {"Market": {"quantity": "1"}}}
        body = {"command": {"type": "CREATE", "payload": payload}}
        url = f"/v1/accounts/{self.account_id}/intents"
        headers = {"x-api-key": key["api_key"]}
        status: int = self.tenants.client.post(url, json=body, headers=headers).status_code
        return status

    def is_refused(self, key: Any) -> bool:
        headers = {"x-api-key": key["api_key"]}
        answer = self.tenants.client.get(f"/v1/accounts/{self.account_id}/orders", headers=headers)
        answered = self.tenants.client.post(VALIDATE, json={"api_key": key["api_key"]}).json()[
            "disabled"
        ]
        return bool(answer.status_code == 401 and answered)


@pytest.fixture
def office(tenants: Tenants, request: pytest.FixtureRequest) -> Office:
    return Office(tenants, f"s{abs(hash(request.node.name)) % 10**9}")


def test_a_session_key_is_the_persons_and_trades(office: Office) -> None:
    answer = office.open(office.sign_in(office.admin))
    made = answer.json()
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    assert (made["name"], made["user"], made["environment"]) == (
        office.admin,
        office.admin,
        "paper",
    )
    assert made["permissions"] == sorted([*TRADER, "control:edit"])
    assert made["expires_at"] > made["created_at"]
    assert office.buy(made) == 202
    of_member = office.open(office.sign_in(office.member)).json()
    assert (of_member["user"], of_member["permissions"]) == (office.member, TRADER)
    assert office.buy(of_member) == 202
    listed = office.tenants.client.get("/v1/api-keys", headers=office.sign_in(office.admin)).json()[
        "data"
    ]
    assert {key["id"]: key["user"] for key in listed} == {
        made["id"]: office.admin,
        of_member["id"]: office.member,
    }


def test_a_member_needs_member_trading_and_a_reader_has_no_session(office: Office) -> None:
    office.apply(member_trading=False)
    office.set_roles(admin="read_only")
    member = office.sign_in(office.member)
    reader = office.sign_in(office.admin)
    for headers in (member, reader):
        refused = office.open(headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    caller = office.tenants.client.get("/v1/caller", headers=member).json()
    assert "open_session" not in caller["policies"]
    assert office.open(member | {"x-api-key": "tip_paper_x"}).status_code == 400
    bad = office.tenants.client.post(
        URL, json={"environment": "demo"}, headers=office.sign_in(office.member)
    )
    assert bad.status_code == 403


@pytest.mark.slow
@pytest.mark.parametrize("change", ["role", "member_trading", "user"])
@pytest.mark.deadline
def test_a_session_ends_within_a_second_of_what_it_rests_on(office: Office, change: str) -> None:
    headers = office.sign_in(office.member)
    key = office.open(headers).json()
    admins = office.open(office.sign_in(office.admin)).json()
    assert not office.is_refused(key)
    ends: dict[str, Callable[[], Any]] = {
        "role": lambda: office.set_roles(member="read_only"),
        "member_trading": lambda: office.apply(member_trading=False),
        "user": lambda: office.tenants.client.delete("/v1/users/me", headers=headers),
    }
    ends[change]()
    eventually(lambda: office.is_refused(key), 1)
    assert office.buy(key) == 401
    assert office.buy(admins) == 202
    if change == "user":  # who is set up again signs in again
        office.set_roles(member="member")
        assert office.is_refused(key)


@pytest.mark.parametrize("change", ["role", "member_trading"])
def test_a_session_that_ended_does_not_live_again(office: Office, change: str) -> None:
    """An end is a fact: who may trade again opens another session."""
    key = office.open(office.sign_in(office.member)).json()
    admins = office.open(office.sign_in(office.admin)).json()
    if change == "role":
        office.set_roles(member="read_only")
        office.set_roles(member="member")
    else:
        office.apply(member_trading=False)
        office.apply(member_trading=True)
    eventually(lambda: office.is_refused(key), 5)
    assert office.buy(key) == 401
    assert office.buy(admins) == 202
    assert not office.is_refused(office.open(office.sign_in(office.member)).json())


def test_an_admin_who_becomes_a_member_keeps_no_admins_key(office: Office) -> None:
    key = office.open(office.sign_in(office.admin)).json()
    office.set_roles(admin="member")
    eventually(lambda: office.is_refused(key), 5)
    assert not office.is_refused(office.open(office.sign_in(office.admin)).json())


def test_sign_out_ends_the_keys_of_that_token_alone(office: Office) -> None:
    first = office.sign_in(office.admin)
    second = office.sign_in(office.admin)
    keys = [office.open(first).json(), office.open(first).json(), office.open(second).json()]
    assert office.tenants.client.delete(URL, headers=first).status_code == 204
    assert [office.buy(key) for key in keys] == [401, 401, 202]
    assert office.tenants.client.delete(URL, headers=first).status_code == 204
    assert (
        office.tenants.client.delete(URL, headers={"x-api-key": keys[2]["api_key"]}).status_code
        == 401
    )


@pytest.mark.parametrize("method", ["post", "delete", "get"])
def test_another_spelling_of_a_token_is_refused(office: Office, method: str) -> None:
    padded = {"authorization": office.sign_in(office.admin)["authorization"] + "=="}
    ask = getattr(office.tenants.client, method)
    given = {"json": {"environment": "paper"}} if method == "post" else {}
    url = "/v1/caller" if method == "get" else URL
    assert ask(url, headers=padded, **given).status_code == 401


def test_a_sixth_session_ends_the_oldest_of_its_user_and_environment(office: Office) -> None:
    headers = office.sign_in(office.admin)
    live = office.open(headers, "live").json()
    others = office.open(office.sign_in(office.member)).json()
    keys = [office.open(headers).json() for _ in range(6)]
    assert [office.buy(key) for key in keys] == [401, 202, 202, 202, 202, 202]
    assert office.buy(others) == 202
    validated = office.tenants.client.post(VALIDATE, json={"api_key": live["api_key"]}).json()
    assert (validated["environment"], validated["disabled"]) == ("live", False)
