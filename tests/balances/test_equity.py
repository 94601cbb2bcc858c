"""GET equity from outside: which spans are shown, who may read them, and what is refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.intents.http_client import Tables, TradingClient, pointers
from tests.prices.conftest import OpenClient
from tests.tenants import Tenants
from trading_intents.clock import rfc3339

DAY = datetime(2026, 3, 4, tzinfo=UTC)
SPANS = {"1m": timedelta(minutes=1), "1h": timedelta(hours=1), "1d": timedelta(days=1)}


def get(client: TradingClient, **query: str) -> Any:
    url = f"/v1/accounts/{client.account['id']}/equity"
    return client.client.get(url, params=query, headers=client.headers)


def ats(client: TradingClient, **query: str) -> list[str]:
    answer = get(client, **query)
    assert answer.status_code == 200, answer.text
    return [each["at"] for each in answer.json()["data"]]


def put_points(tables: Tables, client: TradingClient, resolution: str, *moments: datetime) -> None:
    for at in moments:
        tables.execute(
            """
                INSERT INTO equity_points
                VALUES ($1::text::uuid, $2::text::uuid, $3, $4, 1000, 900.50, 1, -2)
            """,
            *(client.account["id"], client.account["organization_id"], resolution, at),
        )


def test_a_new_account_has_no_equity_over_time(open_client: OpenClient) -> None:
    assert get(open_client()).json() == {"data": []}


@pytest.mark.parametrize("resolution", SPANS)
def test_from_is_inclusive_and_to_exclusive_both_rounded_down(
    open_client: OpenClient, tables: Tables, resolution: str
) -> None:
    client = open_client()
    span = SPANS[resolution]
    put_points(tables, client, resolution, *(DAY + n * span for n in range(4)))
    shown = [rfc3339(DAY + n * span) for n in range(4)]
    bounds = {"from": rfc3339(DAY + span + span / 2), "to": rfc3339(DAY + 3 * span + span / 2)}
    assert ats(client, resolution=resolution, **bounds) == shown[1:3]
    assert ats(client, resolution=resolution, to=rfc3339(DAY + 9 * span)) == shown
    [first, *_] = get(client, resolution=resolution, to=rfc3339(DAY + 9 * span)).json()["data"]
    assert first == {
        "at": shown[0], "equity": "1000", "cash": "900.5", "realized_pnl": "1", "unrealized_pnl": "-2",
    }  # fmt: skip


@pytest.mark.parametrize("resolution", SPANS)
def test_spans_until_the_end_of_the_running_one_are_the_default(
    open_client: OpenClient, tables: Tables, resolution: str
) -> None:
    client = open_client()
    span = SPANS[resolution]
    now = datetime.now(UTC)
    begun = now - (now - DAY) % span
    steps = (-1500, -2, 0, 2)
    put_points(tables, client, resolution, *(begun + step * span for step in steps))
    shown = [rfc3339(begun + step * span) for step in (-2, 0)]
    assert ats(client, resolution=resolution) == shown
    start = rfc3339(begun - 2 * span)
    assert ats(client, resolution=resolution, **{"from": start}) == shown
    assert ats(client, resolution=resolution, **{"from": start, "to": rfc3339(now)}) == shown[:1]


def test_hours_are_the_default_of_the_resolution(open_client: OpenClient, tables: Tables) -> None:
    client = open_client()
    for resolution, span in SPANS.items():
        put_points(tables, client, resolution, DAY + span)
    assert ats(client, **{"from": rfc3339(DAY), "to": rfc3339(DAY + SPANS["1d"])}) == [
        rfc3339(DAY + SPANS["1h"])
    ]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"resolution": "5m"}, "?resolution"),
        ({"from": "yesterday"}, "?from"),
        ({"to": "2026-03-04"}, "?to"),
        (
            {"from": "2026-01-01T00:00:00Z", "to": "2026-03-04T13:01:00Z", "resolution": "1h"},
            "?from",
        ),
        ({"form": "2026-01-01T00:00:00Z"}, "?form"),
    ],
)
def test_a_wrong_range_is_refused(
    open_client: OpenClient, query: dict[str, str], pointer: str
) -> None:
    assert pointers(get(open_client(), **query)) == [pointer]


def test_1500_spans_are_the_most_and_odd_times_are_no_error(open_client: OpenClient) -> None:
    client = open_client()
    start = DAY
    end = DAY + timedelta(hours=1500)
    assert get(client, **{"from": rfc3339(start), "to": rfc3339(end)}).status_code == 200
    assert (
        get(client, **{"from": rfc3339(start), "to": rfc3339(end + timedelta(hours=1))}).status_code
        == 422
    )
    assert ats(client, **{"from": rfc3339(end), "to": rfc3339(start)}) == []
    assert ats(client, to="0001-01-01T00:00:00Z") == []
    assert ats(client, **{"from": "9999-12-31T23:59:59Z"}) == []


def test_equity_is_read_like_balances(open_client: OpenClient, tenants: Tenants) -> None:
    url = f"/v1/accounts/{open_client().account['id']}/equity"
    expected = {
        "key_all": 200,
        "read_only": 200,
        "key_live": 403,
        "other_key": 404,
        "key_none": 403,
        "none": 401,
    }
    for caller, status in expected.items():
        assert (caller, tenants.client.get(url, headers=tenants.callers[caller]).status_code) == (
            caller,
            status,
        )
