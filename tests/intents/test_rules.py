"""The rules by which the writer decides: read once for each version, and each change is met by the
next command."""

import asyncio
import re
from collections.abc import AsyncIterator
from unittest.mock import Mock

import asyncpg
import pytest
from msgspec import structs

from tests.conftest import Urls
from tests.intents.in_process_writer import (
    PRICES,
    InProcessWriter,
    add_account,
    brokers,
    codes,
    furnish,
    open_in_process_writer,
)
from tests.intents.writer_checks import CHANGES, TRAP, creates_of, whole
from tests.kept_connections import make_pipeline
from trading_intents.clock import SystemClock
from trading_intents.controls import rules, store
from trading_intents.ids import id_text_maker
from trading_intents.intents.model import Submission
from trading_intents.intents.writing import statements
from trading_intents.intents.writing.batch import Receipt
from trading_intents.intents.writing.state import BatchDependencies
from trading_intents.intents.writing.writer import Writer
from trading_intents.storage.database import SERVICE_ROLE
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import make_log
from trading_intents.trading import Symbol

CALLERS = 64


@pytest.fixture
async def local(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InProcessWriter]:
    async with open_in_process_writer(urls.login, urls.owner) as local:
        yield local


@pytest.fixture
async def neighbour(local: InProcessWriter, urls: Urls) -> AsyncIterator[Writer]:
    """As of another process, on the same accounts."""
    log = make_log("critical")
    async with open_signals(urls.login, log) as signals:
        tools = BatchDependencies(
            pipeline=make_pipeline(urls.login, SERVICE_ROLE, statements.LOCK_LIMIT_SECONDS),
            brokers=brokers(),
            make_id=id_text_maker(),
            clock=SystemClock(),
            prices=PRICES,
        )
        writer = Writer(tools, local.pool, signals, local.metrics, log)
        task = asyncio.create_task(writer.run())
        yield writer
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def reads(local: InProcessWriter, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Called whenever rules are read."""
    reads = Mock(side_effect=store.read_rules)
    monkeypatch.setattr(rules, "read_rules", reads)
    return reads


async def warm(local: InProcessWriter) -> None:
    for _ in range(2):
        outcomes = await local.submit_all([local.create(account) for account in local.accounts])
        assert codes(outcomes) == ["recorded"] * 3


async def test_what_has_not_changed_is_not_read_again(local: InProcessWriter, reads: Mock) -> None:
    await warm(local)
    assert reads.call_count == 1
    made = [await local.writer.submit(local.create(local.accounts[0])) for _ in range(6)]
    assert [each.seq for each in made] == [*range(3, 9)]
    assert reads.call_count == 1
    assert codes([await local.submit(local.create(local.accounts[0], "MSFT"))]) == ["recorded"]
    assert reads.call_count == 2, "its controls were never read"
    assert codes([await local.submit(local.cancel(local.accounts[0], made[0].intent_id))]) == [
        "recorded"
    ]
    assert reads.call_count == 2, "a CANCEL is decided by the rules of its order's symbol"
    assert await whole(local) == [10, 2, 2]


async def test_each_organization_keeps_as_much_as_others_leave(
    local: InProcessWriter, reads: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MAX_COVERED", 4)
    few, many = await creates_of(local, 2)
    assert codes([await local.submit(few)]) == ["recorded"]
    for number in range(6):
        command = structs.replace(many.command, symbol=Symbol(f"S{number}"))
        assert codes([await local.submit(structs.replace(many, command=command))]) == ["recorded"]
    before = reads.call_count
    assert codes([await local.submit(few)]) == ["recorded"]
    assert reads.call_count == before, "the one with the most was forgotten, not its neighbour"


@pytest.mark.parametrize("change", CHANGES, ids=[change.split(" (")[0][:60] for change in CHANGES])
async def test_what_has_changed_meanwhile_is_met(
    local: InProcessWriter, reads: Mock, change: str
) -> None:
    await warm(local)
    first = local.accounts[0]
    await local.owner.execute(change, local.organization, first)
    for _ in range(2):
        assert codes([await local.submit(local.create(first))]) == [CHANGES[change]]
    assert reads.call_count == 2
    assert await whole(local) == [2, 2, 2]


async def test_a_control_that_was_taken_back_refuses_no_longer(local: InProcessWriter) -> None:
    first = local.accounts[0]
    await local.owner.execute(
        """
            INSERT INTO account_controls (account_id, organization_id, manually_disabled)
            VALUES ($1, $2, true)
        """,
        first,
        local.organization,
    )
    refused = [await local.submit(local.create(first)) for _ in range(3)]
    assert codes(refused) == ["control_rejected"] * 3
    assert await local.count("refusals") == 3
    await local.owner.execute("DELETE FROM account_controls")
    assert codes([await local.submit(local.create(first))]) == ["recorded"]
    assert await local.count("refusals") == 3


CONTROLS = {
    "organization_controls": "organization_id",
    "account_controls": "account_id, organization_id",
    "symbol_controls": "account_id, symbol, organization_id",
}


@pytest.mark.parametrize("table", CONTROLS)
async def test_every_change_of_a_control_is_met_by_the_next_batch(
    local: InProcessWriter, reads: Mock, table: str
) -> None:
    first = local.accounts[0]
    values = {"account_id": first, "organization_id": local.organization, "symbol": "AAPL"}
    columns = CONTROLS[table].split(", ")
    marks = ", ".join(f"${number}" for number, _ in enumerate(columns, 1))
    insert = f"INSERT INTO {table} ({CONTROLS[table]}, manually_disabled) VALUES ({marks}, false)"
    await warm(local)
    for change, expected in (
        (insert, "recorded"),
        (f"UPDATE {table} SET manually_disabled = true", "control_rejected"),
        (f"UPDATE {table} SET manually_disabled = false", "recorded"),
        (f"UPDATE {table} SET manually_disabled = true", "control_rejected"),
        (f"DELETE FROM {table}", "recorded"),
    ):
        await local.owner.execute(
            change, *([values[name] for name in columns] if change == insert else ())
        )
        before = reads.call_count
        assert codes([await local.submit(local.create(first)) for _ in range(3)]) == [expected] * 3
        assert reads.call_count == before + 1


async def test_what_was_read_before_a_change_is_not_taken_for_newer(local: InProcessWriter) -> None:
    await warm(local)
    one, other, _ = local.accounts
    await local.owner.execute("UPDATE accounts SET disabled = true WHERE id = $1", other)
    assert codes([await local.submit(local.create(one, "MSFT"))]) == ["recorded"], (
        "which is asked for, and learnt"
    )
    assert codes([await local.submit(local.create(other))]) == ["account_disabled"]
    assert codes([await local.submit(local.create(one))]) == ["recorded"]


async def version(local: InProcessWriter) -> int:
    found: int = await local.owner.fetchval(
        "SELECT coalesce(max(version), 0) FROM rule_versions WHERE organization_id = $1",
        local.organization,
    )
    return found


async def test_what_no_decision_reads_is_no_change(local: InProcessWriter, reads: Mock) -> None:
    await warm(local)
    for change in (
        "UPDATE api_keys SET last_used_at = now(), name = 'another'",
        """
            UPDATE accounts SET connection = 'connected', link_generation = link_generation + 1,
                name = 'another'
        """,
        "UPDATE organizations SET name = 'another', disabled = disabled",
    ):
        await local.owner.execute(change)
    await add_account(local.owner, local.organization)
    assert await version(local) == 0
    await warm(local)
    assert reads.call_count == 1


async def test_another_organizations_rules_are_no_concern_of_ours(
    local: InProcessWriter, reads: Mock
) -> None:
    await warm(local)
    other, _ = await furnish(local.owner)
    await local.owner.execute(
        "INSERT INTO organization_controls (organization_id, manually_disabled) VALUES ($1, true)",
        other,
    )
    await warm(local)
    assert reads.call_count == 1


async def test_every_column_that_decides_is_watched(local: InProcessWriter) -> None:
    """Compares the columns that the server finds in the statement with those that it finds in the
    triggers."""
    read = re.sub(r"\$\d(::\w+)?", r"NULL\1", store._READ_RULES)
    async with local.owner.transaction():
        await local.owner.execute(f"CREATE TEMP VIEW rules (row) AS {read}")
        used = await local.owner.fetch(
            """
                SELECT table_name, column_name FROM information_schema.view_column_usage
                WHERE view_name = 'rules'
            """
        )
    triggers = await local.owner.fetch(
        """
        SELECT tgrelid::regclass::text AS table_name, pg_get_triggerdef(oid) AS text FROM pg_trigger
        WHERE tgfoid = 'count_rule_change()'::regprocedure
        """
    )
    watched = {row["table_name"]: "" for row in triggers}
    for row in triggers:
        watched[row["table_name"]] += row["text"]
    # The last two are a halt's.
    never_change = {"id", "organization_id", "account_id", "key_id", "symbol", "scope_id", "reason"}
    assert {row["table_name"] for row in used} == {*watched, "rule_versions"}
    for table, column in used:
        is_whole = table == "rule_versions" or "INSERT OR DELETE OR UPDATE" in watched[table]
        assert is_whole or column in never_change or f"old.{column}" in watched[table], (
            table,
            column,
        )
    assert len(used) > 20


async def test_rules_that_change_together_keep_nobody_waiting(
    local: InProcessWriter, urls: Urls
) -> None:
    """The version is counted at the commit: who changes many rules in any order, or holds the
    organization to count what it has, waits for no other's version, nor the other for it."""
    first, second = [await asyncpg.connect(urls.owner.reveal()) for _ in range(2)]
    await second.execute("SET lock_timeout = '2s'")
    one, other, _ = local.accounts
    disable = "UPDATE accounts SET disabled = true WHERE id = $1"
    async with first.transaction():
        await first.execute(
            "SELECT FROM organizations WHERE id = $1 FOR UPDATE", local.organization
        )
        await first.execute(disable, one)
        async with second.transaction():
            await second.execute(disable, other)
        await first.execute("UPDATE api_keys SET disabled = true")
    assert await version(local) == 2, "counted once a transaction"
    for connection in (first, second):
        await connection.close()


async def test_two_writers_of_the_same_accounts_keep_every_seq(
    local: InProcessWriter, neighbour: Writer
) -> None:
    first = local.accounts[0]
    for number in range(1, 21, 2):
        assert (await local.writer.submit(local.create(first))).seq == number
        assert (await neighbour.submit(local.create(first))).seq == number + 1
    for _ in range(20):
        mine = local.submit_all([local.create(account) for account in local.accounts])
        theirs = asyncio.gather(
            *(neighbour.submit(local.create(account)) for account in local.accounts)
        )
        assert codes([*await mine, *await theirs]) == ["recorded"] * 6
    assert await whole(local) == [60, 40, 40]


async def test_many_callers_at_once_are_recorded_once_each(local: InProcessWriter) -> None:
    await warm(local)

    async def come_and_go(number: int) -> list[Receipt]:
        account = local.accounts[number % 3]
        return [await local.writer.submit(local.create(account)) for _ in range(10)]

    receipts = [
        each for made in await asyncio.gather(*map(come_and_go, range(CALLERS))) for each in made
    ]
    assert len({receipt.intent_id for receipt in receipts}) == CALLERS * 10
    assert sum(await whole(local)) == CALLERS * 10 + 6


async def test_who_sends_its_key_again_is_answered_as_before(local: InProcessWriter) -> None:
    await warm(local)

    def keyed(number: int, digest: str = "00" * 32) -> Submission:
        plain = local.create(local.accounts[0])
        return Submission(
            account_id=plain.account_id,
            organization_id=plain.organization_id,
            key_id=plain.key_id,
            command=plain.command,
            client_reference_id=None,
            idempotency_key=f"key-{number}",
            body_digest=digest,
        )

    made = [await local.writer.submit(keyed(number)) for number in range(5)]
    again = await local.submit_all([keyed(number) for number in range(5)])
    assert again == [Receipt(receipt.intent_id, receipt.seq, replayed=True) for receipt in made]
    assert codes([await local.submit(keyed(3, "11" * 32))]) == ["idempotency_conflict"]
    assert await whole(local) == [7, 2, 2]


async def test_one_that_is_refused_after_all_does_not_fail_its_neighbours(
    local: InProcessWriter,
) -> None:
    symbols = ("A", "TRAP", "B")
    commands = [local.create(account, symbol) for symbol in symbols for account in local.accounts]
    assert codes(await local.submit_all(commands)) == ["recorded"] * 9
    await local.owner.execute(TRAP)
    more = local.submit_all(
        [local.create(account, "A") for _ in range(20) for account in local.accounts]
    )
    outcomes, others = await asyncio.gather(local.submit_all(commands), more)
    assert codes(outcomes) == ["recorded"] * 3 + ["internal_error"] * 3 + ["recorded"] * 3
    assert codes(others) == ["recorded"] * 60
    assert await whole(local) == [25, 25, 25]


async def test_a_held_account_does_not_keep_the_others(local: InProcessWriter, urls: Urls) -> None:
    await warm(local)
    held, *free = local.accounts
    holder = await asyncpg.connect(urls.owner.reveal())
    async with holder.transaction():
        await holder.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", held)
        waiting = asyncio.create_task(local.submit(local.create(held)))
        assert (
            codes(await local.submit_all([local.create(account) for account in free]))
            == ["recorded"] * 2
        )
    assert codes([await waiting]) in (["recorded"], ["unavailable"])
    assert await whole(local)
    await holder.close()


async def test_times_are_the_servers_and_never_go_back(local: InProcessWriter) -> None:
    before = await local.owner.fetchval("SELECT clock_timestamp()")
    await warm(local)
    for _ in range(20):
        await local.writer.submit(local.create(local.accounts[0]))
    after = await local.owner.fetchval("SELECT clock_timestamp()")
    rows = await local.owner.fetch(
        "SELECT created_at FROM actions WHERE account_id = $1 ORDER BY seq", local.accounts[0]
    )
    times = [row["created_at"] for row in rows]
    assert times == sorted(times)
    assert before <= times[0]
    assert times[-1] <= after
