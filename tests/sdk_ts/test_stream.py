"""The stream of the TypeScript client: every event once and in order, whatever breaks."""

import base64
import json
import os
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.proxy import FaultProxy
from tests.sdk_ts.conftest import LIMIT_SECONDS, Programs
from tests.tenants import Tenants
from trading_intents_client import Account, PositionEvent, TradingClient

pytestmark = pytest.mark.slow

LAST = "LAST"
ORDERS = 9


@pytest.fixture
def account(client: TradingClient, account_id: str) -> Account:
    return client.account(account_id)


def test_nothing_is_missed_or_repeated_when_connections_break(
    tenants: Tenants, account: Account, programs: Programs
) -> None:
    port = urlsplit(tenants.platform.url).port
    assert port
    proxy = FaultProxy(port)
    programs.url = f"http://127.0.0.1:{proxy.port}"
    with proxy.running(), programs.started("follow.mjs", account.id, LAST) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        primed = json.loads(process.stdout.readline())
        for number in range(ORDERS):
            (proxy.reset, proxy.refuse, lambda: proxy.cut_after(700))[number % 3]()
            account.buy("AAPL", number + 1).wait()
            proxy.work()
        account.buy(LAST, 1)
        shown, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, errors) == (0, "")
    seen = read(shown)
    cursors = [event["cursor"] for event in seen]
    assert primed["kind"] == "primed"
    assert cursors == cursors_after(account, primed["cursor"])
    actions = [event["data"] for event in seen if event["kind"] == "intent_action"]
    assert [action["seq"] for action in actions] == list(range(1, ORDERS + 2))
    assert [action["quantity"] for action in actions][:3] == ["1", "2", "3"]


def cursors_after(account: Account, began: str) -> list[str | None]:
    """As the Python client reads them without a fault."""
    cursors = list[str | None]()
    with account.events(after=began) as stream:
        for event in stream:
            cursors.append(event.cursor)
            if isinstance(event, PositionEvent) and event.position.symbol == LAST:
                return cursors
    raise AssertionError("the stream ends")


def read(shown: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown.splitlines() if line.startswith("{")]


def test_an_event_has_what_the_order_has(
    tenants: Tenants, account: Account, programs: Programs
) -> None:
    """Enums without their type's prefix, numbers as numbers, amounts as texts."""
    with account.events() as stream:
        began = next(stream).cursor
    order = account.buy(LAST, 2).wait()
    seen = read("\n".join(programs.run("follow.mjs", account.id, LAST, began)))
    filled = [event["data"] for event in seen if event["kind"] == "broker_order"][-1]
    path = f"/v1/accounts/{account.id}/orders/{order.order_id}"
    record = tenants.client.get(path, headers={"x-api-key": programs.api_key}).json()
    shared = filled.keys() & record.keys() - {"received_at", "broker_sent_at"}
    assert {name: filled[name] for name in shared} == {name: record[name] for name in shared}
    assert {"order_status", "order_side", "order_type", "version", "command_seq"} <= shared
    assert {"quantity", "average_price", "time_in_force", "flags"} <= shared
    trade = next(event["data"] for event in seen if event["kind"] == "broker_trade")
    assert (trade["side"], trade["order_id"]) == ("BUY", order.order_id)


def test_a_gap_is_an_event_with_the_state_from_which_the_stream_goes_on(
    account: Account, programs: Programs
) -> None:
    resting = account.buy("ACME", 3, limit=1)
    account.buy("AAPL", 2).wait()
    resting.wait(until="NEW")
    stranger = base64.urlsafe_b64encode(os.urandom(16) + (5).to_bytes(8)).decode()
    with programs.started("follow.mjs", account.id, LAST, stranger) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        gap = json.loads(process.stdout.readline())
        account.buy(LAST, 1)
        shown, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert gap["kind"] == "gap"
    assert [order["intent_id"] for order in gap["data"]["orders"]] == [resting.intent_id]
    assert {each["symbol"]: each["quantity"] for each in gap["data"]["positions"]} == {"AAPL": "2"}
    assert [event["kind"] for event in read(shown)][:2] == ["intent_action", "broker_order"]
