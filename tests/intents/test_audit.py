"""History that a superuser rewrote, behind every right and trigger, is found and the first bad
action named."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from tests.background import working
from tests.conftest import Urls
from tests.intents.conftest import OpenClient
from tests.intents.http_client import Tables, TradingClient, cancel, create, limit, replace
from tests.tenants import Tenants
from trading_intents.intents.audit import GAP, Verified, verify
from trading_intents.intents.writing.record import (
    FIRST_HASH,
    LinkedRecord,
    action_payload,
    chain,
)
from trading_intents.storage.database import WORKER_ROLE, open_pool
from trading_intents.stream.model import split_payloads
from trading_intents.telemetry import Metrics

ACTIONS = 8
BUSY_ROUNDS = 10

HEAD_BACK = """
UPDATE account_heads h SET seq = 5, hash = a.hash FROM actions a
WHERE h.account_id = $account AND a.account_id = $account AND a.seq = 5
"""
NO_ORDERS = "DELETE FROM orders WHERE account_id = $account"

JOURNAL = """
    SELECT organization_id, seq, count FROM reports
    UNION ALL SELECT organization_id, stream_seq, 2 FROM actions
    UNION ALL SELECT organization_id, seq + 1, 1 FROM stream_heads
"""
# By messages of a later version, which nobody reads.
FILL_GAPS = f"""
    INSERT INTO reports (organization_id, seq, count, day, account_id, at, symbol, environment,
        events)
    SELECT organization_id, n, 1, now()::date, organization_id, now(), '', 'paper', '\\x5a00'
    FROM (
        SELECT organization_id, seq - count AS last,
            1 + coalesce(lag(seq) OVER (PARTITION BY organization_id ORDER BY seq), 0) AS first
        FROM ({JOURNAL}) AS rows
    ) AS gap CROSS JOIN generate_series(first, last) AS n
"""

Verifier = Callable[[TradingClient], Verified]


@pytest.fixture
def forger(tables: Tables) -> Iterator[Tables]:
    """A superuser for whom the append-only trigger does not run. No damaged log is left to the
    other tests."""
    sound = tables.fetch("SELECT account_id FROM account_heads")
    tables.execute("SET session_replication_role = replica")
    yield tables
    kept = [row["account_id"] for row in sound]
    for table in ("actions", "account_heads", "orders"):
        tables.execute(f"DELETE FROM {table} WHERE account_id <> ALL ($1)", kept)
    tables.execute("DELETE FROM accounts WHERE id <> ALL ($1)", kept)
    tables.execute(FILL_GAPS)
    tables.execute("SET session_replication_role = DEFAULT")


@pytest.fixture
def full_client(forger: Tables, trading_client: TradingClient) -> TradingClient:
    intent = trading_client.accepted(create(limit(), "MSFT"))["intent_id"]
    trading_client.accepted(replace(intent, limit("11")))
    trading_client.accepted(cancel(intent))
    for _ in range(ACTIONS - 3):
        trading_client.accepted(create())
    return trading_client


@pytest.fixture
def verified(tenants_database: Urls) -> Verifier:
    """One account, as the command sees it, without the second that a command takes to start."""

    async def work(account_id: UUID) -> Verified:
        async with open_pool(tenants_database.login, WORKER_ROLE, 1, Metrics()) as pool:
            (found,) = [found async for found in verify(pool, account_id, {}, lambda count: None)]
        return found

    return lambda trading_client: asyncio.run(work(UUID(trading_client.account["id"])))


def answered(tenants: Tenants, trading_client: TradingClient, *arguments: str) -> tuple[int, str]:
    """The command's exit code, and what it says of this account."""
    done = tenants.platform.run("audit", "verify", *arguments)
    assert done.stderr == "", done.stderr
    lines = [line for line in done.stdout.splitlines() if trading_client.account["id"] in line]
    return done.returncode, "".join(lines).removeprefix(f"account {trading_client.account['id']}, ")


def only(trading_client: TradingClient, *arguments: str) -> tuple[str, ...]:
    return ("--account", trading_client.account["id"], *arguments)


def change(forger: Tables, trading_client: TradingClient, statement: str) -> None:
    forger.execute(statement.replace("$account", f"'{trading_client.account['id']}'"))


