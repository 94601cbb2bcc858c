"""Many writers of one control at once: versions stay dense, one conditional write wins, the limit
is a limit."""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import httpx
import pytest

from tests.conftest import Urls
from tests.controls.calls import URL, TradingClient
from tests.tenants import Tenants
from trading_intents.controls.service import MAX_SYMBOLS_PER_ACCOUNT

WRITERS = 8
ROOM = 3
ROUNDS = 5
Write = tuple[str, str, dict[str, Any]]

WRITES: dict[str, Callable[[int], Write]] = {
    "symbol": lambda n: (
        "PUT",
        "/symbols/AAPL",
        {"manually_disabled": True, "manual_reason": str(n)},
    ),
    "time": lambda n: ("PATCH", "/symbols/AAPL/time", {"stale_order_millis": n + 1}),
    "account": lambda n: ("PUT", "", {"manually_disabled": True, "manual_reason": str(n)}),
    "limits": lambda n: ("PUT", "/limits", {"max_daily_loss": str(n + 1)}),
    "symbol_limits": lambda n: ("PUT", "/symbols/AAPL/limits", {"max_open_orders": n + 1}),
}


async def at_once(
    trading_client: TradingClient, writes: list[Write], **headers: str
) -> list[httpx.Response]:
    url = f"{trading_client.tenants.platform.url}{URL}/accounts/{trading_client.account}"
    async with httpx.AsyncClient(
        timeout=10, headers=trading_client.headers | headers, verify=False
    ) as client:
        return await asyncio.gather(
            *(client.request(method, url + tail, json=body) for method, tail, body in writes)
        )


@pytest.mark.parametrize("kind", WRITES)
async def test_writers_at_once_make_dense_versions(tenants: Tenants, kind: str) -> None:
    trading_client = TradingClient(tenants)
    answers = await at_once(trading_client, [WRITES[kind](n) for n in range(WRITERS)])
    assert {answer.status_code for answer in answers} == {200}
    assert sorted(answer.json()["version"] for answer in answers) == list(range(1, WRITERS + 1))
    last = max((answer.json() for answer in answers), key=lambda control: int(control["version"]))
    path = WRITES[kind](0)[1].removesuffix("/time")
    shown = trading_client.get(path).json()
    assert last in (shown, *shown.values())


@pytest.mark.parametrize("kind", WRITES)
async def test_of_conditional_writers_at_once_exactly_one_wins(tenants: Tenants, kind: str) -> None:
    trading_client = TradingClient(tenants)
    assert [a.json()["version"] for a in await at_once(trading_client, [WRITES[kind](100)])] == [1]
    for version in range(1, ROUNDS + 1):
        writes = [WRITES[kind](version * WRITERS + n) for n in range(WRITERS)]
        answers = await at_once(trading_client, writes, **{"if-match": f'"{version}"'})
        assert sorted(answer.status_code for answer in answers) == [200] + [412] * (WRITERS - 1)
        assert [a.json()["version"] for a in answers if a.status_code == 200] == [version + 1]


async def leave_room(urls: Urls, trading_client: TradingClient, statement: str) -> None:
    """All but `ROOM` of the account's symbols are taken."""
    connection = await asyncpg.connect(urls.owner.reveal())
    await connection.execute(statement, trading_client.account, MAX_SYMBOLS_PER_ACCOUNT - ROOM)
    await connection.close()


async def test_the_limit_is_not_passed_by_writers_at_once(
    tenants: Tenants, tenants_database: Urls
) -> None:
    trading_client = TradingClient(tenants)
    await leave_room(
        tenants_database,
        trading_client,
        "INSERT INTO symbol_controls (organization_id, account_id, symbol, manually_disabled)"
        """
             SELECT organization_id, id, 'S' || n, true FROM accounts, generate_series(1, $2::int) n
             WHERE id = $1
        """,
    )
    puts: list[Write] = [
        ("PUT", f"/symbols/N{n}", {"manually_disabled": True}) for n in range(WRITERS)
    ]
    patches: list[Write] = [("PATCH", f"/symbols/T{n}/time", {}) for n in range(WRITERS)]
    answers = await at_once(trading_client, [*puts, *patches])
    assert sorted(answer.status_code for answer in answers) == [200] * ROOM + [409] * (
        2 * WRITERS - ROOM
    )


async def test_writers_of_limits_at_once_do_not_pass_theirs(
    tenants: Tenants, tenants_database: Urls
) -> None:
    trading_client = TradingClient(tenants)
    await leave_room(
        tenants_database,
        trading_client,
        "INSERT INTO trading_limits (organization_id, owner_id, symbol, rules)"
        """
             SELECT organization_id, id, 'S' || n, '{}'
             FROM accounts, generate_series(1, $2::int) n WHERE id = $1
        """,
    )
    puts: list[Write] = [("PUT", f"/symbols/N{n}/limits", {}) for n in range(WRITERS)]
    answers = await at_once(trading_client, puts)
    assert sorted(answer.status_code for answer in answers) == [200] * ROOM + [409] * (
        WRITERS - ROOM
    )
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} == {
        "limit_reached"
    }


async def test_the_two_controls_of_a_symbol_are_written_side_by_side(tenants: Tenants) -> None:
    trading_client = TradingClient(tenants)
    writes = [WRITES[kind](n) for n in range(WRITERS) for kind in ("symbol", "time")]
    assert {answer.status_code for answer in await at_once(trading_client, writes)} == {200}
    answer = trading_client.get("/symbols/AAPL")
    assert (answer.json()["manual"]["version"], answer.json()["time"]["version"]) == (
        WRITERS,
        WRITERS,
    )
