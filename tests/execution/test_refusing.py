"""What is checked once more in the transaction that marks a send."""

import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import Floor, executing, open_floor
from trading_intents.testing.fakes import Act

pytestmark = pytest.mark.quiet

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
    "account_disabled": "UPDATE accounts SET disabled = true",
}


async def limit_age(floor: Floor, millis: int) -> None:
    await floor.office.owner.execute(
        "INSERT INTO symbol_times (account_id, symbol, organization_id, stale_order_millis)"
        " SELECT id, 'AAPL', organization_id, $1 FROM accounts",
        millis,
    )


async def make_older(floor: Floor, seconds: int) -> None:
    """All that was recorded, by so much."""
    owner = floor.office.owner
    await owner.execute("ALTER TABLE actions DISABLE TRIGGER ALL")
    for table in ("actions", "outbox"):
        await owner.execute(f"UPDATE {table} SET created_at = created_at - make_interval(secs => $1)", seconds)


@pytest.mark.parametrize("reason", DISABLINGS)
async def test_a_control_that_came_meanwhile_is_honoured(urls: Urls, reason: str) -> None:
    async with open_floor(urls) as floor:
        intents = [await floor.create() for _ in range(3)]
        await floor.office.owner.execute(DISABLINGS[reason])
        async with executing(floor):
            for intent in intents:
                order = await floor.until_status(intent, "REJECTED")
                assert order["reason"] == reason
            await floor.until_rows_are("completed")
        assert floor.venue.journal == []


async def test_a_replace_that_a_control_refuses_is_dropped(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        intent = await floor.create()
        await floor.until_status(intent, "NEW")
        floor.venue.acts.append(Act.FAIL)
        await floor.replace(intent, "7")
        await floor.until_true(lambda: not floor.venue.acts)
        await floor.office.owner.execute(DISABLINGS["symbol_manually_disabled"])
        order = await floor.until_status(intent, "NEW")
        assert (order["quantity"], order["reason"]) == (10, "symbol_manually_disabled")
        assert floor.venue.arrived("replace") == []


async def test_a_cancel_passes_every_control(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        intent = await floor.create()
        await floor.until_status(intent, "NEW")
        for disabling in DISABLINGS.values():
            await floor.office.owner.execute(disabling)
        await make_older(floor, 3600)
        await floor.cancel(intent)
        await floor.until_status(intent, "CANCELLED")


async def test_what_waited_longer_than_the_maximum_age_is_not_sent(urls: Urls) -> None:
    async with open_floor(urls) as floor:
        old = await floor.create()
        await make_older(floor, 31)
        young = await floor.create()
        async with executing(floor):
            order = await floor.until_status(old, "EXPIRED")
            assert order["reason"] == "stale"
            await floor.until_status(young, "NEW")
            assert floor.venue.journal == [("submit", await floor.coid(young))]


async def test_a_symbol_can_shorten_the_maximum_age(urls: Urls) -> None:
    async with open_floor(urls) as floor:
        old, other = await floor.create(), await floor.create(symbol="MSFT")
        await limit_age(floor, 2_000)
        await make_older(floor, 3)
        async with executing(floor):
            assert (await floor.until_status(old, "EXPIRED"))["reason"] == "stale"
            await floor.until_status(other, "NEW")
            assert floor.venue.journal == [("submit", await floor.coid(other))]


async def test_a_replace_that_grew_old_is_dropped(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        intent = await floor.create()
        await floor.until_status(intent, "NEW")
        floor.venue.acts.append(Act.FAIL)
        await floor.replace(intent, "7")
        await floor.until_true(lambda: not floor.venue.acts)
        await make_older(floor, 31)
        order = await floor.until_status(intent, "NEW")
        assert (order["quantity"], order["reason"]) == (10, "stale")


async def test_while_the_broker_is_away_only_what_needs_no_broker_is_settled(urls: Urls) -> None:
    async with open_floor(urls) as floor:
        floor.venue.is_away = True
        old = await floor.create()
        await make_older(floor, 31)
        cancelled, young = await floor.create(), await floor.create()
        await floor.cancel(cancelled)
        async with executing(floor):
            assert (await floor.until_status(old, "EXPIRED"))["reason"] == "stale"
            assert (await floor.until_status(cancelled, "CANCELLED"))["reason"] == "before_send"
            assert [(row["status"], row["attempts"]) for row in await floor.rows(young)] == [("pending", 0)]
            assert await floor.connection() == "disconnected"
            floor.venue.is_away = False
            await floor.until_status(young, "NEW")
            await floor.until_rows_are("completed")
        assert floor.venue.journal == [("submit", await floor.coid(young))]


async def test_an_order_that_worked_too_long_is_cancelled(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        stale, other = await floor.create(), await floor.create(symbol="MSFT")
        for intent in (stale, other):
            await floor.until_status(intent, "NEW")
        await make_older(floor, 61)
        young = await floor.create()
        await floor.until_status(young, "NEW")
        await limit_age(floor, 60_000)
        await floor.until_true(lambda: bool(floor.system_cancels))
        assert set(floor.system_cancels) == {stale}
