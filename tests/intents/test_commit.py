"""The link is cut exactly at COMMIT, before it arrives or before it is answered: nobody is told anything wrong."""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.conftest import Urls
from tests.intents.desk import Body, Tables, create
from tests.intents.office import Office, codes, open_office
from tests.intents.test_writer import whole
from tests.platform import Platform, serving
from tests.proxy import CHUNK_BYTES, FaultProxy
from tests.storage.proxy import Link, linked
from tests.waiting import eventually_async
from tests.world import EVERY_PERMISSION, PLENTY, Headers, key
from trading_intents.intents.writing.writer import MAX_LOST_COMMITS

CUTS = 200
CROWD = 4
COMMIT = b"commit_"  # how the name of the writer's prepared statement begins


class CutAtCommit:
    """Cuts every COMMIT of a write while there are cuts left to make, before it or after it by chance."""

    def __init__(self, link: Link) -> None:
        self.made = {"before": 0, "after": 0}
        self._link, self._chance = link, random.Random(1)
        self._pass, link.upstream = link.upstream, self.look  # type: ignore[method-assign]  # a fault of this test's own
        self.left, self.chance_of_before = 0, 0.5

    async def look(self, data: bytes) -> bool:
        """The writer's COMMIT leaves together with its writes."""
        passes = await self._pass(data)
        if COMMIT not in data or self.left <= 0:
            return passes
        self.left -= 1
        if self._chance.random() < self.chance_of_before:
            self.made["before"] += 1
            raise ConnectionResetError
        self.made["after"] += 1
        return False


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, as the path of a socket must be."""
    with tempfile.TemporaryDirectory(prefix="ti") as name:
        yield Path(name)


@pytest.fixture
async def cutting(urls: Urls, folder: Path) -> AsyncIterator[tuple[Office, CutAtCommit]]:
    async with linked(urls.login, folder) as (link, login), open_office(login, urls.owner) as office:
        yield office, CutAtCommit(link)


class CuttingProxy(FaultProxy):
    """Ends the link of a write at its COMMIT while there are cuts left: by turns unsent, and sent but unanswered."""

    made = 0
    left = 0

    async def _ask(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await client.read(CHUNK_BYTES):
            is_cut = COMMIT in data and self.left > 0
            if is_cut:
                self.left -= 1
                self.made += 1
            if not is_cut or self.made % 2:
                server.write(data)
                await server.drain()
            if is_cut:
                return


@pytest.fixture
def cut_platform(urls: Urls, tmp_path: Path) -> Iterator[tuple[Platform, CuttingProxy]]:
    """One API process whose way to PostgreSQL leads through the proxy."""
    direct = urlsplit(urls.login.reveal())
    (folder,) = parse_qs(direct.query)["host"]
    proxy = CuttingProxy(Path(folder, ".s.PGSQL.5432"))
    with proxy.running():
        through = direct._replace(netloc=f"{direct.netloc}127.0.0.1:{proxy.port}", query="sslmode=disable")
        settings = {"DATABASE_URL": through.geturl(), "DATABASE_OWNER_URL": urls.owner.reveal(), "ROLES": "api"}
        with serving(tmp_path, **settings, **PLENTY) as platform:
            yield platform, proxy


def trader(platform: Platform) -> tuple[Headers, str]:
    account = {"name": "a", "broker": "paper", "environment": "paper"}
    keys = [key("k", "paper", EVERY_PERMISSION)]
    document = {"organizations": [{"external_id": "o", "accounts": [account], "api_keys": keys}]}
    made = platform.apply(document)["organizations"][0]
    return {"x-api-key": made["api_keys"][0]["api_key"]}, f"/v1/accounts/{made['accounts'][0]['id']}/intents"


def is_keyed(name: str) -> bool:
    return name.endswith(("0", "2"))


def test_two_hundred_cuts_at_commit_double_nothing_and_tell_nothing_wrong(
    cut_platform: tuple[Platform, CuttingProxy], urls: Urls
) -> None:
    platform, proxy = cut_platform
    headers, url = trader(platform)
    told: dict[str, tuple[int, Body]] = {}

    def send(name: str) -> tuple[int, Body]:
        """Every other one has no key, which would hide that it was recorded twice."""
        body = create() | {"client_reference_id": name}
        keyed = {"idempotency-key": name} if is_keyed(name) else {}
        answer = platform.client.post(url, json=body, headers=headers | keyed)
        assert "idempotent-replayed" not in answer.headers or name in told
        return answer.status_code, answer.json()

    with ThreadPoolExecutor(CROWD) as threads:
        for number in range(CUTS):
            names = [f"{number}-{n}" for n in range(CROWD)]
            proxy.left = 1
            told |= zip(names, threads.map(send, names), strict=True)
            proxy.left = 0
    assert proxy.made > CUTS * 0.9
    with closing(Tables(urls.owner)) as tables:
        rows = tables.fetch(
            "SELECT seq, intent_id::text, record::jsonb ->> 'client_reference_id' AS name FROM actions ORDER BY seq"
        )
        recorded = {row["name"]: {"intent_id": row["intent_id"], "seq": row["seq"]} for row in rows}
        assert len(recorded) == len(rows), "nothing is recorded twice"
        assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
        for name, (status, said) in told.items():
            if status == 202:
                assert recorded[name] == said
            else:
                assert (status, said["code"]) in ((503, "unavailable"), (503, "outcome_unknown")), said
                assert said["code"] == "outcome_unknown" or name not in recorded
                if is_keyed(name) or name not in recorded:
                    again = send(name)
                    assert again[0] == 202, "the same key settles it"
                    assert again[1] == recorded.get(name, again[1])
        counts = tables.counts()
        assert [counts[table] for table in ("actions", "orders")] == [len(told)] * 2
        assert counts["stream_events"] == 2 * len(told)
    assert [status for status, _ in told.values()].count(202) > len(told) // 2, "the server is asked how it ended"


async def test_a_commit_whose_answer_is_lost_is_told_as_recorded(cutting: tuple[Office, CutAtCommit]) -> None:
    """The server can be asked at once, so nobody is left in doubt; and what did not arrive is simply sent again."""
    office, cut = cutting
    for number in range(1, 21):
        cut.left = 1
        outcome = await office.writer.submit(office.create(office.accounts[0]))
        assert outcome.seq == number
    assert cut.left == 0
    assert await whole(office) == [20]


async def test_a_commit_that_never_arrives_is_given_up(cutting: tuple[Office, CutAtCommit]) -> None:
    """The server knows that nothing was recorded each time; but what ends it whenever it commits must not go on."""
    office, cut = cutting
    cut.left, cut.chance_of_before = 100, 1.0
    outcome = await asyncio.wait_for(office.submit(office.create(office.accounts[0])), 10)
    assert codes([outcome]) == ["unavailable"]
    assert cut.made == {"before": MAX_LOST_COMMITS + 1, "after": 0}
    assert await office.count("actions") == 0
    cut.left = 0
    assert codes([await office.submit(office.create(office.accounts[0]))]) == ["recorded"]


async def test_an_end_that_stays_unknown_is_told_so(cutting: tuple[Office, CutAtCommit], urls: Urls) -> None:
    """Nobody can be asked for three seconds: it may be recorded or not, and the answer says just that."""
    office, cut = cutting
    await office.writer.submit(office.create(office.accounts[0]))
    cut.left = 1
    link = cut._link
    waiting = asyncio.create_task(office.submit(office.create(office.accounts[0])))
    while cut.left:
        await asyncio.sleep(0)
    link.cut_before = b""  # every further message is cut
    assert codes([await waiting]) == ["outcome_unknown"]
    link.cut_before = b"\0never"
    assert await office.count("actions") in (1, 2)

    async def back() -> bool:
        return codes([await office.submit(office.create(office.accounts[0]))]) == ["recorded"]

    await eventually_async(back, 5)
    await whole(office)
