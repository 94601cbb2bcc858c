"""The last release and this tree side by side on one database, under load, while this tree migrates
it."""

import contextlib
import json
import os
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
import pytest

from tests.platform import (
    COMMAND,
    INSTALLED,
    START_LIMIT_SECONDS,
    STOP_LIMIT_SECONDS,
    environment,
    run_command,
    serving,
)
from tests.server_process import Urls
from tests.tenants import EVERY_PERMISSION, PLENTY, key
from tests.waiting import eventually
from trading_intents.storage.migrate import FOLDER

ROOT = Path(__file__).parents[2]
RELEASE = (ROOT / "deploy" / "last-release").read_text().strip()
DOCUMENT = {
    "organizations": [
        {"external_id": "org_acme", "api_keys": [key("all", "paper", EVERY_PERMISSION)]}
    ]
}
CALLERS = 4
ORDERS = 40  # each at both processes in turn, before, during and after the migration
SECONDS_OF_ONE = 10.0
# A REPLACE or CANCEL of an order that has ended; a process that starts or drains.
EXPECTED = {409, 503}


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(("git", "-C", str(ROOT), *arguments), capture_output=True, check=False)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The last release's tree."""
    found = git("archive", "--format=tar", RELEASE, "src", "sdk/src")
    if found.returncode:
        pytest.skip(
            f"the history has no commit {RELEASE[:12]}, the last release: `git fetch "
            "--unshallow` gets it"
        )
    with tarfile.open(fileobj=BytesIO(found.stdout)) as tree:
        tree.extractall(tmp_path / "release")
    return tmp_path / "release"


@pytest.fixture
async def empty(postgres: Urls) -> AsyncIterator[Urls]:
    name = f"t_{uuid.uuid4().hex}"
    server = await asyncpg.connect(postgres.owner.reveal())
    await server.execute(f"CREATE DATABASE {name}")
    yield postgres.of(name)
    await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await server.close()


def release_environ(release: Path, folder: Path, settings: dict[str, str]) -> dict[str, str]:
    paths = (release / "src", release / "sdk" / "src", INSTALLED)
    return environment(folder, settings) | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


@contextlib.contextmanager
def serving_release(environ: dict[str, str]) -> Iterator[str]:
    """Its URL. It is a program of its own: the tests' process has this tree's modules."""
    where = (sys.executable, "-c", "import trading_intents; print(trading_intents.__file__)")
    answered = subprocess.run(where, env=environ, capture_output=True, text=True, check=True).stdout
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
            while not self.stopping.is_set():
                self.trade(client)

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
    release: Path, empty: Urls, tmp_path: Path
) -> None:
    database = {"DATABASE_URL": empty.login.reveal(), "DATABASE_OWNER_URL": empty.owner.reveal()}
    folder = tmp_path / "data"
    settings = database | PLENTY
    environ = release_environ(release, folder, settings)
    with serving_release(environ) as old:
        applied = subprocess.run(
            (*COMMAND, "admin", "apply", "-"), env=environ, input=json.dumps(DOCUMENT), capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        headers = {
            "x-api-key": json.loads(applied.stdout)["organizations"][0]["api_keys"][0]["api_key"]
        }
        body = {"name": "main", "broker": "paper", "environment": "paper"}
        account = httpx.post(f"{old}/v1/accounts", json=body, headers=headers).json()["id"]
        load = Load(headers=headers, account=account, urls=[old])
        callers = [threading.Thread(target=load.run) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        try:
            load.until_more(ORDERS)
            answered = run_command(environment(folder, settings), "migrate", "--dry-run")
            assert answered.returncode == 0, answered.stderr
            added = {path.name for path in FOLDER.glob("*.sql")} - {
                path.name for path in release.rglob("*.sql")
            }
            named = [
                line.split(", ")[0].removeprefix("would apply ")
                for line in answered.stdout.splitlines()
            ]
            assert named == sorted(added)
            with serving(folder, **settings) as new:
                load.urls = [old, new.url]
                load.until_more(ORDERS)
                for key, (first, second) in {"a": (old, new.url), "b": (new.url, old)}.items():
                    answers = [
                        ask_with_key(f"{url}/v1/accounts/{account}", headers, key)
                        for url in (first, second)
                    ]
                    load.accepted.append(answers[0].json()["intent_id"])
                    assert answers[1].json() == answers[0].json(), (
                        "each finds the keys of the other"
                    )
                load.urls = [new.url]
                load.until_more(ORDERS)
                load.urls = [old]  # an upgrade that is taken back
                load.until_more(ORDERS)
        finally:
            load.stopping.set()
            for caller in callers:
                caller.join()
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
