"""`mcp`: what an agent sees and does, by the official client of the Model Context Protocol."""

import json
import os
import re
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

from tests.proxy import FaultProxy, Verdict
from tests.tenants import Tenants
from tests.trader.conftest import Command
from trading_intents_client import Account, AsyncTradingClient, Limits, TradingClient
from trading_intents_client.agents.refusals import left_of
from trading_intents_client.agents.server import make_server
from trading_intents_client.agents.tools import TOOLS
from trading_intents_client.types.controls import Triggered

ROOT = Path(__file__).parents[2]
READS = {"list_positions", "list_orders", "list_trades"}
OF_ACCOUNTS = {"list_accounts", "get_balances", "get_quote"}
TRADES = {"place_order", "replace_order", "cancel_order", "cancel_all", "close_position"}
START_LIMIT_SECONDS = 180
KILLED_SERVER = 'echo $$ > "$0"; exec "$@"'  # a shell that says whose process it becomes


@asynccontextmanager
async def connected(
    tenants: Tenants, key: str, allow_trading: bool = True
) -> AsyncIterator[Client]:
    """The official client and our server in one process."""
    async with (
        AsyncTradingClient(tenants.platform.url, api_key=key) as platform,
        Client(make_server(platform, allow_trading, "0")) as client,
    ):
        yield client


@asynccontextmanager
async def started(folder: Path, *arguments: str) -> AsyncIterator[Client]:
    """`trading-intents mcp` as a desktop client starts it, by the login in the folder."""
    program = [str(Path(sys.prefix, "bin", "trading-intents")), "mcp", *arguments]
    command = ["-c", KILLED_SERVER, str(folder / "pid"), *program]
    server = StdioServerParameters(
        command="sh", args=command, env={"XDG_CONFIG_HOME": str(folder)}, cwd=folder
    )
    with open(folder / "log", "a") as log:
        async with Client(stdio_client(server, errlog=log)) as client:
            yield client


def log_in(folder: Path, url: str, key: str) -> None:
    (folder / "trading-intents").mkdir(exist_ok=True)
    (folder / "trading-intents" / "login.json").write_text(json.dumps({"url": url, "api_key": key}))


