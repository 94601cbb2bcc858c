"""Lists and their cursors, over real HTTP."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.web.conftest import ROWS, Site
from trading_intents.errors import InvalidCursor
from trading_intents.web.paging import make_cursor, open_cursor


async def test_a_reader_sees_every_row_once(site: Site) -> None:
    seen: list[str] = []
    cursor: str | None = None
    while True:
        query = {"limit": "33"} | ({"next_cursor": cursor} if cursor else {})
        page = (await site.client.get("/v1/lists/ada", params=query)).json()
        seen += [row["text"] for row in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ROWS


@pytest.mark.parametrize(
    ("limit", "rows"),
    [
        (None, 50),
        ("1", 1),
        ("0", 1),
        ("100", 100),
        ("101", 100),
        ("9" * 5000, 100),
        ("007", 7),
        ("0" * 20 + "3", 3),
    ],
)
async def test_the_limit_is_clamped(site: Site, limit: str | None, rows: int) -> None:
    answer = await site.client.get(
        "/v1/lists/ada", params={} if limit is None else {"limit": limit}
    )
    assert len(answer.json()["data"]) == rows


@pytest.mark.parametrize("limit", ["-1", "x", "", "1.5", "1e2", "+1", " 1", "\u0661", "null"])
async def test_a_limit_that_is_no_number_is_400(site: Site, limit: str) -> None:
    answer = await site.client.get("/v1/lists/ada", params={"limit": limit})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_a_cursor_fits_its_own_list_only(site: Site) -> None:
    cursor = (await site.client.get("/v1/lists/ada")).json()["next_cursor"]
    assert (
        await site.client.get("/v1/lists/ada", params={"next_cursor": cursor})
    ).status_code == 200
    answer = await site.client.get("/v1/lists/bob", params={"next_cursor": cursor})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


@pytest.mark.parametrize(
    "cursor", ["x", "====", "AAAA", "A" * 300, "ä", "' OR 1=1", "a\x00b", "AAAAAAAAAAAAAAAA"]
)
async def test_a_bad_cursor_is_400(site: Site, cursor: str) -> None:
    answer = await site.client.get("/v1/lists/ada", params={"next_cursor": cursor})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


async def test_a_parameter_given_twice_is_400(site: Site) -> None:
    assert (await site.client.get("/v1/lists/ada?limit=1&limit=2")).status_code == 400


@given(
    st.text(),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
)
def test_a_cursor_opens_to_its_position(name: str, position: str) -> None:
    assert open_cursor(name, make_cursor(name, position)) == position


@pytest.mark.parametrize("position", ["\0", "a\0b"])
async def test_a_forged_cursor_with_nul_is_400(site: Site, position: str) -> None:
    answer = await site.client.get(f"/v1/lists/ada?next_cursor={make_cursor('rows:ada', position)}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


@given(st.text(), st.text(max_size=40), st.data())
def test_a_changed_cursor_never_opens(name: str, position: str, data: st.DataObject) -> None:
    cursor = make_cursor(name, position)
    at = data.draw(st.integers(0, len(cursor) - 1))
    other = data.draw(st.sampled_from([c for c in "ABYZaz09-_=+/ " if c != cursor[at]]))
    with pytest.raises(InvalidCursor):
        open_cursor(name, cursor[:at] + other + cursor[at + 1 :])
