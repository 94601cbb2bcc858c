"""Equity over time as a worker records it: the last values of each minute, hour and day in which
something changed."""

from datetime import datetime, timedelta
from typing import Any

from tests.execution.recorded_orders import Books, D, fill, reported
from trading_intents.brokers.paper.venue.simulation import PaperSimulation
from trading_intents.brokers.port import EventKind as E
from trading_intents.controls.limits.equity import EquityRecorder
from trading_intents.prices.model import PriceRules

MINUTE = timedelta(minutes=1)


class Recorder:
    """A minute that has not been recorded is due at each call: the points so far are moved back."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.recorder = EquityRecorder(books.database.worker, PriceRules(900, PaperSimulation(1)))

    async def record(self) -> None:
        await self.books.owner.execute(
            "UPDATE equity_points SET at = at - interval '1 h' WHERE resolution = '1m'"
        )
        await self.books.owner.execute(
            "UPDATE equity_points SET at = at - interval '2 d' WHERE resolution <> '1m'"
        )
        assert 0 < await self.recorder.record() <= 61

    async def points(self, resolution: str) -> list[tuple[Any, ...]]:
        rows = await self.books.owner.fetch(
            "SELECT equity, cash, realized_pnl, unrealized_pnl FROM equity_points"
            " WHERE resolution = $1 AND account_id = $2 ORDER BY at",
            resolution,
            self.books.accounts[0],
        )
        return [tuple(row) for row in rows]

    async def set_market(self, price: str, cash: str, equity: str) -> None:
        owner = self.books.owner
        account, *_ = self.books.accounts
        await owner.execute("UPDATE accounts SET broker = 'other'")  # where no price walks
        await owner.execute("DELETE FROM reference_prices")
        await owner.execute(
            """
                INSERT INTO reference_prices
                VALUES ($1, 'paper', 'AAPL', $2, 'trade', now() - interval '1 d')
            """,
            *(self.books.organization, D(price)),
        )
        await owner.execute(
            """
                INSERT INTO balances (account_id, organization_id, cash, equity, as_of)
                VALUES ($1, $2, $3, $4, now())
            """
            " ON CONFLICT (account_id) DO UPDATE SET cash = excluded.cash, equity = excluded.equity",
            *(account, self.books.organization, D(cash), D(equity)),
        )


async def test_what_changed_is_recorded_in_every_resolution(books: Books) -> None:
    recorder = Recorder(books)
    await recorder.record()
    assert await recorder.points("1m") == [], "nothing ever changed"
    order = await books.create("10", limit="100")
    sold = await books.create("4", side="SELL", limit="100")
    await books.record(reported(E.ACCEPTED, order, "a"), fill(order, "e1", "10", "100"))
    await recorder.set_market("90", "9000", "9900")
    await recorder.record()
    first = (D(9900), D(9000), D(0), D(-100))
    for resolution in ("1m", "1h", "1d"):
        assert await recorder.points(resolution) == [first]
    await recorder.record()
    assert await recorder.points("1m") == [first], "a minute in which nothing changed has no row"
    await books.record(reported(E.ACCEPTED, sold, "b"), fill(sold, "e2", "4", "110"))
    await recorder.set_market("95", "9440", "10010")
    await recorder.record()
    second = (D(10010), D(9440), D(40), D(-30))
    assert await recorder.points("1m") == [first, second]
    assert await recorder.points("1d") == [first, second]


async def test_a_span_has_its_last_values_and_is_recorded_once(books: Books) -> None:
    recorder = Recorder(books)
    order = await books.create("10", limit="100")
    await books.record(reported(E.ACCEPTED, order, "a"), fill(order, "e1", "10", "100"))
    await recorder.set_market("90", "9000", "9900")
    await recorder.record()
    await recorder.set_market("80", "9000", "9800")
    await recorder.recorder.record()
    assert await recorder.points("1m") == [(D(9900), D(9000), D(0), D(-100))], (
        "this minute is recorded already"
    )
    await books.owner.execute(
        "UPDATE equity_points SET at = at - interval '1 minute' WHERE resolution = '1m'"
    )
    await recorder.recorder.record()
    assert len(await recorder.points("1m")) == 2
    assert len(await recorder.points("1d")) in (1, 2), "two if the day ended meanwhile"
    assert (await recorder.points("1d"))[-1] == (D(9800), D(9000), D(0), D(-200))
    [at] = await books.owner.fetch(
        "SELECT max(at) AS at, clock_timestamp() AS now FROM equity_points WHERE resolution = '1m'"
    )
    minute: datetime = at["at"]
    assert (minute.second, minute.microsecond) == (0, 0)
    assert MINUTE <= at["now"] - minute < 3 * MINUTE
