"""The health report from outside: who may read it, what it says, and what it never shows."""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from tests.conftest import Databases, Urls
from tests.platform import Platform, serving
from tests.proxy import FaultProxy, proxied
from tests.tenants import PLENTY, Headers, key
from tests.waiting import eventually

HEALTH = "/v1/accounts/outbox/health"
MARKER = "s3cret-marker"
READS_BURST = 40
TOTALS = ("pending", "processing", "failed", "completed")
DOCUMENT: dict[str, Any] = {
    "organizations": [
        {
            "external_id": "org_internal",
            "users": [
                {"external_id": "boss", "role": "admin"},
                {"external_id": "clerk", "role": "member"},
            ],
            "api_keys": [key("bot")],
        },
        {"external_id": "org_acme", "users": [{"external_id": "ada", "role": "admin"}]},
    ],
    "service_accounts": [
        {"client_id": "watch", "scopes": ["credential:read"]},
        {"client_id": "blind", "scopes": ["intent:read"]},
    ],
}
ROW: dict[str, Any] = {
    "queue": "accounts",
    "event_type": "account.created",
    "status": "pending",
    "attempts": 1,
    "due_at": "2026-01-05T15:00:00Z",
    "created_at": "2026-01-05T15:00:00Z",
    "payload": {"secret": MARKER},
    "last_error": MARKER,
}
PROCESSING = {"status": "processing", "claim_token": uuid.uuid4()}
FINISHED_AT = {"finished_at": "2026-01-05T16:00:00Z"}


@pytest.fixture(scope="module")
def faulty(databases: Databases) -> Iterator[tuple[FaultProxy, Urls]]:
    """A database of its own for the module, reached through a proxy that can fail."""
    with databases() as urls, proxied(urls.login) as (proxy, url):
        yield proxy, Urls(urls.owner, url)


def run(urls: Urls, statement: str, *arguments: object) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(urls.owner.reveal())
        await connection.execute(statement, *arguments)
        await connection.close()

    asyncio.run(execute())


