"""Guessing keys is limited by address; a real key still works elsewhere, here once Retry-After has
passed, and here at once if it was verified before, or stops trading."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.conftest import Databases
from tests.platform import Platform, serving
from tests.raw_http import RawHttp, Reply
from tests.waiting import eventually
from trading_intents.identity.keys import make_key
from trading_intents.trading import Environment
from trading_intents.web.limits import LATE_VERIFICATIONS

NO_ID = "01a1ddf6-8899-707d-b118-000000000000"
STOPS = {
    ("POST", "/v1/accounts/{account_id}/intents"),
    ("POST", "/v1/accounts/{account_id}/intents/cancel-all"),
    ("POST", "/v1/controls/accounts/{account_id}/halt"),
    ("POST", "/v1/controls/organization/halt"),
}
VALIDATE = "/api/v1/auth/api-key/validate"
FAILURES_A_SECOND = 20
TOKEN_SECONDS = 1 / FAILURES_A_SECOND

pytestmark = pytest.mark.deadline


@pytest.fixture(scope="module")
def platform(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    limits = {"RATE_LIMIT_READS": "20/400", "RATE_LIMIT_FAILURES": f"{FAILURES_A_SECOND}/400"}
    with databases() as urls:
        settings = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
        with serving(
            tmp_path_factory.mktemp("guessed"), **settings, **limits, ROLES="api"
        ) as platform:
            yield platform


@pytest.fixture(scope="module")
def real(platform: Platform) -> str:
    document = {"external_id": "o1", "api_keys": [{"name": "bot", "environment": "paper"}]}
    answer = platform.provision({"organizations": [document]})
    key: str = answer["organizations"][0]["api_keys"][0]["api_key"]
    return key


# Each guesses from an address of its own.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "address", "guesses"),
    [
        ("validation", "127.0.0.2", 1_000),
        ("header", "127.0.0.4", 1_000),
        pytest.param("validation", "127.0.0.6", 10_000, marks=pytest.mark.chaos),
        pytest.param("header", "127.0.0.8", 2_000, marks=pytest.mark.chaos),
    ],
)
def test_thousands_of_guesses_are_limited(
    platform: Platform, real: str, how: str, address: str, guesses: int
) -> None:
    def ask(line: RawHttp, key: str) -> Reply:
        if how == "validation":
            return line.post(VALIDATE, {"api_key": key})
        return line.get("/v1/api-keys", {"x-api-key": key})

    url = platform.url
    with RawHttp(url, local_address=address) as here:
        began_at = time.monotonic()
        answers = [ask(here, make_key(Environment.PAPER).reveal()) for _ in range(guesses)]
        took_seconds = time.monotonic() - began_at
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {401, 429}
        assert statuses[:400] == [401] * 400
        assert statuses.count(401) <= 400 + 20 * took_seconds + 1
        with RawHttp(url, local_address="127.0.0.3") as elsewhere:
            assert _known(ask(elsewhere, real))
        last = ask(here, real)
        while last.status_code != 429:
            last = ask(here, make_key(Environment.PAPER).reveal())
        assert last.headers["ratelimit-policy"].endswith(";q=400;w=20")
        assert int(last.headers["retry-after"]) == 1
        eventually(lambda: _known(ask(here, real)), int(last.headers["retry-after"]))


def use_up(line: RawHttp) -> None:
    while line.get("/v1/brokers", {"x-api-key": "no key"}).status_code != 429:
        pass


def secured(platform: Platform) -> Iterator[tuple[str, str]]:
    """Every route that needs a credential."""
    for path, operations in platform.client.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            if operation.get("security"):
                yield method.upper(), path


def test_at_every_route_a_verified_key_passes_the_limit_and_an_unknown_one_where_it_stops_trading(
    platform: Platform, real: str
) -> None:
    routes = list(secured(platform))
    assert set(routes) > STOPS
    with RawHttp(platform.url, local_address="127.0.0.5") as here:
        assert here.get("/v1/brokers", {"x-api-key": real}).status_code == 200
        for method, path in routes:
            use_up(here)
            path_asked = path.replace("{", "").replace("}", "")
            answer = here.ask(method, path_asked, {"x-api-key": real})
            assert answer.status_code != 429, (method, path)
            expected = 401 if (method, path) in STOPS else 429
            assert guess_beyond_the_limit(here, method, path_asked).count(expected) >= 2, path


def guess_beyond_the_limit(here: RawHttp, method: str, path: str) -> list[int]:
    """The answers to three guesses, of which a token came back for one at most: on a busy host it
    may come back for two, and then others are tried."""
    for _ in range(20):
        use_up(here)
        guesses = [make_key(Environment.PAPER).reveal() for _ in range(3)]
        began = time.monotonic()
        answers = [here.ask(method, path, {"x-api-key": guess}).status_code for guess in guesses]
        if time.monotonic() - began < TOKEN_SECONDS:
            return answers
    raise AssertionError("three guesses took longer than a token")


def refused_key(platform: Platform, line: RawHttp) -> str:
    """A key that the process never verified. A token that comes back in the moment between would
    have it verified: then another one is tried."""
    for number in range(20):
        document = {
            "external_id": f"o2-{number}",
            "api_keys": [{"name": "bot", "environment": "paper"}],
        }
        key: str = platform.provision({"organizations": [document]})["organizations"][0][
            "api_keys"
        ][0]["api_key"]
        use_up(line)
        if line.get("/v1/brokers", {"x-api-key": key}).status_code == 429:
            return key
    raise AssertionError("no key was refused beyond the limit")


def test_beyond_the_limit_a_key_that_was_never_seen_stops_trading(platform: Platform) -> None:
    path = f"/v1/accounts/{NO_ID}/intents/cancel-all"
    with RawHttp(platform.url, local_address="127.0.0.7") as here:
        key = refused_key(platform, here)
        eventually(lambda: here.post(path, {}, {"x-api-key": "no key"}).status_code == 429, 5)
        assert here.post(path, {}, {"x-api-key": key}).status_code == 403
        use_up(here)
        assert here.get("/v1/brokers", {"x-api-key": key}).status_code == 200, (
            "it is verified from now on"
        )


def test_beyond_the_limit_twenty_well_formed_keys_a_second_are_verified(platform: Platform) -> None:
    path = f"/v1/accounts/{NO_ID}/intents/cancel-all"
    with RawHttp(platform.url, local_address="127.0.0.8") as here:
        began = time.monotonic()
        use_up(here)
        count = 4 * LATE_VERIFICATIONS.burst
        statuses = [
            here.post(path, {}, {"x-api-key": make_key(Environment.PAPER).reveal()})
            for _ in range(count)
        ]
        counted = Counter(answer.status_code for answer in statuses)
        # Tokens of both buckets come back meanwhile, 20 a second each.
        refilled = 2 * LATE_VERIFICATIONS.per_second * (time.monotonic() - began)
        assert LATE_VERIFICATIONS.burst <= counted[401] <= LATE_VERIFICATIONS.burst + refilled + 1
        assert counted[401] + counted[429] == count


def _known(answer: Reply) -> bool:
    """A validation answers 200; at an endpoint for users a real key is refused for its kind."""
    return answer.status_code == 200 or "this kind" in answer.json()["detail"]
