"""Broker credentials from outside: stored, rotated, deleted; their secrets are found nowhere."""

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.accounts.calls import made as made_account
from tests.accounts.marked_secrets import MARK, SECRETS
from tests.answer_patterns import STAMP
from tests.conftest import Urls
from tests.tenants import Tenants
from tests.waiting import eventually


def url_of(tenants: Tenants, caller: str = "admin", **changes: Any) -> str:
    return f"/v1/accounts/{made_account(tenants, caller, **({'broker': 'remote'} | changes))['id']}/credentials"


def store(tenants: Tenants, url: str, **changes: Any) -> Any:
    return tenants.client.post(
        url, json={"secrets": SECRETS} | changes, headers=tenants.callers["admin"]
    )


def test_a_credential_is_stored_and_shown_without_its_secrets(tenants: Tenants) -> None:
    url = url_of(tenants)
    answer = store(tenants, url, label="main")
    shown = answer.json()
    assert (answer.status_code, answer.headers["etag"]) == (201, '"1"')
    assert set(shown) == {
        *("id", "account_id", "organization_id", "broker", "label"),
        *("fields", "fingerprint", "created_at", "updated_at", "version"),
    }
    assert (shown["fields"], shown["label"], shown["broker"]) == (
        ["api_key_id", "api_secret"],
        "main",
        "remote",
    )
    assert STAMP.fullmatch(shown["created_at"])
    listed = tenants.client.get(url, headers=tenants.callers["read_only"]).json()
    assert listed == {"data": [shown], "next_cursor": None}
    account = tenants.client.get(
        url.removesuffix("/credentials"), headers=tenants.callers["admin"]
    ).json()
    assert account["connection"] != "credential_missing"
    second = store(tenants, url)
    assert (second.status_code, second.json()["code"]) == (409, "limit_reached")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/secrets"),
        ({"secrets": {}}, "/secrets/api_key_id"),
        ({"secrets": {"api_key_id": "x"}}, "/secrets/api_secret"),
        ({"secrets": SECRETS | {"more": "x"}}, "/secrets/more"),
        ({"secrets": SECRETS | {"api_secret": ""}}, "/secrets/api_secret"),
        ({"secrets": SECRETS | {"api_secret": "x" * 8193}}, "/secrets/api_secret"),
        ({"secrets": SECRETS | {"a/b~c": "x"}}, "/secrets/a~1b~0c"),
        ({"secrets": SECRETS | {"api_secret": 5}}, "/secrets/api_secret"),
        ({"secrets": SECRETS | {"api_key_id": None}}, "/secrets/api_key_id"),
        ({"secrets": [MARK]}, "/secrets"),
        ({"secrets": SECRETS, "label": "x" * 129}, "/label"),
        ({"secrets": SECRETS, "label": "a\ufeffb"}, "/label"),
        ({"secrets": SECRETS, "fingerprint": "x"}, "/fingerprint"),
    ],
)
def test_a_bad_credential_is_refused_without_echo(
    tenants: Tenants, body: dict[str, Any], pointer: str
) -> None:
    answer = tenants.client.post(url_of(tenants), json=body, headers=tenants.callers["admin"])
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    assert [e["pointer"] for e in answer.json()["errors"]] == [pointer]
    assert MARK not in answer.text


def test_the_paper_broker_takes_no_credential(tenants: Tenants) -> None:
    answer = store(tenants, url_of(tenants, broker="paper"))
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/secrets")


def test_8_kib_are_a_secret(tenants: Tenants) -> None:
    answer = store(tenants, url_of(tenants), secrets=SECRETS | {"api_secret": "x" * 8192})
    assert answer.status_code == 201


def test_a_rotation_changes_the_fingerprint_and_a_label_does_not(tenants: Tenants) -> None:
    url = url_of(tenants)
    admin = tenants.callers["admin"]
    first = store(tenants, url).json()
    one = f"{url}/{first['id']}"

    def patch(body: dict[str, Any], **headers: str) -> Any:
        return tenants.client.patch(one, json=body, headers=admin | headers)

    rotated = patch({"secrets": SECRETS | {"api_secret": f"{MARK}-new"}})
    assert (rotated.status_code, rotated.headers["etag"]) == (200, '"2"')
    assert rotated.json()["fingerprint"] != first["fingerprint"]
    labelled = patch({"label": "x"}, **{"if-match": '"2"'}).json()
    assert (labelled["version"], labelled["fingerprint"]) == (3, rotated.json()["fingerprint"])
    assert patch({}).json()["version"] == 3
    assert patch({"label": ""}).json()["label"] is None
    back = patch({"secrets": SECRETS})
    assert back.json()["fingerprint"] == first["fingerprint"], (
        "equal secrets of one organization look equal"
    )
    assert patch({"label": "y"}, **{"if-match": '"1"'}).status_code == 412
    assert patch({"secrets": {"api_key_id": "x"}}).status_code == 422


