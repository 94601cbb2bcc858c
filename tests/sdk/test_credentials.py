"""The caller's credentials: where they are found, how tokens are renewed, and that nothing shows
them."""

import logging
import traceback
from pathlib import Path

import httpx
import pytest

from tests.sdk.answers import CannedAnswers, accepted
from tests.tenants import Tenants
from trading_intents_client import BearerCredentials, ClientCredentials, TradingClient, errors
from trading_intents_client.transport.credentials import Credentials, find_endpoint

SECRET = "tip_paper_s3cret"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("URL", "API_KEY", "DATA_DIR"):
        monkeypatch.delenv(f"TRADING_INTENTS_{name}", raising=False)
    return tmp_path


async def key_of(credentials: Credentials) -> str:
    return dict(await credentials.metadata())["x-api-key"]


async def test_arguments_come_before_the_environment_and_that_before_the_demo(
    elsewhere: Path,
) -> None:
    with pytest.raises(errors.NotConfigured, match="make run"):
        find_endpoint(None, None, None, {})
    (elsewhere / ".data").mkdir()
    (elsewhere / ".data" / "demo.json").write_text('{"api_key": "demo"}')
    demo = find_endpoint(None, None, None, {})
    assert (demo.url, await key_of(demo.credentials)) == ("http://127.0.0.1:8080", "demo")
    (elsewhere / ".data" / "demo-url").write_text("http://127.0.0.1:9090")
    assert find_endpoint(None, None, None, {}).url == "http://127.0.0.1:9090"
    environ = {"TRADING_INTENTS_URL": "http://there", "TRADING_INTENTS_API_KEY": "its"}
    received = find_endpoint(None, None, None, environ)
    assert (received.url, await key_of(received.credentials)) == ("http://there", "its")
    given = find_endpoint("http://here", "mine", None, environ)
    assert (given.url, await key_of(given.credentials)) == ("http://here", "mine")
    (elsewhere / "other").mkdir()
    (elsewhere / "other" / "demo.json").write_text('{"api_key": "other"}')
    moved = find_endpoint(None, None, None, {"TRADING_INTENTS_DATA_DIR": "other"})
    assert await key_of(moved.credentials) == "other"
    with pytest.raises(errors.NotConfigured, match="not both"):
        find_endpoint(None, "key", BearerCredentials("t"), {})


def test_a_users_token_and_a_service_account_can_call(tenants: Tenants) -> None:
    bearer = tenants.callers["admin"]["authorization"].removeprefix("Bearer ")
    with TradingClient(
        tenants.platform.url, credentials=BearerCredentials(lambda: bearer)
    ) as client:
        assert "all" in [key.name for key in client.organization.api_keys()]
    secret = next(a for a in tenants.answer["service_accounts"] if a["client_id"] == "reader")[
        "client_secret"
    ]
    reader = ClientCredentials("reader", secret)
    organization = tenants.organization("org_acme")["id"]
    with TradingClient(
        tenants.platform.url, credentials=reader, organization_id=organization
    ) as client:
        assert client.platform.outbox_health().failed == 0
        list(client.accounts())
    wrong = ClientCredentials("reader", "wrong")
    with (
        TradingClient(tenants.platform.url, credentials=wrong) as client,
        pytest.raises(errors.InvalidClient),
    ):
        client.platform.outbox_health()


async def test_tokens_are_kept_and_renewed_before_they_end() -> None:
    issued = [0]
    now = [1000.0]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/oauth/token":
            return accepted()
        issued[0] += 1
        return httpx.Response(
            200,
            json={
                "access_token": f"t{issued[0]}",
                "token_type": "Bearer",
                "expires_in": 900,
                "scope": "",
            },
        )

    answers = CannedAnswers(answer)
    credentials = ClientCredentials("me", SECRET)
    async with answers.client(credentials=credentials) as client:
        credentials.bind(client._transport.fetch_token, lambda: now[0])
        for at in (0, 800, 839, 841, 1600):
            now[0] = 1000.0 + at
            await client.account("a").buy("AAPL", 1)
    used = [r.headers["authorization"] for r in answers.asked if r.url.path != "/oauth/token"]
    assert used == ["Bearer t1", "Bearer t1", "Bearer t1", "Bearer t2", "Bearer t2"]


async def test_a_refused_token_is_fetched_anew() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/oauth/token":
            return httpx.Response(401, text="unauthorized")
        return httpx.Response(
            200, json={"access_token": "t", "token_type": "Bearer", "expires_in": 900, "scope": ""}
        )

    answers = CannedAnswers(answer)
    async with answers.client(credentials=ClientCredentials("me", SECRET)) as client:
        for _ in range(2):
            with pytest.raises(errors.Unauthorized):
                await client.account("a").get()
    assert [r.url.path for r in answers.asked].count("/oauth/token") == 2


async def test_a_key_is_in_no_log_repr_or_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers = CannedAnswers(httpx.ReadError("cut"))
    async with answers.client(api_key=SECRET, max_retries=0) as client:
        with pytest.raises(errors.AnswerLost) as caught:
            await client.account("a").buy("AAPL", 1)
    error = caught.value
    shown = "".join(
        traceback.TracebackException.from_exception(error, capture_locals=True).format()
    )
    assert SECRET not in shown + repr(error) + str(error)
    assert answers.asked[0].headers["x-api-key"] == SECRET
    assert SECRET not in caplog.text
