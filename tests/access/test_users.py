"""DELETE /v1/users/me: the user is gone at once, everywhere within a second, with exactly one
event."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import asyncpg
import httpx
import pytest

import tests.platform
from tests.conftest import Databases, Urls
from tests.identity.issuer import Issuer, p256_key
from tests.intents.http_client import Tables
from tests.platform import Platform, serving
from tests.tenants import PLENTY, Headers, Tenants
from tests.waiting import POLL_SECONDS, eventually
from trading_intents.clock import SystemClock

URL = "/v1/users/me"
MAKE_OLDER = "UPDATE users SET deleting_at = deleting_at - interval '5 s' WHERE deleted_at IS NULL"


@pytest.fixture
def tables(urls: Urls) -> Iterator[Tables]:
    with closing(Tables(urls.owner)) as tables:
        yield tables


@pytest.fixture(scope="session")
def tenants(working_tenants: Tenants) -> Tenants:
    """The worker ends the memberships of a deleted user."""
    return working_tenants


@pytest.fixture
def tenants_tables(working_database: Urls) -> Iterator[Tables]:
    with closing(Tables(working_database.owner)) as tables:
        yield tables


def events(tables: Tables, subject: str) -> list[dict[str, Any]]:
    found = tables.fetch(
        "SELECT payload FROM outbox WHERE queue = 'users' AND payload->>'subject' = $1", subject
    )
    return [json.loads(row["payload"]) for row in found]


def member(tenants: Tenants, name: str) -> Headers:
    users = [{"external_id": name, "role": "member"}]
    tenants.platform.provision({"organizations": [{"external_id": "org_acme", "users": users}]})
    return {"authorization": f"Bearer {tenants.platform.token(name, 'org_acme')}"}


def test_a_deleted_user_is_refused_at_once_and_makes_one_event(
    tenants: Tenants, tenants_tables: Tables
) -> None:
    leaver = member(tenants, "leaver")
    assert tenants.client.get("/v1/accounts", headers=leaver).status_code == 200
    answer = tenants.client.delete(URL, headers=leaver)
    assert (answer.status_code, answer.content) == (204, b"")
    again = tenants.client.delete(URL, headers=leaver)
    assert (again.status_code, again.text) == (401, "unauthorized")
    assert again.headers["content-type"].startswith("text/plain")
    assert tenants.client.get("/v1/accounts", headers=leaver).status_code == 401
    [event] = events(tenants_tables, "leaver")
    assert set(event) == {"subject", "organization_ids", "deleted_at"}
    assert event["organization_ids"] == [tenants.organization("org_acme")["id"]]
    memberships = """
        SELECT 1 FROM memberships m JOIN users u ON u.id = m.user_id WHERE u.external_id = 'leaver'
    """
    eventually(lambda: not tenants_tables.fetch(memberships), 10)
    assert tenants.platform.run("token", "--user", "leaver").returncode == 1


def test_a_user_who_comes_back_needs_a_new_token(tenants: Tenants, tenants_tables: Tables) -> None:
    old = member(tenants, "returner")
    assert tenants.client.delete(URL, headers=old).status_code == 204
    new = member(tenants, "returner")
    eventually(lambda: tenants.client.get("/v1/accounts", headers=new).status_code == 200, 10)
    assert tenants.client.get("/v1/accounts", headers=old).status_code == 401
    done = """
        SELECT 1 FROM outbox WHERE queue = 'users' AND payload->>'subject' = 'returner'
            AND status = 'completed'
    """
    eventually(lambda: bool(tenants_tables.fetch(done)), 10)
    assert tenants.client.get("/v1/accounts", headers=new).status_code == 200, (
        "the new membership stays"
    )


@pytest.mark.parametrize(
    "caller", ["none", "both", "key_all", "no_org", "service_all", "closed_admin"]
)
def test_whoever_is_no_user_with_an_organization_is_unauthorized(
    tenants: Tenants, caller: str
) -> None:
    answer = tenants.client.delete(URL, headers=tenants.callers[caller])
    assert (answer.status_code, answer.text) == (401, "unauthorized")
    assert answer.headers["content-type"].startswith("text/plain")


class Directory:
    """An external provider's users: what it was asked, and what it answers."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.status = 204
        self.refused = ""  # the path of a user whom it never deletes
        directory = self

        class Handler(BaseHTTPRequestHandler):
            def do_DELETE(self) -> None:
                directory.deleted.append(self.path)
                self.send_response(403 if self.path == directory.refused else directory.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/users"


@contextlib.contextmanager
def asked() -> Iterator[Directory]:
    made = Directory()
    thread = Thread(target=made.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture
def directory() -> Iterator[Directory]:
    with asked() as made:
        yield made


@contextlib.contextmanager
def impatiently() -> Iterator[None]:
    """Platforms that are started here look for unfinished deletions all the time, not every five
    seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tests.platform, "PROGRAM", "tests.access.impatient")
        yield


def make_older(tables: Tables) -> None:
    """As if the five seconds had gone that an unfinished deletion is left to the process that began
    it."""
    tables.execute(MAKE_OLDER)


@dataclass(frozen=True)
class Impatient:
    platform: Platform
    directory: Directory
    tables: Tables


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer(SystemClock(), p256_key()) as issuer:
        yield issuer


def settings_of(issuer: Issuer, directory: Directory, urls: Urls) -> dict[str, str]:
    return PLENTY | {
        "DATABASE_URL": urls.login.reveal(),
        "DATABASE_OWNER_URL": urls.owner.reveal(),
        "IDENTITY_PROVIDER_NAME": "acme-id",
        "IDENTITY_ISSUER": issuer.url,
        "IDENTITY_JWKS_URL": issuer.jwks_url,
        "IDENTITY_USERS_URL": directory.url,
    }


def user(issuer: Issuer, platform: Platform, subject: str = "auth0|a/b") -> Headers:
    platform.provision({"organizations": [{"external_id": "org_acme"}]})
    return {"authorization": f"Bearer {issuer.token(issuer.claims(sub=subject))}"}


@pytest.fixture(scope="module")
def impatient(
    issuer: Issuer, databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Impatient]:
    """One platform for all that delete users of their own."""
    folder = tmp_path_factory.mktemp("impatient")
    with (
        databases() as urls,
        asked() as directory,
        closing(Tables(urls.owner)) as tables,
        impatiently(),
        serving(folder, **settings_of(issuer, directory, urls)) as platform,
    ):
        yield Impatient(platform, directory, tables)


@pytest.mark.parametrize("status", [204, 200, 404, 410])
def test_an_external_provider_is_asked_to_delete(
    issuer: Issuer, impatient: Impatient, status: int
) -> None:
    directory = impatient.directory
    subject = f"auth0|a/{status}"
    directory.deleted = []
    directory.status = status
    assert (
        impatient.platform.client.delete(
            URL, headers=user(issuer, impatient.platform, subject)
        ).status_code
        == 204
    )
    assert directory.deleted == [f"/users/auth0%7Ca%2F{status}"]
    assert len(events(impatient.tables, subject)) == 1


def test_a_provider_that_is_away_is_asked_again_until_it_is_done(
    issuer: Issuer, impatient: Impatient
) -> None:
    platform = impatient.platform
    directory = impatient.directory
    directory.status = 500
    carl = user(issuer, platform, "carl")
    answer = platform.client.delete(URL, headers=carl)
    assert (answer.status_code, answer.headers["content-type"]) == (
        503,
        "text/plain; charset=utf-8",
    )
    assert platform.client.delete(URL, headers=carl).status_code == 401, (
        "recorded first: refused from then on"
    )
    assert events(impatient.tables, "carl") == []
    directory.status = 204
    make_older(impatient.tables)
    eventually(lambda: len(events(impatient.tables, "carl")) == 1, 30)


def test_a_user_whom_the_provider_never_deletes_keeps_no_other(
    issuer: Issuer, impatient: Impatient
) -> None:
    platform = impatient.platform
    directory = impatient.directory
    directory.status = 500
    for subject in ("ada", "bob"):
        assert (
            platform.client.delete(URL, headers=user(issuer, platform, subject)).status_code == 503
        )
    directory.refused = "/users/ada"
    directory.status = 204
    make_older(impatient.tables)
    eventually(lambda: len(events(impatient.tables, "bob")) == 1, 30)
    assert events(impatient.tables, "ada") == []


@pytest.mark.slow
@pytest.mark.parametrize("step", ["recorded", "deleted at the provider", "answered"])
def test_killed_at_every_step_the_user_is_gone_with_one_event(
    issuer: Issuer, directory: Directory, urls: Urls, tables: Tables, tmp_path: Path, step: str
) -> None:
    """The database stops the process between two steps: a lock holds the statement, the process is
    killed there."""
    lock, held = {
        "recorded": ("LOCK TABLE users IN SHARE MODE", "%users%"),
        "deleted at the provider": ("SELECT FROM users FOR UPDATE", "%users%"),
        "answered": ("LOCK TABLE outbox IN SHARE MODE", "%INSERT INTO outbox%"),
    }[step]
    settings = settings_of(issuer, directory, urls)
    with impatiently(), serving(tmp_path, **settings) as platform:
        ada = user(issuer, platform)
        asyncio.run(
            _kill_while_held(
                platform=platform,
                urls=urls,
                lock=lock,
                held=held,
                ada=ada,
                step=step,
                directory=directory,
            )
        )
    make_older(tables)
    with impatiently(), serving(tmp_path, **settings) as platform:
        if step == "recorded":
            assert events(tables, "auth0|a/b") == [], "nothing was recorded, so nothing happened"
            assert platform.client.delete(URL, headers=ada).status_code == 204
        eventually(lambda: len(events(tables, "auth0|a/b")) == 1, 30)
        assert platform.client.delete(URL, headers=ada).status_code == 401
        assert directory.deleted


async def _kill_while_held(
    platform: Platform,
    urls: Urls,
    lock: str,
    held: str,
    ada: Headers,
    step: str,
    directory: Directory,
) -> None:
    """The worker looks into the outbox every second, and waits for the lock too: only the `held`
    statement counts."""
    holder = await asyncpg.connect(urls.owner.reveal())
    watcher = await asyncpg.connect(urls.owner.reveal())
    if step == "deleted at the provider":
        # The row must be there before it can be locked: record the deletion, and lock before it is
        # marked deleted.
        directory.status = 500
        await asyncio.to_thread(platform.client.delete, URL, headers=ada)
        await watcher.execute(MAKE_OLDER)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute(lock)
    directory.status = 204
    request = asyncio.create_task(asyncio.to_thread(_ignore_errors, platform, ada))
    blocked = """
        SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND datname = current_database()
    """
    blocked += " AND query LIKE $1"
    deadline = time.monotonic() + 15
    while not await watcher.fetchval(blocked, held):
        assert time.monotonic() < deadline, "nothing waits for the lock"
        await asyncio.sleep(POLL_SECONDS)
    platform.process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(platform.process.wait)
    await transaction.rollback()
    await holder.close()
    await watcher.close()
    await request


def _ignore_errors(platform: Platform, ada: Headers) -> None:
    with contextlib.suppress(httpx.HTTPError):
        platform.client.delete(URL, headers=ada)