@pytest.fixture(scope="module")
def platform(
    faulty: tuple[FaultProxy, Urls], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    """Without a worker, so that rows stay as they are put."""
    settings = PLENTY | {
        "DATABASE_URL": faulty[1].login.reveal(),
        "DATABASE_OWNER_URL": faulty[1].owner.reveal(),
        "INTERNAL_ORGANIZATIONS": "org_internal",
        "RATE_LIMIT_READS": f"10/{READS_BURST}",
        "ROLES": "api",
    }
    with serving(tmp_path_factory.mktemp("health"), **settings) as platform:
        yield platform


@pytest.fixture(scope="module")
def callers(platform: Platform) -> dict[str, Headers]:
    made = platform.provision(DOCUMENT)

    def user(name: str, organization: str = "") -> Headers:
        return {"authorization": f"Bearer {platform.token(name, organization)}"}

    def service(account: dict[str, str]) -> Headers:
        auth = (account["client_id"], account["client_secret"])
        answer = platform.client.post(
            "/oauth/token", data={"grant_type": "client_credentials"}, auth=auth
        )
        return {"authorization": f"Bearer {answer.json()['access_token']}"}

    bot = {"x-api-key": made["organizations"][0]["api_keys"][0]["api_key"]}
    watch, blind = (service(account) for account in made["service_accounts"])
    return {
        "nobody": {},
        "key": bot,
        "service": watch,
        "service without scope": blind,
        "internal admin": user("boss", "org_internal"),
        "internal member": user("clerk", "org_internal"),
        "other admin": user("ada", "org_acme"),
        "user without organization": user("boss"),
        "key and token": bot | watch,
    }


Put = Callable[..., None]


@pytest.fixture
def put(faulty: tuple[FaultProxy, Urls]) -> Iterator[Put]:
    """Rows with marks in everything that the report must not show."""
    urls = faulty[1]
    run(urls, "TRUNCATE outbox")

    def put(count: int = 1, **columns: object) -> None:
        given = ROW | {"organization_id": uuid.uuid4(), "order_key": uuid.uuid4()} | columns
        if given["status"] == "completed":
            given["last_error"] = None
        names = ", ".join(given)
        run(
            urls,
            f"""
            INSERT INTO outbox ({names})
            SELECT {names} FROM jsonb_populate_record(NULL::outbox, $1::jsonb),
                generate_series(1, $2::int)
            """,
            json.dumps(given, default=str),
            count,
        )

    yield put
    run(urls, "TRUNCATE outbox")


def report(platform: Platform, headers: Headers) -> dict[str, Any]:
    answer = platform.client.get(HEALTH, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    for total in TOTALS:
        assert found[total] == sum(
            entry["count"] for entry in found["entries"] if entry["status"] == total
        )
    return found


@pytest.mark.parametrize(
    ("caller", "status"),
    [
        ("nobody", 401),
        ("key", 401),
        ("user without organization", 401),
        ("key and token", 401),
        ("service without scope", 403),
        ("internal member", 403),
        ("other admin", 403),
        ("service", 200),
        ("internal admin", 200),
    ],
)
def test_only_operators_read_it_and_refusals_are_plain_text(
    platform: Platform, callers: dict[str, Headers], caller: str, status: int
) -> None:
    answer = platform.client.get(HEALTH, headers=callers[caller])
    assert answer.status_code == status
    if status == 401:
        assert answer.text == "unauthorized"
        assert answer.headers["www-authenticate"]
    if status != 200:
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"


def test_an_empty_queue_has_no_entries_and_every_field(
    platform: Platform, callers: dict[str, Headers], put: Put
) -> None:
    assert report(platform, callers["service"]) == {
        "entries": [],
        "pending": 0,
        "processing": 0,
        "failed": 0,
        "completed": 0,
        "oldest_claim_at": None,
        "oldest_failed_at": None,
        "oldest_pending_at": None,
    }


def test_it_counts_and_dates_the_whole_queue_by_status_and_type(
    platform: Platform, callers: dict[str, Headers], put: Put
) -> None:
    put(2, created_at="2026-01-05T15:00:02Z")
    put(created_at="2026-01-05T15:00:01.5Z", attempts=3)
    put(event_type="credential.deleted", created_at="2026-01-05T15:00:03Z", attempts=0)
    put(**PROCESSING, claimed_at="2026-01-05T15:30:01Z", attempts=2)
    put(**PROCESSING, claimed_at="2026-01-05T15:30:00+00:00", event_type="account.updated")
    put(status="failed", **FINISHED_AT, attempts=10, created_at="2026-01-04T00:00:00Z")
    put(3, status="completed", **FINISHED_AT, event_type="credential.created")
    found = report(platform, callers["internal admin"])
    at = "2026-01-05T15:00:00.000000Z"
    names = (
        "status",
        "event_type",
        "count",
        "oldest_created_at",
        "max_attempts",
        "oldest_claimed_at",
    )
    assert [tuple(entry[name] for name in names) for entry in found["entries"]] == [
        ("completed", "credential.created", 3, at, 1, None),
        ("failed", "account.created", 1, "2026-01-04T00:00:00.000000Z", 10, None),
        ("pending", "account.created", 3, "2026-01-05T15:00:01.500000Z", 3, None),
        ("pending", "credential.deleted", 1, "2026-01-05T15:00:03.000000Z", 0, None),
        ("processing", "account.created", 1, at, 2, "2026-01-05T15:30:01.000000Z"),
        ("processing", "account.updated", 1, at, 1, "2026-01-05T15:30:00.000000Z"),
    ]
    assert all(set(entry) == set(names) for entry in found["entries"])
    assert [found[total] for total in TOTALS] == [4, 2, 1, 3]
    assert found["oldest_pending_at"] == "2026-01-05T15:00:01.500000Z"
    assert found["oldest_failed_at"] == "2026-01-04T00:00:00.000000Z"
    assert found["oldest_claim_at"] == "2026-01-05T15:30:00.000000Z"


def test_other_queues_are_not_counted(
    platform: Platform, callers: dict[str, Headers], put: Put
) -> None:
    put(queue="users", event_type="user.deleted")
    assert report(platform, callers["service"])["entries"] == []


def test_it_shows_no_tenant_no_payload_and_no_error(
    platform: Platform, callers: dict[str, Headers], put: Put
) -> None:
    organization, order_key, token = (uuid.uuid4() for _ in range(3))
    put(
        organization_id=organization,
        order_key=order_key,
        status="processing",
        claim_token=token,
        claimed_at="2026-01-05T15:30:01Z",
    )
    text = platform.client.get(HEALTH, headers=callers["service"]).text
    assert '"processing":1' in text
    for hidden in (MARKER, organization, order_key, token):
        assert str(hidden) not in text


def test_the_description_lists_what_is_answered_and_nothing_else(platform: Platform) -> None:
    operation = platform.client.get("/openapi.json").json()["paths"][HEALTH]["get"]
    assert operation["x-policy"] == "outbox_health"
    assert {"200", "401", "403", "429", "500"} <= set(operation["responses"])
    assert "503" not in operation["responses"]
    for status, response in operation["responses"].items():
        assert list(response["content"]) == [
            "application/json" if status == "200" else "text/plain"
        ]


def test_a_database_that_is_away_is_500_whatever_was_being_read(
    platform: Platform, faulty: tuple[FaultProxy, Urls], callers: dict[str, Headers]
) -> None:
    report(platform, callers["service"])  # the caller is known for a moment
    faulty[0].refuse()
    try:
        known = platform.client.get(HEALTH, headers=callers["service"])
        unknown = platform.client.get(HEALTH, headers=callers["internal admin"])
    finally:
        faulty[0].work()
    for answer in (known, unknown):
        assert answer.status_code == 500
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    eventually(
        lambda: platform.client.get(HEALTH, headers=callers["service"]).status_code == 200, 20
    )


def test_too_many_requests_are_429_in_plain_text(
    platform: Platform, callers: dict[str, Headers]
) -> None:
    answers = [
        platform.client.get(HEALTH, headers=callers["internal admin"])
        for _ in range(READS_BURST * 5)
    ]
    limited = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert limited[0].headers["content-type"] == "text/plain; charset=utf-8"
    assert limited[0].headers["retry-after"]
