"""The first check that fails decides the answer, and every error of an endpoint has that endpoint's
form."""

import pytest

from tests.tenants import Tenants

PLAIN_PATHS = {"GET": "/v1/accounts/outbox/health", "DELETE": "/v1/users/me"}


@pytest.mark.parametrize(("method", "path"), PLAIN_PATHS.items())
def test_every_error_is_text_where_the_specification_says_so(
    tenants: Tenants, method: str, path: str
) -> None:
    admin = tenants.callers["admin"]
    long = tenants.client.request(method, f"{path}?{'a' * 9000}", headers=admin)
    longer = tenants.client.request(method, f"{path}?{'a' * 60_000}", headers=admin)
    other = tenants.client.request("PUT", path, headers=admin)
    assert [answer.status_code for answer in (long, longer, other)] == [414, 414, 405]
    assert {answer.headers["content-type"] for answer in (long, longer, other)} == {
        "text/plain; charset=utf-8"
    }


@pytest.mark.parametrize(("method", "path"), [*PLAIN_PATHS.items(), ("POST", "/v1/accounts")])
def test_who_calls_is_asked_before_a_body_is_too_large(
    tenants: Tenants, method: str, path: str
) -> None:
    body = b"[" * (1024 * 1024 + 1500)  # beyond what is read to its end
    answer = tenants.client.request(
        method, path, content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 401
    assert answer.text == "unauthorized" or method == "POST"


@pytest.mark.parametrize("named", ["nonsense", "018f0000-0000-7000-8000-000000000000", ""])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/api-keys"), ("DELETE", "/v1/users/me"), ("POST", "/v1/accounts/x/intents")],
)
def test_a_service_account_that_is_not_taken_is_401_whatever_it_names(
    tenants: Tenants, method: str, path: str, named: str
) -> None:
    headers = tenants.callers["service_unnamed"] | {"x-organization-id": named}
    answer = tenants.client.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert answer.text == "unauthorized" or method != "DELETE"
