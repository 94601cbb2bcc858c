"""Orders through a network and a platform that fail: each is placed once. Pages, amounts, errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.documents import rows
from tests.free_port import free_port
from tests.proxy import FaultProxy
from tests.sdk.faults import FaultyNetwork
from tests.sdk.restarts import RestartedPlatform
from tests.sdk_ts.conftest import ROOT, Programs
from tests.seeds import seeded
from trading_intents_client import FILLED, TradingClient

pytest_plugins = ("tests.started_dirs",)
pytestmark = pytest.mark.slow

AT_ONCE = 16
WAIT_SECONDS = 300


@pytest.mark.parametrize(
    ("orders", "restarts"),
    [(40, 0), pytest.param(1000, 4, marks=[pytest.mark.chaos, pytest.mark.timeout(900)])],
)
def test_each_order_is_placed_once_whatever_fails(
    warm: Path, package: Path, orders: int, restarts: int
) -> None:
    chance = seeded("sdk-ts")
    key = json.loads((warm / "demo.json").read_text())["api_key"]
    kills = [chance.random() < 0.5 for _ in range(restarts)]
    platform = RestartedPlatform(warm, kills, RATE_LIMIT_SUBMITS="60/30")
    network = FaultyNetwork(chance)
    proxy = FaultProxy(platform.port, network)
    with platform.running(), proxy.running():
        programs = Programs(package, f"http://127.0.0.1:{proxy.port}", key)
        done = list[str]()
        with programs.started("trade.mjs", orders, AT_ONCE, WAIT_SECONDS) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                done.append(line.strip())
                if len(done) % (orders // (restarts + 1)) == 0:
                    platform.restart()
            errors = process.stderr.read()
        assert (process.returncode, errors) == (0, "")
        with TradingClient(
            f"http://127.0.0.1:{platform.port}", api_key=key, max_retries=20
        ) as client:
            check(client, orders)
    assert sorted(done) == sorted(f"n{number} FILLED" for number in range(orders))
    assert platform.ended >= restarts
    assert network.faults > orders // 10


def check(client: TradingClient, orders: int) -> None:
    account = client.find_account("sim")
    found = list(account.orders())
    expected = sorted(f"n{number}" for number in range(orders))
    assert sorted(str(order.client_reference_id) for order in found) == expected
    assert {order.order_status for order in found} == {FILLED}
    assert [action.action_type for action in account.intents()] == ["CREATE"] * orders
    assert [position.quantity for position in account.positions()] == [orders]


def test_pages_amounts_and_errors_are_as_the_api_has_them(
    programs: Programs, account_id: str
) -> None:
    answers = map(json.loads, programs.run("tour.mjs", account_id, free_port()))
    assert next(answers) == ["4", "1.5", None]
    assert next(answers) == [True, "k5"]
    assert next(answers) == ["p0", "p1", "p2", "p3", "p4", "p5"]
    assert next(answers) == [4, None]
    assert next(answers) == 7
    assert next(answers) == [True, "1.5", "number", "ACME"]
    assert next(answers) == "CANCELLED"
    assert next(answers) is True
    assert next(answers) == "paper"
    assert next(answers) == {"status": "alive"}
    assert next(answers) is False, "a key is shown"
    check_errors(list(answers))


def check_errors(failures: list[dict[str, Any]]) -> None:
    names = [failure["name"] for failure in failures]
    assert names == [
        "ValidationFailed",
        "NotFound",
        "IdempotencyConflict",
        "OrderEnded",
        "TypeError",
        "TypeError",
        "Unauthorized",
        "Unreachable",
        "Unreachable",
        "ControlRejected",
        "ClientClosed",
    ]
    wrong, missing, conflict, *_ = failures
    assert (wrong["code"], wrong["status"]) == ("validation_failed", 422)
    assert wrong["more"]["errors"][0]["pointer"] == "/command/payload/spec/Market/quantity"
    assert wrong["key"]
    assert not wrong["mayBeRecorded"]
    assert missing["hasId"]
    assert (conflict["key"], conflict["code"]) == ("k5", "idempotency_conflict")
    unreachable = failures[7]
    assert unreachable["key"]
    assert not unreachable["mayBeRecorded"], "nothing was sent"
    assert failures[9]["more"]["triggered"] == ["account_halted"]
    assert [failure["is"] for failure in failures].count(False) == 2


def test_every_code_of_an_error_has_a_class(programs: Programs) -> None:
    (line,) = programs.run("tour.mjs", "codes")
    classes = json.loads(line)
    text = (ROOT / "docs/api/errors.md").read_text()
    documented = {row[1].strip("`") for row in rows(text, r"\d{3}")}
    assert documented <= classes.keys()
    # Of a newer server's codes, and of a token endpoint.
    assert classes.keys() - documented == {"conflict", "invalid_client"}
    for code, name in classes.items():
        assert name == "".join(map(str.capitalize, code.split("_")))


def test_only_what_is_safe_is_asked_again(programs: Programs) -> None:
    (line,) = programs.run("rules.mjs")
    tried = json.loads(line)
    counts = {name: len(each["keys"]) for name, each in tried.items()}
    assert counts == {
        "read, lost": 3,
        "write, lost": 1,
        "write, refused": 2,
        "write, unavailable": 2,
        "write, unknown": 1,
        "submit, lost": 3,
        "submit, limited": 2,
        "submit, limited for long": 1,
        "submit, never": 3,
        "submit, refused": 1,
    }
    for name in ("submit, lost", "submit, limited"):
        assert set(tried[name]["keys"]) == {tried[name]["end"]}, "each try has the same key"
    assert tried["submit, lost"]["end"] != tried["submit, limited"]["end"]
    assert tried["submit, limited"]["millis"] > 1000, "never before Retry-After"
    ends = {name: each["end"] for name, each in tried.items() if isinstance(each["end"], list)}
    assert ends == {
        "write, lost": ["AnswerLost", True, None],
        "write, unknown": ["OutcomeUnknown", True, None],
        "submit, limited for long": ["RateLimited", False, "mine"],
        "submit, never": ["Unavailable", True, "mine"],
        "submit, refused": ["Conflict", False, "mine"],
    }
