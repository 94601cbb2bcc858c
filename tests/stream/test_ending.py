"""Ends of streams: a caller that lost its permission, a token that expires, a process that stops;
and what keeps them."""

import json
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Urls
from tests.intents.http_client import Tables, TradingClient, create, limit
from tests.platform import Platform, serving
from tests.stream.client import ACTION, Client, Follower, kind_of
from tests.tenants import PLENTY, Headers, Tenants
from trading_intents.clock import SystemClock
from trading_intents.config import PREFIX, Settings
from trading_intents.identity.provider import TOKEN_SECONDS, EmbeddedProvider, load_issuer
from trading_intents.ids import id_maker

pytestmark = pytest.mark.slow

END_SECONDS = 5.0
QUIET_SECONDS = 10.0
EXPIRES_SECONDS = 3.0
STOP_SECONDS = 12.0


class Clock(SystemClock):
    """A while behind."""

    def __init__(self, behind_seconds: float) -> None:
        self._behind = timedelta(seconds=behind_seconds)

    def now(self) -> datetime:
        return datetime.now(UTC) - self._behind


def bearer(
    platform: Platform, user: str, organization: str, behind_seconds: float = 0.0
) -> Headers:
    """A token as the platform itself makes them, some time ago."""
    folder = Path(platform.environ[f"{PREFIX}DATA_DIR"])
    clock = Clock(behind_seconds)
    settings = Settings(data_dir=folder)
    provider = EmbeddedProvider(settings, load_issuer(settings), clock, id_maker(clock))
    token = provider.issue_user_token(user, organization, "member")
    return {"authorization": f"Bearer {token.reveal()}"}


@pytest.fixture(scope="module")
def leaving(tenants: Tenants) -> dict[str, Any]:
    """An organization whose users and keys may go."""
    keys = [
        {"name": name, "environment": "paper", "permissions": ["stream:read"]} for name in "abcde"
    ]
    users = [{"external_id": f"{which}-user", "role": "member"} for which in ("leaving", "staying")]
    document = {"external_id": "org_leaving", "users": users, "api_keys": keys}
    (made,) = tenants.platform.provision({"organizations": [document]})["organizations"]
    return dict(made)


def follow(client: Client, caller: Headers) -> Follower:
    return client.follow(caller, "", (ACTION,)).subscribed()


class Waiting:
    """Streams that wait for their end, each in a thread of its own."""

    def __init__(self, client: Client, callers: Mapping[str, Headers]) -> None:
        self.followers = {name: follow(client, caller) for name, caller in callers.items()}
        self.ends: dict[str, tuple[str, float]] = {}
        self._threads = [threading.Thread(target=self._wait, args=(name,)) for name in callers]
        for thread in self._threads:
            thread.start()

    def _wait(self, name: str) -> None:
        status, _ = self.followers[name].ended()
        self.ends[name] = (status, time.time())

    def join(self) -> dict[str, tuple[str, float]]:
        for thread in self._threads:
            thread.join()
        return self.ends


@pytest.mark.deadline
def test_whoever_may_no_longer_is_ended_soon(
    client: Client, tenants: Tenants, leaving: dict[str, Any], tables: Tables
) -> None:
    keys = [{"x-api-key": made["api_key"]} for made in leaving["api_keys"]]
    ids = [made["id"] for made in leaving["api_keys"]]
    user = bearer(tenants.platform, "leaving-user", "org_leaving")
    expiring = bearer(
        tenants.platform, "staying-user", "org_leaving", TOKEN_SECONDS - EXPIRES_SECONDS
    )
    expires_at = time.time() + EXPIRES_SECONDS
    callers = {
        "disabled": keys[0],
        "disabled too": keys[0],
        "less": keys[1],
        "removed": keys[2],
        "ended": keys[4],
    }
    waiting = Waiting(client, callers | {"user": user, "expired": expiring})
    bystanders = [follow(client, caller) for caller in (keys[3], tenants.callers["key_all"])]
    # As another process would: ours hears of it by asking.
    tables.execute("UPDATE api_keys SET disabled = true WHERE id = $1::text::uuid", ids[0])
    tables.execute(
        "UPDATE api_keys SET permissions = ARRAY['intent:read'] WHERE id = $1::text::uuid", ids[1]
    )
    tables.execute("DELETE FROM api_keys WHERE id = $1::text::uuid", ids[2])
    tables.execute(
        "UPDATE api_keys SET expires_at = now() - interval '1 s' WHERE id = $1::text::uuid", ids[4]
    )
    assert tenants.client.delete("/v1/users/me", headers=user).status_code == 204
    changed_at = time.time()
    ends = waiting.join()
    statuses = {name: status for name, (status, _) in ends.items()}
    assert statuses.pop("less") == "PERMISSION_DENIED"
    assert set(statuses.values()) == {"UNAUTHENTICATED"}
    expired_at = ends.pop("expired")[1]
    assert -1 < expired_at - expires_at < END_SECONDS
    assert max(at for _, at in ends.values()) - changed_at < END_SECONDS
    assert all(follower.call.is_active() for follower in bystanders)
    tables.execute(
        "UPDATE organizations SET disabled = true WHERE id = $1::text::uuid", leaving["id"]
    )
    assert bystanders[0].ended()[0] == "UNAUTHENTICATED"
    bystanders[1].cancel()


# It proves how often the heart beats, which is every QUIET_SECONDS.
def test_a_quiet_stream_has_heartbeats_and_they_have_no_cursor(
    client: Client, tenants: Tenants
) -> None:
    since = time.time()
    follower = follow(client, tenants.callers["internal_admin"])
    event = next(follower.call)
    assert (kind_of(event), event.cursor) == ("heartbeat", "")
    assert abs(event.heartbeat.sent_at.ToSeconds() - time.time()) < END_SECONDS
    assert QUIET_SECONDS - 1 < time.time() - since < QUIET_SECONDS + END_SECONDS


@pytest.mark.deadline
def test_sigterm_ends_streams_as_unavailable_and_they_resume_elsewhere(
    client: Client,
    tenants: Tenants,
    trading_client: TradingClient,
    tenants_database: Urls,
    tmp_path: Path,
) -> None:
    settings = PLENTY | {"DATABASE_URL": tenants_database.login.reveal(), "ROLES": "stream"}
    with serving(tmp_path, **settings) as second:
        elsewhere = Client(second.grpc)
        followers = [
            elsewhere.follow(
                trading_client.headers, trading_client.account["id"], (ACTION,)
            ).subscribed()
            for _ in range(5)
        ]
        trading_client.accepted(create(limit()))
        seen = [follower.take(1)[0] for follower in followers]
        since = time.monotonic()
        ends: list[tuple[str, str]] = []
        ending = threading.Thread(
            target=lambda: ends.extend(follower.ended() for follower in followers)
        )
        ending.start()
        assert second.stop() == 0
        ending.join()
        elsewhere.close()
    assert {status for status, _ in ends} == {"UNAVAILABLE"}
    assert time.monotonic() - since < STOP_SECONDS
    resumed = client.follow(
        trading_client.headers, trading_client.account["id"], (ACTION,), resume_after=seen[0].cursor
    ).subscribed()
    record = trading_client.accepted(create(limit()))
    assert resumed.take(1)[0].intent_action.intent_id == record["intent_id"]
    assert not [
        line
        for line in second.logs
        if line.startswith("{") and json.loads(line)["level"] == "error"
    ]
