"""Guessing keys is limited by address; a real key still works elsewhere, and here once Retry-After has passed."""

from collections.abc import Iterator

import pytest

from tests.conftest import Databases
from tests.platform import Platform, serving
from tests.raw_http import RawHttp, Reply
from tests.waiting import eventually
from trading_intents.identity.keys import make_key
from trading_intents.trading import Environment

VALIDATE = "/api/v1/auth/api-key/validate"

pytestmark = pytest.mark.deadline


@pytest.fixture(scope="module")
def platform(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    limits = {"RATE_LIMIT_READS": "20/400", "RATE_LIMIT_FAILURES": "20/400"}
    with databases() as urls:
        settings = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
        with serving(tmp_path_factory.mktemp("guessed"), **settings, **limits) as platform:
            yield platform


@pytest.fixture(scope="module")
def real(platform: Platform) -> str:
    document = {"external_id": "o1", "api_keys": [{"name": "bot", "environment": "paper"}]}
    answer = platform.provision({"organizations": [document]})
    key: str = answer["organizations"][0]["api_keys"][0]["api_key"]
    return key


# Each guesses from an address of its own.
@pytest.mark.parametrize(
    ("how", "address", "guesses"),
    [
        ("validation", "127.0.0.2", 2_000),
        ("header", "127.0.0.4", 2_000),
        pytest.param("validation", "127.0.0.6", 10_000, marks=pytest.mark.chaos),
    ],
)
def test_thousands_of_guesses_are_limited(platform: Platform, real: str, how: str, address: str, guesses: int) -> None:
    def ask(line: RawHttp, key: str) -> Reply:
        if how == "validation":
            return line.post(VALIDATE, {"api_key": key})
        return line.get("/v1/api-keys", {"x-api-key": key})

    url = platform.url
    with RawHttp(url, local_address=address) as here:
        answers = [ask(here, make_key(Environment.PAPER).reveal()) for _ in range(guesses)]
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {401, 429}
        assert statuses[:400] == [401] * 400
        assert statuses.count(401) < guesses / 5 + 400
        with RawHttp(url, local_address="127.0.0.3") as elsewhere:
            assert _known(ask(elsewhere, real))
        last = ask(here, real)
        while last.status_code != 429:
            last = ask(here, make_key(Environment.PAPER).reveal())
        assert last.headers["ratelimit-policy"].endswith(";q=400;w=20")
        assert int(last.headers["retry-after"]) == 1
        eventually(lambda: _known(ask(here, real)), int(last.headers["retry-after"]))


def _known(answer: Reply) -> bool:
    """A validation answers 200; at an endpoint for users a real key is refused for its kind."""
    return answer.status_code == 200 or "this kind" in answer.json()["detail"]
