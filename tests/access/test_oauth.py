"""The embedded provider over HTTP: client credentials, discovery, keys; errors as RFC 6749 has
them."""

from typing import Any

import jwt

from tests.tenants import EVERY_SCOPE, Tenants

URL = "/oauth/token"
GRANT = {"grant_type": "client_credentials"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


def secret(tenants: Tenants) -> str:
    found: str = next(a for a in tenants.answer["service_accounts"] if a["client_id"] == "reader")[
        "client_secret"
    ]
    return found


def test_credentials_by_basic_and_by_form_give_a_token(tenants: Tenants) -> None:
    by_basic = tenants.client.post(URL, data=GRANT, auth=("reader", secret(tenants)))
    by_form = tenants.client.post(
        URL, data=GRANT | {"client_id": "reader", "client_secret": secret(tenants)}
    )
    for answer in (by_basic, by_form):
        assert answer.status_code == 200
        assert (answer.headers["cache-control"], answer.headers["pragma"]) == (
            "no-store",
            "no-cache",
        )
        shown = answer.json()
        assert (shown["token_type"], shown["expires_in"]) == ("Bearer", 900)
        assert shown["scope"] == " ".join(sorted(EVERY_SCOPE))
        headers = {"authorization": f"Bearer {shown['access_token']}"}
        assert (
            tenants.client.get(
                "/v1/organizations/by-provider/local/org_acme", headers=headers
            ).status_code
            == 200
        )


def test_the_token_verifies_with_the_published_key(tenants: Tenants) -> None:
    metadata = tenants.client.get("/.well-known/openid-configuration").json()
    keys = tenants.client.get("/.well-known/jwks.json").json()["keys"]
    token = tenants.service_token("reader")
    key = jwt.PyJWK(next(k for k in keys if k["kid"] == jwt.get_unverified_header(token)["kid"]))
    claims = jwt.decode(
        token, key, algorithms=["EdDSA"], audience="trading-intents", issuer=metadata["issuer"]
    )
    assert (claims["sub"], claims["exp"] - claims["iat"]) == ("reader", 900)
    assert metadata["grant_types_supported"] == ["client_credentials"]
    assert metadata["token_endpoint"].endswith(URL)
    assert metadata["jwks_uri"].endswith("/.well-known/jwks.json")
    assert not {"d", "k", "p", "q"} & set(keys[0])


def test_fewer_scopes_can_be_asked_for(tenants: Tenants) -> None:
    answer = tenants.client.post(
        URL, data=GRANT | {"scope": "intent:read"}, auth=("reader", secret(tenants))
    )
    assert answer.json()["scope"] == "intent:read"


def error(tenants: Tenants, expected_status: int, **request: Any) -> str:
    answer = tenants.client.post(URL, **request)
    assert (answer.status_code, answer.headers["content-type"]) == (
        expected_status,
        "application/json",
    ), answer.text
    assert set(answer.json()) == {"error", "error_description"}
    if expected_status == 401:
        assert answer.headers["www-authenticate"] == 'Basic realm="trading-intents"'
    code: str = answer.json()["error"]
    return code


def test_a_client_that_does_not_authenticate_is_invalid(tenants: Tenants) -> None:
    good = secret(tenants)
    for request in (
        {"data": GRANT},
        {"data": GRANT, "auth": ("reader", good + "x")},
        {"data": GRANT, "auth": ("reader", "")},
        {"data": GRANT, "auth": ("stranger", good)},
        {"data": GRANT, "auth": ("re\x00ader", good)},
        {"data": GRANT | {"client_id": "reader", "client_secret": good[:-1]}},
        {"data": GRANT | {"client_id": "reader"}},
        {"data": GRANT, "headers": {"authorization": "Basic !!!"}},
        {"data": GRANT, "headers": {"authorization": "Bearer x"}},
    ):
        assert error(tenants, 401, **request) == "invalid_client"


def test_a_request_that_cannot_be_read_is_invalid(tenants: Tenants) -> None:
    auth = ("reader", secret(tenants))
    assert error(tenants, 400, data={"scope": "intent:read"}, auth=auth) == "invalid_request"
    assert (
        error(tenants, 400, content=b"grant_type=a&grant_type=b", headers=FORM, auth=auth)
        == "invalid_request"
    )
    assert error(tenants, 400, content=b"\xff", headers=FORM, auth=auth) == "invalid_request"
    assert error(tenants, 400, content=b"", headers=FORM, auth=auth) == "invalid_request"
    assert error(tenants, 400, data=GRANT | {"client_secret": "x"}, auth=auth) == "invalid_request"
    assert error(tenants, 415, json=GRANT, auth=auth) == "invalid_request"
    assert (
        error(tenants, 413, content=b"a=" + b"x" * 70_000, headers=FORM, auth=auth)
        == "invalid_request"
    )


def test_other_grants_and_scopes_are_refused(tenants: Tenants) -> None:
    auth = ("reader", secret(tenants))
    assert (
        error(tenants, 400, data={"grant_type": "password"}, auth=auth) == "unsupported_grant_type"
    )
    assert error(tenants, 400, data=GRANT | {"scope": "intent:write"}, auth=auth) == "invalid_scope"
    assert (
        error(tenants, 400, data=GRANT | {"scope": "intent:read admin"}, auth=auth)
        == "invalid_scope"
    )


def test_a_form_has_8_kib_at_most(tenants: Tenants) -> None:
    form = "grant_type=client_credentials&scope="
    full = form + "%20" * ((8 * 1024 - len(form)) // 3)
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert tenants.client.post(URL, content=full, headers=headers).status_code == 401
    answer = tenants.client.post(URL, content=full + "%20", headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (413, "invalid_request")


def test_a_client_with_a_long_secret_is_401_unread(tenants: Tenants) -> None:
    form = {"grant_type": "client_credentials"}
    assert (
        tenants.client.post(URL, data=form, auth=("reader", "%FF" * 7000)).json()["error"]
        == "invalid_client"
    )
