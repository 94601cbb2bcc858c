"""Today's result in the terminal: what the daily-loss limit counts."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest

from tests.trader.conftest import Command
from tests.waiting import eventually
from trading_intents_client import (
    Account,
    EquityHistory,
    EquityPoint,
    Limits,
    NotFound,
    TradingClient,
)
from trading_intents_client.cli.today import begin_day, read_today
from trading_intents_client.cli.watch.blotter import Blotter
from trading_intents_client.cli.watch.live import read_all

BEGIN = begin_day(datetime.now(UTC), None)


class Recorded:
    """An account of which equity was recorded."""

    def __init__(self, points: dict[str, Sequence[tuple[datetime, str, str]]]) -> None:
        self._points = points
        self.controls = self
        self.asked = list[str]()

    def limits(self) -> Any:
        raise NotFound("no limits")

    def equity(
        self, *, resolution: str, start: datetime, end: datetime | None = None
    ) -> EquityHistory:
        self.asked.append(resolution)
        found = [
            EquityPoint(
                at=at,
                equity=None,
                cash=None,
                realized_pnl=Decimal(one),
                unrealized_pnl=Decimal(other),
            )
            for at, one, other in self._points.get(resolution, ())
            if at >= start and (end is None or at < end)
        ]
        return EquityHistory(data=tuple(found))


def ago(**length: float) -> datetime:
    return BEGIN - timedelta(**length)


@pytest.mark.parametrize(
    ("points", "result", "asked"),
    [
        ({}, "-7", ["1m", "1h", "1d"]),
        (
            {"1m": [(ago(minutes=9), "1", "1"), (ago(minutes=1), "2", "-3"), (BEGIN, "9", "9")]},
            "-6",
            ["1m"],
        ),
        ({"1m": [(ago(hours=2), "8", "8")], "1h": [(ago(hours=3), "2", "-1")]}, "-8", ["1m", "1h"]),
        (
            {"1h": [(BEGIN, "5", "5")], "1d": [(ago(days=400), "3", "0"), (BEGIN, "5", "5")]},
            "-10",
            ["1m", "1h", "1d"],
        ),
    ],
)
def test_a_day_counts_from_the_last_values_before_it(
    points: dict[str, Sequence[tuple[datetime, str, str]]], result: str, asked: list[str]
) -> None:
    held = _Held(Decimal(-3), Decimal(-4), Decimal(0)), _Held(Decimal(0), None, Decimal(0))
    recorded = Recorded(points)
    found = read_today(cast(Account, recorded), cast(Any, held))
    assert found is not None
    assert (found.result, found.zone, recorded.asked) == (Decimal(result), "UTC", asked)


def test_what_an_account_had_made_before_it_came_is_no_result_of_today() -> None:
    recorded = Recorded(
        {"1m": [(BEGIN + timedelta(hours=1), "0", "500"), (BEGIN + timedelta(hours=2), "0", "490")]}
    )
    found = read_today(
        cast(Account, recorded), cast(Any, [_Held(Decimal(0), Decimal(480), Decimal(10))])
    )
    assert found is not None
    assert found.result == -20


class _Held:
    def __init__(self, realized: Decimal, unrealized: Decimal | None, opening: Decimal) -> None:
        self.realized_pnl = realized
        self.unrealized_pnl = unrealized
        self.opening_quantity = opening


@pytest.mark.parametrize(
    ("now", "zone", "begin"),
    [
        ("2026-11-17T12:41:06", None, "2026-11-17T00:00:00"),
        ("2026-11-17T03:00:00", "America/New_York", "2026-11-16T05:00:00"),
        ("2026-11-01T20:00:00", "America/New_York", "2026-11-01T04:00:00"),  # a day of 25 hours
        ("2026-03-29T09:00:00", "Asia/Beirut", "2026-03-28T22:00:00"),  # that begins at 01:00
        ("2026-11-17T03:00:00", "No/Where", "2026-11-17T00:00:00"),
    ],
)
def test_a_day_begins_when_its_calendar_does(now: str, zone: str | None, begin: str) -> None:
    assert begin_day(datetime.fromisoformat(now + "Z"), zone) == datetime.fromisoformat(begin + "Z")


def test_commands_show_the_result_that_halts_the_account(
    run: Command, client: TradingClient, account: Account
) -> None:
    account.controls.set_limits(Limits(max_daily_loss=Decimal(5), timezone="Asia/Tokyo"))
    post(client, "TODAY", 100)
    account.buy("TODAY", 10).wait(timeout=30)
    post(client, "TODAY", 99)

    def reason() -> str:
        try:
            return account.controls.current_halt().reason
        except NotFound:
            return ""

    eventually(lambda: "a loss of 10," in reason(), 30)
    shown = run("positions").stdout
    assert (
        "today -10 since 00:00 Asia/Tokyo\n  realized and unrealized, as the daily-loss limit "
        "counts it"
    ) in shown
    assert "today" not in shown.splitlines()[0], (
        "a position's part of it, realized since 00:00 UTC, is another thing"
    )
    blotter = Blotter(account.get(), "")
    read_all(account, blotter, is_first=True)
    assert str(blotter.today) == "today -10 since 00:00 Asia/Tokyo"


def post(client: TradingClient, symbol: str, price: int) -> None:
    client.market.post_quote(symbol, bid=price, ask=price, bid_size=100_000, ask_size=100_000)
