"""When streams end: a caller who may no longer, a token that runs out, a process that stops; and what keeps them."""

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Urls
from tests.intents.desk import Desk, Tables, create, limit
from tests.platform import Platform, serving
from tests.stream.client import ACTION, Client, Follower, kind_of
from tests.world import PLENTY, Headers, World
from trading_intents.clock import SystemClock
from trading_intents.config import PREFIX, Settings
from trading_intents.identity.provider import TOKEN_SECONDS, EmbeddedProvider, load_signing_key
from trading_intents.ids import id_maker

END_SECONDS = 5.0
QUIET_SECONDS = 10.0
STOP_SECONDS = 12.0


class Clock(SystemClock):
    """A while behind."""

    def __init__(self, behind_seconds: float) -> None:
        self._behind = timedelta(seconds=behind_seconds)

    def now(self) -> datetime:
        return datetime.now(UTC) - self._behind


def bearer(platform: Platform, user: str, organization: str, behind_seconds: float = 0.0) -> Headers:
    """A token as the platform itself makes them, some time ago."""
    folder, clock = Path(platform.environ[f"{PREFIX}DATA_DIR"]), Clock(behind_seconds)
    provider = EmbeddedProvider(Settings(data_dir=folder), load_signing_key(folder), clock, id_maker(clock))
    return {"authorization": f"Bearer {provider.issue_user_token(user, organization, 'member').reveal()}"}


@pytest.fixture(scope="module")
def leaving(world: World) -> dict[str, Any]:
    """An organization whose users and keys may go."""
    keys = [{"name": name, "environment": "paper", "permissions": ["stream:read"]} for name in "abcd"]
    users = [{"external_id": "leaving-user", "role": "member"}]
    document = {"external_id": "org_leaving", "users": users, "api_keys": keys}
    (made,) = world.platform.apply({"organizations": [document]})["organizations"]
    return dict(made)


class Quiet:
    """A stream on which nothing happens, listened to from the first test of this file to the last."""

    def __init__(self, address: str, caller: Headers) -> None:
        self._client = Client(address)
        self._follower = follow(self._client, caller)
        self.since, self.heard_at = time.time(), 0.0
        self.event: Any = None
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()

    def _listen(self) -> None:
        self.event = next(self._follower.call)
        self.heard_at = time.time()
        self._client.close()


@pytest.fixture(scope="module", autouse=True)
def quiet(world: World) -> Quiet:
    return Quiet(world.platform.grpc, world.callers["internal_admin"])


def follow(client: Client, caller: Headers) -> Follower:
    return client.follow(caller, "", (ACTION,)).subscribed()


def assert_ended_soon(followers: list[Follower], status: str) -> None:
    since = time.monotonic()
    assert {follower.ended()[0] for follower in followers} == {status}
    assert time.monotonic() - since < END_SECONDS


@pytest.mark.parametrize(
    ("number", "change", "status"),
    [
        (0, "UPDATE api_keys SET disabled = true WHERE id = $1::text::uuid", "UNAUTHENTICATED"),
        (1, "UPDATE api_keys SET permissions = ARRAY['intent:read'] WHERE id = $1::text::uuid", "PERMISSION_DENIED"),
        (2, "DELETE FROM api_keys WHERE id = $1::text::uuid", "UNAUTHENTICATED"),
    ],
    ids=["disabled", "without the permission", "deleted"],
)
def test_a_key_that_may_no_longer_is_ended(
    client: Client, world: World, leaving: dict[str, Any], tables: Tables, number: int, change: str, status: str
) -> None:
    made = leaving["api_keys"][number]
    followers = [follow(client, {"x-api-key": made["api_key"]}) for _ in range(3)]
    bystander = follow(client, world.callers["key_all"])
    tables.execute(change, made["id"])  # as another process would: ours hears of it by asking
    assert_ended_soon(followers, status)
    assert bystander.call.is_active()
    bystander.cancel()


def test_an_expired_token_ends_its_streams(client: Client, world: World, leaving: dict[str, Any]) -> None:
    caller = bearer(world.platform, "leaving-user", "org_leaving", TOKEN_SECONDS - 2)
    assert_ended_soon([follow(client, caller), follow(client, caller)], "UNAUTHENTICATED")


def test_a_deleted_user_is_ended(client: Client, world: World, leaving: dict[str, Any]) -> None:
    caller = bearer(world.platform, "leaving-user", "org_leaving")
    follower = follow(client, caller)
    assert world.client.delete("/v1/users/me", headers=caller).status_code == 204
    assert_ended_soon([follower], "UNAUTHENTICATED")


def test_a_disabled_organization_is_ended(
    client: Client, world: World, leaving: dict[str, Any], tables: Tables
) -> None:
    follower = follow(client, {"x-api-key": leaving["api_keys"][3]["api_key"]})
    tables.execute("UPDATE organizations SET disabled = true WHERE id = $1::text::uuid", leaving["id"])
    assert_ended_soon([follower], "UNAUTHENTICATED")


def test_sigterm_ends_streams_as_unavailable_and_they_resume_elsewhere(
    client: Client, world: World, desk: Desk, world_database: Urls, tmp_path: Path
) -> None:
    settings = PLENTY | {"DATABASE_URL": world_database.login.reveal(), "ROLES": "stream"}
    with serving(tmp_path, **settings) as second:
        elsewhere = Client(second.grpc)
        followers = [elsewhere.follow(desk.headers, desk.account["id"], (ACTION,)).subscribed() for _ in range(5)]
        desk.accepted(create(limit()))
        seen = [follower.take(1)[0] for follower in followers]
        since = time.monotonic()
        ends: list[tuple[str, str]] = []
        ending = threading.Thread(target=lambda: ends.extend(follower.ended() for follower in followers))
        ending.start()
        assert second.stop() == 0
        ending.join()
        elsewhere.close()
    assert {status for status, _ in ends} == {"UNAVAILABLE"}
    assert time.monotonic() - since < STOP_SECONDS
    resumed = client.follow(desk.headers, desk.account["id"], (ACTION,), resume_after=seen[0].cursor).subscribed()
    record = desk.accepted(create(limit()))
    assert resumed.take(1)[0].intent_action.intent_id == record["intent_id"]
    assert not [line for line in second.logs if line.startswith("{") and json.loads(line)["level"] == "error"]


def test_a_quiet_stream_has_heartbeats_and_they_have_no_cursor(quiet: Quiet) -> None:
    quiet.thread.join()
    event = quiet.event
    assert (kind_of(event), event.cursor) == ("heartbeat", "")
    assert abs(event.heartbeat.sent_at.ToSeconds() - quiet.heard_at) < END_SECONDS
    assert QUIET_SECONDS - 1 < quiet.heard_at - quiet.since < QUIET_SECONDS + END_SECONDS
