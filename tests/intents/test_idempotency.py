"""Idempotency-Key: one key and body make one action, whoever asks how often, and whatever happened
since."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import httpx
import pytest

from tests.intents.changed_accounts import change_account, control
from tests.intents.conftest import OpenClient
from tests.intents.http_client import TradingClient, cancel, create, limit, market, replace
from tests.platform import Platform
from tests.raw_http import RawHttp
from tests.tenants import Tenants

KEYS = 50
EQUAL = 50


def replayed(answer: httpx.Response) -> bool:
    assert answer.status_code == 202, answer.text
    return bool(answer.headers.get("idempotent-replayed") == "true")


def test_the_same_key_and_body_give_the_first_answer_again(trading_client: TradingClient) -> None:
    first = trading_client.submit(create(limit()), idempotency_key="k")
    assert not replayed(first)
    before = trading_client.tables.counts()
    for _ in range(3):
        again = trading_client.submit(create(limit()), idempotency_key="k")
        assert replayed(again)
        assert again.content == first.content
    assert trading_client.tables.counts() == before
    assert not replayed(trading_client.submit(create(limit()), idempotency_key="K")), (
        "keys differ by case"
    )
    assert not replayed(trading_client.submit(create(limit()))), (
        "and who sends none is never replayed"
    )


def test_spaces_and_the_order_of_keys_do_not_make_another_body(
    trading_client: TradingClient,
) -> None:
    body = create(limit()) | {"client_reference_id": "é"}
    first = trading_client.submit(body, idempotency_key="k")
    turned = {"client_reference_id": "é", "command": dict(reversed(body["command"].items()))}
    headers = trading_client.headers | {"content-type": "application/json", "idempotency-key": "k"}
    for content in (
        json.dumps(turned, indent=3),
        json.dumps(turned, ensure_ascii=False),
        json.dumps(body),
    ):
        again = trading_client.client.post(
            trading_client.url, content=content.encode(), headers=headers
        )
        assert replayed(again)
        assert again.content == first.content


def test_the_same_key_with_another_body_is_a_conflict(trading_client: TradingClient) -> None:
    intent = trading_client.submit(create(limit()), idempotency_key="k").json()["intent_id"]
    for other in (
        create(limit("11")),
        create(market()),
        cancel(intent),
        create(limit()) | {"client_reference_id": "x"},
    ):
        assert trading_client.refused(other, idempotency_key="k") == (409, "idempotency_conflict")
    assert replayed(trading_client.submit(create(limit()), idempotency_key="k"))


def test_a_key_belongs_to_one_account(
    trading_client: TradingClient, open_client: OpenClient
) -> None:
    first = trading_client.submit(create(), idempotency_key="k")
    other = open_client().submit(create(market("5")), idempotency_key="k")
    assert not replayed(other)
    assert first.json()["intent_id"] != other.json()["intent_id"]


def make_older(client: TradingClient, interval: str) -> None:
    """The account's whole log."""
    # Without the trigger that refuses it.
    client.tables.execute("SET session_replication_role = replica")
    client.tables.execute(
        """
            UPDATE actions SET created_at = created_at - $2::text::interval
            WHERE account_id = $1::text::uuid
        """,
        client.account["id"],
        interval,
    )
    client.tables.execute("SET session_replication_role = DEFAULT")


def test_a_key_is_free_again_after_400_days(trading_client: TradingClient) -> None:
    first = trading_client.submit(create(limit()), idempotency_key="k")
    make_older(trading_client, "9599 hours")
    again = trading_client.submit(create(limit()), idempotency_key="k")
    assert replayed(again)
    assert again.json() == first.json()
    assert trading_client.refused(create(limit("11")), idempotency_key="k") == (
        409,
        "idempotency_conflict",
    )
    make_older(trading_client, "1 hour")
    second = trading_client.submit(create(limit("11")), idempotency_key="k")
    assert not replayed(second)
    for _ in range(2):
        again = trading_client.submit(create(limit("11")), idempotency_key="k")
        assert replayed(again)
        assert again.json() == second.json(), "of two uses the later one answers"
    assert trading_client.refused(create(limit()), idempotency_key="k") == (
        409,
        "idempotency_conflict",
    )
    keys = """
        SELECT array_agg(idempotency_key ORDER BY seq) FROM actions
        WHERE account_id = $1::text::uuid
    """
    assert trading_client.tables.value(keys, trading_client.account["id"]) == ["k", "k"], (
        "both actions keep it"
    )


def test_two_uses_within_400_days_are_refused_by_the_database(
    trading_client: TradingClient,
) -> None:
    """Behind the account's lock, under which keys are read."""
    trading_client.submit(create(limit()), idempotency_key="k")
    copied = """
        INSERT INTO actions SELECT (r).* FROM (
            SELECT jsonb_populate_record(a, '{"seq": 2}') AS r FROM actions a
            WHERE account_id = $1::text::uuid
        ) AS copy
    """
    with pytest.raises(asyncpg.UniqueViolationError, match="actions_by_key"):
        trading_client.tables.execute(copied, trading_client.account["id"])


