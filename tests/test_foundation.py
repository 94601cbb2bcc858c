"""The ground that everything stands on: time, ids, secrets and log lines."""

import asyncio
import io
import json
import logging
import re
import traceback
import uuid
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from tests.fakes import START, ManualClock
from trading_intents.clock import SystemClock, rfc3339
from trading_intents.errors import StartupRefused
from trading_intents.ids import id_maker, id_text_maker, parse_id
from trading_intents.loops import Wakeup, repeat
from trading_intents.secret import Secret
from trading_intents.telemetry import Metrics, library_messages, make_log

MARKER = "s3cret-marker"
GOOD_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


def test_an_id_is_a_uuid7_of_the_clocks_millisecond() -> None:
    made = id_maker(ManualClock())()
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == int(START.timestamp() * 1000)
    assert parse_id(str(made)) == made


def test_an_id_made_as_text_is_one_of_the_given_millisecond() -> None:
    make = id_text_maker()
    later = START + timedelta(hours=1)
    made = [parse_id(make(at)) for at in (START, later, START)]
    assert [each and (each.version, each.variant, each.int >> 80) for each in made] == [
        (7, uuid.RFC_4122, int(at.timestamp() * 1000)) for at in (START, later, START)
    ]


def test_ids_of_later_milliseconds_sort_later() -> None:
    clock = ManualClock()
    make = id_maker(clock)
    made = []
    for _ in range(100):
        made.append(make())
        clock.advance(0.001)
    assert made == sorted(made)
    assert sorted(map(str, made)) == list(map(str, made))


def test_ids_of_one_millisecond_differ() -> None:
    make = id_maker(ManualClock())
    make_text = id_text_maker()
    assert len({make() for _ in range(10_000)}) == 10_000
    assert len({make_text(START) for _ in range(10_000)}) == 10_000


@pytest.mark.parametrize("as_text", [False, True])
def test_every_random_bit_of_an_id_is_used(as_text: bool) -> None:
    make = id_maker(ManualClock())
    make_text = id_text_maker()
    ever_one = 0
    ever_zero = 0
    for _ in range(200):
        value = (uuid.UUID(make_text(START)) if as_text else make()).int
        ever_one = ever_one | value
        ever_zero = ever_zero | ~value
    assert (ever_one & ever_zero & ((1 << 80) - 1)).bit_count() == 74


@pytest.mark.parametrize(
    "text",
    [
        "{" + GOOD_ID + "}",
        "urn:uuid:" + GOOD_ID,
        GOOD_ID.replace("-", ""),
        GOOD_ID.upper(),
        GOOD_ID + "\n",
        " " + GOOD_ID,
        GOOD_ID[:-1],
        GOOD_ID + "0",
        GOOD_ID.replace("0", "g"),
        GOOD_ID.replace("-", "_"),
        GOOD_ID.replace("0", "\u0660"),
        "",
    ],
)
def test_only_one_spelling_of_an_id_is_taken(text: str) -> None:
    assert parse_id(GOOD_ID) == uuid.UUID(GOOD_ID)
    assert parse_id(text) is None


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 1, 5, 15, tzinfo=UTC), "2026-01-05T15:00:00.000000Z"),
        (datetime(2026, 1, 5, 15, 0, 0, 1, tzinfo=UTC), "2026-01-05T15:00:00.000001Z"),
        (
            datetime(2026, 1, 5, 1, tzinfo=timezone(timedelta(hours=2))),
            "2026-01-04T23:00:00.000000Z",
        ),
    ],
)
def test_a_timestamp_leaves_in_utc_with_microseconds(moment: datetime, text: str) -> None:
    assert rfc3339(moment) == text


def test_the_system_clock_is_in_utc() -> None:
    clock = SystemClock()
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() <= clock.monotonic()