async def names_of(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(name, arguments)
    reported: dict[str, Any] = answer.structured_content
    assert json.loads(answer.content[0].text) == reported  # type: ignore[union-attr]  # every answer is text
    return reported | ({"is_error": True} if answer.is_error else {})


def make_key(tenants: Tenants, *permissions: str) -> str:
    body = {"name": str(uuid.uuid4()), "environment": "paper", "permissions": list(permissions)}
    made = tenants.client.post("/v1/api-keys", json=body, headers=tenants.callers["admin"])
    assert made.status_code == 201, made.text
    key: str = made.json()["api_key"]
    return key


@pytest.fixture
def key(tenants: Tenants) -> str:
    found: str = tenants.api_key("org_acme", "all")["api_key"]
    return found


# Takes three seconds: an interpreter that imports mcp.
@pytest.mark.slow
@pytest.mark.timeout(START_LIMIT_SECONDS)
async def test_a_desktop_client_reads_by_the_stored_login(
    tenants: Tenants, account: Account, key: str, tmp_path: Path
) -> None:
    log_in(tmp_path, tenants.platform.url, key)
    async with started(tmp_path) as client:
        assert await names_of(client) == {tool.name for tool in TOOLS if not tool.is_trading}
        assert (await call(client, "get_balances", account_id=account.id))[
            "account_id"
        ] == account.id
        with pytest.raises(MCPError, match="there is no tool place_order"):
            await client.call_tool("place_order", {"account_id": account.id})
        listing = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/cmdline").read_text()
    assert "mcp" in listing
    assert key not in listing
    assert (tmp_path / "log").read_text() == ""


# Takes five seconds: two of them.
@pytest.mark.slow
@pytest.mark.timeout(2 * START_LIMIT_SECONDS)
async def test_a_killed_and_repeated_call_makes_one_order(
    tenants: Tenants, account: Account, key: str, tmp_path: Path
) -> None:
    """The platform gets the order and the server is gone before the answer."""
    killed: list[int] = []

    def watch(sent: bytes) -> Verdict:
        if sent.startswith(b"POST") and not killed:
            killed.append(int((tmp_path / "pid").read_text()))
            os.kill(killed[0], signal.SIGKILL)
        return Verdict.PASS

    order = {
        "account_id": account.id,
        "symbol": "AAPL",
        "order_side": "BUY",
        "quantity": "3",
        "idempotency_key": "k",
    }
    proxy = FaultProxy(int(tenants.platform.url.rpartition(":")[2]), watch)
    with proxy.running():
        log_in(tmp_path, f"http://127.0.0.1:{proxy.port}", key)
        with pytest.raises(Exception):  # noqa: B017, PT011  # whatever the client makes of a server that is gone
            async with started(tmp_path, "--allow-trading") as client:
                await client.call_tool("place_order", order)
        assert killed
        async with started(tmp_path, "--allow-trading") as client:
            again = await call(client, "place_order", **order)
            third = await call(client, "place_order", **order)
            assert await names_of(client) == {tool.name for tool in TOOLS}
    assert again["intent_id"] == third["intent_id"]
    assert third["is_replayed"]
    assert [found.intent_id for found in account.orders()] == [again["intent_id"]]
    assert key not in (tmp_path / "log").read_text()


async def test_an_agent_replaces_cancels_closes_and_halts(
    tenants: Tenants, account: Account, key: str
) -> None:
    async with connected(tenants, key) as client:
        of = {"account_id": account.id}
        create = of | {"symbol": "ACME", "order_side": "BUY", "quantity": "5", "limit_price": "1.5"}
        placed = await call(client, "place_order", **create, idempotency_key="place")
        account.order(placed["intent_id"]).wait(until="NEW")
        change = of | {"intent_id": placed["intent_id"], "quantity": "4", "limit_price": "1.25"}
        first = await call(client, "replace_order", **change, idempotency_key="replace")
        assert account.order(placed["intent_id"]).wait(until="NEW").quantity == 4
        again = await call(client, "replace_order", **change, idempotency_key="replace")
        assert (again["seq"], again["is_replayed"]) == (first["seq"], True)
        (shown,) = (await call(client, "list_orders", **of, intent_id=placed["intent_id"]))["data"]
        assert (shown["quantity"], shown["limit_price"], shown["order_status"]) == (
            "4",
            "1.25",
            "NEW",
        )
        await call(client, "cancel_order", **of, intent_id=placed["intent_id"])
        account.order(placed["intent_id"]).wait()
        account.buy("AAPL", 2).wait()
        closing = [
            await call(client, "close_position", **of, symbol="AAPL", idempotency_key="close")
            for _ in range(2)
        ]
        assert closing[0]["intent_id"] == closing[1]["intent_id"]
        account.order(closing[0]["intent_id"]).wait()
        trades = (await call(client, "list_trades", **of))["data"]
        assert [trade["side"] for trade in trades] == ["SELL", "BUY"], "newest first"
        assert (await call(client, "cancel_all", **of)) == {
            "intents": [],
            "pending": 0,
            "more": False,
        }
        assert Decimal((await call(client, "get_quote", **of, symbol="AAPL"))["bid"]) > 0
        assert (await call(client, "halt", **of, reason="strange news"))["reason"] == "strange news"
        refused = await call(client, "place_order", **create, idempotency_key="late")
    assert (refused["is_error"], refused["code"]) == (True, "control_rejected")
    assert [each["reason"] for each in refused["triggered"]] == ["account_halted"]


async def test_a_refusal_has_its_code_limit_what_was_asked_and_what_is_left(
    tenants: Tenants, account: Account, key: str
) -> None:
    account.controls.set_limits(
        Limits(
            max_order_quantity=Decimal(100), max_open_orders=1, max_position_quantity=Decimal(150)
        )
    )
    order = {"account_id": account.id, "symbol": "ACME", "order_side": "BUY", "limit_price": "1"}
    async with connected(tenants, key) as client:
        refused = await call(client, "place_order", **order, quantity="101", idempotency_key="a")
        (found,) = refused["triggered"]
        assert (refused["is_error"], refused["code"]) == (True, "control_rejected")
        assert refused["request_id"]
        assert found["scope"] == {"Account": account.id}
        assert [found[name] for name in ("reason", "limit", "asked", "left")] == [
            "max_order_quantity",
            "100",
            "101",
            "100",
        ]
        reported = await call(client, "evaluate_order", **order, quantity="101")
        assert (reported["allowed"], reported["triggered"]) == (False, [found])
        assert "is_error" not in await call(
            client, "place_order", **order, quantity="100", idempotency_key="b"
        )
        reported = await call(client, "evaluate_order", **order, quantity="60")
        left = {each["reason"]: each["left"] for each in reported["triggered"]}
        assert left == {"max_open_orders": "0", "max_position_quantity": "50"}
        limits = await call(client, "get_limits", account_id=account.id)
    assert limits["account"]["max_order_quantity"] == "100"
    assert limits["api_key"] is None
    assert list(account.orders(symbol="ACME", state="CLOSED")) == []


async def test_a_refusal_by_a_days_budget_has_what_is_left_of_it_today(
    tenants: Tenants, account: Account
) -> None:
    made = tenants.client.post(
        "/v1/api-keys",
        json={
            "name": "agent",
            "environment": "paper",
            "permissions": ["account:read", "intent:edit", "control:read"],
        },
        headers=tenants.callers["admin"],
    ).json()
    path = f"/v1/api-keys/{made['id']}/limits"
    budget = {"max_daily_notional": "1000"}
    assert (
        tenants.client.put(path, json=budget, headers=tenants.callers["admin"]).status_code == 200
    )
    tenants.client.put(
        "/v1/reference-prices/BUDGET", json={"price": "1"}, headers=tenants.callers["key_all"]
    )
    order = {
        "account_id": account.id,
        "symbol": "BUDGET",
        "order_side": "BUY",
        "limit_price": "65.05",
    }
    async with connected(tenants, made["api_key"]) as client:
        assert "is_error" not in await call(
            client, "place_order", **order, quantity="10", idempotency_key="k1"
        )
        refused = await call(client, "place_order", **order, quantity="6", idempotency_key="k2")
        limits = await call(client, "get_limits", account_id=account.id)
    (found,) = refused["triggered"]
    assert (refused["code"], found["scope"]) == ("control_rejected", {"ApiKey": made["id"]})
    reported = [found[name] for name in ("reason", "limit", "asked", "left")]
    assert reported == ["max_daily_notional", "1000", "1040.8", "349.5"]
    assert (
        limits["api_key"]["max_daily_notional"],
        limits["api_key"]["used"]["daily_notional"],
    ) == ("1000", "650.5")


@pytest.mark.parametrize(
    ("reason", "limit", "asked", "left"),
    [
        ("max_daily_notional", "1000", "1200", "350"),
        ("max_order_notional", "500", "501", "500"),
        ("max_orders_per_minute", 10, 11, "0"),
        ("max_position_quantity", "10", "-14", "6"),
        ("max_position_quantity", "10", "40", "0"),
        ("max_daily_loss", "100", "120", None),
        ("allowed_symbols", ["A"], "B", None),
        ("allow_short", False, "SELL_SHORT", None),
        ("account_halted", None, None, None),
    ],
)
def test_what_is_left_follows_from_the_kind_of_limit(
    reason: str, limit: Any, asked: Any, left: str | None
) -> None:
    each = Triggered(reason=reason, scope={}, detail="", limit=limit, asked=asked)
    assert left_of(each, Decimal(10), Decimal(650)) == (None if left is None else Decimal(left))


@pytest.mark.parametrize(
    ("permissions", "tools"),
    [
        ((), set()),
        (("intent:read",), READS),
        (("account:read",), OF_ACCOUNTS),
        (("control:read",), {"evaluate_order"}),
        (("intent:edit",), TRADES),
        (("control:edit",), {"halt"}),
        (
            ("intent:read", "account:read", "control:read", "stream:read"),
            READS | OF_ACCOUNTS | {"evaluate_order"},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_a_key_is_offered_what_it_may_use(
    tenants: Tenants, permissions: tuple[str, ...], tools: set[str]
) -> None:
    key = make_key(tenants, *permissions)
    async with connected(tenants, key) as client:
        assert await names_of(client) == tools | {"get_limits"}, "every key may read its own budget"
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name, tool in listed.items():
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is (name not in TRADES | {"halt"})
            assert tool.annotations.destructive_hint is (name in TRADES | {"halt"})
            assert tool.annotations.idempotent_hint
            assert name not in TRADES or "cannot be" in (tool.description or "")
    async with connected(tenants, key, allow_trading=False) as client:
        assert not await names_of(client) & (TRADES | {"halt"})


async def test_without_the_plan_no_order_is_evaluated(tenants: Tenants) -> None:
    async with connected(tenants, tenants.api_key("org_other", "all")["api_key"]) as client:
        assert "evaluate_order" not in await names_of(client)


async def test_a_tool_that_was_not_offered_is_refused_all_the_same(
    tenants: Tenants, account: Account
) -> None:
    async with connected(tenants, make_key(tenants, "account:read")) as client:
        reported = await call(client, "cancel_all", account_id=account.id)
    assert (reported["is_error"], reported["code"]) == (True, "forbidden")


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit_prise": "1"},
        {"quantity": 3},
        {"quantity": "1e3"},
        {"quantity": None},
        {"order_side": "buy"},
        {"account_id": ".."},
        {"idempotency_key": ""},
        {"idempotency_key": "k\n"},
        {"symbol": "../x"},
    ],
    ids=str,
)
async def test_what_cannot_be_meant_places_nothing(
    tenants: Tenants, account: Account, key: str, wrong: dict[str, Any]
) -> None:
    order = {
        "account_id": account.id,
        "symbol": "AAPL",
        "order_side": "BUY",
        "quantity": "3",
        "idempotency_key": "k",
    }
    async with connected(tenants, key) as client:
        reported = await call(client, "place_order", **order | wrong)
    assert (reported["is_error"], reported["code"]) == (True, "invalid_arguments")
    assert list(account.orders()) == []


async def test_a_lost_answer_says_how_to_repeat_the_call(
    tenants: Tenants, account: Account, key: str
) -> None:
    def watch(sent: bytes) -> Verdict:
        return Verdict.CUT_UNANSWERED if sent.startswith(b"POST") else Verdict.PASS

    order = {
        "account_id": account.id,
        "symbol": "AAPL",
        "order_side": "BUY",
        "quantity": "3",
        "idempotency_key": "k",
    }
    proxy = FaultProxy(int(tenants.platform.url.rpartition(":")[2]), watch)
    platform = AsyncTradingClient(f"http://127.0.0.1:{proxy.port}", api_key=key, max_retries=0)
    with proxy.running():
        async with platform, Client(make_server(platform, True, "0")) as client:
            lost = await call(client, "place_order", **order)
            halted = await call(client, "halt", account_id=account.id, reason="x")
    assert (lost["is_error"], lost["may_be_recorded"]) == (True, True)
    assert "the same idempotency_key" in lost["next"]
    assert "read before you repeat" in halted["next"]
    assert key not in json.dumps([lost, halted])
    assert len(list(account.orders())) == 1


def test_an_invalid_key_is_reported_at_once(run: Command) -> None:
    wrong = "tip_paper_none"
    done = run("mcp", TRADING_INTENTS_API_KEY=wrong)
    assert done.exit_code == 1
    assert "401 unauthorized" in done.stderr
    assert wrong not in done.output


def test_the_document_has_every_tool(client: TradingClient) -> None:
    text = (ROOT / "docs" / "agents.md").read_text()
    table = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert table == [tool.name for tool in TOOLS]
