"""Today's result and the day that it is of: by tables, over the days on which clocks change too."""

from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pytest

from trading_intents.brokers.paper.venue.simulation import PaperSimulation
from trading_intents.controls.limits.state.losses import (
    AccountResults,
    HeldResult,
    day_at,
    result_of,
)
from trading_intents.prices.model import PriceRules

PRICES = PriceRules(900, PaperSimulation(1))
NOW = datetime(2026, 3, 9, 12, tzinfo=UTC)
NEW_YORK = "America/New_York"
BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("moment", "zone", "day"),
    [
        ("2026-01-05T23:59:59.999999", None, "2026-01-05"),
        ("2026-01-06T00:00:00", None, "2026-01-06"),
        ("2026-01-06T04:59:59.999999", NEW_YORK, "2026-01-05"),
        ("2026-01-06T05:00:00", NEW_YORK, "2026-01-06"),
        ("2026-03-08T04:59:59.999999", NEW_YORK, "2026-03-07"),  # a day of 23 hours
        ("2026-03-08T05:00:00", NEW_YORK, "2026-03-08"),
        ("2026-03-09T03:59:59.999999", NEW_YORK, "2026-03-08"),
        ("2026-03-09T04:00:00", NEW_YORK, "2026-03-09"),
        ("2026-11-01T03:59:59.999999", NEW_YORK, "2026-10-31"),  # a day of 25 hours
        ("2026-11-01T04:00:00", NEW_YORK, "2026-11-01"),
        ("2026-11-02T04:59:59.999999", NEW_YORK, "2026-11-01"),
        ("2026-11-02T05:00:00", NEW_YORK, "2026-11-02"),
        ("2026-03-28T22:59:59.999999", BERLIN, "2026-03-28"),
        ("2026-03-28T23:00:00", BERLIN, "2026-03-29"),
        ("2026-03-29T21:59:59.999999", BERLIN, "2026-03-29"),
        ("2026-03-29T22:00:00", BERLIN, "2026-03-30"),
        ("2026-01-05T12:00:00", "Nowhere/Atall", "2026-01-05"),
    ],
)
def test_a_day_begins_at_midnight_in_its_zone(moment: str, zone: str | None, day: str) -> None:
    assert day_at(datetime.fromisoformat(moment).replace(tzinfo=UTC), zone) == date.fromisoformat(
        day
    )


@pytest.mark.parametrize(
    ("quantity", "uncosted", "cost", "realized", "price", "result"),
    [
        ("10", "0", "1000", "5", "99", "-5"),
        ("-10", "0", "-1000", "5", "99", "15"),
        ("0", "0", "0", "-7.5", "99", "-7.5"),
        ("10", "0", "1000", "5", None, "5"),
        ("10", "4", "600", "0", "101", "6"),
        ("0.000000000000000001", "0", "0.000000000000000002", "0", "1", "-0.000000000000000001"),
    ],
)
def test_a_result_is_what_is_realized_and_what_is_not(
    quantity: str, uncosted: str, cost: str, realized: str, price: str | None, result: str
) -> None:
    position = HeldResult(
        quantity=Decimal(quantity),
        uncosted_quantity=Decimal(uncosted),
        open_cost=Decimal(cost),
        realized_pnl=Decimal(realized),
    )
    assert result_of(position, None if price is None else Decimal(price)) == Decimal(result)


def row(
    account: str, realized: str, quantity: str = "0", price: str | None = None, **more: str
) -> list[str | None]:
    position = {
        "quantity": quantity,
        "uncosted_quantity": "0",
        "open_cost": "0",
        "realized_pnl": realized,
    } | more
    known = {
        "organization_id": "01a1dd2f-4492-731e-ac51-f15666b39ddb",
        "market": "live",
        "symbol": "AAPL",
        "now": NOW.isoformat(),
    } | (
        {}
        if price is None
        else {"price": price, "source": "trade", "as_of": "2020-01-01T00:00:00Z"}
    )
    return [
        account,
        msgspec.json.encode(position).decode(),
        msgspec.json.encode(known).decode(),
    ]


def baseline_row(account: str, day: str, result: str, *unpriced: str) -> list[str | None]:
    baseline = {
        "day": day,
        "timezone": "UTC",
        "result": result,
        "unpriced": unpriced,
        "halted": False,
    }
    return [account, None, msgspec.json.encode(baseline).decode()]


def test_today_counts_from_the_days_baseline_and_from_now_where_there_is_none() -> None:
    rows = [
        row("a", "-30"),
        row("a", "10", quantity="2", price="5"),  # an old price counts, however old
        row("b", "-30"),
        baseline_row("a", "2026-03-09", "-3"),
        baseline_row("b", "2026-03-08", "100"),
    ]
    results = AccountResults(rows, PRICES)
    assert results.today("a", None, NOW) == (Decimal(-7), None)
    for account, zone in (("a", NEW_YORK), ("b", None), ("c", BERLIN)):
        today, baseline = results.today(account, zone, NOW)
        assert baseline is not None
        assert (today, baseline.day, baseline.timezone) == (
            Decimal(0),
            date(2026, 3, 9),
            zone or "UTC",
        )
        assert baseline.result == results.results.get(account, 0)


def test_a_clock_that_steps_back_over_midnight_begins_no_day_anew() -> None:
    rows = [row("a", "-5000"), baseline_row("a", "2026-03-10", "-100")]
    assert AccountResults(rows, PRICES).today("a", None, NOW) == (Decimal(-4900), None)
    _, begun = AccountResults(rows, PRICES).today("a", BERLIN, NOW)
    assert begun is not None, "another zone has days of its own"


# 10 were held before us that cost 100 each, and had no price when the day began.
@pytest.mark.parametrize(
    ("quantity", "cost", "realized", "price", "result"),
    [
        ("10", "1000", "0", None, "0"),
        ("10", "1000", "0", "50", "0"),
        ("10", "1000", "0", "40", "0"),
        ("0", "0", "-500", "50", "0"),  # sold at 50, the first price
        ("0", "0", "-500", "40", "100"),  # which was 10 a share better than now
        ("1010", "51000", "0", "40", "-10000"),  # 1,000 more bought at 50
    ],
)
def test_an_opening_without_a_price_counts_nothing_that_day(
    quantity: str, cost: str, realized: str, price: str | None, result: str
) -> None:
    held = {"open_cost": cost, "opening_quantity": "10", "opening_price": "100"}
    rows = [
        row("a", realized, quantity, price, **held),
        baseline_row("a", "2026-03-09", "0", "AAPL"),
    ]
    assert AccountResults(rows, PRICES).today("a", None, NOW) == (Decimal(result), None)


@pytest.mark.parametrize(("price", "unpriced"), [(None, {"AAPL"}), ("50", set())])
def test_a_day_begins_with_the_openings_that_have_no_price(
    price: str | None, unpriced: set[str]
) -> None:
    held = {"open_cost": "1000", "opening_quantity": "10", "opening_price": "100"}
    _, begun = AccountResults([row("a", "0", "10", price, **held)], PRICES).today("a", None, NOW)
    assert begun is not None
    assert (begun.result, set(begun.unpriced)) == (Decimal(-500 if price else 0), unpriced)
