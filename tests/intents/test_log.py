"""The account's log: dense, chained, append-only, and read page by page without a gap."""

import hashlib
import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import asyncpg
import pytest

from tests.intents.canonical import canonical
from tests.intents.conftest import OpenClient
from tests.intents.http_client import (
    Body,
    TradingClient,
    cancel,
    create,
    limit,
    replace,
    stop_limit,
)
from tests.platform import Platform
from tests.raw_http import RawHttp
from tests.tenants import Tenants

WRITERS = 8
READERS = 3
PAUSE_SECONDS = 0.02  # at the end of the log: leaves the machine to the writers


def check_chain(records: list[Body]) -> None:
    """Dense from 1, and every hash follows from the one before it."""
    previous = "0" * 64
    for seq, record in enumerate(records, 1):
        assert record["seq"] == seq
        said = {name: value for name, value in record.items() if name != "hash"}
        previous = hashlib.sha256(f"{previous}\n{canonical(said)}".encode()).hexdigest()
        assert record["hash"] == previous, f"seq {seq}"


def test_every_hash_follows_from_the_one_before_it(trading_client: TradingClient) -> None:
    intent = trading_client.accepted(create(stop_limit()))["intent_id"]
    odd = 'ü"\\/\U0001f600\u00a0\ue000\uffff'
    for body in (
        create(limit("0.000000000000000001", "999999999999999999.999999999999999999")),
        create(symbol="btc/usd", order_side="SELL_SHORT") | {"client_reference_id": odd},
        replace(intent, stop_limit("11")),
        cancel(intent),
        cancel(intent) | {"client_reference_id": odd},
    ):
        trading_client.accepted(body)
    records = trading_client.actions()
    assert len(records) == 6
    check_chain(records)
    assert trading_client.get().text.count(odd.replace("\\", "\\\\").replace('"', '\\"')) == 2, (
        "as text, not as escapes"
    )


def test_a_log_of_one_account_knows_nothing_of_another(
    trading_client: TradingClient, open_client: OpenClient
) -> None:
    other = open_client()
    for each in (trading_client, other, trading_client, trading_client, other):
        each.accepted(create())
    check_chain(trading_client.actions())
    check_chain(other.actions())
    assert {record["account_id"] for record in trading_client.actions()} == {
        trading_client.account["id"]
    }


def test_times_never_run_backwards_in_the_log(trading_client: TradingClient) -> None:
    for _ in range(5):
        trading_client.accepted(create())
    stamps = [record["created_at"] for record in trading_client.actions()]
    assert stamps == sorted(set(stamps))


def test_pages_are_ascending_complete_and_bound_to_their_list(
    trading_client: TradingClient, open_client: OpenClient
) -> None:
    intents = [trading_client.accepted(create(limit()))["intent_id"] for _ in range(3)]
    for intent in intents:
        trading_client.accepted(cancel(intent))
    trading_client.accepted(cancel(intents[0]))
    whole = trading_client.get().json()
    assert (set(whole), whole["next_cursor"], len(whole["data"])) == (
        {"data", "next_cursor"},
        None,
        7,
    )
    assert (
        trading_client.actions(page=2)
        == trading_client.actions(page=7)
        == trading_client.actions(page=1)
        == whole["data"]
    )
    first = trading_client.get(limit=2).json()
    assert [record["seq"] for record in first["data"]] == [1, 2]
    cursor = first["next_cursor"]
    history = trading_client.get(f"/{intents[0]}/actions", limit=2).json()
    for wrong in (
        open_client().get(next_cursor=cursor),
        trading_client.get(f"/{intents[0]}/actions", next_cursor=cursor),
        trading_client.get(next_cursor=history["next_cursor"]),
        trading_client.get(f"/{intents[1]}/actions", next_cursor=history["next_cursor"]),
    ):
        assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_cursor")