def test_a_refused_request_is_not_remembered(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    control(tenants, f"accounts/{trading_client.account['id']}")
    assert trading_client.refused(create(), idempotency_key="k") == (409, "control_rejected")
    control(tenants, f"accounts/{trading_client.account['id']}", disabled=False)
    assert trading_client.submit(create(market("0")), idempotency_key="k").status_code == 422
    assert not replayed(trading_client.submit(create(market("7")), idempotency_key="k"))
    assert replayed(trading_client.submit(create(market("7")), idempotency_key="k"))


def test_replaces_and_cancels_are_replayed_too(trading_client: TradingClient) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    for number, body in enumerate((replace(intent, limit("11")), cancel(intent)), 2):
        first, again = (trading_client.submit(body, idempotency_key=f"k{number}") for _ in range(2))
        assert (first.json(), replayed(first), replayed(again)) == (
            {"intent_id": intent, "seq": number},
            False,
            True,
        )
        assert again.json() == first.json()
    assert [record["action_type"] for record in trading_client.actions()] == [
        "CREATE",
        "REPLACE",
        "CANCEL",
    ]


def test_a_replay_comes_before_every_other_conflict(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    intent = trading_client.submit(create(limit()), idempotency_key="create").json()["intent_id"]
    bodies = {
        "create": create(limit()),
        "replace": replace(intent, limit("11")),
        "cancel": cancel(intent),
    }
    for key in ("replace", "cancel"):
        assert not replayed(trading_client.submit(bodies[key], idempotency_key=key))

    def every_one_is_replayed() -> None:
        for key, body in bodies.items():
            assert replayed(trading_client.submit(body, idempotency_key=key))
            other = body | {"client_reference_id": "other"}
            assert trading_client.refused(other, idempotency_key=key) == (
                409,
                "idempotency_conflict",
            )

    every_one_is_replayed()
    control(tenants, f"accounts/{trading_client.account['id']}")
    every_one_is_replayed()
    change_account(tenants, trading_client, disabled=True)
    every_one_is_replayed()
    trading_client.set_order(intent, "CANCELLED")
    every_one_is_replayed()
    assert (
        tenants.client.delete(
            f"/v1/accounts/{trading_client.account['id']}", headers=tenants.callers["admin"]
        ).status_code
        == 204
    )
    every_one_is_replayed()


@pytest.mark.parametrize("key", ["", "x" * 129, "é", "a\tb", "\xa0"])
def test_a_bad_key_cannot_be_read(trading_client: TradingClient, key: str) -> None:
    headers = {
        name.encode(): value.encode("latin-1")
        for name, value in (trading_client.headers | {"idempotency-key": key}).items()
    }
    before = trading_client.tables.counts()
    answer = trading_client.client.post(trading_client.url, json=create(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert trading_client.tables.counts() == before


def test_two_keys_at_once_cannot_be_read(trading_client: TradingClient) -> None:
    headers = [*trading_client.headers.items(), ("idempotency-key", "a"), ("idempotency-key", "b")]
    assert (
        trading_client.client.post(trading_client.url, json=create(), headers=headers).status_code
        == 400
    )


@pytest.mark.parametrize("key", ["x", "x" * 128, "a b", "0000-0000", "'; DROP TABLE actions"])
def test_a_key_is_any_printable_text(trading_client: TradingClient, key: str) -> None:
    first, again = (trading_client.submit(create(), idempotency_key=key) for _ in range(2))
    assert (replayed(first), replayed(again)) == (False, True)


def test_fifty_equal_requests_at_once_make_one_intent_for_each_of_fifty_keys(
    trading_client: TradingClient, second: Platform
) -> None:
    """Half of them at another process."""
    urls = (str(trading_client.client.base_url), second.url)

    def send(number: int) -> list[tuple[int, bytes, bool]]:
        """Every thread sends all the keys, each in another order, so that equal ones meet."""
        answers: list[Any] = [None] * KEYS
        with RawHttp(urls[number % 2], trading_client.headers) as line:
            for step in range(KEYS):
                key = (step + number // 2) % KEYS
                body = create(limit(str(key + 1)))
                answer = line.post(trading_client.url, body, {"idempotency-key": f"key {key}"})
                answers[key] = (
                    answer.status_code,
                    answer.content,
                    "idempotent-replayed" in answer.headers,
                )
        return answers

    with ThreadPoolExecutor(EQUAL) as threads:
        answers = list(threads.map(send, range(EQUAL)))
    for key in range(KEYS):
        assert {answer[key][:2] for answer in answers} == {answers[0][key][:2]}
        assert answers[0][key][0] == 202
        assert sum(not answer[key][2] for answer in answers) == 1, "one of them was the first"
    records = trading_client.actions()
    assert [record["seq"] for record in records] == list(range(1, KEYS + 1))
    assert {record["quantity"] for record in records} == {str(key + 1) for key in range(KEYS)}
