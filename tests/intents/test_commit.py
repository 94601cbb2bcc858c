"""The connection is cut exactly at COMMIT, before it arrives or before it is answered: no caller
gets a wrong answer."""

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import Urls
from tests.intents.cut_commits import CutAtCommit, trader
from tests.intents.http_client import Body, Tables, create
from tests.intents.in_process_writer import InProcessWriter, codes, open_in_process_writer
from tests.intents.writer_checks import whole
from tests.journal import COUNT_MESSAGES
from tests.platform import Platform, serving
from tests.proxy import Verdict, proxied
from tests.seeds import seeded
from tests.tenants import PLENTY
from tests.waiting import eventually_async
from trading_intents.intents.writing.writer import MAX_LOST_COMMITS

CALLERS = 4
NO_LOGIN = b"SFATAL\0VFATAL\0C28000\0Mrole is not permitted to log in\0\0"
ANSWER_LIMIT_SECONDS = 10


@pytest.fixture
def cut() -> CutAtCommit:
    return CutAtCommit()


@pytest.fixture
async def in_process_writer(urls: Urls, cut: CutAtCommit) -> AsyncIterator[InProcessWriter]:
    """By chance a commit is cut before it arrives, or before it is answered."""
    chance = seeded("cuts")
    cut.choose = lambda: chance.choice((Verdict.CUT_UNSENT, Verdict.CUT_UNANSWERED))
    with proxied(urls.login, cut.look) as (_, login):
        async with open_in_process_writer(login, urls.owner) as in_process_writer:
            yield in_process_writer


@pytest.fixture
def cut_platform(urls: Urls, tmp_path: Path, cut: CutAtCommit) -> Iterator[Platform]:
    """One API process whose way to PostgreSQL is cut at COMMIT, by turns before and right after it
    is sent."""
    turns = itertools.cycle((Verdict.CUT_SENT, Verdict.CUT_UNSENT))
    cut.choose = lambda: next(turns)
    with proxied(urls.login, cut.look) as (_, login):
        settings = {
            "DATABASE_URL": login.reveal(),
            "DATABASE_OWNER_URL": urls.owner.reveal(),
            "ROLES": "api",
        }
        with serving(tmp_path, **settings, **PLENTY) as platform:
            yield platform


def is_keyed(name: str) -> bool:
    return name.endswith(("0", "2"))


@pytest.mark.parametrize("cuts", [8, pytest.param(200, marks=pytest.mark.chaos)])
def test_cuts_at_commit_double_nothing_and_are_answered_correctly(
    cut_platform: Platform, cut: CutAtCommit, urls: Urls, cuts: int
) -> None:
    headers, url = trader(cut_platform)
    answered: dict[str, tuple[int, Body]] = {}

    def send(name: str) -> tuple[int, Body]:
        """Every other one has no key, which would hide that it was recorded twice."""
        body = create() | {"client_reference_id": name}
        keyed = {"idempotency-key": name} if is_keyed(name) else {}
        answer = cut_platform.client.post(url, json=body, headers=headers | keyed)
        assert "idempotent-replayed" not in answer.headers or name in answered
        return answer.status_code, answer.json()

    with ThreadPoolExecutor(CALLERS) as threads:
        for number in range(cuts):
            names = [f"{number}-{n}" for n in range(CALLERS)]
            cut.left = 1
            answered |= zip(names, threads.map(send, names), strict=True)
            cut.left = 0
    assert sum(cut.made.values()) > cuts * 0.9
    with closing(Tables(urls.owner)) as tables:
        rows = tables.fetch(
            """
                SELECT seq, intent_id::text, record::jsonb ->> 'client_reference_id' AS name
                FROM actions ORDER BY seq
            """
        )
        recorded = {row["name"]: {"intent_id": row["intent_id"], "seq": row["seq"]} for row in rows}
        assert len(recorded) == len(rows), "nothing is recorded twice"
        assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
        for name, (status, said) in answered.items():
            if status == 202:
                assert recorded[name] == said
            else:
                assert (status, said["code"]) in ((503, "unavailable"), (503, "outcome_unknown")), (
                    said
                )
                assert said["code"] == "outcome_unknown" or name not in recorded
                if is_keyed(name) or name not in recorded:
                    again = send(name)
                    assert again[0] == 202, "the same key settles it"
                    assert again[1] == recorded.get(name, again[1])
        counts = tables.counts()
        assert [counts[table] for table in ("actions", "orders")] == [len(answered)] * 2
        assert tables.value(COUNT_MESSAGES) == 2 * len(answered)
    assert [status for status, _ in answered.values()].count(202) > len(answered) // 2, (
        "the server is asked how it ended"
    )


async def test_a_commit_whose_answer_is_lost_is_answered_as_recorded(
    in_process_writer: InProcessWriter, cut: CutAtCommit
) -> None:
    """The server can be asked at once, so nobody is left in doubt; and what did not arrive is
    simply sent again."""
    for number in range(1, 21):
        cut.left = 1
        outcome = await in_process_writer.writer.submit(
            in_process_writer.create(in_process_writer.accounts[0])
        )
        assert outcome.seq == number
    assert cut.left == 0
    assert await whole(in_process_writer) == [20]


async def test_a_commit_that_never_arrives_is_given_up(
    in_process_writer: InProcessWriter, cut: CutAtCommit
) -> None:
    """The server knows that nothing was recorded each time; but what ends it whenever it commits
    must not go on."""
    cut.left = 100
    cut.choose = lambda: Verdict.CUT_UNSENT
    outcome = await asyncio.wait_for(
        in_process_writer.submit(in_process_writer.create(in_process_writer.accounts[0])), 10
    )
    assert codes([outcome]) == ["unavailable"]
    assert cut.made[Verdict.CUT_UNSENT] == sum(cut.made.values()) == MAX_LOST_COMMITS + 1
    assert await in_process_writer.count("actions") == 0
    cut.left = 0
    assert codes(
        [await in_process_writer.submit(in_process_writer.create(in_process_writer.accounts[0]))]
    ) == ["recorded"]


@pytest.mark.parametrize(
    "after",
    [Verdict.CUT_UNSENT, b"E" + struct.pack("!i", 4 + len(NO_LOGIN)) + NO_LOGIN],
    ids=["away", "refusing"],
)
async def test_a_commit_whose_end_stays_unknown_is_answered_as_unknown(
    in_process_writer: InProcessWriter, cut: CutAtCommit, after: Verdict | bytes
) -> None:
    """Nobody can be asked for three seconds: it may be recorded or not, and the answer says just
    that."""
    await in_process_writer.writer.submit(in_process_writer.create(in_process_writer.accounts[0]))
    cut.left = 1
    cut.is_last = True
    cut.after = after
    async with asyncio.timeout(ANSWER_LIMIT_SECONDS):
        outcome = await in_process_writer.submit(
            in_process_writer.create(in_process_writer.accounts[0])
        )
    assert codes([outcome]) == ["outcome_unknown"]
    cut.is_over = False
    assert await in_process_writer.count("actions") in (1, 2)

    async def back() -> bool:
        return codes(
            [
                await in_process_writer.submit(
                    in_process_writer.create(in_process_writer.accounts[0])
                )
            ]
        ) == ["recorded"]

    await eventually_async(back, 20)
    await whole(in_process_writer)
