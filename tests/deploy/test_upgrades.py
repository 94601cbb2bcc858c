"""The last release and this tree side by side on one database, under load, while this tree migrates
it: with a migration of the test's own besides those that it has."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psycopg
import pytest

from tests.platform import (
    COMMAND,
    INSTALLED,
    START_LIMIT_SECONDS,
    STOP_LIMIT_SECONDS,
    environment,
)
from tests.server_process import Urls
from tests.tenants import EVERY_PERMISSION, PLENTY, key
from tests.waiting import eventually
from trading_intents.storage.migrate import FOLDER

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "sdk/src")
MIGRATIONS = FOLDER.relative_to(ROOT)
RELEASE = (ROOT / "deploy" / "last-release").read_text().strip()
DOCUMENT = {
    "organizations": [
        {"external_id": "org_acme", "api_keys": [key("all", "paper", EVERY_PERMISSION)]}
    ]
}
CALLERS = 4
PACE_SECONDS = 0.05  # of a caller between its trades, so that processes start beside them
ORDERS = 40  # each at both processes in turn, before, during and after the migration
SECONDS_OF_ONE = 10.0
# A REPLACE or CANCEL of an order that has ended; a process that starts or drains.
EXPECTED = {409, 503}
MADE_UP = """-- In steps: a column, a table and an index, made beside running submits.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
ALTER TABLE orders ADD COLUMN IF NOT EXISTS note text;
CREATE TABLE IF NOT EXISTS order_notes (
    order_id uuid PRIMARY KEY,
    organization_id uuid NOT NULL,
    note text NOT NULL
);
ALTER TABLE order_notes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS service ON order_notes;
CREATE POLICY service ON order_notes TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
GRANT SELECT, INSERT ON order_notes TO ti_service;
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS orders_by_note;
CREATE INDEX CONCURRENTLY orders_by_note ON orders (account_id, note) WHERE note IS NOT NULL;
"""


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(("git", "-C", str(ROOT), *arguments), capture_output=True, check=False)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The last release's tree."""
    found = git("archive", "--format=tar", RELEASE, *SOURCES)
    if found.returncode:
        pytest.skip(
            f"the history has no commit {RELEASE[:12]}, the last release: `git fetch "
            "--unshallow` gets it"
        )
    folder = tmp_path / "release"
    with tarfile.open(fileobj=BytesIO(found.stdout)) as tree:
        tree.extractall(folder)
    baseline = MIGRATIONS / "0001_baseline.sql"
    assert (folder / baseline).read_text() == (ROOT / baseline).read_text(), (
        f"{baseline.name} has changed since {RELEASE[:12]}, so no process of that works beside "
        "this tree: commit, and write that commit to deploy/last-release"
    )
    return folder


@pytest.fixture
def upgrade(tmp_path: Path) -> Path:
    """This tree, with one migration more."""
    folder = tmp_path / "upgrade"
    for sources in SOURCES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / sources, folder / sources, ignore=ignored)
    number = len(names_in(folder)) + 1
    (folder / MIGRATIONS / f"{number:04}_made_up.sql").write_text(MADE_UP)
    return folder


def names_in(tree: Path) -> list[str]:
    return sorted(path.name for path in (tree / MIGRATIONS).glob("*.sql"))


@pytest.fixture
async def empty(postgres: Urls) -> AsyncIterator[Urls]:
    name = f"t_{uuid.uuid4().hex}"
    server = await asyncpg.connect(postgres.owner.reveal())
    await server.execute(f"CREATE DATABASE {name}")
    yield postgres.of(name)
    await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await server.close()


def environment_of(tree: Path, folder: Path, settings: dict[str, str]) -> dict[str, str]:
    paths = [tree / sources for sources in SOURCES]
    paths.append(INSTALLED)
    return environment(folder, settings) | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