@pytest.mark.parametrize(
    "cursor", ["x", "AAAA", "a" * 300, "é", "%00", "1", "-1", "{cursor}A", "{cursor}="]
)
def test_a_bad_cursor_cannot_be_read(trading_client: TradingClient, cursor: str) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.accepted(cancel(intent))
    own = trading_client.get(limit=1).json()["next_cursor"]
    for tail in ("", f"/{intent}/actions"):
        answer = trading_client.get(tail, next_cursor=cursor.format(cursor=own))
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


@pytest.mark.parametrize("limit_text", ["x", "-1", "1.5", "", "\u0661"])
def test_a_bad_limit_cannot_be_read(trading_client: TradingClient, limit_text: str) -> None:
    for tail in ("", f"/{trading_client.accepted(create())['intent_id']}/actions"):
        assert trading_client.get(tail, limit=limit_text).status_code == 400


def test_a_limit_is_clamped_and_fifty_by_default(trading_client: TradingClient) -> None:
    for _ in range(102):
        trading_client.submit(create())
    sizes = {
        text: len(trading_client.get(limit=text).json()["data"])
        for text in ("0", "1", "99", "100", "101", "9" * 30)
    }
    assert sizes == {"0": 1, "1": 1, "99": 99, "100": 100, "101": 100, "9" * 30: 100}
    assert len(trading_client.get().json()["data"]) == 50


def test_an_intents_history_and_latest_are_its_own(
    trading_client: TradingClient, open_client: OpenClient
) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    other = trading_client.accepted(create())["intent_id"]
    trading_client.accepted(replace(intent, limit("11")))
    trading_client.accepted(cancel(intent))
    history = trading_client.get(f"/{intent}/actions").json()
    assert [record["action_type"] for record in history["data"]] == ["CREATE", "REPLACE", "CANCEL"]
    assert [record["seq"] for record in history["data"]] == [1, 3, 4]
    assert history["data"] == [
        record for record in trading_client.actions() if record["intent_id"] == intent
    ]
    assert trading_client.get(f"/{intent}").json() == history["data"][-1]
    assert trading_client.get(f"/{other}").json()["seq"] == 2
    page = trading_client.get(f"/{intent}/actions", limit=2).json()
    rest = trading_client.get(f"/{intent}/actions", limit=2, next_cursor=page["next_cursor"]).json()
    assert (page["data"] + rest["data"], rest["next_cursor"]) == (history["data"], None)
    beside = open_client()
    for tail in (
        f"/{intent}",
        f"/{intent}/actions",
        f"/{uuid.uuid4()}",
        f"/{uuid.uuid4()}/actions",
    ):
        assert beside.get(tail).status_code == 404


@pytest.mark.parametrize(
    "spelling", ["{{{0}}}", "urn:uuid:{0}", "{1}", "{2}", "nonsense", "{0}%0A"]
)
def test_another_spelling_of_an_intent_is_not_found(
    trading_client: TradingClient, spelling: str
) -> None:
    intent = trading_client.accepted(create())["intent_id"]
    tail = "/" + spelling.format(intent, intent.replace("-", ""), intent.upper())
    assert [
        trading_client.get(tail).status_code,
        trading_client.get(f"{tail}/actions").status_code,
    ] == [404, 404]


