"""A symbol's two controls from outside: put, patched, listed, removed; one spelling; never more
than there may be."""

import asyncio
from typing import Any

import asyncpg
import pytest

from tests.answer_patterns import STAMP
from tests.conftest import Urls
from tests.controls.calls import TradingClient, code, pointers
from tests.tenants import Tenants
from trading_intents.controls.service import MAX_SYMBOLS_PER_ACCOUNT
from trading_intents.web.paging import make_cursor


@pytest.fixture
def trading_client(tenants: Tenants) -> TradingClient:
    return TradingClient(tenants)


def test_a_put_creates_and_replaces_the_manual_control(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    answer = trading_client.put("AAPL", reason="earnings, é")
    control = answer.json()
    assert (answer.status_code, answer.headers["etag"]) == (200, '"1"')
    assert all(STAMP.fullmatch(control.pop(name)) for name in ("created_at", "updated_at"))
    assert control == {
        "account_id": trading_client.account,
        "organization_id": tenants.organization("org_acme")["id"],
        "symbol": "AAPL",
        "manually_disabled": True,
        "manual_reason": "earnings, é",
        "version": 1,
    }
    replaced = trading_client.put("AAPL", disabled=False)
    assert (replaced.headers["etag"], replaced.json()["version"]) == ('"2"', 2)
    assert "manual_reason" not in replaced.json(), "cleared when omitted"
    again = trading_client.put("AAPL", disabled=False)
    assert again.json() == replaced.json(), "a put that changes nothing keeps the version"
    for reason in (None, ""):
        cleared = trading_client.call(
            "PUT", "/symbols/AAPL", {"manually_disabled": False, "manual_reason": reason}
        )
        assert cleared.json() == replaced.json()
    assert trading_client.put("AAPL", reason="x" * 500).json()["version"] == 3


def test_a_patch_creates_and_patches_the_time_control(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    made = trading_client.patch("AAPL", {})
    control = made.json()
    assert (made.status_code, made.headers["etag"]) == (200, '"1"')
    assert all(STAMP.fullmatch(control.pop(name)) for name in ("created_at", "updated_at"))
    identity = {
        "account_id": trading_client.account,
        "organization_id": tenants.organization("org_acme")["id"],
        "symbol": "AAPL",
        "stale_order_millis": None,
    }
    assert control == identity | {"version": 1}
    assert trading_client.patch("AAPL", {}).json() == made.json()

    def shown(body: dict[str, Any]) -> dict[str, Any]:
        answer = trading_client.patch("AAPL", body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["etag"] == f'"{answer.json()["version"]}"'
        names = ("trading_start", "trading_end", "timezone", "stale_order_millis", "version")
        return {name: answer.json()[name] for name in names if name in answer.json()}

    start = {"trading_start": "09:30:00"}
    assert shown(start) == start | {"stale_order_millis": None, "version": 2}
    full = start | {
        "trading_end": "16:00:00",
        "timezone": "America/New_York",
        "stale_order_millis": 604_800_000,
    }
    assert shown(full) == full | {"version": 3}
    nothing = dict.fromkeys((*full, "clear"))
    assert shown(nothing) == full | {"version": 3}, "null leaves a field"
    assert shown({"clear": []} | full) == full | {"version": 3}
    swapped = {"trading_start": "16:00:00", "trading_end": "09:30:00"}
    assert shown(swapped) == full | swapped | {"version": 4}
    gone = shown({"clear": ["stale_order_millis", "timezone"], "timezone": None})
    assert gone == swapped | {"stale_order_millis": None, "version": 5}
    moved = shown({"clear": ["trading_end"], "trading_start": "09:30:00"})
    assert moved == start | {"stale_order_millis": None, "version": 6}, (
        "equal only before the change"
    )
    assert shown({"clear": ["timezone"]})["version"] == 6, "it was not set"
    assert shown({"clear": ["trading_start", "stale_order_millis"]}) == {
        "stale_order_millis": None,
        "version": 7,
    }
    assert shown({"stale_order_millis": 1})["stale_order_millis"] == 1


def test_the_two_controls_never_touch_each_other(trading_client: TradingClient) -> None:
    manual = trading_client.put("AAPL", reason="why").json()
    time = trading_client.patch("AAPL", {"trading_start": "09:30:00"}).json()
    assert trading_client.get("/symbols/AAPL").json() == {"manual": manual, "time": time}
    replaced = trading_client.put("AAPL", disabled=False).json()
    assert trading_client.get("/symbols/AAPL").json() == {"manual": replaced, "time": time}
    patched = trading_client.patch("AAPL", {"trading_end": "16:00:00"}).json()
    answer = trading_client.get("/symbols/AAPL")
    assert answer.json() == {"manual": replaced, "time": patched}
    assert (replaced["version"], patched["version"], answer.headers["etag"]) == (2, 2, '"4"')


BAD_SWITCHES: list[tuple[Any, str]] = [
    ({}, "/manually_disabled"),
    ({"manually_disabled": None}, "/manually_disabled"),
    ({"manually_disabled": 1}, "/manually_disabled"),
    ({"manually_disabled": "true"}, "/manually_disabled"),
    ({"manually_disabled": True, "manual_reason": "x" * 501}, "/manual_reason"),
    ({"manually_disabled": True, "manual_reason": "a\x00b"}, "/manual_reason"),
    ({"manually_disabled": True, "manual_reason": "a\u202eb"}, "/manual_reason"),
    ({"manually_disabled": True, "manual_reason": "a\u200db"}, "/manual_reason"),
    ({"manually_disabled": True, "manual_reason": "a\nb"}, "/manual_reason"),
    ({"manually_disabled": True, "manual_reason": "\x1b[2J"}, "/manual_reason"),
    ({"manually_disabled": True, "manual_reason": 5}, "/manual_reason"),
    ({"manually_disabled": True, "symbol": "AAPL"}, "/symbol"),
    ({"manually_disabled": True, "version": 1}, "/version"),
    ({"manually_disabled": True, "organization_id": "x"}, "/organization_id"),
    ({"manually_disabled": True, "trading_start": "09:30:00"}, "/trading_start"),
    ([], ""),
    ("x", ""),
]


@pytest.mark.parametrize(("body", "pointer"), BAD_SWITCHES)
def test_a_bad_switch_is_refused_at_its_field(
    trading_client: TradingClient, body: Any, pointer: str
) -> None:
    for tail in ("", "/symbols/AAPL"):
        assert pointers(trading_client.call("PUT", tail, body)) == [pointer]
        assert trading_client.get(tail).status_code == 404


BAD_TIMES = [
    "24:00:00",
    "9:30:00",
    "09:30",
    "09:30:00.5",
    "09:30:60",
    "09:60:00",
    "09:30:00\n",
    " 09:30:00",
    "09:30:00Z",
    "\u0660\u0669:30:00",
    "0930:00",
    "",
    "-1:00:00",
    "23:59:59.999",
    "2026-01-05T09:30:00",
    "noon",
]
BAD_ZONES = [
    "Mars/Olympus",
    "../x",
    "../../etc/passwd",
    "/etc/localtime",
    "localtime",
    "Factory",
    "europe/berlin",
    "utc",
    "",
    "Europe",
    "Europe/Berlin\n",
    "UTC\u0000",
    "posix/UTC",
    "x" * 5000,
    "America/New York",
    "EST5EDT4",
]
BAD_MILLIS: list[Any] = [0, -1, 604_800_001, True, 5.0, 1.5, "5", 10**30, []]
BAD_PATCHES: list[tuple[Any, str]] = [
    *(({"trading_start": text}, "/trading_start") for text in BAD_TIMES),
    ({"trading_end": "24:00:00"}, "/trading_end"),
    ({"trading_end": 34_200}, "/trading_end"),
    *(({"timezone": zone}, "/timezone") for zone in BAD_ZONES),
    ({"timezone": 1}, "/timezone"),
    *(({"stale_order_millis": n}, "/stale_order_millis") for n in BAD_MILLIS),
    ({"clear": ["manual_reason"]}, "/clear/0"),
    ({"clear": ["timezone", "Timezone"]}, "/clear/1"),
    ({"clear": ["timezone", 5]}, "/clear/1"),
    ({"clear": ["timezone", None]}, "/clear/1"),
    ({"clear": [["timezone"]]}, "/clear/0"),
    ({"clear": ["trading_start", "trading_end", "trading_start"]}, "/clear/2"),
    ({"clear": ["clear"]}, "/clear/0"),
    ({"clear": "timezone"}, "/clear"),
    ({"clear": {"timezone": True}}, "/clear"),
    ({"clear": ["x"] * 5000}, "/clear/0"),
    ({"clear": ["timezone", "trading_start"], "trading_start": "09:30:00"}, "/clear/1"),
    ({"clear": ["stale_order_millis"], "stale_order_millis": 5}, "/clear/0"),
    ({"trading_start": "09:30:00", "trading_end": "09:30:00"}, "/trading_end"),
    ({"manually_disabled": True}, "/manually_disabled"),
    ({"version": 2}, "/version"),
    ([], ""),
]


@pytest.mark.parametrize(("body", "pointer"), BAD_PATCHES, ids=lambda value: repr(value)[:60])
def test_a_bad_time_control_is_refused_at_its_field(
    trading_client: TradingClient, body: Any, pointer: str
) -> None:
    assert pointers(trading_client.patch("AAPL", body)) == [pointer]
    assert trading_client.get("/symbols/AAPL").status_code == 404


def test_a_patch_may_not_leave_equal_bounds(trading_client: TradingClient) -> None:
    bounds = {"trading_start": "09:30:00", "trading_end": "16:00:00"}
    before = trading_client.patch("AAPL", bounds).json()
    assert pointers(trading_client.patch("AAPL", {"trading_start": "16:00:00"})) == [
        "/trading_start"
    ]
    assert pointers(trading_client.patch("AAPL", {"trading_end": "09:30:00"})) == ["/trading_end"]
    assert trading_client.get("/symbols/AAPL").json()["time"] == before


@pytest.mark.parametrize(
    "spelling", ["%20", "A%20B", "-A", "A" * 33, "%C5%BF", "A%0A", "A%25", "%F0%9F%98%80"]
)
def test_a_symbol_that_is_none_breaks_a_rule(trading_client: TradingClient, spelling: str) -> None:
    for method, tail, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("PUT", "", {"manually_disabled": True}),
        ("PATCH", "/time", {}),
    ):
        url = f"/v1/controls/accounts/{trading_client.account}/symbols/{spelling}{tail}"
        answer = trading_client.tenants.client.request(
            method, raw(trading_client.tenants, url), json=body, headers=trading_client.headers
        )
        assert pointers(answer) == [""]
        assert "1 to 32" in answer.json()["detail"]


def raw(tenants: Tenants, path: str) -> Any:
    return tenants.client.base_url.copy_with(raw_path=path.encode())


def test_every_spelling_of_a_symbol_meets_the_same_control(trading_client: TradingClient) -> None:
    assert trading_client.put("btc%2Fusd").json()["symbol"] == "BTC/USD"
    assert (
        trading_client.patch("Btc%2FUsd", {"trading_end": "00:00:00"}).json()["symbol"] == "BTC/USD"
    )
    for spelling in ("BTC%2FUSD", "bTc%2fusd", "%42TC%2FUSD"):
        shown = trading_client.get(f"/symbols/{spelling}").json()
        assert (shown["manual"]["symbol"], shown["time"]["symbol"]) == ("BTC/USD", "BTC/USD")
    for text in ("BTC/USD", "btc/usd", "Btc/uSD"):
        assert trading_client.reasons(text) == [
            "symbol_manually_disabled",
            "outside_trading_window",
        ]
    assert [item["symbol"] for item in trading_client.get("/symbols").json()["data"]] == ["BTC/USD"]
    assert trading_client.call("DELETE", "/symbols/btc%2Fusd").status_code == 204
    assert trading_client.reasons("BTC/USD") == []


def test_the_list_is_ascending_and_complete(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    assert trading_client.get("/symbols").json() == {"data": [], "next_cursor": None}
    manual = ["B", "A/B", "A.B", "Z", "10"]
    timed = ["B", "A:B", "A-B", "AA", "A_B"]
    puts = {symbol: trading_client.put(symbol.replace("/", "%2F")).json() for symbol in manual}
    patches = {symbol: trading_client.patch(symbol, {}).json() for symbol in timed}
    expected = [
        {"symbol": symbol, "manual": puts.get(symbol), "time": patches.get(symbol)}
        for symbol in sorted({*manual, *timed})
    ]
    for limit in (1, 2, 3, 100):
        seen = []
        cursor = ""
        while True:
            page = trading_client.get(f"/symbols?limit={limit}{cursor}").json()
            seen += page["data"]
            if page["next_cursor"] is None:
                break
            cursor = f"&next_cursor={page['next_cursor']}"
        assert seen == expected
    first = trading_client.get("/symbols?limit=2").json()["next_cursor"]
    assert code(TradingClient(tenants).get(f"/symbols?next_cursor={first}")) == (
        400,
        "invalid_cursor",
    )
    organization = tenants.organization("org_acme")["id"]
    for position in ("a", "", "A\x00", "no symbol"):
        forged = make_cursor(f"symbol_controls:{organization}:{trading_client.account}", position)
        assert code(trading_client.get(f"/symbols?next_cursor={forged}")) == (400, "invalid_cursor")


def test_a_delete_removes_both_controls(trading_client: TradingClient) -> None:
    assert code(trading_client.call("DELETE", "/symbols/AAPL")) == (404, "not_found")
    trading_client.put("AAPL")
    trading_client.patch("AAPL", {"trading_start": "09:30:00"})
    trading_client.put("MSFT")
    assert code(trading_client.call("DELETE", "/symbols/AAPL", if_match='"1"')) == (
        412,
        "version_conflict",
    )
    answer = trading_client.call(
        "DELETE", "/symbols/AAPL", if_match=trading_client.get("/symbols/AAPL").headers["etag"]
    )
    assert (answer.status_code, answer.content) == (204, b"")
    assert code(trading_client.get("/symbols/AAPL")) == (404, "not_found")
    assert code(trading_client.call("DELETE", "/symbols/AAPL")) == (404, "not_found")
    assert [item["symbol"] for item in trading_client.get("/symbols").json()["data"]] == ["MSFT"]
    trading_client.patch("IBM", {})
    assert trading_client.get("/symbols/IBM").json()["manual"] is None
    assert trading_client.call("DELETE", "/symbols/IBM").status_code == 204
    assert trading_client.put("AAPL").json()["version"] == 1


def test_if_match_makes_a_write_conditional(trading_client: TradingClient) -> None:
    def put(n: int, **headers: str) -> Any:
        body = {"manually_disabled": True, "manual_reason": str(n)}
        return trading_client.call("PUT", "/symbols/AAPL", body, **headers)

    def patch(n: int, **headers: str) -> Any:
        return trading_client.patch("AAPL", {"stale_order_millis": n}, **headers)

    def put_account(n: int, **headers: str) -> Any:
        return trading_client.call(
            "PUT", "", {"manually_disabled": True, "manual_reason": str(n)}, **headers
        )

    for write in (put, patch, put_account):
        for none_yet in ('"1"', "*"):
            assert code(write(1, if_match=none_yet)) == (412, "version_conflict")
        assert write(1).json()["version"] == 1
        assert write(2, if_match='"1"').json()["version"] == 2
        assert code(write(3, if_match='"1"')) == (412, "version_conflict")
        assert code(write(3, if_match='W/"2"')) == (412, "version_conflict")
        assert write(3, if_match='"7", "2"').json()["version"] == 3
        assert write(4, if_match="*").json()["version"] == 4
        assert code(write(3, if_match="nonsense")) == (400, "invalid_request")


def test_an_account_has_so_many_symbols_with_controls_at_most(
    trading_client: TradingClient, tenants_database: Urls
) -> None:
    async def fill() -> None:
        connection = await asyncpg.connect(tenants_database.owner.reveal())
        for table, column, first, last in (
            ("symbol_controls", "manually_disabled", 1, MAX_SYMBOLS_PER_ACCOUNT - 4001),
            ("symbol_times", "stale_order_millis", 3000, MAX_SYMBOLS_PER_ACCOUNT - 1),
        ):
            value = "true" if table == "symbol_controls" else "5"
            await connection.execute(
                f"INSERT INTO {table} (organization_id, account_id, symbol, {column})"
                f"""
                     SELECT organization_id, id, 'S' || n, {value}
                     FROM accounts, generate_series($2::int, $3::int) n
                """
                " WHERE id = $1",
                trading_client.account,
                first,
                last,
            )
        await connection.close()

    asyncio.run(fill())
    assert trading_client.patch("LAST", {}).status_code == 200
    for refused in (trading_client.put("MORE"), trading_client.patch("MORE", {})):
        assert code(refused) == (409, "limit_reached")
    assert trading_client.get("/symbols/MORE").status_code == 404
    assert trading_client.put("LAST").status_code == 200, "it has a control already"
    assert trading_client.patch("S1", {}).status_code == 200
    assert trading_client.put("S9999").status_code == 200
    assert trading_client.call("DELETE", "/symbols/S5000").status_code == 204
    assert trading_client.put("MORE").status_code == 200
    assert code(trading_client.put("EVEN.MORE")) == (409, "limit_reached")