def run_in(environ: dict[str, str], *command: str, stdin: str = "") -> str:
    done = subprocess.run(
        command, env=environ, input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def serving(environ: dict[str, str]) -> Iterator[str]:
    """Its URL. It is a program of its own: the tests' process has this tree's modules."""
    where = "import trading_intents; print(trading_intents.__file__)"
    answered = run_in(environ, sys.executable, "-c", where)
    assert answered.startswith(environ["PYTHONPATH"].partition(os.pathsep)[0]), answered
    process = subprocess.Popen((*COMMAND, "serve"), env=environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    limit = threading.Timer(START_LIMIT_SECONDS, process.kill)
    limit.start()
    lines = list[str]()
    try:
        for line in process.stderr:
            lines.append(line)
            if '"serving"' in line:
                break
        else:
            raise AssertionError("".join(lines))
        limit.cancel()
        draining = threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True)
        draining.start()
        yield str(json.loads(line)["http"])
    finally:
        limit.cancel()
        process.terminate()
        process.wait(STOP_LIMIT_SECONDS)
        process.stderr.close()


@dataclass(kw_only=True)
class Load:
    """Callers that trade at the processes in `urls`, in turn, until they are stopped."""

    headers: dict[str, str]
    account: str
    urls: list[str]
    answers: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with httpx.Client(headers=self.headers, timeout=SECONDS_OF_ONE) as client:
            while not self.stopping.wait(PACE_SECONDS):
                self.trade(client)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        callers = [threading.Thread(target=self.run) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        try:
            yield
        finally:
            self.stopping.set()
            for caller in callers:
                caller.join()

    def trade(self, client: httpx.Client) -> None:
        spec = {"Limit": {"quantity": "1", "limit_price": "1"}}
        made = self.ask(
            client,
            "POST",
            "intents",
            self.command("CREATE", symbol="AAPL", order_side="BUY", spec=spec),
        )
        filled = {"symbol": "MSFT", "order_side": "BUY", "spec": {"Market": {"quantity": "1"}}}
        self.ask(client, "POST", "intents", self.command("CREATE", **filled))
        if made is not None:
            spec = {"Limit": {"quantity": "2", "limit_price": "1"}}
            self.ask(
                client, "POST", "intents", self.command("REPLACE", ref_intent_id=made, spec=spec)
            )
            self.ask(client, "POST", "intents", self.command("CANCEL", ref_intent_id=made))
        for path in ("orders", "trades", "positions", "balances", "intents"):
            self.ask(client, "GET", path)

    def command(self, kind: str, **payload: object) -> dict[str, Any]:
        return {"command": {"type": kind, "payload": payload}}

    def ask(
        self, client: httpx.Client, method: str, path: str, body: dict[str, Any] | None = None
    ) -> str | None:
        for url in list(self.urls):
            answer = client.request(method, f"{url}/v1/accounts/{self.account}/{path}", json=body)
            self.answers[answer.status_code] += 1
            if not answer.is_success and answer.status_code not in EXPECTED:
                self.wrong.append(f"{method} {path}: {answer.status_code} {answer.text}")
            if answer.status_code == 202 and body and body["command"]["type"] == "CREATE":
                self.accepted.append(answer.json()["intent_id"])
        return self.accepted[-1] if self.accepted else None

    def until_more(self, orders: int) -> None:
        before = len(self.accepted)
        eventually(
            lambda: len(self.accepted) >= before + orders or bool(self.wrong), START_LIMIT_SECONDS
        )


@pytest.mark.slow
def test_the_last_release_and_this_tree_serve_one_database(
    release: Path, upgrade: Path, empty: Urls, tmp_path: Path
) -> None:
    database = {"DATABASE_URL": empty.login.reveal(), "DATABASE_OWNER_URL": empty.owner.reveal()}
    older, newer = (
        environment_of(tree, tmp_path / "data", database | PLENTY) for tree in (release, upgrade)
    )
    with serving(older) as old:
        applied = run_in(older, *COMMAND, "admin", "apply", "-", stdin=json.dumps(DOCUMENT))
        headers = {"x-api-key": json.loads(applied)["organizations"][0]["api_keys"][0]["api_key"]}
        body = {"name": "main", "broker": "paper", "environment": "paper"}
        account = httpx.post(f"{old}/v1/accounts", json=body, headers=headers).json()["id"]
        load = Load(headers=headers, account=account, urls=[old])
        with load.running():
            load.until_more(ORDERS)
            shown = run_in(newer, *COMMAND, "migrate", "--dry-run")
            named = [line.split(", ")[0] for line in shown.splitlines()]
            added = sorted(set(names_in(upgrade)) - set(names_in(release)))
            assert named == [f"would apply {name}" for name in added]
            with serving(newer) as new:
                load.urls = [old, new]
                load.until_more(ORDERS)
                for key, (first, second) in {"a": (old, new), "b": (new, old)}.items():
                    answers = [
                        ask_with_key(f"{url}/v1/accounts/{account}", headers, key)
                        for url in (first, second)
                    ]
                    load.accepted.append(answers[0].json()["intent_id"])
                    assert answers[1].json() == answers[0].json(), (
                        "each finds the keys of the other"
                    )
                load.urls = [new]
                load.until_more(ORDERS)
                load.urls = [old]  # an upgrade that is taken back
                load.until_more(ORDERS)
            with serving(older) as restarted:
                load.urls = [old, restarted]
                load.until_more(ORDERS)
                load.urls = [old]
                load.until_more(ORDERS)
        assert not load.wrong, load.wrong[:3]
        assert load.answers[202] >= 4 * ORDERS
        listed = list[dict[str, Any]]()

        def all_ended() -> bool:
            listed[:] = read_all(f"{old}/v1/accounts/{account}/orders", headers)
            return all(
                order["order_state"] != "OPEN" for order in listed if order["symbol"] == "MSFT"
            )

        eventually(all_ended, START_LIMIT_SECONDS)
    assert sorted(order["order_id"] for order in listed) == sorted(load.accepted), (
        "none is lost, none is doubled"
    )
    assert {order["order_status"] for order in listed if order["symbol"] == "MSFT"} == {"FILLED"}
    with psycopg.connect(empty.owner.reveal()) as owner:
        made = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'orders_by_note'::regclass"
        assert owner.execute(made).fetchall() == [(True,)]
        assert owner.execute("SELECT note FROM order_notes").fetchall() == []


def ask_with_key(account: str, headers: dict[str, str], key: str) -> httpx.Response:
    payload = {"symbol": "MSFT", "order_side": "BUY", "spec": {"Market": {"quantity": "1"}}}
    body = {"command": {"type": "CREATE", "payload": payload}}
    return httpx.post(f"{account}/intents", json=body, headers=headers | {"idempotency-key": key})


def read_all(url: str, headers: dict[str, str]) -> list[dict[str, Any]]:
    found = list[dict[str, Any]]()
    query = {"limit": "100"}
    while True:
        page = httpx.get(url, params=query, headers=headers).json()
        found += page["data"]
        if page["next_cursor"] is None:
            return found
        query["next_cursor"] = page["next_cursor"]
