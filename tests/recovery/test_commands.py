"""`trading-intents backup` and `restore`, as an operator types them, on a platform that runs or
does not."""

import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import Urls, copy_folder, server
from tests.fork_server import Fork
from tests.intents.http_client import Tables
from tests.platform import PROGRAM, Platform, environment, run_command, serving
from tests.storage.conftest import all_gone
from tests.waiting import eventually
from trading_intents.recovery import restore
from trading_intents.secret import Secret
from trading_intents.storage.embedded.cluster import DATABASE, OWNER, open_cluster

pytest_plugins = ("tests.started_dirs",)
pytestmark = pytest.mark.slow

KEYS = ("vault-keys.json", "identity-key.pem", "identity-issuer", "demo.json")
RESTORED_SECONDS = 30
RESTORED = """
    SELECT (SELECT count(*) FROM orders WHERE is_restored) + count(restored_at) FROM sent_commands
"""
ORDER = {
    "command": {
        "type": "CREATE",
        "payload": {"symbol": "AAPL", "order_side": "BUY", "spec": {"Market": {"quantity": "1"}}},
    }
}


def owner_url(folder: Path) -> Secret:
    return open_cluster(folder, "").url(OWNER, DATABASE)


@contextlib.contextmanager
def tables_of(folder: Path) -> Iterator[Tables]:
    """While a platform runs there."""
    tables = Tables(owner_url(folder))
    try:
        yield tables
    finally:
        tables.close()