def test_a_log_as_it_was_written_is_sound(tenants: Tenants, full_client: TradingClient) -> None:
    done = tenants.platform.run("audit", "verify", *only(full_client))
    first, *rest = done.stdout.splitlines()
    assert (done.returncode, first) == (
        0,
        f"1 accounts, {ACTIONS} actions followed, 0 accounts damaged",
    )
    assert "Not proved" in "".join(rest)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            (
                "UPDATE actions SET record = replace(record, '\"11\"', '\"12\"') WHERE account_id "
                "= $account AND seq = 2"
            ),
            "action 2: its record or its hash was changed",
        ),
        (
            "UPDATE actions SET hash = repeat('a', 64) WHERE account_id = $account AND seq = 8",
            "action 8: its record or its hash was changed",
        ),
        (
            "DELETE FROM actions WHERE account_id = $account AND seq = 5",
            "action 5: it is missing: the next one is 6",
        ),
        (
            "DELETE FROM actions WHERE account_id = $account AND seq = 1",
            "action 1: it is missing: the next one is 2",
        ),
        (
            """
            UPDATE actions SET seq = 9004 WHERE account_id = $account AND seq = 4;
            UPDATE actions SET seq = 4 WHERE account_id = $account AND seq = 5;
            UPDATE actions SET seq = 5 WHERE account_id = $account AND seq = 9004
            """,
            "action 4: it holds the record of 5: they were reordered",
        ),
        (
            "DELETE FROM actions WHERE account_id = $account AND seq > 6",
            "action 7: it is missing: the log is cut off, its head is at 8",
        ),
        (
            "DELETE FROM actions WHERE account_id = $account",
            "action 1: it is missing: the log is cut off, its head is at 8",
        ),
        (
            "UPDATE account_heads SET seq = 6 WHERE account_id = $account",
            "action 7: it is beyond the head",
        ),
        (
            "UPDATE account_heads SET hash = repeat('a', 64) WHERE account_id = $account",
            "action 8: its hash is not the head's",
        ),
        (
            "DELETE FROM account_heads WHERE account_id = $account",
            "action 8: the account has lost its head",
        ),
        (
            f"DELETE FROM actions WHERE account_id = $account AND seq > 5; {HEAD_BACK}",
            "action 6: it is missing: the log is cut off, an order names action 8",
        ),
        (
            """
                DELETE FROM actions WHERE account_id = $account; DELETE FROM account_heads
                WHERE account_id = $account
            """,
            "action 1: it is missing: the log is cut off, an order names action 8",
        ),
        (
            f"DELETE FROM actions WHERE account_id = $account; {NO_ORDERS};"
            "DELETE FROM account_heads WHERE account_id = $account",
            "action 1: the account has lost its head",
        ),
        (f"{NO_ORDERS} AND create_seq = 4", "action 4: its order is missing"),
        (
            "UPDATE orders SET create_seq = 2 WHERE account_id = $account AND create_seq = 1",
            "action 1: its order is missing",
        ),
        (
            "UPDATE orders SET symbol = 'IBM' WHERE account_id = $account AND create_seq = 4",
            "action 4: its order says another",
        ),
        (
            "UPDATE actions SET action_type = 'CREATE' WHERE account_id = $account AND seq = 3",
            "action 3: its record says another action_type",
        ),
        (
            """
                UPDATE actions SET intent_id = account_id, created_at = now()
                WHERE account_id = $account AND seq = 4
            """,
            "action 4: its record says another intent_id, created_at",
        ),
        (
            "UPDATE actions SET record = replace(record, 'hash_version\":1', 'hash_version\":3') "
            "WHERE account_id = $account AND seq = 6",
            "action 6: its hash_version 3 is not known here",
        ),
        (
            "UPDATE actions SET record = '{' WHERE account_id = $account AND seq = 7",
            "action 7: its record cannot be read",
        ),
        *(
            (
                f"UPDATE actions SET events = {events} WHERE account_id = $account AND seq = 2",
                "action 2: its event cannot be read",
            )
            for events in (
                "''",
                "'garbage'",
                "events || '\\xff'",
                "substring(events FROM 1 FOR length(events) - 1)",
                "convert_to(gen_random_uuid()::text, 'UTF8')",
            )
        ),
        (
            """
                UPDATE actions a SET events = b.events FROM actions b
                WHERE a.account_id = $account AND a.seq = 2 AND b.account_id = $account
                    AND b.seq = 3
            """,
            "action 2: its event has another seq, action_type",
        ),
        (
            "UPDATE actions SET events = NULL WHERE account_id = $account AND seq = 2",
            "action 2: it is shown otherwise than its record says",
        ),
        (
            "UPDATE actions SET events = '\\x' WHERE account_id = $account AND seq = 1",
            "action 1: it is shown otherwise than its record says",
        ),
    ],
)
def test_the_first_bad_action_is_named(
    full_client: TradingClient, forger: Tables, verified: Verifier, statement: str, said: str
) -> None:
    change(forger, full_client, statement)
    found = verified(full_client)
    assert f"action {found.bad_seq}: {found.wrong}".startswith(said)


