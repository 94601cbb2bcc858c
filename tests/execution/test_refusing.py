"""The checks that are repeated in the transaction that marks a send."""

from unittest.mock import Mock
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.arranged import make_older
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.fakes import Act
from trading_intents.controls import rules, store
from trading_intents.intents.model import Create, Spec
from trading_intents.trading import OrderKind, OrderSide, RouteStrategy, Symbol

DISABLINGS = {
    "organization_manually_disabled": "INSERT INTO organization_controls (organization_id, manually_disabled)"
    " SELECT organization_id, true FROM accounts LIMIT 1",
    "account_manually_disabled": "INSERT INTO account_controls (account_id, organization_id, manually_disabled)"
    " SELECT id, organization_id, true FROM accounts",
    "symbol_manually_disabled": "INSERT INTO symbol_controls (account_id, symbol, organization_id, manually_disabled)"
    " SELECT id, 'AAPL', organization_id, true FROM accounts",
    "outside_trading_window": "INSERT INTO symbol_times (account_id, symbol, organization_id, trading_start,"
    " trading_end) SELECT id, 'AAPL', organization_id, t - interval '2 h', t - interval '1 h' FROM accounts,"
    " (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::time(0) AS t) AS now",
    "max_order_quantity": "INSERT INTO trading_limits (owner_id, organization_id, rules)"
    """ SELECT organization_id, organization_id, '{"max_order_quantity": "4.9"}' FROM accounts LIMIT 1""",
    "allowed_symbols": "INSERT INTO trading_limits (owner_id, organization_id, rules)"
    """ SELECT id, organization_id, '{"allowed_symbols": ["MSFT"]}' FROM accounts""",
    "account_disabled": "UPDATE accounts SET disabled = true",
}


async def limit_age(in_process: InProcessExecution, millis: int) -> None:
    await in_process.in_process_writer.owner.execute(
        "INSERT INTO symbol_times (account_id, symbol, organization_id, stale_order_millis)"
        " SELECT id, 'AAPL', organization_id, $1 FROM accounts",
        millis,
    )


@pytest.mark.parametrize("reason", DISABLINGS)
async def test_a_control_that_came_meanwhile_is_honoured(urls: Urls, reason: str) -> None:
    async with open_in_process(urls) as in_process:
        intents = [await in_process.create() for _ in range(3)]
        await in_process.in_process_writer.owner.execute(DISABLINGS[reason])
        async with executing(in_process):
            for intent in intents:
                order = await in_process.until_status(intent, "REJECTED")
                assert order["reason"] == reason
            await in_process.until_queue_is_empty()
        assert in_process.venue.journal == []


async def test_rules_are_read_again_for_a_send_when_they_have_changed(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read once for the accept and once for the send, and never while they are the same."""
    reads = Mock(side_effect=store.read_rules)
    monkeypatch.setattr(rules, "read_rules", reads)
    async with open_in_process(urls) as in_process, executing(in_process):
        for _ in range(3):
            await in_process.until_status(await in_process.create(), "NEW")
            assert reads.call_count == 2
        await limit_age(in_process, 60_000)
        for _ in range(2):
            await in_process.until_status(await in_process.create(), "NEW")
            assert reads.call_count == 4


async def test_a_replace_that_a_control_refuses_is_dropped(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.acts.append(Act.FAIL)
        await in_process.replace(intent, "7")
        await in_process.put_off(intent)
        await in_process.in_process_writer.owner.execute(DISABLINGS["symbol_manually_disabled"])
        await in_process.make_due()
        order = await in_process.until_status(intent, "NEW")
        assert (order["quantity"], order["reason"]) == (10, "symbol_manually_disabled")
        assert in_process.venue.arrived("replace") == []


async def test_a_cancel_passes_every_control(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        for disabling in DISABLINGS.values():
            await in_process.in_process_writer.owner.execute(disabling)
        await make_older(in_process, 3600)
        await in_process.cancel(intent)
        await in_process.until_status(intent, "CANCELLED")


async def test_what_waited_longer_than_the_maximum_age_is_not_sent(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        old = await in_process.create()
        await make_older(in_process, 31)
        young = await in_process.create()
        async with executing(in_process):
            order = await in_process.until_status(old, "EXPIRED")
            assert order["reason"] == "stale"
            await in_process.until_status(young, "NEW")
            assert in_process.venue.journal == [("submit", await in_process.coid(young))]


async def test_a_symbol_can_shorten_the_maximum_age(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        old = await in_process.create()
        other = await in_process.create(symbol="MSFT")
        await limit_age(in_process, 2_000)
        await make_older(in_process, 3)
        async with executing(in_process):
            assert (await in_process.until_status(old, "EXPIRED"))["reason"] == "stale"
            await in_process.until_status(other, "NEW")
            assert in_process.venue.journal == [("submit", await in_process.coid(other))]


async def test_a_replace_that_grew_old_is_dropped(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.acts.append(Act.FAIL)
        await in_process.replace(intent, "7")
        await in_process.put_off(intent)
        await make_older(in_process, 31)
        await in_process.make_due()
        order = await in_process.until_status(intent, "NEW")
        assert (order["quantity"], order["reason"]) == (10, "stale")


async def test_while_the_broker_is_away_only_what_needs_no_broker_is_ended(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        in_process.venue.is_away = True
        old = await in_process.create()
        await make_older(in_process, 31)
        cancelled = await in_process.create()
        young = await in_process.create()
        await in_process.cancel(cancelled)
        async with executing(in_process):
            assert (await in_process.until_status(old, "EXPIRED"))["reason"] == "stale"
            assert (await in_process.until_status(cancelled, "CANCELLED"))[
                "reason"
            ] == "before_send"
            assert [(row["status"], row["attempts"]) for row in await in_process.rows(young)] == [
                ("pending", 0)
            ]
            assert await in_process.connection() == "disconnected"
            in_process.venue.is_away = False
            await in_process.until_status(young, "NEW")
            await in_process.until_queue_is_empty()
        assert in_process.venue.journal == [("submit", await in_process.coid(young))]


async def test_an_order_that_worked_too_long_is_cancelled(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        stale = await in_process.create()
        other = await in_process.create(symbol="MSFT")
        for intent in (stale, other):
            await in_process.until_status(intent, "NEW")
        await make_older(in_process, 61)
        young = await in_process.create()
        await in_process.until_status(young, "NEW")
        await limit_age(in_process, 60_000)
        await in_process.until_true(lambda: bool(in_process.system_cancels))
        assert set(in_process.system_cancels) == {stale}


async def test_a_short_sale_that_is_no_longer_allowed_is_not_sent(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        writer = in_process.in_process_writer
        spec = Spec(
            kind=OrderKind.LIMIT,
            quantity="10",
            limit_price="100",
            stop_price=None,
            trail_amount=None,
        )
        orders = {
            side: await in_process.submit(
                writer.command(
                    in_process.account, Create(Symbol("AAPL"), side, RouteStrategy.SMART, spec)
                )
            )
            for side in (OrderSide.SELL, OrderSide.SELL_SHORT)
        }
        await writer.owner.execute(
            "INSERT INTO trading_limits (owner_id, organization_id, symbol, rules)"
            """ SELECT id, organization_id, 'AAPL', '{"allow_short": false}' FROM accounts"""
        )
        async with executing(in_process):
            order = await in_process.until_status(
                UUID(orders[OrderSide.SELL_SHORT].intent_id), "REJECTED"
            )
            assert order["reason"] == "allow_short"
            await in_process.until_status(UUID(orders[OrderSide.SELL].intent_id), "NEW")
