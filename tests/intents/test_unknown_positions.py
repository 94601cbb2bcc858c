"""Limits on positions that a broker has not reported yet: what an account held before us is not
taken for nothing."""

from typing import Any

import pytest

from tests.intents.conftest import OpenClient
from tests.intents.http_client import Body, Tables, TradingClient, cancel, create, limit, replace
from tests.intents.limit_calls import level_path, triggered
from tests.tenants import Tenants

LIMITS = {
    "max_position_quantity": "100",
    "allow_short": False,
    "max_daily_loss": "50",
    "max_open_orders": 9,
}


def put_limits(tenants: Tenants, trading_client: TradingClient) -> None:
    path = level_path("account", trading_client.account["id"])
    answer = tenants.client.put(path, json=LIMITS, headers=tenants.callers["admin"])
    assert answer.status_code == 200, answer.text


def evaluated(
    tenants: Tenants, trading_client: TradingClient, body: Body
) -> list[tuple[str, Any, Any, str]]:
    question = {"account_id": trading_client.account["id"], "command": body["command"]}
    answer = tenants.client.post(
        "/v1/controls/evaluate", json=question, headers=tenants.callers["admin"]
    ).json()
    return [
        (each["reason"], each["limit"], each["asked"], next(iter(each["scope"])))
        for each in answer["triggered"]
    ]


def test_orders_are_refused_until_the_broker_has_reported_positions(
    tenants: Tenants, open_client: OpenClient, tables: Tables
) -> None:
    trading_client = open_client(broker="alpaca")
    intent = trading_client.accepted(create(limit("50", "100")))["intent_id"]
    put_limits(tenants, trading_client)
    position, short, loss = (
        ("position_unknown", value, "AAPL", "Account") for value in ("100", False, "50")
    )
    for body, expected in (
        (create(limit("1", "100")), [position, loss]),
        (replace(intent, limit("51", "100")), [position, loss]),
        (create(limit("1", "100"), order_side="SELL"), [position, short, loss]),
    ):
        for _ in range(2):  # from the database, and from the cache
            assert triggered(trading_client, body) == expected
        assert evaluated(tenants, trading_client, body) == expected
    assert trading_client.accepted(cancel(intent))["action_type"] == "CANCEL"
    tables.execute(
        """
            INSERT INTO position_openings SELECT id, organization_id, clock_timestamp()
            FROM accounts WHERE id::text = $1
        """,
        trading_client.account["id"],
    )
    assert evaluated(tenants, trading_client, create(limit("50", "100"))) == []
    trading_client.accepted(create(limit("50", "100")))
    assert triggered(trading_client, create(limit("1", "100"))) == [
        ("max_position_quantity", "100", "101", "Account")
    ]


@pytest.mark.parametrize("broker", ["paper", "remote"])
def test_a_broker_that_need_not_report_positions_is_not_waited_for(
    tenants: Tenants, open_client: OpenClient, broker: str
) -> None:
    trading_client = open_client(broker=broker)
    put_limits(tenants, trading_client)
    assert evaluated(tenants, trading_client, create(limit("100", "100"))) == []
    trading_client.accepted(create(limit("100", "100")))
    expected = [("max_position_quantity", "100", "101", "Account")]
    assert triggered(trading_client, create(limit("1", "100"))) == expected
