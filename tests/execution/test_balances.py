"""Balances that a broker reports: recorded with its events, paced, and not published again after a
restart."""

import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.execution.recorded_orders import Books, fill
from tests.journal import ALL_ROWS, read_messages
from trading_intents.balances import model
from trading_intents.brokers.port import BrokerBalance
from trading_intents.orders.ledger.matching import AccountRecording
from trading_intents.orders.ledger.recording import publish_statements, record, write_statements
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.stream.model import EventType

AT = datetime(2026, 3, 4, 15, 30, tzinfo=UTC)
MANY_SECONDS = 20.0


def balance(
    cash: str | None, equity: str | None = None, at: int = 0, currency: str | None = "USD"
) -> BrokerBalance:
    return BrokerBalance(
        currency=currency,
        cash=None if cash is None else Decimal(cash),
        equity=None if equity is None else Decimal(equity),
        as_of=AT + timedelta(seconds=at),
    )


async def reported(in_process: InProcessExecution) -> list[tuple[str, str]]:
    messages = read_messages(await in_process.in_process_writer.owner.fetch(ALL_ROWS))
    events = [each.event.balance for each in messages if each.kind == EventType.BALANCE]
    return [(event.cash, event.equity) for event in events]


async def until_published(in_process: InProcessExecution, *expected: tuple[str, str]) -> None:
    async def reached() -> bool:
        return await reported(in_process) == list(expected)

    try:
        await in_process.until(reached, MANY_SECONDS)
    except AssertionError:
        raise AssertionError(f"{await reported(in_process)}, not {expected}") from None


async def kept(in_process: InProcessExecution) -> Any:
    return await in_process.in_process_writer.owner.fetchrow("SELECT * FROM balances")


async def test_the_snapshots_balance_is_recorded_and_not_again_after_a_restart(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        in_process.venue.balance = balance("100", "150")
        async with executing(in_process):
            await until_published(in_process, ("100", "150"))
        row = await kept(in_process)
        assert (row["account_id"], row["cash"], row["buying_power"], row["as_of"]) == (
            in_process.account,
            100,
            None,
            AT,
        )
        in_process.venue.balance = balance("100", "150", at=60)
        async with executing(in_process):
            intent = await in_process.create()
            await in_process.until_status(intent, "NEW")
            in_process.venue.report_balance(balance("99", "150", at=61))
            await until_published(in_process, ("100", "150"), ("99", "150"))


async def test_other_cash_is_published_at_once_and_another_equity_at_its_pace(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "PRICES_PACE_SECONDS", pace_seconds := 3.0)
    async with open_in_process(urls) as in_process, executing(in_process):
        await in_process.until_true(lambda: bool(in_process.venue.sessions))
        began = time.monotonic()
        in_process.venue.report_balance(balance("1", "1"))
        await until_published(in_process, ("1", "1"))
        in_process.venue.report_balance(balance("1", "2", at=1))
        in_process.venue.report_balance(balance("1", "3", at=2))
        await until_published(in_process, ("1", "1"), ("1", "3"))
        assert time.monotonic() - began > pace_seconds - 1
        in_process.venue.report_balance(balance("2", "3", at=3))
        in_process.venue.report_balance(balance("2", "3", at=4))
        await until_published(in_process, ("1", "1"), ("1", "3"), ("2", "3"))


async def test_a_balance_of_the_future_or_of_odd_text_is_made_safe(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await in_process.until_true(lambda: bool(in_process.venue.sessions))
        odd = balance("1", currency="U\x00S\ud800D" + "x" * 600)
        in_process.venue.report_balance(
            BrokerBalance(
                currency=odd.currency, cash=odd.cash, as_of=datetime.max.replace(tzinfo=UTC)
            )
        )
        await until_published(in_process, ("1", ""))
        row = await kept(in_process)
        assert row["currency"] == "U?S?D" + "x" * 11
        assert row["as_of"] <= await in_process.in_process_writer.owner.fetchval(
            "SELECT clock_timestamp()"
        )


async def test_a_balance_is_one_statement_and_one_event_more(books: Books) -> None:
    sent = await books.create("10")
    async with books.database.worker.transaction(plans="by_key") as tx:
        runner = PoolTransaction(tx)
        recording = AccountRecording(
            books.trading_client(), [fill(sent, "e1", "10", "5")], balance=balance("7")
        )
        (recorded,), _ = await record(runner, [recording])
        writes = write_statements([recorded])
        assert sum("INTO balances" in statement.sql for statement in writes) == 1
        await runner.run([*writes, *publish_statements([recorded])])
    (event,) = [event for event in await books.events() if type(event).__name__ == "Balance"]
    assert (event.cash, event.broker, event.HasField("equity")) == ("7", "paper", False)
    async with books.database.worker.transaction(plans="by_key") as tx:
        older = AccountRecording(books.trading_client(), balance=balance("8", at=-1))
        (recorded,), _ = await record(PoolTransaction(tx), [older])
        await PoolTransaction(tx).run(
            [*write_statements([recorded]), *publish_statements([recorded])]
        )
    assert await books.owner.fetchval("SELECT cash FROM balances") == 7, (
        "an older one never replaces a newer one"
    )
