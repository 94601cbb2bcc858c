"""What cannot be read is told before who may not, and before what is not there: 400, then 403, then 404."""

import uuid

import pytest

from tests.tenants import World

ACCOUNT = f"/v1/accounts/{uuid.UUID(int=1)}"
BAD_PAGES = ({"limit": "x"}, {"limit": "-1"}, {"next_cursor": "=="}, {"next_cursor": "é"})


@pytest.mark.parametrize("path", ["/v1/accounts", f"{ACCOUNT}/credentials", f"{ACCOUNT}/intents"])
@pytest.mark.parametrize("query", BAD_PAGES)
@pytest.mark.parametrize("caller", ["key_none", "admin"])
def test_a_bad_page_is_400_whoever_asks_for_whatever(
    world: World, path: str, query: dict[str, str], caller: str
) -> None:
    assert world.client.get(path, params=query, headers=world.callers[caller]).status_code == 400


@pytest.mark.parametrize("key", ["", "x" * 129, "a\tb"])
@pytest.mark.parametrize("caller", ["key_none", "key_all"])
def test_a_bad_idempotency_key_is_400_whoever_sends_it(world: World, key: str, caller: str) -> None:
    headers = world.callers[caller] | {"idempotency-key": key}
    assert world.client.post(f"{ACCOUNT}/intents", json={}, headers=headers).status_code == 400


@pytest.mark.parametrize("caller", ["key_none", "key_all"])
def test_a_bad_if_match_is_400_whoever_sends_it(world: World, caller: str) -> None:
    headers = world.callers[caller] | {"if-match": "3"}
    assert world.client.patch(ACCOUNT, json={}, headers=headers).status_code == 400


def test_nobody_at_all_is_401_first(world: World) -> None:
    assert world.client.get("/v1/accounts", params={"limit": "x"}).status_code == 401
