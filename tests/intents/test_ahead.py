"""Batches that are decided by what is remembered: committed only if what they met was the same."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from tests.conftest import Urls
from tests.intents.in_process_writer import Office, add_account, codes, furnish, open_office
from tests.intents.test_writer import TRAP, whole
from trading_intents.brokers.registry import installed_brokers
from trading_intents.clock import SystemClock
from trading_intents.ids import id_text_maker
from trading_intents.intents.model import Submission
from trading_intents.intents.writing import statements
from trading_intents.intents.writing import writer as module
from trading_intents.intents.writing.batch import BatchDependencies, Receipt
from trading_intents.intents.writing.batch_state import BatchState
from trading_intents.intents.writing.state_cache import MAX_LATE, StateCache
from trading_intents.intents.writing.writer import Writer
from trading_intents.storage.database import SERVICE_ROLE
from trading_intents.storage.pipeline import Pipeline
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import make_log

CROWD = 64


@pytest.fixture
async def office(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    """One that trusts its memory again at once."""
    monkeypatch.setattr(module, "CACHE_PAUSE_SECONDS", 0.0)
    async with open_office(urls.login, urls.owner) as office:
        yield office


@pytest.fixture
async def neighbour(office: Office, urls: Urls) -> AsyncIterator[Writer]:
    """As of another process, on the same accounts."""
    log = make_log("critical")
    async with open_signals(urls.login, log) as signals:
        tools = BatchDependencies(
            Pipeline(urls.login, SERVICE_ROLE, statements.LOCK_LIMIT_SECONDS),
            installed_brokers(log),
            id_text_maker(),
            SystemClock(),
        )
        writer = Writer(tools, office.pool, signals, office.metrics, log)
        task = asyncio.create_task(writer.run())
        yield writer
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def ways(office: Office) -> dict[str, int]:
    labels = (module.ASKED, module.AHEAD, module.MISTAKEN)
    return {way: int(office.metrics.writer_batches.labels(way)._value.get()) for way in labels}


async def warm(office: Office) -> None:
    for _ in range(2):
        outcomes = await office.submit_all([office.create(account) for account in office.accounts])
        assert codes(outcomes) == ["recorded"] * 3


async def test_what_was_met_before_is_not_waited_for(office: Office) -> None:
    await warm(office)
    assert ways(office) == {"asked": 1, "ahead": 1, "mistaken": 0}
    for number in range(3, 9):
        assert (await office.writer.submit(office.create(office.accounts[0]))).seq == number
    assert ways(office) == {"asked": 1, "ahead": 7, "mistaken": 0}
    assert codes([await office.submit(office.create(office.accounts[0], "MSFT"))]) == ["recorded"]
    assert ways(office)["asked"] == 2, "its controls were never read"
    assert await whole(office) == [9, 2, 2]


CHANGES = {
    "INSERT INTO organization_controls (organization_id, manually_disabled) VALUES ($1, $2::uuid IS NOT NULL)": (
        "control_rejected"
    ),
    "INSERT INTO account_controls (account_id, organization_id, manually_disabled) VALUES ($2, $1, true)": (
        "control_rejected"
    ),
    "INSERT INTO symbol_controls (account_id, symbol, organization_id, manually_disabled)"
    " VALUES ($2, 'AAPL', $1, true)": "control_rejected",
    "INSERT INTO symbol_times (account_id, symbol, organization_id, trading_start, trading_end, timezone)"
    " VALUES ($2, 'AAPL', $1, '00:00', '00:00:01', 'Pacific/Kiritimati')": "control_rejected",
    "UPDATE accounts SET disabled = true WHERE id = $2 AND organization_id = $1": "account_disabled",
    "UPDATE accounts SET closed_at = now() WHERE id = $2 AND organization_id = $1": "account_closed",
    "UPDATE api_keys SET disabled = true WHERE organization_id = $1 AND $2::uuid IS NOT NULL": "unauthorized",
    "UPDATE api_keys SET permissions = '{intent:read}' WHERE organization_id = $1 AND $2::uuid IS NOT NULL": (
        "forbidden"
    ),
    "UPDATE api_keys SET environment = 'live' WHERE organization_id = $1 AND $2::uuid IS NOT NULL": "forbidden",
    "DELETE FROM api_keys WHERE organization_id = $1 AND $2::uuid IS NOT NULL": "unauthorized",
    "UPDATE organizations SET disabled = true WHERE id = $1 AND $2::uuid IS NOT NULL": "unauthorized",
}


@pytest.mark.parametrize("change", CHANGES, ids=[change.split(" (")[0][:60] for change in CHANGES])
async def test_what_has_changed_meanwhile_is_met(office: Office, change: str) -> None:
    await warm(office)
    first = office.accounts[0]
    await office.owner.execute(change, office.organization, first)
    before = ways(office)
    assert codes([await office.submit(office.create(first))]) == [CHANGES[change]]
    assert ways(office) == before | {"asked": before["asked"] + 1, "mistaken": 1}
    assert codes([await office.submit(office.create(first))]) == [CHANGES[change]]
    assert await whole(office) == [2, 2, 2]


async def test_a_control_that_was_taken_back_refuses_no_longer(office: Office) -> None:
    first = office.accounts[0]
    await office.owner.execute(
        "INSERT INTO account_controls (account_id, organization_id, manually_disabled) VALUES ($1, $2, true)",
        first,
        office.organization,
    )
    refused = [await office.submit(office.create(first)) for _ in range(3)]
    assert codes(refused) == ["control_rejected"] * 3
    assert ways(office)["ahead"] == 2, "a refusal is decided ahead as well"
    assert await office.count("refusals") == 3
    await office.owner.execute("DELETE FROM account_controls")
    assert codes([await office.submit(office.create(first))]) == ["recorded"]
    assert await office.count("refusals") == 3


CONTROLS = {
    "organization_controls": "organization_id",
    "account_controls": "account_id, organization_id",
    "symbol_controls": "account_id, symbol, organization_id",
}


@pytest.mark.parametrize("table", CONTROLS)
async def test_every_change_of_a_control_is_met_by_the_next_batch(office: Office, table: str) -> None:
    first = office.accounts[0]
    values = {"account_id": first, "organization_id": office.organization, "symbol": "AAPL"}
    columns = CONTROLS[table].split(", ")
    marks = ", ".join(f"${number}" for number, _ in enumerate(columns, 1))
    insert = f"INSERT INTO {table} ({CONTROLS[table]}, manually_disabled) VALUES ({marks}, false)"
    await warm(office)
    for change, expected in (
        (insert, "recorded"),
        (f"UPDATE {table} SET manually_disabled = true", "control_rejected"),
        (f"UPDATE {table} SET manually_disabled = false", "recorded"),
        (f"UPDATE {table} SET manually_disabled = true", "control_rejected"),
        (f"DELETE FROM {table}", "recorded"),
    ):
        await office.owner.execute(change, *([values[name] for name in columns] if change == insert else ()))
        before = ways(office)
        assert codes([await office.submit(office.create(first)) for _ in range(3)]) == [expected] * 3
        expected_ways = {"asked": before["asked"] + 1, "ahead": before["ahead"] + 2, "mistaken": before["mistaken"] + 1}
        assert ways(office) == expected_ways, "one mistake, and what was met instead is remembered"


async def test_what_was_read_before_a_change_is_not_taken_for_newer(office: Office) -> None:
    await warm(office)
    one, other, _ = office.accounts
    await office.owner.execute("UPDATE accounts SET disabled = true WHERE id = $1", other)
    assert codes([await office.submit(office.create(one, "MSFT"))]) == ["recorded"], "which is asked for, and learnt"
    assert codes([await office.submit(office.create(other))]) == ["account_disabled"]
    assert codes([await office.submit(office.create(one))]) == ["recorded"]


async def version(office: Office) -> int:
    found: int = await office.owner.fetchval(
        "SELECT coalesce(max(version), 0) FROM rule_versions WHERE organization_id = $1", office.organization
    )
    return found


async def test_what_no_decision_reads_is_no_mistake(office: Office) -> None:
    await warm(office)
    for change in (
        "UPDATE api_keys SET last_used_at = now(), name = 'another'",
        "UPDATE accounts SET connection = 'connected', link_generation = link_generation + 1, name = 'another'",
        "UPDATE organizations SET name = 'another', disabled = disabled",
    ):
        await office.owner.execute(change)
    await add_account(office.owner, office.organization)
    assert await version(office) == 0
    await warm(office)
    assert ways(office) == {"asked": 1, "ahead": 3, "mistaken": 0}


async def test_another_organizations_rules_are_no_concern_of_ours(office: Office) -> None:
    await warm(office)
    other, _ = await furnish(office.owner)
    await office.owner.execute(
        "INSERT INTO organization_controls (organization_id, manually_disabled) VALUES ($1, true)", other
    )
    await warm(office)
    assert ways(office) == {"asked": 1, "ahead": 3, "mistaken": 0}


async def test_every_column_that_decides_is_watched(office: Office) -> None:
    """What the server itself finds in the statement, against what it finds in the triggers."""
    read = re.sub(r"\$\d::(\w+)", r"NULL::\1", statements._READ_ONE_STATE)
    async with office.owner.transaction():
        await office.owner.execute(f"CREATE TEMP VIEW scene (a, b, c, d, e, f, g, h) AS {read}")
        used = await office.owner.fetch(
            "SELECT table_name, column_name FROM information_schema.view_column_usage WHERE view_name = 'scene'"
        )
    triggers = await office.owner.fetch(
        """
        SELECT tgrelid::regclass::text AS table_name, pg_get_triggerdef(oid) AS text FROM pg_trigger
        WHERE tgfoid = 'count_rule_change()'::regprocedure
        """
    )
    watched = {row["table_name"]: "" for row in triggers}
    for row in triggers:
        watched[row["table_name"]] += row["text"]
    never_change = {"id", "organization_id", "account_id", "symbol"}
    assert {row["table_name"] for row in used} == {*watched, "rule_versions"}
    for table, column in used:
        is_whole = table == "rule_versions" or "INSERT OR DELETE OR UPDATE" in watched[table]
        assert is_whole or column in never_change or f"old.{column}" in watched[table], (table, column)
    assert len(used) > 20


async def test_rules_that_change_together_keep_nobody_waiting(office: Office, urls: Urls) -> None:
    """The version is counted at the commit: who changes many rules in any order, or holds the organization to count
    what it has, waits for no other's version, nor the other for it."""
    first, second = [await asyncpg.connect(urls.owner.reveal()) for _ in range(2)]
    await second.execute("SET lock_timeout = '2s'")
    one, other, _ = office.accounts
    disable = "UPDATE accounts SET disabled = true WHERE id = $1"
    async with first.transaction():
        await first.execute("SELECT FROM organizations WHERE id = $1 FOR UPDATE", office.organization)
        await first.execute(disable, one)
        async with second.transaction():
            await second.execute(disable, other)
        await first.execute("UPDATE api_keys SET disabled = true")
    assert await version(office) == 2, "counted once a transaction"
    for connection in (first, second):
        await connection.close()


