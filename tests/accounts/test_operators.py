"""The operator's commands for accounts and vault keys, while the service runs."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.accounts.marked_secrets import SECRETS
from tests.accounts.provisioned import ACCOUNT, DOCUMENT, settings_of
from tests.conftest import Databases, Urls
from tests.platform import Platform, serving
from tests.waiting import eventually

pytest_plugins = ("tests.started_dirs",)


def fetch(urls: Urls, query: str) -> list[Any]:
    async def run() -> list[Any]:
        connection = await asyncpg.connect(urls.owner.reveal())
        try:
            rows: list[Any] = await connection.fetch(query)
            return rows
        finally:
            await connection.close()

    return asyncio.run(run())


def test_apply_makes_accounts_once_and_changes_what_it_names(urls: Urls, tmp_path: Path) -> None:
    with serving(tmp_path, **settings_of(urls)) as platform:
        first = platform.apply(DOCUMENT)["organizations"][0]
        again = platform.apply(DOCUMENT)["organizations"][0]
        assert first["accounts"] == again["accounts"]
        assert first["accounts"][0] | {"id": ""} == ACCOUNT | {
            "id": "",
            "external_account_id": None,
            "disabled": False,
        }
        changed = ACCOUNT | {"disabled": True, "external_account_id": "X"}
        answer = platform.apply({"organizations": [{"external_id": "o1", "accounts": [changed]}]})
        assert answer["organizations"][0]["accounts"] == [
            changed | {"id": first["accounts"][0]["id"]}
        ]
        events = "SELECT event_type FROM outbox WHERE queue = 'accounts' ORDER BY id"
        assert [row["event_type"] for row in fetch(urls, events)] == [
            "account.created",
            "account.updated",
        ]
        wanted = "SELECT 1 FROM accounts WHERE link_generation = 2 AND NOT link_wanted"
        eventually(lambda: bool(fetch(urls, wanted)), 30)
        bad = {
            "organizations": [{"external_id": "o2", "accounts": [ACCOUNT | {"broker": "nobody"}]}]
        }
        refused = platform.run("admin", "apply", "-", stdin=json.dumps(bad))
        assert (refused.returncode, "/broker" in refused.stderr) == (1, True)
        assert not fetch(urls, "SELECT 1 FROM organizations WHERE external_id = 'o2'"), (
            "all of it or nothing"
        )


@pytest.mark.slow
def test_vault_keys_are_rotated_while_the_service_runs(urls: Urls, tmp_path: Path) -> None:
    with serving(tmp_path, **settings_of(urls)) as platform:
        made = platform.apply(DOCUMENT)["organizations"][0]
        headers = {"x-api-key": made["api_keys"][0]["api_key"]}
        url = f"/v1/accounts/{made['accounts'][0]['id']}/credentials"
        stored = platform.client.post(url, json={"secrets": SECRETS}, headers=headers)
        assert stored.status_code == 201
        before = sealed(urls)
        done = platform.run("vault", "rotate")
        assert (done.returncode, done.stdout.strip()) == (0, "master key 2; 1 secrets re-wrapped")
        after = sealed(urls)
        assert before != after
        assert before[-32:] == after[-32:], "only the data key is wrapped anew"
        rotated = platform.client.patch(
            f"{url}/{stored.json()['id']}",
            json={"secrets": SECRETS | {"api_secret": "new"}},
            headers=headers,
        )
        assert rotated.status_code == 200, "the running service seals with the new key"
        assert platform.run("vault", "rotate").stdout.startswith("master key 3; ")
        early = platform.run("vault", "rotate", "--retire")
        assert early.returncode == 1
        assert "not retired: 1, 2; the newest key is younger than 10 minutes" in early.stdout
        file = tmp_path / "vault-keys.json"
        keys = json.loads(file.read_text())
        file.write_text(
            json.dumps({"keys": [key | {"made_at": key["made_at"] - 601} for key in keys["keys"]]})
        )
        done = platform.run("vault", "rotate", "--retire")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "retired 1, 2")


def store_credential(platform: Platform) -> str:
    """Of an account of a new organization; its id."""
    made = platform.apply(DOCUMENT)["organizations"][0]
    headers = {"x-api-key": made["api_keys"][0]["api_key"]}
    url = f"/v1/accounts/{made['accounts'][0]['id']}/credentials"
    return str(platform.client.post(url, json={"secrets": SECRETS}, headers=headers).json()["id"])


@dataclass(frozen=True)
class Stored:
    """A platform with one credential. Who damages it repairs it."""

    platform: Platform
    urls: Urls
    keys_file: Path
    credential: str

    @contextmanager
    def sealed_as(self, damaged: bytes) -> Iterator[None]:
        whole = sealed(self.urls)
        fetch(self.urls, f"UPDATE sealed_secrets SET sealed = '\\x{damaged.hex()}'")
        yield
        fetch(self.urls, f"UPDATE sealed_secrets SET sealed = '\\x{whole.hex()}'")


@pytest.fixture(scope="module")
def stored(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    folder = tmp_path_factory.mktemp("stored")
    with databases() as urls, serving(folder, **settings_of(urls), ROLES="api") as platform:
        yield Stored(platform, urls, folder / "vault-keys.json", store_credential(platform))


def test_a_credential_that_does_not_open_fails_the_rotation(stored: Stored) -> None:
    whole = stored.keys_file.read_text()
    other = [key | {"key": b64encode(bytes(32)).decode()} for key in json.loads(whole)["keys"]]
    stored.keys_file.write_text(json.dumps({"keys": other}))
    done = stored.platform.run("vault", "rotate")
    stored.keys_file.write_text(whole)
    assert done.returncode == 1
    assert f"credential {stored.credential} does not open" in done.stdout


def test_a_credential_of_another_kind_of_vault_is_named_by_the_rotation(stored: Stored) -> None:
    newest = len(json.loads(stored.keys_file.read_text())["keys"])
    with stored.sealed_as(b"\x02" + bytes(16)):  # as OpenBao's are
        done = stored.platform.run("vault", "rotate")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        f"master key {newest + 1}; 0 secrets re-wrapped",
        f"credential {stored.credential} does not open: store its secrets anew",
    ]


def test_no_master_key_is_retired_while_a_damaged_secret_may_need_it(stored: Stored) -> None:
    with stored.sealed_as(b"?" + sealed(stored.urls)[1:]):
        assert stored.platform.run("vault", "rotate").returncode == 1
        done = stored.platform.run("vault", "rotate", "--retire")
        assert (done.returncode, "retired" in done.stdout) == (1, False), "no key is unused"
    done = stored.platform.run("vault", "rotate")
    assert (done.returncode, "1 secrets re-wrapped" in done.stdout) == (0, True), done.stdout


def sealed(urls: Urls) -> bytes:
    found: bytes = fetch(urls, "SELECT sealed FROM sealed_secrets WHERE NOT discarded")[0]["sealed"]
    return found


def test_the_demo_has_a_paper_account(platform: Platform) -> None:
    accounts = platform.client.get(
        "/v1/accounts", headers={"x-api-key": demo_key(platform)}
    ).json()["data"]
    assert [(a["name"], a["broker"], a["environment"]) for a in accounts] == [
        ("sim", "paper", "paper")
    ]


def demo_key(platform: Platform) -> str:
    path = Path(platform.environ["TRADING_INTENTS_DATA_DIR"]) / "demo.json"
    key: str = json.loads(path.read_bytes())["api_key"]
    return key