CUT_TAIL = f"""
{NO_ORDERS} AND create_seq > 5; DELETE FROM actions WHERE account_id = $account AND seq > 5;
{HEAD_BACK}
"""
ALL_CUT = f"""
DELETE FROM actions WHERE account_id = $account; {NO_ORDERS};
UPDATE account_heads SET seq = 0, hash = repeat('0', 64) WHERE account_id = $account
"""


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        (CUT_TAIL, 5),
        (ALL_CUT, 0),
        ("UPDATE actions SET stream_seq = stream_seq - 1 WHERE account_id = $account", ACTIONS),
        ("UPDATE stream_heads SET seq = seq + 1 WHERE organization_id = $organization", ACTIONS),
    ],
)
def test_what_no_account_shows_is_found_by_the_sequence_of_the_stream(
    tenants: Tenants,
    full_client: TradingClient,
    forger: Tables,
    verified: Verifier,
    statement: str,
    left: int,
) -> None:
    organization = full_client.account["organization_id"]
    query = "SELECT min(stream_seq) FROM actions WHERE account_id = $1::text::uuid AND seq > $2"
    first = forger.value(query, full_client.account["id"], left % ACTIONS) - 1
    change(forger, full_client, statement.replace("$organization", f"'{organization}'"))
    found = verified(full_client)
    assert (found.bad_seq, found.actions) == (None, left)
    done = tenants.platform.run("audit", "verify", *only(full_client))
    if "stream_heads" in statement:
        first = forger.value(
            "SELECT seq FROM stream_heads WHERE organization_id = $1::text::uuid", organization
        )
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        1,
        f"organization {organization}, message {first}: {GAP}",
    )
    assert "Proved" not in done.stdout


def test_a_chain_that_was_rewritten_as_a_whole_is_found_by_a_head_kept_elsewhere(
    tenants: Tenants, full_client: TradingClient, forger: Tables, verified: Verifier, tmp_path: Path
) -> None:
    kept = str(tmp_path / "heads")
    (tmp_path / "heads").write_text(tenants.platform.run("audit", "anchor").stdout)
    full_client.accepted(create())
    assert answered(tenants, full_client, *only(full_client, "--against", kept)) == (0, ""), (
        "appended since: no damage"
    )
    rewrite(full_client, forger)
    assert (verified(full_client).bad_seq, verified(full_client).wrong) == (
        2,
        "its event has another quantity",
    )
    show_as_recorded(full_client, forger)
    assert verified(full_client).bad_seq is None, (
        "nothing in the database shows it once the events say the same"
    )
    code, said = answered(tenants, full_client, *only(full_client, "--against", kept))
    assert (code, said.partition(":")[0]) == (1, "action 8")
    change(forger, full_client, "DELETE FROM actions WHERE account_id = $account")
    change(
        forger, full_client, f"DELETE FROM account_heads WHERE account_id = $account; {NO_ORDERS}"
    )
    code, said = answered(tenants, full_client, *only(full_client, "--against", kept))
    assert (code, said) == (
        1,
        "action 1: it is missing: the log is cut off, the kept head was at 8",
    )