class DemoAccount:
    def __init__(self, platform: Platform, folder: Path) -> None:
        self._client = platform.client
        self._headers = {"x-api-key": json.loads((folder / "demo.json").read_text())["api_key"]}
        accounts = self._client.get("/v1/accounts", headers=self._headers).json()["data"]
        self._path = f"/v1/accounts/{accounts[0]['id']}"

    def order(self) -> str:
        answer = self._client.post(f"{self._path}/intents", json=ORDER, headers=self._headers)
        assert answer.status_code == 202, answer.text
        intent_id: str = answer.json()["intent_id"]
        return intent_id

    def orders(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        query: dict[str, Any] = {"limit": 100}
        while True:
            answer = self._client.get(
                f"{self._path}/orders", params=query, headers=self._headers
            ).json()
            found += answer["data"]
            if answer["next_cursor"] is None:
                return found
            query["next_cursor"] = answer["next_cursor"]


def backup(folder: Path, into: Path, *options: str) -> Path:
    """The backup that it made."""
    before = set(into.iterdir()) if into.exists() else set()
    done = run_command(environment(folder, {}), "backup", str(into), *options)
    assert done.returncode == 0, done.stderr
    (made,) = set(into.iterdir()) - before
    return made


@dataclass(frozen=True)
class BackedUp:
    """A platform that runs, and its backups: a complete one after one order, an increment after
    each of two more."""

    folder: Path
    platform: Platform
    backups: Path
    made: tuple[Path, ...]

    def copy(self, backup: Path, to: Path) -> Path:
        """A folder with only the one backup, which a test may damage."""
        to.mkdir(parents=True)
        return copy_folder(backup, to / backup.name)


@pytest.fixture(scope="module")
def backed_up(warm_original: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackedUp]:
    home = tmp_path_factory.mktemp("backed-up")
    folder = copy_folder(warm_original, home / "data")
    made = list[Path]()
    with serving(folder, ROLES="api") as platform:
        account = DemoAccount(platform, folder)
        for options in ((), ("--incremental",), ("--incremental",)):
            account.order()
            made.append(backup(folder, home / "backups", *options))
        yield BackedUp(folder, platform, home / "backups", tuple(made))
    shutil.rmtree(home)


def test_the_metrics_show_when_the_last_backup_was_made(backed_up: BackedUp) -> None:
    shown = re.search(
        r"^ti_backup_timestamp_seconds (\S+)$", backed_up.platform.client.get("/metrics").text, re.M
    )
    assert shown
    assert float(shown[1]) >= backed_up.made[-1].stat().st_mtime


@pytest.mark.parametrize("in_flight", [20, pytest.param(100, marks=pytest.mark.chaos)])
def test_orders_that_waited_in_a_restored_backup_expire_and_are_not_sent(
    warm: Path, tmp_path: Path, in_flight: int
) -> None:
    backups = tmp_path / "backups"
    folder = tmp_path / "restored"
    with serving(warm, ROLES="api") as platform:
        account = DemoAccount(platform, warm)
        placed = {account.order() for _ in range(in_flight)}
        backup(warm, backups)
        platform.process.kill()
        platform.process.wait()
    done = run_command(environment(folder, {}), "restore", str(backups))
    assert done.returncode == 0, done.stderr
    assert f"{in_flight} CREATEs and REPLACEs" in done.stdout
    assert all_gone(folder), "the server was for the restore only"
    assert [(folder / name).read_bytes() == (warm / name).read_bytes() for name in KEYS] == [
        True
    ] * len(KEYS)

    with serving(folder) as platform, tables_of(folder) as tables:
        account = DemoAccount(platform, folder)

        def all_expired() -> bool:
            tables.execute(
                """
                    UPDATE orders SET absent_at = absent_at - interval '10 s',
                        lookup_due_at = clock_timestamp()
                """
                " WHERE absent_at > clock_timestamp() - interval '10 s'"
            )
            return all(order["order_status"] == "EXPIRED" for order in account.orders())

        eventually(all_expired, RESTORED_SECONDS)
        assert {order["reason"] for order in account.orders()} == {"stale"}
        assert {order["intent_id"] for order in account.orders()} == placed
        assert tables.value("SELECT count(*) FROM paper_journal") == 0
        renewed = "SELECT count(*) FROM stream_epoch_renewals JOIN stream_epoch USING (epoch)"
        assert tables.value(renewed) == 1
        standing = tables.fetch("SELECT * FROM halts WHERE resumed_at IS NULL")
        assert {(row["reason"], row["principal_type"], row["state"]) for row in standing} == {
            ("restored", "SYSTEM", "done")
        }
        assert len(standing) == tables.value("SELECT count(*) FROM organizations")
        resumed = platform.run("admin", "resume-restored")
        assert resumed.returncode == 0, resumed.stderr
        ended = tables.fetch("SELECT resumed_principal_type, resumed_principal_id FROM halts")
        assert all(row["resumed_principal_id"].startswith("operator ") for row in ended)
        account.order()
        eventually(lambda: account.orders()[-1]["order_status"] == "FILLED", RESTORED_SECONDS)


def test_increments_are_put_together_and_any_of_them_can_be_restored(
    backed_up: BackedUp, tmp_path: Path
) -> None:
    made = backed_up.made
    size = [
        sum(path.stat().st_size for path in each.rglob("base/**/*") if path.is_file())
        for each in made
    ]
    assert size[1] < size[0] / 2
    for count, each in enumerate(made, 1):
        folder = tmp_path / f"restored-{count}"
        assert run_command(environment(folder, {}), "restore", str(each)).returncode == 0
        with server(folder) as urls, psycopg.connect(urls.owner.reveal()) as owner:
            assert owner.execute("SELECT count(*) FROM orders").fetchone() == (count,)


def test_a_platform_that_does_not_run_is_backed_up_and_restored(warm: Path, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    backup(warm, backups)
    assert all_gone(warm)
    refused = run_command(environment(warm, {}), "restore", str(backups))
    assert refused.returncode == 1
    assert f"{warm} is not empty: --replace" in refused.stderr
    before = (warm / "postgres.password").read_bytes()
    done = run_command(environment(warm, {}), "restore", str(backups), "--replace")
    assert done.returncode == 0, done.stderr
    (aside,) = warm.glob("before-restore-*")
    assert str(aside) in done.stdout
    assert (aside / "postgres" / "PG_VERSION").exists()
    assert (aside / "postgres.password").read_bytes() == before
    # The log of before and after a restore looks alike: an increment over it would be a mixture.
    increment = run_command(environment(warm, {}), "backup", str(backups), "--incremental")
    assert increment.returncode == 1
    assert "a backup was restored since" in increment.stderr
    with serving(warm) as platform:
        assert platform.client.get("/readyz").status_code == 200


def test_keys_can_be_left_out_and_it_is_said(warm: Path, tmp_path: Path) -> None:
    done = run_command(environment(warm, {}), "backup", str(tmp_path / "backups"), "--without-keys")
    assert "left out, to be kept by you: vault-keys.json\n" in done.stdout
    folder = tmp_path / "restored"
    restored = run_command(environment(folder, {}), "restore", str(tmp_path / "backups"))
    assert "not in the backup: vault-keys.json; put it back" in restored.stdout
    assert not (folder / "vault-keys.json").exists()
    assert not {path.name for path in (tmp_path / "backups").rglob("*")} & {
        "vault-keys.json",
        "identity-key.pem",
    }


def test_a_restore_is_refused_where_a_platform_runs(backed_up: BackedUp) -> None:
    platform = backed_up.platform
    logged = json.loads(next(line for line in platform.logs if '"serving"' in line))
    done = platform.run("restore", str(backed_up.backups), "--replace")
    assert done.returncode == 1
    assert (
        f"the platform runs in {backed_up.folder}, pid {logged['pid']}: end it first" in done.stderr
    )
    assert platform.client.get("/readyz").status_code == 200


@pytest.mark.parametrize("file", ["postgres/global/pg_control", "files/vault-keys.json"])
def test_a_damaged_backup_is_refused_before_anything_is_changed(
    backed_up: BackedUp, tmp_path: Path, file: str
) -> None:
    damaged = backed_up.copy(backed_up.made[0], tmp_path / "backups") / file
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    done = run_command(environment(tmp_path / "restored", {}), "restore", str(tmp_path / "backups"))
    assert done.returncode == 1
    assert damaged.name in done.stderr
    assert not (tmp_path / "restored").exists()


def test_an_increment_without_its_base_and_an_empty_folder_are_refused(
    backed_up: BackedUp, tmp_path: Path
) -> None:
    backups = tmp_path / "backups"
    environ = environment(tmp_path / "restored", {})
    assert "no complete backup in" in run_command(environ, "restore", str(backups)).stderr
    full, increment, _ = backed_up.made
    backed_up.copy(increment, backups)
    done = run_command(environ, "restore", str(backups))
    assert done.returncode == 1
    assert f"is an increment to {full.name}, which is not beside it" in done.stderr


def test_a_platform_does_not_start_beside_a_restore_that_was_killed(
    warm: Path, backed_up: BackedUp
) -> None:
    """In the moment in which the old data are aside, and the new ones not yet moved."""
    (warm / "postgres").rename(warm / "restoring")
    done = run_command(environment(warm, {}), "serve")
    assert done.returncode == 1
    assert "did not end: run `trading-intents restore` again" in done.stderr
    assert not (warm / "postgres").exists()
    again = run_command(environment(warm, {}), "restore", str(backed_up.made[0]), "--replace")
    assert again.returncode == 0, again.stderr
    with serving(warm) as platform:
        assert platform.client.get("/readyz").status_code == 200


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.chaos)])
def test_a_restore_that_is_killed_leaves_nothing_or_marked_data(
    backed_up: BackedUp, tmp_path: Path, kills: int
) -> None:
    folder = tmp_path / "restored"
    backups = str(backed_up.backups)
    environ = environment(folder, {})
    began = time.monotonic()
    assert run_command(environ, "restore", backups).returncode == 0
    whole_seconds = time.monotonic() - began
    for kill in range(1, kills + 1):
        shutil.rmtree(folder)
        process = Fork(PROGRAM, "restore", backups, environ=environ)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(whole_seconds * kill / (kills + 1))
        process.kill()
        process.wait()
        eventually(lambda: all_gone(folder) and all_gone(folder / "restoring"), RESTORED_SECONDS)
        if (folder / "postgres").exists():
            with server(folder) as urls, psycopg.connect(urls.owner.reveal()) as owner:
                assert owner.execute(RESTORED).fetchone() == (3,)
        again = run_command(environ, "restore", backups, "--replace")
        assert again.returncode == 0, again.stderr


