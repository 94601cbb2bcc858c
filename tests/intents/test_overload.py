"""Ten times as many commands as are allowed: the rest get Retry-After, and CANCELs are served."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import Urls
from tests.intents.cut_commits import trader
from tests.intents.http_client import cancel, create, limit
from tests.platform import Platform, serving
from tests.raw_http import QuickClient, RawHttp
from tests.tenants import PLENTY, Headers
from tests.waiting import eventually

pytestmark = pytest.mark.slow

BURST = 40
CANCELS = 200
LIMIT_SECONDS = 30


@pytest.fixture
def limited(urls: Urls, tmp_path: Path) -> Iterator[Platform]:
    settings = {
        "DATABASE_URL": urls.login.reveal(),
        "DATABASE_OWNER_URL": urls.owner.reveal(),
        "ROLES": "api",
    }
    with serving(
        tmp_path, **settings, **(PLENTY | {"RATE_LIMIT_SUBMITS": f"1/{BURST}"})
    ) as platform:
        yield platform


def test_many_keys_of_an_organization_get_no_more_than_its_limit(
    urls: Urls, tmp_path: Path
) -> None:
    settings = {
        "DATABASE_URL": urls.login.reveal(),
        "DATABASE_OWNER_URL": urls.owner.reveal(),
        "ROLES": "api",
    }
    shared = {"RATE_LIMIT_ORGANIZATION_SUBMITS": f"1/{BURST}"}
    with serving(tmp_path, **settings, **(PLENTY | shared)) as platform:
        traders = [trader(platform, name) for name in ("one", "other")]
        headers, url = traders[0]
        admin = {"authorization": f"Bearer {platform.token('one-admin', 'one')}"}
        keys = [headers, *(make_key(platform, admin, number) for number in range(4))]
        answers = [
            platform.client.post(url, json=create(limit()), headers=keys[n % 5])
            for n in range(BURST + 20)
        ]
        accepted = [answer for answer in answers if answer.status_code == 202]
        assert BURST <= len(accepted) < BURST + 20
        refused = [answer for answer in answers if answer.status_code == 429]
        assert {answer.json()["limit"] for answer in refused} == {"organization"}
        # CANCELs, and other organizations, have limits of their own.
        intent = accepted[0].json()["intent_id"]
        assert platform.client.post(url, json=cancel(intent), headers=headers).status_code == 202
        other, other_url = traders[1]
        assert (
            platform.client.post(other_url, json=create(limit()), headers=other).status_code == 202
        )


def test_stopping_counts_as_a_cancel_and_is_served_when_nothing_else_is(
    urls: Urls, tmp_path: Path
) -> None:
    settings = {
        "DATABASE_URL": urls.login.reveal(),
        "DATABASE_OWNER_URL": urls.owner.reveal(),
        "ROLES": "api",
    }
    rates = {"RATE_LIMIT_SUBMITS": "1/1", "RATE_LIMIT_WRITES": "1/1", "RATE_LIMIT_CANCELS": "1/8"}
    with serving(tmp_path, **settings, **(PLENTY | rates)) as platform:
        headers, url = trader(platform)
        controls = url.replace("/v1/accounts", "/v1/controls/accounts").removesuffix("/intents")
        intent = platform.client.post(url, json=create(limit()), headers=headers).json()[
            "intent_id"
        ]
        more = [
            platform.client.post(url, json=create(limit()), headers=headers).status_code
            for _ in range(10)
        ]
        assert 429 in more
        bodies = {"halt": {"reason": "stop", "cancel_orders": False}, "resume": None}
        paths = [f"{controls}/halt", f"{controls}/resume", f"{url}/cancel-all", url]
        wanted = [202, 200, 202, 202]
        for path, status in zip(paths, wanted, strict=True):
            body = cancel(intent) if path == url else bodies.get(path.rpartition("/")[2], {})
            answer = platform.client.post(path, json=body, headers=headers)
            assert (answer.status_code, answer.headers["ratelimit"].partition(";")[0]) == (
                status,
                '"cancels"',
            ), path
        while (
            answer := platform.client.post(f"{url}/cancel-all", json={}, headers=headers)
        ).status_code == 202:
            pass
        assert (answer.status_code, answer.json()["limit"]) == (429, "principal")


def test_requests_that_cannot_be_read_or_are_not_allowed_count_as_submits(
    limited: Platform,
) -> None:
    headers, url = trader(limited)
    admin = {"authorization": f"Bearer {limited.token('o-admin', 'o')}"}
    json = {"content-type": "application/json"}
    requests = {
        400: (url, b"{", json),
        413: (url, b" " * 100_000, json),
        415: (url, b"{}", {"content-type": "text/plain"}),
        422: (f"{url}?dry_run=1", b"{}", json),
        403: (url, b"{}", json),
    }
    # The 64 KiB that are read of it, and what is more: a token for each 8 KiB begun.
    costs = {413: 9}
    for status, (path, body, media) in requests.items():
        caller = make_key(limited, admin, status, [] if status == 403 else ["intent:edit"]) | media
        answers = [
            limited.client.post(path, content=body, headers=caller) for _ in range(3 * BURST)
        ]
        assert answers[0].status_code == status
        assert (
            answers[0]
            .headers["ratelimit"]
            .startswith(f'"submits";r={BURST - costs.get(status, 1)};')
        ), status
        assert {answer.status_code for answer in answers} == {status, 429}
    intent = limited.client.post(url, json=create(limit()), headers=headers).json()["intent_id"]
    assert limited.client.post(url, json=cancel(intent), headers=headers).status_code == 202


def make_key(
    platform: Platform, admin: Headers, number: int, permissions: Sequence[str] = ("intent:edit",)
) -> Headers:
    body = {"name": f"k{number}", "environment": "paper", "permissions": list(permissions)}
    answer = platform.client.post("/v1/api-keys", json=body, headers=admin)
    assert answer.status_code == 201, answer.text
    return {"x-api-key": answer.json()["api_key"]}


def test_cancels_are_served_while_the_other_submits_are_limited(limited: Platform) -> None:
    headers, url = trader(limited)
    first = limited.client.post(url, json=create(limit()), headers=headers)
    assert first.status_code == 202, first.text
    intent = first.json()["intent_id"]
    over = threading.Event()
    codes = Counter[int]()

    def flood() -> None:
        with QuickClient(limited.url, headers=headers, timeout=10) as client:
            while not over.is_set():
                answer = client.post(url, json=create(limit()))
                codes[answer.status_code] += 1
                if answer.status_code == 429:
                    assert int(answer.headers["retry-after"]) >= 1
                    assert answer.headers["ratelimit"].startswith('"submits";r=0')

    with ThreadPoolExecutor(4) as threads, RawHttp(limited.url, headers) as line:
        flooding = [threads.submit(flood) for _ in range(4)]
        try:
            eventually(lambda: codes[429] > 0, LIMIT_SECONDS)
            answers = Counter(line.post(url, cancel(intent)).status_code for _ in range(CANCELS))
            # There were more than were allowed.
            eventually(lambda: codes[429] > codes[202], LIMIT_SECONDS)
        finally:
            over.set()
        for task in flooding:
            task.result()
    assert answers == {202: CANCELS}
    assert set(codes) == {202, 429}