async def test_two_writers_of_the_same_accounts_keep_every_seq(office: Office, neighbour: Writer) -> None:
    first = office.accounts[0]
    for number in range(1, 21, 2):
        assert (await office.writer.submit(office.create(first))).seq == number
        assert (await neighbour.submit(office.create(first))).seq == number + 1
    assert ways(office)["mistaken"] > 10
    for _ in range(20):
        mine = office.submit_all([office.create(account) for account in office.accounts])
        theirs = asyncio.gather(*(neighbour.submit(office.create(account)) for account in office.accounts))
        assert codes([*await mine, *await theirs]) == ["recorded"] * 6
    assert await whole(office) == [60, 40, 40]


async def test_a_crowd_is_decided_ahead_behind_each_others_commits(office: Office) -> None:
    await warm(office)

    async def come_and_go(number: int) -> list[Receipt]:
        account = office.accounts[number % 3]
        return [await office.writer.submit(office.create(account)) for _ in range(10)]

    receipts = [each for made in await asyncio.gather(*map(come_and_go, range(CROWD))) for each in made]
    assert len({receipt.intent_id for receipt in receipts}) == CROWD * 10
    assert ways(office)["mistaken"] == 0
    assert sum(await whole(office)) == CROWD * 10 + 6


async def test_who_sends_its_key_again_is_answered_as_before(office: Office) -> None:
    await warm(office)

    def keyed(number: int, digest: str = "00" * 32) -> Submission:
        plain = office.create(office.accounts[0])
        return Submission(
            plain.account_id, plain.organization_id, plain.key_id, plain.command, None, f"key-{number}", digest
        )

    made = [await office.writer.submit(keyed(number)) for number in range(5)]
    assert ways(office)["ahead"] == 6, "a new key is no reason to ask"
    again = await office.submit_all([keyed(number) for number in range(5)])
    assert again == [Receipt(receipt.intent_id, receipt.seq, replayed=True) for receipt in made]
    assert codes([await office.submit(keyed(3, "11" * 32))]) == ["idempotency_conflict"]
    assert await whole(office) == [7, 2, 2]