def test_what_a_killed_restore_left_is_removed_though_a_program_of_it_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "restoring"
    remove = shutil.rmtree
    calls = list[Path]()
    folder.mkdir()

    def remove_all_but_what_comes_late(path: Path, ignore_errors: bool) -> None:
        remove(path, ignore_errors=ignore_errors)
        calls.append(path)
        if len(calls) < 3:
            path.mkdir()

    monkeypatch.setattr(shutil, "rmtree", remove_all_but_what_comes_late)
    restore._remove(folder)
    assert not folder.exists()
    assert len(calls) == 3


def test_an_external_database_is_its_administrators_to_back_up_and_restore(
    tmp_path: Path, urls: Urls
) -> None:
    settings = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
    environ = environment(tmp_path / "data", settings)
    for command, program in (("backup", "pg_basebackup"), ("restore", "pg_combinebackup")):
        logged = run_command(environ, command, str(tmp_path / "backups"))
        assert logged.returncode == 1, "nothing was done"
        assert f"\n{program} " in logged.stdout
    assert not (tmp_path / "backups").exists()
    assert "\ntrading-intents restore --mark" in logged.stdout
    with psycopg.connect(urls.owner.reveal(), autocommit=True) as owner:
        before = owner.execute("SELECT epoch FROM stream_epoch").fetchone()
        owner.execute(
            "INSERT INTO workers VALUES (gen_random_uuid(), clock_timestamp() + interval '1 h')"
        )
        refused = run_command(environ, "restore", "--mark")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "a worker runs on this database" in refused.stderr
        assert owner.execute("SELECT epoch FROM stream_epoch").fetchone() == before
        owner.execute("DELETE FROM workers")
        marked = run_command(environ, "restore", "--mark")
        assert marked.returncode == 0, marked.stderr
        assert owner.execute("SELECT epoch FROM stream_epoch").fetchone() != before
