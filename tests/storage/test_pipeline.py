"""Statements that leave together: run in order, refused from the first bad one on, and never mixed
up after a loss."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import uuid4

import msgspec
import psycopg
import pytest

from tests.conftest import Urls
from tests.old_postgres import postgres_15
from tests.proxy import proxied
from tests.waiting import eventually_async
from trading_intents.errors import Unavailable
from trading_intents.ids import IdText
from trading_intents.secret import Secret
from trading_intents.storage import pipeline as module
from trading_intents.storage.database import IDLE_LIMIT_SECONDS, SERVICE_ROLE
from trading_intents.storage.pipeline import (
    ConnectionDropped,
    ConnectionLost,
    Pipeline,
    PipelineRequest,
    Reply,
    RowParameters,
    Statement,
    StatementRefused,
    column_types,
)

ONE = [Statement("SELECT 1")]
ANSWER = [Reply("", [(b"1",)])]


@pytest.fixture
def pipeline(urls: Urls) -> Iterator[Pipeline]:
    made = Pipeline(urls.login, SERVICE_ROLE, lock_limit_seconds=0.02)
    yield made
    made.close()


async def run(pipeline: Pipeline, statements: Sequence[Statement]) -> list[Reply]:
    return await (await pipeline.connect()).run(statements)


async def test_answers_come_in_order_as_texts(pipeline: Pipeline) -> None:
    statements = [
        Statement("BEGIN"),
        Statement(
            "SELECT $1::text, $2::bytea, NULL, $3::text::int + 1", ("it's é", b"\0\xff", "41")
        ),
        Statement("SELECT n FROM generate_series(1, 3) n"),
        Statement("SELECT 1 WHERE false"),
        Statement("COMMIT"),
    ]
    for _ in range(2):  # prepared, then known
        begun, row, rows, none, committed = await run(pipeline, statements)
        assert (begun.tag, committed.tag) == ("BEGIN", "COMMIT")
        assert row.rows == [("it's é".encode(), rb"\x00ff", None, b"42")]
        assert rows.rows == [(b"1",), (b"2",), (b"3",)]
        assert none.rows == []


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    id: IdText
    text: str | None
    words: tuple[str, ...]
    count: int
    amount: Decimal | None
    done: bool
    at: datetime | None
    day: date | None


HOSTILE = [
    "",
    " ",
    "a,b",
    "{a}",
    '"',
    "'",
    "\\",
    "\\N",
    "NULL",
    "null",
    "é\U0001f600",
    "\n\t",
    "$1",
    None,
]


@pytest.mark.parametrize("count", [0, 1, len(HOSTILE)])
async def test_rows_arrive_as_they_were_sent(pipeline: Pipeline, count: int) -> None:
    moment = datetime(2026, 3, 2, 12, 30, 1, 234567, tzinfo=UTC)
    rows = [
        _Row(
            id=IdText(str(uuid4())),
            text=text,
            words=() if number % 3 == 0 else ("late_fill", "overfill")[: number % 3],
            count=number - 2**40,
            amount=None if number % 2 else Decimal(10) ** number + Decimal("1e-18"),
            done=number % 2 == 0,
            at=None if number % 3 else moment,
            day=None if number % 4 else moment.date(),
        )
        for number, text in enumerate(HOSTILE[:count])
    ]
    types = column_types(_Row)
    assert set(types.values()) == {
        "uuid",
        "text",
        "text[]",
        "bigint",
        "numeric",
        "boolean",
        "timestamptz",
        "date",
    }
    sent = RowParameters(types)
    query = f"SELECT row_to_json(n)::text FROM {sent.rows} AS n ORDER BY ordinality"
    (reply,) = await run(
        pipeline, [Statement(query, sent.pack(map(msgspec.structs.astuple, rows)))]
    )
    assert [msgspec.json.decode(text or b"", type=_Row) for (text,) in reply.rows] == rows


async def test_it_acts_as_the_services_role_by_indexes(pipeline: Pipeline) -> None:
    user, zone, seqscan = await run(
        pipeline,
        [
            Statement("SELECT current_user"),
            Statement("SHOW TimeZone"),
            Statement("SHOW enable_seqscan"),
        ],
    )
    assert [reply.rows for reply in (user, zone, seqscan)] == [
        [(b"ti_service",)],
        [(b"UTC",)],
        [(b"off",)],
    ]


async def test_what_follows_a_refused_statement_is_not_run(pipeline: Pipeline) -> None:
    for _ in range(2):
        with pytest.raises(StatementRefused) as refused:
            await run(
                pipeline, [Statement("BEGIN"), Statement("SELECT 1 / 0"), Statement("COMMIT")]
            )
        assert refused.value.code == "22012"
        (rolled_back, answer) = await run(pipeline, [Statement("ROLLBACK"), *ONE])
        assert (rolled_back.tag, [answer]) == ("ROLLBACK", ANSWER)


async def test_more_than_a_socket_takes_at_once_passes_both_ways(pipeline: Pipeline) -> None:
    large = "x" * 5_000_000
    replies = await run(pipeline, [Statement("SELECT upper($1::text)", (large,))] * 3)
    assert [reply.rows[0][0] for reply in replies] == [large.upper().encode()] * 3


async def test_what_takes_too_long_is_lost_and_the_next_is_answered_its_own(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await run(pipeline, ONE) == ANSWER
    monkeypatch.setattr(module, "RUN_LIMIT_SECONDS", 0.05)
    with pytest.raises(ConnectionLost):
        await run(pipeline, [Statement("SELECT pg_sleep(10)")])
    monkeypatch.undo()
    assert await run(pipeline, ONE) == ANSWER


async def test_a_caller_that_is_cancelled_takes_its_answer_with_it(pipeline: Pipeline) -> None:
    assert await run(pipeline, ONE) == ANSWER
    waiting = asyncio.create_task(run(pipeline, [Statement("SELECT pg_sleep(10)")]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await run(pipeline, ONE) == ANSWER


async def test_a_pipeline_whose_connection_ends_is_opened_again(urls: Urls) -> None:
    with proxied(urls.login) as (proxy, login):
        pipeline = Pipeline(login, SERVICE_ROLE)
        assert await run(pipeline, ONE) == ANSWER
        waiting = asyncio.create_task(run(pipeline, [Statement("SELECT pg_sleep(10)")]))
        await asyncio.sleep(0)
        proxy.refuse()
        with pytest.raises(ConnectionLost):
            await waiting
        with pytest.raises(Unavailable):
            await run(pipeline, ONE)
        proxy.work()

        async def is_opened_again() -> bool:
            try:
                return await run(pipeline, ONE) == ANSWER
            except Unavailable:  # it pauses between two attempts
                return False

        await eventually_async(is_opened_again, 20)
        pipeline.close()


async def test_a_wrong_password_is_never_shown(urls: Urls) -> None:
    wrong = type(urls.login)(urls.login.reveal().replace("@", "wrong@", 1))
    with pytest.raises(Unavailable) as unavailable:
        await run(Pipeline(wrong, SERVICE_ROLE), ONE)
    assert "wrong" not in str(unavailable.value)


@pytest.mark.slow
async def test_a_connection_that_ends_after_any_byte_of_the_answers_is_lost(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("CONNECT_LIMIT_SECONDS", "RUN_LIMIT_SECONDS"):
        monkeypatch.setattr(module, limit, 60)  # connections end by the proxy alone
    asked = [Statement("BEGIN"), Statement("SELECT 1"), Statement("SELECT 2"), Statement("COMMIT")]
    with proxied(urls.login) as (proxy, url):
        pipeline = Pipeline(url, SERVICE_ROLE)
        answered = len(await run(pipeline, asked))
        passed = 0
        lost = 0
        while True:
            await run(pipeline, asked)  # prepared
            await asyncio.to_thread(proxy.cut_after, passed, gently=True)
            try:
                assert len(await run(pipeline, asked)) == answered
                break
            except ConnectionLost:
                lost += 1
            await asyncio.to_thread(proxy.work)
            passed += 1
        pipeline.close()
    assert lost > 50


@pytest.mark.parametrize("ends", [5, pytest.param(20, marks=pytest.mark.chaos)])
async def test_a_connection_whose_end_is_not_seen_yet_is_lost_once_and_made_again(
    urls: Urls, pipeline: Pipeline, ends: int
) -> None:
    with psycopg.connect(urls.owner.reveal(), autocommit=True) as owner:
        for _ in range(ends):
            (found,) = await run(pipeline, [Statement("SELECT pg_backend_pid()")])
            # Not awaited: our loop must not see what came of it before it sends.
            owner.execute("SELECT pg_terminate_backend(%s, 5000)", [int(found.rows[0][0] or 0)])
            with pytest.raises(ConnectionLost):
                await run(pipeline, ONE)
            assert await run(pipeline, ONE) == ANSWER


BEGIN, TWO, COMMIT, ROLLBACK = (
    Statement(sql) for sql in ("BEGIN", "SELECT 2", "COMMIT", "ROLLBACK")
)
WRONG = Statement("SELECT 1 / 0")
# Something that a transaction leaves behind in its session if it was committed.
WRITE = Statement("SELECT set_config('test.written', 'yes', false)")
WRITTEN = [Statement("SELECT coalesce(current_setting('test.written', true), '') = 'yes'")]


async def first_replies(request: PipelineRequest, count: int = 2) -> list[Reply]:
    """Waits for so many answers, while the server may still wait for the rest."""

    async def arrived() -> bool:
        return len(request.replies) >= count or request.error is not None

    await eventually_async(arrived, 20)
    if request.error:
        raise request.error
    return request.replies[:count]


async def test_the_first_answers_come_before_the_rest_is_sent(pipeline: Pipeline) -> None:
    for _ in range(2):
        request = (await pipeline.connect()).send([BEGIN, *ONE], more=True)
        begun, one = await first_replies(request)
        assert (begun.tag, [one]) == ("BEGIN", ANSWER)
        request.append_statements([TWO], more=True)
        request.append_statements([COMMIT])
        replies = await request.all_replies()
        assert [reply.tag or reply.rows for reply in replies] == [
            "BEGIN",
            [(b"1",)],
            [(b"2",)],
            "COMMIT",
        ]


async def test_what_leaves_behind_another_is_answered_its_own(pipeline: Pipeline) -> None:
    first = (await pipeline.connect()).send([BEGIN, *ONE], more=True)
    await first_replies(first)
    first.append_statements([COMMIT])
    second = (await pipeline.connect()).send([BEGIN, TWO], more=True)
    second.append_statements([ROLLBACK])
    third = (await pipeline.connect()).send(ONE)
    assert [reply.tag or reply.rows for reply in await first.all_replies()] == [
        "BEGIN",
        [(b"1",)],
        "COMMIT",
    ]
    assert [reply.tag or reply.rows for reply in await first_replies(second)] == [
        "BEGIN",
        [(b"2",)],
    ]
    assert await third.all_replies() == ANSWER


@pytest.mark.parametrize("is_first", [True, False])
async def test_nothing_is_run_after_what_was_refused(pipeline: Pipeline, is_first: bool) -> None:
    for _ in range(2):
        opened = await pipeline.connect()
        request = opened.send([BEGIN, *([WRONG] if is_first else ONE)], more=True)
        if is_first:
            with pytest.raises(StatementRefused):
                await first_replies(request)
        else:
            await first_replies(request)
            request.append_statements([WRONG], more=True)
        request.append_statements([WRITE, COMMIT])
        with pytest.raises(StatementRefused):
            await request.all_replies()
        with pytest.raises(ConnectionDropped):
            await opened.run([WRITE])
        assert await run(pipeline, WRITTEN) == [Reply("", [(b"f",)])]


async def test_after_a_lock_that_was_refused_the_connection_goes_on(
    urls: Urls, pipeline: Pipeline
) -> None:
    """Not so after any other refusal, whose reason may be what the connection has prepared."""
    lock = Statement("SELECT pg_advisory_xact_lock(1)")
    opened = await pipeline.connect()
    with psycopg.connect(urls.owner.reveal()) as holder:
        holder.execute("SELECT pg_advisory_lock(1)")
        for _ in range(2):
            request = (await pipeline.connect()).send([BEGIN, *ONE], more=True)
            request.append_statements([lock], more=True)
            request.append_statements([WRITE], more=True)
            request.append_statements([COMMIT])
            with pytest.raises(StatementRefused) as refused:
                await request.all_replies()
            assert refused.value.is_contention
            assert await opened.run(ONE) == ANSWER, (
                "COMMIT has ended the transaction, and rolled it back"
            )
            assert await run(pipeline, WRITTEN) == [Reply("", [(b"f",)])]
    await run(pipeline, [BEGIN, lock, COMMIT])
    assert await pipeline.connect() is opened
    with pytest.raises(StatementRefused):
        await run(pipeline, [WRONG])
    assert await pipeline.connect() is not opened


@pytest.mark.parametrize(
    ("code", "stays_open"),
    [
        ("55P03", True),  # lock_not_available
        ("40P01", True),  # deadlock_detected
        ("40001", True),  # serialization_failure
        ("0A000", False),  # what a prepared statement gives whose columns have changed
        ("26000", False),  # invalid_sql_statement_name: it is not prepared any more
        ("23505", False),
        ("57014", False),
    ],
)
async def test_only_contention_leaves_the_connection_open(
    pipeline: Pipeline, code: str, stays_open: bool
) -> None:
    opened = await pipeline.connect()
    with pytest.raises(StatementRefused) as refused:
        await run(
            pipeline, [Statement(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$")]
        )
    assert refused.value.code == code
    assert (await pipeline.connect() is opened) == stays_open
    assert await run(pipeline, ONE) == ANSWER


@pytest.fixture(params=["embedded", pytest.param("PostgreSQL 15", marks=pytest.mark.slow)])
def login(request: pytest.FixtureRequest) -> Iterator[Secret]:
    if request.param == "embedded":
        yield request.getfixturevalue("urls").login
        return
    with postgres_15() as url, psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {SERVICE_ROLE}")
        yield Secret(url)


async def test_a_transaction_whose_rest_does_not_come_is_ended_by_the_server(
    login: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends it by a timer of its own: a stopped process runs none, whatever it sent
    last."""
    monkeypatch.setattr(module, "RUN_LIMIT_SECONDS", 60.0)
    await asyncio.gather(*(send_no_rest(login, parts) for parts in (1, 2, 3)))


