"""Lists as CSV, where `Accept` prefers it to JSON."""

import csv
import io
from typing import Any
from uuid import UUID

import httpx
import pytest

from tests.execution.api_only_platform import ApiOnlyPlatform
from tests.execution.recorded_orders import Books, fill, reported
from trading_intents.brokers.port import EventKind as E
from trading_intents.intents.writing.record import LinkedRecord

LISTS = ("intents", "orders", "trades", "positions")
CSV = "text/csv; charset=utf-8"
JSON = "application/json"
PROBLEM = "application/problem+json"


def get(
    platform: ApiOnlyPlatform, account: UUID, path: str, accept: str = "text/csv", **query: Any
) -> httpx.Response:
    return platform.get(account, path, platform.headers | {"accept": accept}, **query)


def rows_of(answer: httpx.Response) -> list[dict[str, str]]:
    assert (answer.status_code, answer.headers["content-type"]) == (200, CSV), answer.text
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


# Of the second version of the record.
LATER_FIELDS = {"leg", "parent_intent_id", "trail_amount", "trail_bps"}


def cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(value) if isinstance(value, list) else "" if value is None else str(value)


@pytest.mark.parametrize("path", LISTS)
async def test_a_page_as_csv_has_the_values_of_its_json(
    shown: Books, api_platform: ApiOnlyPlatform, path: str
) -> None:
    (account,) = shown.accounts
    sent = await shown.create("10", limit="187.50", reference='my, "17"')
    sold = await shown.create("4", side="SELL")
    await shown.record(
        reported(E.CANCELLED, sent, at=1),
        fill(sent, "e1", "12", "187.25", at=2, fee="0.1"),
        fill(sold, "e2", "4", "12"),
    )
    listed = None
    answer = None
    # The price of a position moves.
    while answer is None or listed != api_platform.read(account, path)["data"]:
        listed = api_platform.read(account, path)["data"]
        answer = get(api_platform, account, path)
    header, *lines = answer.content.decode().split("\r\n")
    names = header.split(",")
    assert [name for name in names if name in listed[0]] == list(listed[0])
    assert set(names) - set(listed[0]) == (LATER_FIELDS if path == "intents" else set())
    assert rows_of(answer) == [{name: cell(row.get(name)) for name in names} for row in listed]
    assert (len(lines), lines[-1]) == (len(listed) + 1, ""), "each line ends with CRLF"
    if path == "orders":
        assert rows_of(answer)[0]["flags"] == "late_fill overfill"


@pytest.mark.parametrize("path", LISTS)
async def test_an_empty_list_is_its_header_alone(
    shown: Books, api_platform: ApiOnlyPlatform, path: str
) -> None:
    (empty,) = shown.accounts
    answer = get(api_platform, empty, path)
    assert rows_of(answer) == []
    assert answer.text.count("\r\n") == 1
    assert "link" not in answer.headers
    if path == "intents":
        assert answer.text == ",".join((*sorted(LinkedRecord.__struct_fields__), "hash")) + "\r\n"


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("text/csv", CSV),
        ("TEXT/CSV; header=present", CSV),
        ("text/*", CSV),
        ("application/json;q=0.5, text/csv;q=0.501", CSV),
        ("application/json;q=0.9, text/csv", CSV),
        ("application/*;q=0.1, */*;q=0.2", CSV),
        ("text/csv;q=0.1, application/json;q=0", CSV),
        ("text/csv, application/json", JSON),
        ("text/csv;q=0.5, application/json;q=0.6", JSON),
        ("text/csv;q=0.5, */*", JSON),
        ("text/csv;q=0, */*;q=0.1", JSON),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", JSON),
        ("text/csv;q=2", JSON),
        ("text/csv;q=high", JSON),
        ("*/*", JSON),
        ("application/json", JSON),
        ("image/png", JSON),
        ("", JSON),
    ],
)
async def test_the_preferred_type_is_answered(
    shown: Books, api_platform: ApiOnlyPlatform, accept: str, media: str
) -> None:
    answer = get(api_platform, shown.accounts[0], "orders", accept)
    assert (answer.headers["content-type"], answer.headers["vary"].lower()) == (media, "accept")


async def test_a_header_in_two_lines_is_one(shown: Books, api_platform: ApiOnlyPlatform) -> None:
    lines = [
        *api_platform.headers.items(),
        ("accept", "application/json;q=0.1"),
        ("accept", "text/csv;q=0.2"),
    ]
    answer = api_platform.client.get(f"/v1/accounts/{shown.accounts[0]}/orders", headers=lines)
    assert answer.headers["content-type"] == CSV


@pytest.mark.parametrize(
    ("reference", "shown_as"),
    [
        ("=1+1", "'=1+1"),
        ("+x", "'+x"),
        ("-x", "'-x"),
        ("@a", "'@a"),
        ("-1.5", "-1.5"),
        ("+7", "+7"),
        ("a=1", "a=1"),
    ],
)
async def test_no_spreadsheet_takes_a_text_for_a_formula(
    shown: Books, api_platform: ApiOnlyPlatform, reference: str, shown_as: str
) -> None:
    await shown.create("10", reference=reference)
    (row,) = rows_of(get(api_platform, shown.accounts[0], "orders"))
    assert row["client_reference_id"] == shown_as


async def test_a_short_position_is_a_number(shown: Books, api_platform: ApiOnlyPlatform) -> None:
    sold = await shown.create("4", side="SELL_SHORT")
    await shown.record(fill(sold, "e1", "4", "12"))
    (row,) = rows_of(get(api_platform, shown.accounts[0], "positions"))
    assert row["quantity"] == "-4"


async def test_links_lead_through_all_pages_with_their_query(
    shown: Books, api_platform: ApiOnlyPlatform
) -> None:
    made = [str((await shown.create("10", reference="a b&c")).order_id) for _ in range(5)]
    asked = httpx.URL(f"http://platform/v1/accounts/{shown.accounts[0]}/orders")
    query = {"state": "OPEN", "client_reference_id": "a b&c", "limit": "2", "order": "desc"}
    answer = get(api_platform, shown.accounts[0], "orders", **query)
    seen = list[str]()
    while True:
        seen += [row["order_id"] for row in rows_of(answer)]
        if "link" not in answer.headers:
            break
        link = answer.headers["link"]
        assert link.startswith("<")
        assert link.endswith('>; rel="next"')
        following = asked.join(link[1:].partition(">")[0])
        assert following.copy_remove_param("next_cursor").params == httpx.QueryParams(query)
        headers = api_platform.headers | {"accept": "text/csv"}
        answer = api_platform.client.get(following.raw_path.decode(), headers=headers)
    assert seen == made[::-1]


async def test_errors_stay_problems(shown: Books, api_platform: ApiOnlyPlatform) -> None:
    (account,) = shown.accounts
    for answer in (
        get(api_platform, account, "orders", next_cursor="x"),
        get(api_platform, account, "orders", state="none"),
        get(api_platform, UUID(int=7), "orders"),
        api_platform.client.get(f"/v1/accounts/{account}/orders", headers={"accept": "text/csv"}),
    ):
        assert answer.is_client_error
        assert answer.headers["content-type"] == PROBLEM


async def test_other_answers_are_json_whatever_is_accepted(
    shown: Books, api_platform: ApiOnlyPlatform
) -> None:
    sent = await shown.create("10")
    (account,) = shown.accounts
    for path in (f"orders/{sent.order_id}", f"intents/{sent.order_id}/actions", "balances"):
        assert get(api_platform, account, path).headers["content-type"] == JSON