def test_every_reader_of_the_organization_sees_the_same_bytes(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    intent = trading_client.accepted(create())["intent_id"]
    for tail in ("", f"/{intent}", f"/{intent}/actions"):
        answers = {
            trading_client.client.get(
                trading_client.url + tail, headers=tenants.callers[caller]
            ).content
            for caller in ("key_all", "admin", "member", "read_only", "service_all")
        }
        assert len(answers) == 1
        assert json.loads(answers.pop())
    other = tenants.callers["other_admin"]
    assert trading_client.client.get(trading_client.url, headers=other).status_code == 404


def test_an_empty_log_is_an_empty_list(trading_client: TradingClient) -> None:
    assert trading_client.get().json() == {"data": [], "next_cursor": None}


@pytest.mark.parametrize("role", ["ti_service", "ti_worker", None])
@pytest.mark.parametrize(
    "statement", ["UPDATE actions SET hash = hash", "DELETE FROM actions", "TRUNCATE actions"]
)
def test_nobody_changes_the_log(
    trading_client: TradingClient, role: str | None, statement: str
) -> None:
    """The service's roles have no right to, and behind that stands a trigger, for the superuser
    too."""
    trading_client.accepted(create())
    before = trading_client.actions()
    trading_client.tables.execute(f"SET ROLE {role}" if role else "RESET ROLE")
    try:
        organization = f"{{{trading_client.account['organization_id']}}}"
        trading_client.tables.execute(
            "SELECT set_config('trading_intents.organizations', $1, false)", organization
        )
        with pytest.raises(asyncpg.InsufficientPrivilegeError if role else asyncpg.RaiseError):
            trading_client.tables.execute(statement)
    finally:
        trading_client.tables.execute("RESET ROLE")
    assert trading_client.actions() == before


def test_the_database_itself_keeps_seqs_and_keys_unique(trading_client: TradingClient) -> None:
    trading_client.accepted(create(), idempotency_key="k")
    copy = """
        INSERT INTO actions SELECT account_id, $1, intent_id, gen_random_uuid(), organization_id,
            action_type,
            $2::text, CASE WHEN $2::text IS NULL THEN NULL
                ELSE body_digest END, created_at, record, hash, stream_seq, events
        FROM actions WHERE account_id = $3::text::uuid
    """
    for seq, idempotency_key in ((1, None), (2, "k")):
        with pytest.raises(asyncpg.UniqueViolationError):
            trading_client.tables.execute(copy, seq, idempotency_key, trading_client.account["id"])
    with pytest.raises(asyncpg.CheckViolationError):
        trading_client.tables.execute(copy, 0, None, trading_client.account["id"])


def write(url: str, trading_client: TradingClient, count: int) -> list[tuple[int, str]]:
    made = []
    with RawHttp(url, trading_client.headers) as line:
        for number in range(count):
            answer = line.post(trading_client.url, create(limit(str(number + 1))))
            assert answer.status_code == 202, answer.text
            said = answer.json()
            made.append((said["seq"], said["intent_id"]))
    return made


def follow(url: str, trading_client: TradingClient, over: threading.Event) -> list[tuple[int, str]]:
    """By cursor alone. A last page has none, so it is asked for again, and what was seen of it is
    passed over."""
    cursor = None
    seen = list[tuple[int, str]]()
    of_page = 0
    with RawHttp(url, trading_client.headers) as line:
        while True:
            was_over = over.is_set()
            query = urlencode({"limit": 100} | ({"next_cursor": cursor} if cursor else {}))
            page = line.get(f"{trading_client.url}?{query}").json()
            seen += [(record["seq"], record["intent_id"]) for record in page["data"][of_page:]]
            of_page = len(page["data"])
            if page["next_cursor"]:
                cursor = page["next_cursor"]
                of_page = 0
            elif was_over:
                return seen
            else:
                over.wait(PAUSE_SECONDS)


@pytest.mark.parametrize("actions", [400, pytest.param(5_000, marks=pytest.mark.chaos)])
def test_readers_miss_nothing_and_see_nothing_twice_while_eight_write(
    trading_client: TradingClient, second: Platform, actions: int
) -> None:
    urls = (str(trading_client.client.base_url), second.url)
    over = threading.Event()
    with ThreadPoolExecutor(WRITERS + READERS) as threads:
        reading = [
            threads.submit(follow, urls[n % 2], trading_client, over) for n in range(READERS)
        ]
        writing = [
            threads.submit(write, urls[n % 2], trading_client, actions // WRITERS)
            for n in range(WRITERS)
        ]
        try:
            made = sorted(pair for task in writing for pair in task.result())
        finally:
            over.set()
        assert [seq for seq, _ in made] == list(range(1, actions + 1))
        for task in reading:
            assert task.result() == made
    check_chain(trading_client.actions())