async def send_no_rest(login: Secret, parts: int) -> None:
    pipeline = Pipeline(login, SERVICE_ROLE)
    request = (await pipeline.connect()).send([BEGIN, *ONE], more=True)
    for _ in range(parts - 1):
        request.append_statements([TWO], more=True)
    await first_replies(request)

    async def is_over() -> bool:
        return pipeline.open_connection is None

    assert not await is_over()
    await eventually_async(is_over, IDLE_LIMIT_SECONDS + 0.8)
    request.append_statements([COMMIT])
    with pytest.raises(ConnectionLost):
        await request.all_replies()


async def test_a_transaction_that_takes_too_long_is_ended_by_the_server(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is lost with it. PostgreSQL 15 and 16 have no such limit."""
    monkeypatch.setattr(module, "RUN_LIMIT_SECONDS", 60.0)
    monkeypatch.setattr(module, "TRANSACTION_LIMIT_SECONDS", 0.5)
    request = (await pipeline.connect()).send([BEGIN, Statement("SELECT pg_sleep(60)")])
    with pytest.raises(ConnectionLost):
        async with asyncio.timeout(module.TRANSACTION_LIMIT_SECONDS + 20):
            await request.all_replies()


async def test_a_statement_ends_with_the_connection_that_was_given_up(
    urls: Urls, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(pipeline, ONE)
    monkeypatch.setattr(module, "RUN_LIMIT_SECONDS", 0.05)
    with pytest.raises(ConnectionLost):
        await run(pipeline, [Statement("SELECT pg_sleep(60)")])
    with psycopg.connect(urls.owner.reveal(), autocommit=True) as owner:

        async def is_over() -> bool:
            sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
            return owner.execute(f"{sleeping} AND datname = current_database()").fetchone() == (0,)

        await eventually_async(is_over, 20)


async def test_statements_after_a_lost_connection_are_lost_and_never_sent_on_another(
    pipeline: Pipeline,
) -> None:
    opened = await pipeline.connect()
    request = opened.send([BEGIN, *ONE], more=True)
    await first_replies(request)
    pipeline.close()
    assert await run(pipeline, ONE) == ANSWER, "on a new one"
    request.append_statements([COMMIT])
    for lost in (request, opened.send([COMMIT])):
        with pytest.raises(ConnectionDropped):
            await lost.all_replies()