async def test_repeated_work_goes_on_after_an_error_and_runs_at_once_when_woken() -> None:
    wakeup = Wakeup()
    errors = list[tuple[str, str]]()
    runs = asyncio.Queue[None]()

    async def work() -> float:
        runs.put_nowait(None)
        if not errors:
            raise ValueError("the first time")
        return 3600.0

    repeating = asyncio.create_task(
        repeat(work, 0.0, lambda name, error: errors.append((name, str(error))), wakeup)
    )
    try:
        async with asyncio.timeout(10):
            await runs.get()
            await runs.get()
            wakeup.wake()
            await runs.get()
    finally:
        repeating.cancel()
    assert errors == [("work", "the first time")]


def test_a_secret_is_shown_by_nothing_but_reveal() -> None:
    secret = Secret(MARKER)
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!s:>40}",
        f"{secret}",
        "%s" % secret,  # noqa: UP031 - every way counts
        repr([secret]),
    ]
    assert not [text for text in shown if MARKER in text]
    assert secret.reveal() == MARKER


def test_no_encoder_takes_a_secret() -> None:
    with pytest.raises(TypeError) as by_json:
        json.dumps({"key": Secret(MARKER)})
    with pytest.raises(TypeError) as by_msgspec:
        msgspec.json.encode({"key": Secret(MARKER)})
    assert MARKER not in str(by_json.value) + str(by_msgspec.value)


def test_neither_a_log_line_nor_a_traceback_shows_a_secret() -> None:
    out = io.StringIO()
    secret = Secret(MARKER)
    try:
        raise StartupRefused(f"cannot use {secret}")
    except StartupRefused as error:
        make_log("debug", out).error(
            "failed", secret=secret, nested={"in": [secret]}, exc_info=error
        )
        trace = "".join(
            traceback.TracebackException.from_exception(error, capture_locals=True).format()
        )
    assert '"secret": "Secret(***)"' in out.getvalue()
    assert MARKER not in out.getvalue()
    assert re.search(r"secret = Secret\(\*\*\*\)", trace)


def test_secrets_are_equal_by_their_text_and_empty_ones_are_false() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert not Secret("")


@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\u2028", "\x85", "\x0b", "\x00", "\x1b[2J"])
def test_a_value_with_line_breaks_stays_one_json_line(breaks: str) -> None:
    out = io.StringIO()
    make_log("info", out).info("logged" + breaks, reason=f"first{breaks}second")
    assert len(out.getvalue().splitlines()) == 1
    line = json.loads(out.getvalue())
    assert line["reason"] == f"first{breaks}second"
    assert line["timestamp"].endswith("Z")


def test_a_line_and_its_end_are_written_at_once() -> None:
    """Several processes write to one log: another's line must not come between the two."""
    written: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    make_log("info", Stream()).info("logged")
    assert [text[-1:] for text in written] == ["\n"]


def test_a_traceback_stays_in_its_json_line() -> None:
    out = io.StringIO()
    make_log("info", out).error("failed", exc_info=ValueError("two\nlines"))
    assert len(out.getvalue().splitlines()) == 1
    assert "ValueError: two\nlines" in json.loads(out.getvalue())["exception"]


def test_lines_below_the_level_are_not_written() -> None:
    out = io.StringIO()
    log = make_log("warning", out)
    log.info("quiet")
    log.warning("heard")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["heard"]


def test_each_process_has_its_own_metrics() -> None:
    one = Metrics()
    other = Metrics()
    one.postgres_starts.inc()
    assert one.registry.get_sample_value("ti_embedded_postgres_starts_total") == 1
    assert other.registry.get_sample_value("ti_embedded_postgres_starts_total") == 0


def test_what_a_library_logs_is_a_line_of_ours() -> None:
    out = io.StringIO()
    library = logging.getLogger("library.of.another")
    with library_messages(make_log("info", out)):
        library.error("it %s\nat once", "broke", exc_info=ZeroDivisionError("why"))
        library.info("nobody asked")
    library.error("after the end")
    [line] = out.getvalue().splitlines()
    logged = json.loads(line)
    assert (logged["event"], logged["level"]) == ("library message", "error")
    assert (logged["logger"], logged["detail"]) == ("library.of.another", "it broke\nat once")
    assert "ZeroDivisionError: why" in logged["exception"]