async def test_one_that_is_refused_after_all_does_not_fail_its_neighbours(office: Office) -> None:
    symbols = ("A", "TRAP", "B")
    commands = [office.create(account, symbol) for symbol in symbols for account in office.accounts]
    assert codes(await office.submit_all(commands)) == ["recorded"] * 9
    await office.owner.execute(TRAP)
    more = office.submit_all([office.create(account, "A") for _ in range(20) for account in office.accounts])
    outcomes, others = await asyncio.gather(office.submit_all(commands), more)
    assert codes(outcomes) == ["recorded"] * 3 + ["internal_error"] * 3 + ["recorded"] * 3
    assert codes(others) == ["recorded"] * 60
    assert await whole(office) == [25, 25, 25]


async def test_a_held_account_does_not_keep_the_others(office: Office, urls: Urls) -> None:
    await warm(office)
    held, *free = office.accounts
    holder = await asyncpg.connect(urls.owner.reveal())
    async with holder.transaction():
        await holder.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", held)
        waiting = asyncio.create_task(office.submit(office.create(held)))
        assert codes(await office.submit_all([office.create(account) for account in free])) == ["recorded"] * 2
    assert codes([await waiting]) in (["recorded"], ["unavailable"])
    assert await whole(office)
    await holder.close()


async def test_times_are_the_servers_and_never_go_back(office: Office) -> None:
    before = await office.owner.fetchval("SELECT clock_timestamp()")
    await warm(office)
    for _ in range(20):
        await office.writer.submit(office.create(office.accounts[0]))
    after = await office.owner.fetchval("SELECT clock_timestamp()")
    rows = await office.owner.fetch(
        "SELECT created_at FROM actions WHERE account_id = $1 ORDER BY seq", office.accounts[0]
    )
    times = [row["created_at"] for row in rows]
    assert ways(office)["ahead"] > 10
    assert times == sorted(times)
    assert before <= times[0]
    assert times[-1] <= after


NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)


class ManualClock(SystemClock):
    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


def met(submission: Submission, now: datetime) -> BatchState:
    account: Any = "the account's state"
    key: Any = "the key's state"
    return BatchState(
        brokers=installed_brokers(make_log("critical")),
        heads={submission.account_id: (1, "0" * 64)},
        order_rows={},
        orders={},
        earlier={},
        now=now,
        now_text=str(now),
        transaction_id="1",
        versions={submission.organization_id: "1"},
        accounts={submission.account_id: account},
        keys={str(submission.key_id): key},
        switches={},
        windows={},
    )


@pytest.mark.parametrize(
    ("passed", "away", "right"),
    [
        (5.0, timedelta(0), True),
        (5.0, timedelta(milliseconds=400), True),
        (5.0, MAX_LATE + timedelta(milliseconds=1), False),
        (5.0, timedelta(microseconds=-500), True),
        (5.0, timedelta(milliseconds=-2), False),
        (5.0, timedelta(hours=-1), False),
    ],
    ids=["as it was", "a little later", "too late", "a little earlier", "set back a little", "set back"],
)
async def test_a_clock_that_runs_otherwise_is_noticed(
    office: Office, passed: float, away: timedelta, right: bool
) -> None:
    submission, clock = office.create(office.accounts[0]), ManualClock()
    memory = StateCache(installed_brokers(make_log("critical")), clock)
    memory.update([submission], met(submission, NOON))
    clock.seconds += passed
    assert memory.covers([submission])
    now = memory.now()
    assert now == NOON + timedelta(seconds=passed)
    second = met(submission, now + away)
    assert memory.is_valid(now, second) == right
    following = memory.now()
    assert not right or following >= now, "a time never goes back"
    expected = max(now + away, now if right else NOON - timedelta(days=1))
    assert abs(following - expected) <= timedelta(milliseconds=1), "it is known from the last answer on"
