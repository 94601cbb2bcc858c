"""Lists of actions, orders and trades, walked over HTTP: for any filters, in any order, they show
what a model says."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any

import asyncpg
import pytest

from tests.conftest import Databases
from tests.execution.api_only_platform import ApiOnlyPlatform, open_api_platform
from tests.execution.listed_history import (
    START,
    STATUSES,
    History,
    Listed,
    open_history,
    random_orders,
    random_trades,
)
from tests.execution.recorded_orders import Books, fill, reported
from trading_intents.brokers.port import EventKind as E
from trading_intents.clock import TimeRange, rfc3339
from trading_intents.orders.model import OrderState, OrderStatus, state_of

ROWS = 300
STEP_SECONDS = 2.0
WALKS = 25
MANY_WALKS = 40
Query = dict[str, Any]
Between = Callable[[], Awaitable[None]]


@pytest.fixture(scope="module")
def list_platform(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiOnlyPlatform]:
    """Of its own: its rows are put into the tables, and would not stand a check of the books."""
    with databases() as urls, open_api_platform(urls, tmp_path_factory.mktemp("lists")) as opened:
        yield opened


@pytest.fixture
async def history(list_platform: ApiOnlyPlatform) -> AsyncIterator[History]:
    owner = await asyncpg.connect(list_platform.urls.owner.reveal())
    yield await open_history(owner, list_platform.open_account())
    await owner.close()


async def nothing() -> None: ...


async def walk(
    platform: ApiOnlyPlatform,
    history: History,
    path: str,
    query: Query,
    chance: Random,
    between: Between = nothing,
) -> list[Any]:
    """Every page with another limit."""
    found: list[Any] = []
    query = dict(query)
    while True:
        page = await asyncio.to_thread(
            platform.read, history.account, path, limit=chance.randint(1, 60), **query
        )
        found += page["data"]
        if page["next_cursor"] is None:
            return found
        query["next_cursor"] = page["next_cursor"]
        await between()


def spell(chance: Random, at: datetime) -> str:
    zone = timezone(timedelta(minutes=chance.choice((-300, 0, 330))))
    return chance.choice((rfc3339(at), at.astimezone(zone).isoformat(), rfc3339(at).lower()))


def random_bounds(chance: Random, rows: list[Listed]) -> tuple[Query, TimeRange]:
    """At the very time of a row, or anywhere."""
    picked = sorted(
        chance.choice(
            (
                chance.choice(rows).at,
                START + timedelta(seconds=chance.uniform(-60, ROWS * STEP_SECONDS)),
            )
        )
        for _ in range(2)
    )
    times = TimeRange(*(at if chance.random() < 0.6 else None for at in picked))
    named = zip(("created_after", "created_before"), times, strict=True)
    return {name: spell(chance, at) for name, at in named if at is not None}, times


def random_direction(chance: Random) -> Query:
    return chance.choice(({}, {"order": "asc"}, {"order": "desc"}))


def in_order(rows: list[Listed], query: Query) -> list[Listed]:
    ordered = sorted(rows, key=lambda row: row.seq)
    return ordered[::-1] if query.get("order") == "desc" else ordered


@pytest.mark.parametrize(
    ("seed", "walks"),
    [(1, WALKS), *(pytest.param(seed, MANY_WALKS, marks=pytest.mark.chaos) for seed in (1, 2))],
)
async def test_actions_and_trades_are_those_within_the_times(
    list_platform: ApiOnlyPlatform, history: History, seed: int, walks: int
) -> None:
    chance = Random(seed)
    await history.add_orders(random_orders(chance, ROWS, STEP_SECONDS, STATUSES))
    trades = random_trades(chance, ROWS, STEP_SECONDS)
    await history.add_trades(trades, lambda row: False)
    for trade in chance.sample(trades, 20):
        await history.republish(trade, max(row.seq for row in history.trades) + 1)
    for _ in range(walks):
        bounds, times = random_bounds(chance, history.actions)
        query = bounds | random_direction(chance)
        found = await walk(list_platform, history, "intents", query, chance)
        expected = in_order([row for row in history.actions if row.is_in(times)], query)
        assert [row["seq"] for row in found] == [row.seq for row in expected], query
        bounds, times = random_bounds(chance, history.trades)
        query = bounds | random_direction(chance)
        found = await walk(list_platform, history, "trades", query, chance)
        expected = in_order([row for row in history.trades if row.is_in(times)], query)
        assert [row["trade_id"] for row in found] == [str(row.id) for row in expected], query


def random_filter(chance: Random, rows: list[Listed]) -> tuple[Query, Callable[[Listed], bool]]:
    query, times = random_bounds(chance, rows)
    statuses = set[OrderStatus]()
    if chance.random() < 0.7:
        statuses = set(chance.sample(STATUSES, chance.randint(1, 5)))
        query["status"] = ",".join(chance.sample(sorted(statuses), len(statuses)))
    state = chance.choice((*OrderState, None, None, None))
    symbol = chance.choice((None, None, "AAPL"))
    reference = chance.choice((None, None, "a"))
    named = {"state": state, "symbol": symbol, "client_reference_id": reference}
    query |= {name: value for name, value in named.items() if value is not None}

    def fits(row: Listed) -> bool:
        assert row.status is not None
        return (
            row.is_in(times)
            and (not statuses or row.status in statuses)
            and (state is None or state_of(row.status) is state)
            and symbol in (None, row.symbol)
            and reference in (None, row.reference)
        )

    return query | random_direction(chance), fits


@pytest.mark.parametrize(
    ("seed", "walks"),
    [(3, WALKS), *(pytest.param(seed, MANY_WALKS, marks=pytest.mark.chaos) for seed in (3, 4))],
)
async def test_orders_are_those_that_every_filter_lets_through(
    list_platform: ApiOnlyPlatform, history: History, seed: int, walks: int
) -> None:
    chance = Random(seed)
    await history.add_orders(random_orders(chance, ROWS, STEP_SECONDS, STATUSES))
    for _ in range(2 * walks):
        query, fits = random_filter(chance, history.orders)
        found = await walk(list_platform, history, "orders", query, chance)
        expected = in_order([row for row in history.orders if fits(row)], query)
        assert [row["order_id"] for row in found] == [str(row.id) for row in expected], query


@pytest.mark.parametrize("path", ["intents", "orders", "trades"])
@pytest.mark.parametrize("is_bounded", [False, True])
async def test_an_ascending_reader_misses_nothing_that_is_appended_meanwhile(
    list_platform: ApiOnlyPlatform, history: History, path: str, is_bounded: bool
) -> None:
    chance = Random(5)
    await history.add_orders(random_orders(chance, 50, STEP_SECONDS, STATUSES))
    await history.add_trades(random_trades(chance, 50, STEP_SECONDS), lambda row: False)
    times = TimeRange(history.actions[20].at if is_bounded else None, None)

    async def append() -> None:
        if len(history.actions) < 80:
            last = history.actions[-1]
            trade = history.trades[-1]
            at = START + timedelta(days=1, seconds=last.seq)
            await history.add_orders(
                [
                    Listed(
                        seq=last.seq + 1,
                        at=at,
                        id=uuid.uuid4(),
                        symbol="AAPL",
                        status=OrderStatus.NEW,
                    )
                ]
            )
            await history.add_trades(
                [Listed(seq=trade.seq + 2, at=at, id=uuid.uuid4())], lambda row: False
            )
            await history.republish(chance.choice(history.trades), trade.seq + 3)

    query = {"created_after": rfc3339(times.start)} if times.start else {}
    found = await walk(
        platform=list_platform,
        history=history,
        path=path,
        query=query,
        chance=chance,
        between=append,
    )
    model = {"intents": history.actions, "orders": history.orders, "trades": history.trades}[path]
    key = {"intents": "seq", "orders": "order_id", "trades": "trade_id"}[path]
    expected = [
        str(row.seq if path == "intents" else row.id)
        for row in in_order(model, {})
        if row.is_in(times)
    ]
    seen = [str(row[key]) for row in found]
    assert len(history.actions) > 50
    assert set(seen) == set(expected)
    if path != "trades":  # one that was corrected meanwhile is shown again, at its new position
        assert seen == expected


async def test_a_descending_reader_sees_what_there_was_when_it_began(
    list_platform: ApiOnlyPlatform, history: History
) -> None:
    chance = Random(6)
    await history.add_orders(random_orders(chance, 60, STEP_SECONDS, STATUSES))
    before = [row.seq for row in history.actions]

    async def append() -> None:
        last = history.actions[-1]
        await history.add_orders(
            [
                Listed(
                    seq=last.seq + 1,
                    at=START,
                    id=uuid.uuid4(),
                    symbol="AAPL",
                    status=OrderStatus.NEW,
                )
            ]
        )

    for path, name in (("intents", "seq"), ("orders", "command_seq")):
        before = [row.seq for row in history.actions]
        found = await walk(
            platform=list_platform,
            history=history,
            path=path,
            query={"order": "desc"},
            chance=chance,
            between=append,
        )
        assert [row[name] for row in found] == before[::-1]
        assert len(history.actions) > len(before)


@pytest.mark.parametrize("path", ["intents", "orders", "trades"])
async def test_a_cursor_belongs_to_its_filters(
    list_platform: ApiOnlyPlatform, history: History, path: str
) -> None:
    chance = Random(7)
    await history.add_orders(random_orders(chance, 9, STEP_SECONDS, [OrderStatus.FILLED]))
    await history.add_trades(random_trades(chance, 9, STEP_SECONDS), lambda row: False)
    day = {"created_after": "2026-03-02T00:00:00Z"}
    later = {"created_before": "2026-03-03T00:00:00Z"}
    queries: list[Query] = [{}, day, later, day | later, {"order": "desc"}, day | {"order": "desc"}]
    if path == "orders":
        queries += [
            {"status": "FILLED"},
            {"status": "FILLED,NEW"},
            {"status": "FILLED"} | day,
            {"state": "CLOSED"},
        ]
    for query in queries:
        cursor = list_platform.read(history.account, path, limit=2, **query)["next_cursor"]
        for other in queries:
            answer = list_platform.get(history.account, path, limit=5, next_cursor=cursor, **other)
            expected = (200, None) if other == query else (400, "invalid_cursor")
            assert (answer.status_code, answer.json().get("code")) == expected, (query, other)
    same: Query = {"created_after": "2026-03-02T01:00:00.000000000+01:00"}
    cursor = list_platform.read(history.account, path, limit=2, **day)["next_cursor"]
    assert list_platform.get(history.account, path, next_cursor=cursor, **same).status_code == 200


async def test_the_order_in_which_statuses_are_named_does_not_matter(
    list_platform: ApiOnlyPlatform, history: History
) -> None:
    await history.add_orders(random_orders(Random(8), 9, STEP_SECONDS, [OrderStatus.FILLED]))
    cursor = list_platform.read(history.account, "orders", limit=2, status="NEW,FILLED")[
        "next_cursor"
    ]
    rest = list_platform.read(history.account, "orders", status="FILLED,NEW", next_cursor=cursor)
    assert len(rest["data"]) == 7


BAD_TIMES = [
    "",
    "now",
    "2026-03-02",
    "2026-03-02T12:00:00",
    "2026-03-02 12:00:00Z",
    "2026-02-30T12:00:00Z",
    "1772452800",
]
BAD_TIMES += [
    "2026-03-02T24:00:00Z",
    "2026-03-02T12:00:60Z",
    "2026-03-02T12:00Z",
    "2026-03-02T12:00:00.Z",
]
BAD_TIMES += [
    "2026-03-02T12:00:00+25:00",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.9999999Z",
    "\uff12026-03-02T12:00:00Z",
]


@pytest.mark.parametrize("text", BAD_TIMES)
async def test_what_is_no_time_is_refused_at_its_name(
    list_platform: ApiOnlyPlatform, history: History, text: str
) -> None:
    for path in ("intents", "orders", "trades"):
        for name in ("created_after", "created_before"):
            answer = list_platform.get(history.account, path, None, **{name: text})
            assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), (
                answer.text
            )
            assert [error["pointer"] for error in answer.json()["errors"]] == [f"?{name}"]


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"])
async def test_the_first_and_the_last_moment_are_times(
    list_platform: ApiOnlyPlatform, history: History, text: str
) -> None:
    await history.add_orders(random_orders(Random(9), 3, STEP_SECONDS, STATUSES))
    for path in ("intents", "orders", "trades"):
        for name in ("created_after", "created_before"):
            assert list_platform.get(history.account, path, None, **{name: text}).status_code == 200


async def test_bounds_in_the_wrong_order_are_refused(
    list_platform: ApiOnlyPlatform, history: History
) -> None:
    await history.add_orders(random_orders(Random(10), 3, STEP_SECONDS, STATUSES))
    first = rfc3339(START)
    second = rfc3339(START + timedelta(microseconds=1))
    for path in ("intents", "orders", "trades"):
        answer = list_platform.get(
            history.account, path, created_after=second, created_before=first
        )
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (
            422,
            "?created_before",
        )
        empty = list_platform.read(history.account, path, created_after=first, created_before=first)
        assert empty == {"data": [], "next_cursor": None}


@pytest.mark.parametrize(
    "status",
    ["", "filled", "FILLED,", ",FILLED", "FILLED,FILLED", "FILLED NEW", "OPEN", "REPLACED"],
)
async def test_what_is_no_status_is_refused_at_its_name(
    list_platform: ApiOnlyPlatform, history: History, status: str
) -> None:
    answer = list_platform.get(history.account, "orders", status=status)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    assert [error["pointer"] for error in answer.json()["errors"]] == ["?status"]


async def test_a_corrected_trade_is_listed_by_when_it_was_first_received(
    shown: Books, api_platform: ApiOnlyPlatform
) -> None:
    sent = await shown.create("10")
    (account,) = shown.accounts
    await shown.record(fill(sent, "e1", "4"))
    await shown.record(fill(sent, "e2", "6"))
    first, second = (trade["received_at"] for trade in api_platform.read(account, "trades")["data"])
    assert first < second
    await shown.record(
        reported(
            E.FILL_CORRECT, sent, "fix/e1", exec_id="e3", replaces="e1", quantity="3", price="10"
        )
    )

    # Its seq no longer follows its time, and the search for a time goes by the others.
    assert {name: row["is_retold"] for name, row in (await shown.trades(sent)).items()} == {
        "e1": True,
        "e2": False,
    }

    def found(**query: Any) -> list[str]:
        return [
            trade["exec_id"] for trade in api_platform.pages(account, "trades", limit=1, **query)
        ]

    assert found() == ["e2", "e1"]
    assert found(order="desc") == ["e1", "e2"]
    assert (
        found(created_before=second) == found(created_after=first, created_before=second) == ["e1"]
    )
    assert found(created_after=second) == ["e2"]
    assert found(created_after=first, order="desc") == ["e1", "e2"]
    positions = api_platform.pages(account, "positions", order="desc")
    assert [position["symbol"] for position in positions] == ["AAPL"]


async def test_positions_are_shown_in_both_orders(
    shown: Books, api_platform: ApiOnlyPlatform
) -> None:
    (account,) = shown.accounts
    for symbol in ("MSFT", "AAPL", "BTC/USD", "Z"):
        await shown.record(fill(await shown.create("1", symbol=symbol), symbol, "1"))
    for limit in (1, 3, 100):
        ascending = [row["symbol"] for row in api_platform.pages(account, "positions", limit=limit)]
        assert ascending == ["AAPL", "BTC/USD", "MSFT", "Z"]
        descending = api_platform.pages(account, "positions", limit=limit, order="desc")
        assert [row["symbol"] for row in descending] == ascending[::-1]