def show_as_recorded(trading_client: TradingClient, forger: Tables) -> None:
    query = """
        SELECT seq, record, events, created_at FROM actions
        WHERE account_id = $1::text::uuid AND events IS NOT NULL
    """
    for row in forger.fetch(query, trading_client.account["id"]):
        record = msgspec.json.decode(row["record"], type=LinkedRecord)
        _, (_, order) = split_payloads(row["events"])
        forger.execute(
            "UPDATE actions SET events = $3 WHERE account_id = $1::text::uuid AND seq = $2",
            trading_client.account["id"],
            row["seq"],
            action_payload(record, row["created_at"]) + order,
        )


def rewrite(trading_client: TradingClient, forger: Tables) -> None:
    """As if the second action had never said what it said: with every later hash, and the head."""
    last = FIRST_HASH
    account_id = trading_client.account["id"]
    query = "SELECT seq, record FROM actions WHERE account_id = $1::text::uuid ORDER BY seq"
    for row in forger.fetch(query, account_id):
        record = row["record"].replace('"11"', '"12"')
        last = chain(last, record.encode())
        update = """
            UPDATE actions SET record = $3, hash = $4 WHERE account_id = $1::text::uuid AND seq = $2
        """
        forger.execute(update, account_id, row["seq"], record, last)
    forger.execute(
        "UPDATE account_heads SET hash = $2 WHERE account_id = $1::text::uuid", account_id, last
    )


def test_what_cannot_be_verified_is_said_in_a_line(tenants: Tenants, tmp_path: Path) -> None:
    (tmp_path / "heads").write_text("nonsense\n")
    for arguments, said in (
        (("--against", str(tmp_path / "heads")), "is not what `audit anchor` prints"),
        (("--account", "0190a1b2-0000-7000-8000-000000000000"), "no such account"),
    ):
        done = tenants.platform.run("audit", "verify", *arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert said in done.stderr


def test_all_accounts_are_verified_and_each_damaged_one_named(
    tenants: Tenants, open_client: OpenClient, forger: Tables
) -> None:
    good = open_client()
    cut = open_client()
    edited = open_client()
    for trading_client in (good, cut, edited):
        trading_client.accepted(create())
        trading_client.accepted(create())
    change(forger, cut, "DELETE FROM actions WHERE account_id = $account AND seq = 2")
    change(
        forger,
        edited,
        "UPDATE actions SET record = record || ' ' WHERE account_id = $account AND seq = 1",
    )
    done = tenants.platform.run("audit", "verify")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert (
        f"account {cut.account['id']}, action 2: it is missing: the log is cut off, its head "
        "is at 2"
    ) in lines
    assert f"account {edited.account['id']}, action 1: its record or its hash was changed" in lines
    assert good.account["id"] not in done.stdout


def test_submits_meanwhile_are_no_damage(trading_client: TradingClient, verified: Verifier) -> None:
    with submitting(trading_client) as statuses:
        followed = [verified(trading_client) for _ in range(BUSY_ROUNDS)]
    assert [found.wrong for found in followed] == [""] * BUSY_ROUNDS
    assert followed[0].actions < followed[-1].actions
    assert set(statuses) == {202}


@contextlib.contextmanager
def submitting(trading_client: TradingClient) -> Iterator[list[int]]:
    """One command after the other while the block runs."""
    begun = threading.Event()
    statuses: list[int] = []

    def submit(over: threading.Event) -> None:
        while not over.is_set():
            statuses.append(trading_client.submit(create()).status_code)
            begun.set()

    with working(submit):
        begun.wait()
        yield statuses


def test_the_anchor_is_every_accounts_head_and_is_verified_against(
    tenants: Tenants, full_client: TradingClient, tmp_path: Path
) -> None:
    done = tenants.platform.run("audit", "anchor")
    heads = {line["account_id"]: line for line in map(json.loads, done.stdout.splitlines())}
    record = full_client.actions()[-1]
    assert heads[full_client.account["id"]] == {
        "account_id": record["account_id"],
        "seq": ACTIONS,
        "hash": record["hash"],
    }
    kept = tmp_path / "heads"
    kept.write_text(done.stdout)
    done = tenants.platform.run("audit", "verify", *only(full_client, "--against", str(kept)))
    assert (done.returncode, "in the file are the ones" in done.stdout) == (0, True)
