"""Programs that nobody here wrote take the simulator for Alpaca: its own clients, and its
description of the API."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.alpaca.simulator import Exchange, Simulator, simulating
from tests.brokers.alpaca.stage import MEANT, AlpacaStage
from tests.waiting import eventually_async
from trading_intents.testing.broker_suite import play

INSTALLED = Path(__file__).parents[3] / ".venv" / "witnesses"
PYTHON = INSTALLED / "bin" / "python"
PACKAGE = INSTALLED / "node_modules" / "@alpacahq" / "alpaca-trade-api"
SCRIPTS = Path(__file__).parent / "witnesses"
LIMIT_SECONDS = 60
REAL_FIELDS = {
    *(
        "id",
        "client_order_id",
        "created_at",
        "updated_at",
        "submitted_at",
        "filled_at",
        "expired_at",
    ),
    *(
        "cancel_requested_at",
        "canceled_at",
        "failed_at",
        "replaced_at",
        "replaced_by",
        "replaces",
        "asset_id",
    ),
    *(
        "symbol",
        "asset_class",
        "notional",
        "qty",
        "filled_qty",
        "filled_avg_price",
        "order_class",
        "order_type",
    ),
    *(
        "type",
        "side",
        "position_intent",
        "time_in_force",
        "limit_price",
        "stop_price",
        "status",
        "extended_hours",
    ),
    *("legs", "trail_percent", "trail_price", "hwm", "expires_at"),
}

needs_python = pytest.mark.skipif(
    not PYTHON.exists(), reason="alpaca-py is not here: `make witnesses` installs it"
)
needs_node = pytest.mark.skipif(
    not PACKAGE.exists() or shutil.which("node") is None,
    reason="Alpaca's npm package is not here: install Node.js with npm, then `make witnesses`",
)


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with simulating() as running:
        running.add().quote("ACME", Decimal(99), Decimal(100), Decimal(1000))
        yield running


async def start(*words: object) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *map(str, words), stdin=pipe, stdout=pipe, stderr=pipe
    )


async def finish(process: asyncio.subprocess.Process, text: bytes = b"") -> Any:
    async with asyncio.timeout(LIMIT_SECONDS):
        out, errors = await process.communicate(text)
    assert process.returncode == 0, errors.decode()[-3000:]
    return json.loads(out)


@pytest.mark.slow
@needs_python
async def test_alpaca_py_trades_at_the_simulator(simulator: Simulator) -> None:
    account = simulator.accounts["KEY"]
    process = await start(PYTHON, SCRIPTS / "python_client.py", simulator.url, "KEY", "SECRET")
    assert process.stdout
    assert await process.stdout.readline() == b"listening\n"

    async def is_heard() -> bool:
        return bool(account.streams)

    await eventually_async(is_heard, LIMIT_SECONDS)
    understood = await finish(process, b"go\n")
    assert understood == {
        "bought": ["pending_new", "w1", "10"],
        "filled": [["fill", "10.0", "100.0", "10.0"]],
        "events": ["pending_new", "new", "fill"],
        "found": ["filled", "100"],
        "changed": [True, "w3", "6"],
        "ended": ["w3", "canceled"],
        "closed": 3,
        "refused": [422, 40010001, "client_order_id must be unique"],
        "position": ["ACME", "14", "long"],
        "bracket": [
            ["bracket", "market", "pending_new"],
            ["bracket", "limit", "new"],
            ["bracket", "stop", "held"],
        ],
        "nested": [["limit", "new", None], ["stop", "held", None]],
        "pair": [["oco", "limit", "sell", "pending_new"], ["oco", "stop", "sell", "held"]],
        "single": [["oto", "new"]],
        "listed": [["oto", 1], ["oco", 1], ["bracket", 3]],
        "account": ["ACTIVE", False],
        "clock": True,
    }


@pytest.mark.slow
@needs_node
async def test_the_npm_package_trades_at_the_simulator(simulator: Simulator) -> None:
    understood = await finish(
        await start("node", SCRIPTS / "node_client.cjs", simulator.url, "KEY", "SECRET", PACKAGE)
    )
    assert understood == {
        "bought": ["n1", "pending_new"],
        "events": [
            "pending_new",
            "new",
            "fill",
            "pending_new",
            "new",
            "pending_cancel",
            "canceled",
        ],
        "fill": ["100", "3", True],
        "found": ["filled", "3"],
        "positions": [["ACME", "3"]],
        "account": "ACTIVE",
    }


@pytest.mark.slow
@needs_python
async def test_requests_and_answers_are_as_alpaca_describes_them() -> None:
    """All that our integration asks while it plays the cards, and all that the simulator answers
    it."""
    exchanges: list[Exchange] = []
    for card in MEANT:
        async with simulating() as simulator:
            await play(card, AlpacaStage(simulator, simulator.add()))
            exchanges += simulator.exchanges
    process = await start(PYTHON, SCRIPTS / "openapi_check.py")
    text = json.dumps([{**asdict(each), "answer": as_described(each.answer)} for each in exchanges])
    found = await finish(process, text.encode())
    assert found == {"checked": len(exchanges), "wrong": []}
    assert len({(each.method, each.path.split("/")[2]) for each in exchanges}) >= 7


@pytest.mark.slow
@needs_python
async def test_the_description_finds_what_is_wrong() -> None:
    wrong = [
        Exchange(
            "POST",
            "/v2/orders",
            {},
            {"type": "iceberg", "time_in_force": "day"},
            200,
            {"notional": None},
        ),
        Exchange("GET", "/v2/positions", {"page": "2"}, None, 200, [{"symbol": "ACME"}]),
        Exchange("GET", "/v2/holdings", {}, None, 200, []),
    ]
    process = await start(PYTHON, SCRIPTS / "openapi_check.py")
    found = await finish(process, json.dumps([asdict(each) for each in wrong]).encode())
    text = " ".join(found["wrong"])
    for each in (
        "'iceberg' is not one of",
        "unknown parameter page",
        "'qty' is a required",
        "not in the document",
    ):
        assert each in text


async def test_frames_have_the_fields_of_real_ones(simulator: Simulator) -> None:
    """Those of a market order that is filled, as they were seen on Alpaca's own stream."""
    account = simulator.accounts["KEY"]
    frames = list[dict[str, Any]]()
    account.streams.append(frames.append)
    account.submit(
        {"symbol": "ACME", "qty": "2", "side": "buy", "type": "market", "time_in_force": "day"}
    )
    assert [frame["data"]["event"] for frame in frames] == ["pending_new", "new", "fill"]
    every = {"at", "event_id", "event", "timestamp", "order"}
    filled = every | {"execution_id", "price", "qty", "position_qty", "swap_rate", "settle_date"}
    assert [set(frame["data"]) for frame in frames] == [every, every | {"execution_id"}, filled]
    assert all(set(frame["data"]["order"]) == REAL_FIELDS for frame in frames)
    assert all(set(frame) == {"stream", "data"} for frame in frames)


def as_described(answer: Any) -> Any:
    """A stream of server-sent events is described as the array of them."""
    if not isinstance(answer, bytes):
        return answer
    return [json.loads(line[5:]) for line in answer.splitlines() if line.startswith(b"data:")]
