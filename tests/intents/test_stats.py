"""Stats over HTTP: exact at once, whatever is rolled up already, and of one's own accounts only."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Urls
from tests.intents.conftest import OpenClient
from tests.intents.http_client import (
    Tables,
    TradingClient,
    cancel,
    create,
    limit,
    pointers,
    replace,
)
from tests.platform import serving
from tests.tenants import Tenants
from tests.waiting import eventually
from trading_intents.stats.store import BEHIND_SEQS

LENGTHS = {
    "last_hour": timedelta(hours=1),
    "last_day": timedelta(days=1),
    "last_week": timedelta(days=7),
} | {"last_month": timedelta(days=30)}
ROLL_LIMIT_SECONDS = 40


def stats(trading_client: TradingClient, window: str | None = None) -> dict[str, Any]:
    answer = trading_client.get("/stats", **({"time_window": window} if window else {}))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_new_account_has_nothing_to_count(trading_client: TradingClient) -> None:
    found = stats(trading_client)
    assert found.pop("from") < found.pop("to")
    statuses = (
        "PENDING_NEW",
        "NEW",
        "PARTIALLY_FILLED",
        "PENDING_REPLACE",
        "PENDING_CANCEL",
        "UNKNOWN",
    )
    finals = ("FILLED", "CANCELLED", "EXPIRED", "REJECTED")
    assert found == {
        "time_window": "last_day",
        "actions": {"total": 0, "CREATE": 0, "REPLACE": 0, "CANCEL": 0},
        "intents": dict.fromkeys(("total", *statuses, *finals), 0),
        "symbols": [],
        "refused": {"total": 0, "by_reason": {}},
        "filled": [],
        "broker_ack_latency_ms": {"p50": None, "p99": None},
    }


def test_what_was_answered_is_counted_at_once(trading_client: TradingClient) -> None:
    intents = [
        trading_client.accepted(create(limit(), symbol))["intent_id"]
        for symbol in ("AAPL", "MSFT", "MSFT", "msft")
    ]
    trading_client.accepted(replace(intents[0], limit("11")))
    trading_client.accepted(cancel(intents[1]))
    for window in (None, *LENGTHS):
        found = stats(trading_client, window)
        assert found["actions"] == {"total": 6, "CREATE": 4, "REPLACE": 1, "CANCEL": 1}
        counted = {status: count for status, count in found["intents"].items() if count}
        assert counted == {"total": 4, "PENDING_NEW": 2, "PENDING_REPLACE": 1, "PENDING_CANCEL": 1}
        assert found["symbols"] == [
            {"symbol": "MSFT", "actions": 4},
            {"symbol": "AAPL", "actions": 2},
        ]
        assert found["filled"] == [
            {"symbol": s, "quantity": "0", "notional": "0"} for s in ("MSFT", "AAPL")
        ]


def test_the_worker_rolls_up_and_the_counts_stay(
    tenants: Tenants, tenants_database: Urls, trading_client: TradingClient, tables: Tables
) -> None:
    for _ in range(BEHIND_SEQS // 2):
        assert trading_client.submit(create()).status_code == 202
    before = stats(trading_client)

    def rolled() -> bool:
        query = "SELECT rolled_seq FROM stats_heads WHERE organization_id = $1::text::uuid"
        organization = trading_client.account["organization_id"]
        return bool((tables.value(query, organization) or 0) >= BEHIND_SEQS)

    data_dir = Path(tenants.platform.environ["TRADING_INTENTS_DATA_DIR"])
    urls = {
        "DATABASE_URL": tenants_database.login.reveal(),
        "DATABASE_OWNER_URL": tenants_database.owner.reveal(),
    }
    # Of which nothing is sent any more, so nothing is filled.
    account = f"/v1/accounts/{trading_client.account['id']}"
    assert trading_client.client.patch(
        account, json={"disabled": True}, headers=tenants.callers["admin"]
    ).is_success
    with serving(data_dir, **urls, ROLES="worker"):
        eventually(rolled, ROLL_LIMIT_SECONDS)
    after = stats(trading_client)
    assert after["intents"]["total"] == before["intents"]["total"]
    assert [after[name] for name in COUNTED] == [before[name] for name in COUNTED]


COUNTED = ("time_window", "actions", "symbols", "refused", "filled")


def test_a_refusal_is_counted_once_and_under_each_of_its_reasons(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    symbol = f"/v1/controls/accounts/{trading_client.account['id']}/symbols/AAPL"
    account = f"/v1/controls/accounts/{trading_client.account['id']}"
    for url in (symbol, account):
        assert trading_client.client.put(
            url, json={"manually_disabled": True}, headers=tenants.callers["admin"]
        ).is_success
    for name in ("AAPL", "AAPL", "MSFT"):
        assert trading_client.refused(create(symbol=name)) == (409, "control_rejected")
    found = stats(trading_client)
    by_reason = {"account_manually_disabled": 3, "symbol_manually_disabled": 2}
    assert found["refused"] == {"total": 3, "by_reason": by_reason}
    assert found["actions"]["total"] == 0


@pytest.mark.parametrize("window", LENGTHS)
def test_the_window_begins_at_a_bucket(trading_client: TradingClient, window: str) -> None:
    found = stats(trading_client, window)
    start, to = (datetime.fromisoformat(found[name]) for name in ("from", "to"))
    unit = timedelta(minutes=1) if window in ("last_hour", "last_day") else timedelta(hours=1)
    assert (start - datetime(2000, 1, 1, tzinfo=UTC)) % unit == timedelta(0)
    assert LENGTHS[window] <= to - start < LENGTHS[window] + unit
    assert found["time_window"] == window


@pytest.mark.parametrize("window", ["last_year", "", "LAST_DAY", "1"])
def test_another_window_is_refused(trading_client: TradingClient, window: str) -> None:
    answer = trading_client.client.get(
        trading_client.url + "/stats",
        params={"time_window": window},
        headers=trading_client.headers,
    )
    assert pointers(answer) == ["?time_window"]
    assert "last_hour, last_day, last_week or last_month" in answer.json()["errors"][0]["detail"]


def test_stats_of_another_tenant_are_not_found(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    assert (
        trading_client.client.get(
            trading_client.url + "/stats", headers=tenants.callers["other_key"]
        ).status_code
        == 404
    )
    assert (
        trading_client.client.get(
            trading_client.url + "/stats", headers=tenants.callers["key_live"]
        ).status_code
        == 403
    )


def test_each_account_has_its_own_counts(open_client: OpenClient) -> None:
    first = open_client()
    second = open_client()
    first.accepted(create())
    assert (stats(first)["actions"]["total"], stats(second)["actions"]["total"]) == (1, 0)