def test_a_deleted_credential_is_gone_and_can_be_stored_anew(tenants: Tenants) -> None:
    url = url_of(tenants)
    admin = tenants.callers["admin"]
    one = f"{url}/{store(tenants, url).json()['id']}"
    assert tenants.client.delete(one, headers=admin | {"if-match": '"9"'}).status_code == 412
    assert tenants.client.delete(one, headers=admin).status_code == 204
    assert tenants.client.delete(one, headers=admin).status_code == 404
    assert tenants.client.get(url, headers=admin).json()["data"] == []
    account = tenants.client.get(url.removesuffix("/credentials"), headers=admin).json()
    assert account["connection"] == "credential_missing"
    assert store(tenants, url).status_code == 201


def test_a_closed_account_takes_no_credential(tenants: Tenants) -> None:
    url = url_of(tenants)
    admin = tenants.callers["admin"]
    one = f"{url}/{store(tenants, url).json()['id']}"
    assert tenants.client.delete(url.removesuffix("/credentials"), headers=admin).status_code == 204
    for answer in (
        store(tenants, url),
        tenants.client.patch(one, json={"label": "x"}, headers=admin),
        tenants.client.delete(one, headers=admin),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "account_closed")


def test_another_accounts_credential_is_not_found(tenants: Tenants) -> None:
    mine = url_of(tenants)
    other = url_of(tenants)
    credential = store(tenants, other).json()["id"]
    admin = tenants.callers["admin"]
    assert (
        tenants.client.patch(f"{mine}/{credential}", json={"x": 1}, headers=admin).status_code
        == 404
    )
    assert tenants.client.delete(f"{mine}/{credential}", headers=admin).status_code == 404
    assert tenants.client.delete(f"{mine}/{uuid.uuid4()}", headers=admin).status_code == 404


def test_two_at_once_store_one(tenants: Tenants) -> None:
    url = url_of(tenants)
    with ThreadPoolExecutor(8) as threads:
        statuses = [a.status_code for a in threads.map(lambda _: store(tenants, url), range(8))]
    assert sorted(statuses) == [201] + [409] * 7


async def _rows(urls: Urls, query: str) -> list[Any]:
    connection = await asyncpg.connect(urls.owner.reveal())
    try:
        rows: list[Any] = await connection.fetch(query)
        return rows
    finally:
        await connection.close()


def test_replaced_and_deleted_secrets_are_removed(tenants: Tenants, tenants_database: Urls) -> None:
    url = url_of(tenants)
    admin = tenants.callers["admin"]
    one = f"{url}/{store(tenants, url).json()['id']}"
    tenants.client.patch(one, json={"secrets": SECRETS}, headers=admin)
    tenants.client.delete(one, headers=admin)
    account_id = url.split("/")[3]

    def left() -> int:
        query = f"SELECT 1 FROM sealed_secrets WHERE account_id = '{account_id}'"
        return len(asyncio.run(_rows(tenants_database, query)))

    eventually(lambda: left() == 0, 30)


def test_marked_secrets_are_found_nowhere(
    tenants: Tenants, tenants_database: Urls, tmp_path: Path
) -> None:
    url = url_of(tenants)
    admin = tenants.callers["admin"]
    answers = [store(tenants, url, label="marked"), tenants.client.get(url, headers=admin)]
    one = f"{url}/{answers[0].json()['id']}"
    answers.append(tenants.client.patch(one, json={"secrets": SECRETS, "x": MARK}, headers=admin))
    answers.append(tenants.client.patch(one, json={"secrets": SECRETS}, headers=admin))
    answers.append(tenants.client.post(url, content=f'{{"secrets": "{MARK}', headers=admin))
    answers.append(tenants.client.get("/metrics"))
    assert all(MARK not in a.text and MARK not in str(a.headers) for a in answers)
    assert MARK not in "".join(tenants.platform.logs)
    folder = Path(tenants.platform.environ["TRADING_INTENTS_DATA_DIR"])
    assert all(
        MARK.encode() not in path.read_bytes() for path in folder.rglob("*") if path.is_file()
    )
    tables = asyncio.run(
        _rows(tenants_database, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    )
    for table in tables:
        rows = asyncio.run(
            _rows(tenants_database, f"SELECT t::text AS text FROM {table['tablename']} t")
        )
        text = "\n".join(row["text"] for row in rows)
        assert MARK not in text
        assert MARK.encode().hex() not in text
