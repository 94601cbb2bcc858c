"""The writer's connection and what it knows: a plan that is lost, a transaction that did not begin,
another server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.conftest import Urls
from tests.intents.in_process_writer import (
    PRICES,
    InProcessWriter,
    brokers,
    codes,
    open_in_process_writer,
)
from tests.intents.writer_checks import whole
from trading_intents.clock import SystemClock
from trading_intents.errors import OutcomeUnknown
from trading_intents.ids import id_text_maker
from trading_intents.intents.writing import batch as batch_module
from trading_intents.intents.writing.state import BatchDependencies, read_state
from trading_intents.intents.writing.system import PlatformActions
from trading_intents.storage.database import WORKER_ROLE
from trading_intents.storage.pipeline import Pipeline, Statement
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import make_log


@pytest.fixture
async def in_process_writer(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[InProcessWriter]:
    """One that trusts its memory again at once."""
    async with open_in_process_writer(urls.login, urls.owner) as in_process_writer:
        yield in_process_writer


async def test_a_migration_beside_the_writer_does_not_stop_it(
    in_process_writer: InProcessWriter,
) -> None:
    """A prepared statement whose columns have changed is refused for as long as its connection
    lasts."""
    account = in_process_writer.accounts[0]
    made = [
        await in_process_writer.writer.submit(in_process_writer.create(account)) for _ in range(4)
    ]
    assert codes(
        [await in_process_writer.submit(in_process_writer.cancel(account, made[0].intent_id))]
    ) == ["recorded"]
    await in_process_writer.owner.execute(
        """
        CREATE DOMAIN some_reason AS text; GRANT USAGE ON TYPE some_reason TO PUBLIC;
        ALTER TABLE orders ALTER COLUMN reason TYPE some_reason
        """
    )
    cancels = [
        await in_process_writer.submit(in_process_writer.cancel(account, each.intent_id))
        for each in made[1:]
    ]
    assert codes(cancels) == ["recorded"] * 3
    assert await whole(in_process_writer) == [8]


@pytest.mark.parametrize("lost", ["ALL", "BEGIN", "COMMIT", "SELECT", "WITH"])
async def test_a_lost_plan_is_made_again_and_nothing_is_written_without_its_transaction(
    in_process_writer: InProcessWriter, lost: str
) -> None:
    """If BEGIN is refused, what was sent behind it must be as well, though no transaction is there
    to be aborted."""
    await in_process_writer.writer.submit(in_process_writer.create(in_process_writer.accounts[0]))
    for number in range(2, 5):
        connection = in_process_writer.writer._dependencies.pipeline.open_connection
        assert connection is not None
        names = [name.decode() for name in connection._names.values()]
        is_abandoned = (
            ["ALL"] if lost == "ALL" else [name for name in names if name.startswith(lost.lower())]
        )
        await connection.run([Statement(f"DEALLOCATE {name}") for name in is_abandoned])
        assert (
            await in_process_writer.writer.submit(
                in_process_writer.create(in_process_writer.accounts[0])
            )
        ).seq == number
    assert await whole(in_process_writer) == [4]


async def test_a_batch_stays_on_the_connection_that_holds_its_locks(
    in_process_writer: InProcessWriter, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends between the reads and the writes, and meanwhile the order is filled."""
    account = in_process_writer.accounts[0]
    read = read_state
    made = await in_process_writer.writer.submit(in_process_writer.create(account))
    log = make_log("critical")
    pipeline = Pipeline(urls.login, WORKER_ROLE)

    async def read_and_lose(*arguments: Any) -> Any:
        state = await read(*arguments)
        pipeline.close()
        await in_process_writer.owner.execute(
            """
            UPDATE orders SET order_status = 'FILLED', filled_quantity = quantity,
                finished_at = now()
            WHERE order_id = $1
            """,
            UUID(made.intent_id),
        )
        return state

    monkeypatch.setattr(batch_module, "read_state", read_and_lose)
    async with open_signals(urls.login, log) as signals:
        cancels = PlatformActions(
            BatchDependencies(
                pipeline=pipeline,
                brokers=brokers(),
                make_id=id_text_maker(),
                clock=SystemClock(),
                prices=PRICES,
            ),
            signals,
        )
        with pytest.raises(OutcomeUnknown):
            await cancels.cancel(str(in_process_writer.organization), str(account), made.intent_id)
    assert await in_process_writer.owner.fetchval("SELECT order_status FROM orders") == "FILLED"
    assert await in_process_writer.count("actions") == 1


@pytest.mark.parametrize("is_used", [True, False], ids=["used", "only opened"])
async def test_a_version_that_another_server_gives_again_is_not_believed(
    in_process_writer: InProcessWriter, is_used: bool
) -> None:
    """A standby that had not got the last change takes over: its next change gets the same number.
    A batch that meets a held lock opens the new connection and reads no rules on it."""
    account = in_process_writer.accounts[0]
    owner = in_process_writer.owner
    disable = """
        INSERT INTO symbol_controls (account_id, symbol, organization_id, manually_disabled)
        VALUES ($1, $2, $3, true)
    """
    keyed = msgspec.structs.replace(
        in_process_writer.create(account), idempotency_key="k", body_digest="00" * 32
    )
    await in_process_writer.writer.submit(keyed)
    await owner.execute(disable, account, "MSFT", in_process_writer.organization)
    assert (await in_process_writer.writer.submit(keyed)).replayed, (
        "the heads stay, and the rules are remembered"
    )
    lost = await owner.fetchval("SELECT version FROM rule_versions")
    await owner.execute(
        """
        SET session_replication_role = replica;
        DELETE FROM symbol_controls; DELETE FROM rule_versions;
        SET session_replication_role = origin
        """
    )
    await owner.execute(disable, account, "AAPL", in_process_writer.organization)
    assert await owner.fetchval("SELECT version FROM rule_versions") == lost
    in_process_writer.writer._dependencies.pipeline.close()
    await in_process_writer.writer._dependencies.pipeline.connect()
    if is_used:
        assert codes(
            [await in_process_writer.submit(in_process_writer.create(account, "IBM"))]
        ) == ["recorded"]
    assert codes([await in_process_writer.submit(in_process_writer.create(account, "AAPL"))]) == [
        "control_rejected"
    ]


async def test_an_answer_that_fails_keeps_nobody_else_from_theirs(
    in_process_writer: InProcessWriter,
) -> None:
    answers: list[object] = []

    def fail(_: object) -> None:
        raise RuntimeError

    for answer in (answers.append, fail, answers.append, fail, answers.append):
        in_process_writer.writer.enqueue(
            in_process_writer.create(in_process_writer.accounts[0]), answer
        )
    assert codes(
        [
            await asyncio.wait_for(
                in_process_writer.submit(in_process_writer.create(in_process_writer.accounts[0])),
                20,
            )
        ]
    ) == ["recorded"]
    assert codes(answers) == ["recorded"] * 3
    assert await whole(in_process_writer) == [6]
