"""The service's login and the worker's: neither may become the other, embedded or external."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest

from tests.conftest import Urls
from tests.intents.cut_commits import trader
from tests.intents.http_client import create, limit
from tests.platform import environment, run_command, serving
from tests.storage.conftest import query
from tests.stream.client import ACTION, ORDER, Client
from tests.tenants import PLENTY
from trading_intents.errors import StartupRefused
from trading_intents.storage.connections import DatabaseUrls
from trading_intents.storage.database import open_database
from trading_intents.storage.embedded.cluster import LOGIN, OWNER, WORKER_LOGIN
from trading_intents.storage.embedded.server import running
from trading_intents.storage.migrate import migrate
from trading_intents.telemetry import Metrics, make_log

LOG = make_log("warning")
NEW = 2  # ORDER_STATUS_NEW


async def check_parted(server: DatabaseUrls) -> None:
    """Each login serves its own role and cannot become the other's."""
    await migrate(server.owner_url, server.url, LOG, worker_url=server.worker_url)
    opening = open_database(server.url, 1, LOG, Metrics(), worker_url=server.worker_url)
    async with opening as database:
        for pool in (database.service, database.stream, database.worker):
            assert await pool.healthy()
    for url, role in ((server.url, "ti_worker"), (server.worker_url, "ti_service")):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await query(url.reveal(), f"SET ROLE {role}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await query(url.reveal(), "SET ROLE ti_owner")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await query(server.url.reveal(), "SELECT sealed FROM sealed_secrets")


@pytest.mark.slow
async def test_the_embedded_logins_are_apart_at_every_start(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for _ in range(2):
        async with running(folder, "", LOG) as server:
            await check_parted(server)
            assert (
                len(
                    {
                        (folder / f"{login}.password").read_text()
                        for login in (OWNER, LOGIN, WORKER_LOGIN)
                    }
                )
                == 3
            )
    (folder / f"{WORKER_LOGIN}.password").unlink()
    with pytest.raises(StartupRefused, match="restore both from the same backup"):
        async with running(folder, "", LOG):
            pass


@pytest.fixture
def parted(urls: Urls) -> Iterator[dict[str, str]]:
    """Settings with two logins of an external database, made as the documentation describes."""
    names = {role: f"{role}_{uuid.uuid4().hex}" for role in ("ti_service", "ti_worker")}
    found = {}
    with psycopg.connect(urls.owner.reveal(), autocommit=True) as owner:
        for role, name in names.items():
            owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'; GRANT {role} TO {name}".encode())
            host = urls.login.reveal().partition("@")[2]
            found[role] = f"postgresql://{name}:x@{host}"
        yield {"DATABASE_URL": found["ti_service"], "DATABASE_WORKER_URL": found["ti_worker"]}
        for name in names.values():
            owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.mark.slow
def test_an_api_and_stream_process_needs_no_worker_login_and_a_worker_beside_it_executes(
    parted: dict[str, str], urls: Urls, tmp_path: Path
) -> None:
    api = PLENTY | {"DATABASE_URL": parted["DATABASE_URL"], "ROLES": "api,stream"}
    api["DATABASE_OWNER_URL"] = urls.owner.reveal()  # provisions
    with contextlib.ExitStack() as stack:
        platform = stack.enter_context(serving(tmp_path / "data", **api))
        headers, url = trader(platform)
        client = Client(platform.grpc)
        stack.callback(client.close)
        follower = client.follow(headers, "", (ACTION, ORDER), order_delivery=2).subscribed()
        intent = platform.client.post(url, json=create(limit("1", "0.01")), headers=headers).json()[
            "intent_id"
        ]
        stack.enter_context(serving(tmp_path / "data", **(PLENTY | parted | {"ROLES": "worker"})))
        events = follower.until(lambda event: event.broker_order.order_status == NEW)
        assert events[-1].broker_order.intent_id == intent
        again = client.follow(headers, "", (ACTION,), resume_after=events[-1].cursor).subscribed()
        again.cancel()


def test_a_worker_without_its_login_is_refused_with_what_to_do(
    parted: dict[str, str], tmp_path: Path
) -> None:
    settings = {"DATABASE_URL": parted["DATABASE_URL"], "ROLES": "worker"}
    done = run_command(environment(tmp_path / "data", settings), "serve")
    assert done.returncode == 1
    assert "GRANT ti_worker TO" in done.stderr


@pytest.mark.parametrize("is_parted", [True, False])
def test_doctor_warns_when_one_login_can_become_both(
    parted: dict[str, str], urls: Urls, tmp_path: Path, is_parted: bool
) -> None:
    settings = parted if is_parted else {"DATABASE_URL": urls.login.reveal()}
    done = run_command(environment(tmp_path / "data", settings), "doctor")
    (line,) = [line for line in done.stdout.splitlines() if " logins" in line]
    assert line.split()[0] == ("ok" if is_parted else "warning")
    assert done.returncode == 0, "a warning is no refusal"


def test_a_worker_login_of_its_own_needs_a_database_of_ones_own(tmp_path: Path) -> None:
    settings = {"DATABASE_WORKER_URL": "postgresql://a:b@c/d"}
    done = run_command(environment(tmp_path / "data", settings), "serve")
    assert (done.returncode, "DATABASE_WORKER_URL: only together" in done.stderr) == (1, True)
