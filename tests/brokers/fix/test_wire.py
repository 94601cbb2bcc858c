"""The meaning of FIX messages, every ExecType and OrdStatus; and that any bytes are cut into the
same messages, or none."""

import random
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.brokers.fix.counterparty import framed
from tests.brokers.fix.venue import write_profile
from trading_intents.brokers.fix import wire
from trading_intents.brokers.fix.broker import PROFILES, read_venue
from trading_intents.brokers.fix.messages import (
    Framer,
    ReceivedMessage,
    encode,
    masked,
    parse,
    parse_time,
    readable,
)
from trading_intents.brokers.fix.wire import Venue
from trading_intents.brokers.port import BrokerEvent, EventKind, LookupKind

E = EventKind
NEW_YORK = "America/New_York"
ORDER = {37: "V1", 11: "c2", 17: "E1", 55: "ACME", 54: "1", 38: "10", 151: "6", 14: "4", 6: "100"}


def received(msg_type: str = "8", **tags: str) -> ReceivedMessage:
    fields = (
        {35: msg_type}
        | (ORDER if msg_type == "8" else {})
        | {int(tag[1:]): text for tag, text in tags.items()}
    )
    return ReceivedMessage(3, 7, parse(encode("FIX.4.4", list(fields.items()))))


def events(msg_type: str = "8", **tags: str) -> list[BrokerEvent]:
    return list(wire.events_of(received(msg_type, **tags)))


@pytest.mark.parametrize(
    ("tags", "kind", "client_order_id"),
    [
        ({"t150": "0", "t39": "0"}, E.ACCEPTED, "c2"),
        ({"t150": "3", "t39": "3", "t59": "0"}, E.EXPIRED, "c2"),
        ({"t150": "3", "t39": "3", "t59": "1"}, E.STATUS, "c2"),
        ({"t150": "3", "t39": "3"}, E.EXPIRED, "c2"),
        ({"t150": "4", "t39": "4", "t41": "c1"}, E.CANCELLED, "c1"),
        ({"t150": "4", "t39": "4"}, E.CANCELLED, "c2"),
        ({"t150": "5", "t39": "5", "t41": "c1"}, E.REPLACED, "c2"),
        ({"t150": "6", "t39": "6", "t41": "c1"}, E.PENDING_CANCEL, "c1"),
        ({"t150": "7", "t39": "7"}, E.STATUS, "c2"),
        ({"t150": "8", "t39": "8"}, E.REJECTED, "c2"),
        ({"t150": "9", "t39": "9"}, E.STATUS, "c2"),
        ({"t150": "B", "t39": "B"}, E.STATUS, "c2"),
        ({"t150": "C", "t39": "C"}, E.EXPIRED, "c2"),
        ({"t150": "D", "t39": "0"}, E.REPLACED, "c2"),
        ({"t150": "D", "t39": "0", "t38": ""}, E.STATUS, "c2"),
        ({"t150": "E", "t39": "E"}, E.PENDING_REPLACE, "c2"),
        ({"t150": "F", "t39": "1", "t32": "4", "t31": "100"}, E.FILL, "c2"),
        ({"t150": "1", "t39": "1", "t20": "0", "t32": "4", "t31": "100"}, E.FILL, "c2"),
        ({"t150": "2", "t39": "2", "t38": "4", "t20": "0", "t32": "4", "t31": "100"}, E.FILL, "c2"),
        ({"t150": "F", "t39": "1", "t32": "0", "t31": "0"}, E.STATUS, "c2"),
        ({"t150": "G", "t39": "1", "t19": "E0", "t32": "4", "t31": "99"}, E.FILL_CORRECT, "c2"),
        ({"t150": "H", "t39": "0", "t19": "E0"}, E.FILL_BUST, "c2"),
        ({"t150": "1", "t39": "1", "t20": "1", "t19": "E0"}, E.FILL_BUST, "c2"),
        (
            {"t150": "1", "t39": "1", "t20": "2", "t19": "E0", "t32": "4", "t31": "99"},
            E.FILL_CORRECT,
            "c2",
        ),
        ({"t150": "L", "t39": "0"}, E.TRIGGERED, "c2"),
        ({"t150": "?", "t39": "0"}, E.STATUS, "c2"),
    ],
)
def test_a_report_is_one_event(tags: dict[str, str], kind: EventKind, client_order_id: str) -> None:
    (event,) = events(**tags)
    assert (event.kind, event.client_order_id, event.broker_order_id) == (
        kind,
        client_order_id,
        "V1",
    )
    assert event.dedupe_key.startswith("fix:3:V1:"), (
        "a reset venue may use its ids again, for other orders"
    )


def test_a_pending_new_is_no_event() -> None:
    assert events(t150="A", t39="A") == []


@pytest.mark.parametrize(
    ("tags", "kinds"),
    [
        ({"t39": "A"}, []),
        ({"t39": "0", "t14": "0"}, [E.ACCEPTED]),
        ({"t39": "1"}, [E.ACCEPTED, E.STATUS]),
        ({"t39": "2", "t38": "4"}, [E.ACCEPTED, E.STATUS]),
        ({"t39": "2"}, [E.ACCEPTED, E.STATUS, E.REPLACED]),
        ({"t39": "4"}, [E.ACCEPTED, E.STATUS, E.CANCELLED]),
        ({"t39": "C", "t14": "0"}, [E.ACCEPTED, E.EXPIRED]),
        ({"t39": "3", "t59": "0"}, [E.ACCEPTED, E.STATUS, E.EXPIRED]),
        ({"t39": "3"}, [E.ACCEPTED, E.STATUS, E.EXPIRED]),
        ({"t39": "3", "t59": "1"}, [E.ACCEPTED, E.STATUS]),
        ({"t39": "8"}, [E.REJECTED]),
        ({"t39": "8", "t103": "5"}, []),
        ({"t39": "8", "t37": "NONE"}, []),
    ],
)
@pytest.mark.parametrize("how", [{"t150": "I"}, {"t150": "0", "t20": "3"}], ids=["4.4", "4.2"])
def test_a_status_is_the_events_that_lead_to_it(
    tags: dict[str, str], kinds: list[EventKind], how: dict[str, str]
) -> None:
    assert [event.kind for event in events(**how | tags)] == kinds
    message = received(**how | tags).message
    assert wire.is_absent(message) == ("t103" in tags or "t37" in tags)
    assert wire.answered_id(message) == (None if wire.is_absent(message) else "c2")


@pytest.mark.parametrize(
    ("tags", "kinds"),
    [
        ({"t150": "F", "t39": "4", "t151": "0"}, [E.FILL, E.CANCELLED]),
        ({"t150": "F", "t39": "C", "t151": "0"}, [E.FILL, E.EXPIRED]),
        ({"t150": "F", "t39": "3", "t151": "0"}, [E.FILL, E.EXPIRED]),
        ({"t150": "F", "t39": "3", "t59": "1"}, [E.FILL]),
        ({"t150": "F", "t39": "8", "t151": "0"}, [E.FILL, E.CANCELLED]),
        ({"t150": "1", "t20": "0", "t39": "4"}, [E.FILL, E.CANCELLED]),
        ({"t150": "F", "t39": "2", "t151": "0"}, [E.FILL, E.REPLACED]),
        ({"t150": "F", "t39": "2", "t151": "0", "t38": "4"}, [E.FILL]),
        ({"t150": "F", "t39": "2", "t151": "0", "t38": "3"}, [E.FILL]),
        ({"t150": "F", "t39": "1", "t151": "6"}, [E.FILL]),
        ({"t150": "H", "t39": "2", "t19": "E0"}, [E.FILL_BUST]),
        ({"t150": "G", "t39": "2", "t19": "E0"}, [E.FILL_CORRECT]),
        ({"t150": "7", "t39": "4"}, [E.STATUS, E.CANCELLED]),
        ({"t150": "D", "t39": "4"}, [E.REPLACED, E.CANCELLED]),
        ({"t150": "4", "t39": "4"}, [E.CANCELLED]),
        ({"t150": "8", "t39": "8"}, [E.REJECTED]),
    ],
)
def test_a_report_shows_what_the_venue_calls_over(
    tags: dict[str, str], kinds: list[EventKind]
) -> None:
    found = events(**{"t32": "4", "t31": "100"} | tags)
    assert [event.kind for event in found] == kinds
    assert {event.client_order_id for event in found} == {"c2"}
    is_over = len(kinds) > 1 or tags["t150"] in "48" or tags["t39"] == "2"
    assert wire.order_of(received(**tags).message) == ("V1", not is_over)
    ends = {E.CANCELLED: {"t150": "4", "t39": "4"}, E.EXPIRED: {"t150": "C", "t39": "C"}}
    if (end := found[-1].kind) in ends:
        (own,) = events(**ends[end])
        assert found[-1].dedupe_key == own.dedupe_key, "the venue may report the end itself too"


@pytest.mark.parametrize(
    ("tags", "quantity", "price"),
    [
        ({"t378": "5", "t38": "6"}, "6", None),
        ({"t378": "3", "t44": "99.5"}, "10", "99.5"),
        ({"t378": "3", "t40": "3", "t99": "98"}, "10", "98"),
        ({"t378": "3", "t40": "1", "t44": "99.5"}, "10", None),
    ],
)
def test_a_restated_order_has_the_terms_that_the_venue_gave_it(
    tags: dict[str, str], quantity: str, price: str | None
) -> None:
    (event,) = events(t150="D", t39="1", **tags)
    assert (event.kind, event.reason) == (E.REPLACED, "replaced_by_broker")
    assert (event.client_order_id, event.replaces, event.exec_id) == ("c2", None, None)
    assert (event.quantity, event.cum_quantity) == (Decimal(quantity), Decimal(4))
    assert event.price == (price and Decimal(price))
    (again,) = events(t150="D", t39="1", **tags | {"t17": "E2"})
    (replaced,) = events(t150="5", t39="0", t41="c1")
    keys = {event.dedupe_key, again.dedupe_key, replaced.dedupe_key}
    assert len(keys) == 3, "each change is one of its own"


def test_an_order_that_is_filled_with_less_works_no_more_than_that() -> None:
    found = wire.snapshot_of(received(t150="I", t39="2", t151="0"))
    assert found.quantity == 4
    assert not found.is_working
    assert events(t150="I", t39="2", t151="0")[-1].quantity == 4


@pytest.mark.parametrize(
    ("tags", "end"),
    [
        ({"t39": "4"}, E.CANCELLED),
        ({"t39": "C"}, E.EXPIRED),
        ({"t39": "4", "t37": "NONE"}, None),
        ({"t39": "8"}, None),
        ({"t39": "3"}, None),
        ({"t39": "2"}, None),
        ({"t39": "0"}, None),
    ],
)
def test_a_cancel_reject_shows_what_the_venue_calls_over(
    tags: dict[str, str], end: EventKind | None
) -> None:
    tags = {"t37": "V1", "t11": "x", "t41": "c2", "t434": "1", "t102": "0"} | tags
    refused, *ends = events("9", **tags)
    assert (refused.kind, refused.client_order_id) == (E.CANCEL_REJECTED, "x")
    assert [(event.kind, event.client_order_id) for event in ends] == ([(end, "c2")] if end else [])
    is_over = end is not None or tags["t39"] == "2"
    assert wire.order_of(received("9", **tags).message) == (("V1" if is_over else None), False)


@pytest.mark.parametrize(
    ("tags", "kind", "code"),
    [
        ({"t434": "1", "t102": "0"}, E.CANCEL_REJECTED, "too_late"),
        ({"t434": "1", "t102": "1"}, E.CANCEL_REJECTED, "unknown_order"),
        ({"t434": "2", "t102": "3"}, E.REPLACE_REJECTED, "already_pending"),
    ],
)
def test_a_refused_cancel_or_replace_says_why(
    tags: dict[str, str], kind: EventKind, code: str
) -> None:
    (event,) = events("9", t37="V1", t11="x", t41="c2", t39="2", **tags)
    assert (event.kind, event.client_order_id, event.reason) == (kind, "x", code)


@pytest.mark.parametrize(
    ("message", "tags", "kind", "code"),
    [
        ("8", {"t150": "8", "t39": "8", "t103": "3"}, E.REJECTED, "3"),
        ("9", {"t434": "1", "t102": "0", "t41": "c2", "t39": "2"}, E.CANCEL_REJECTED, "too_late"),
        ("8", {"t150": "4", "t39": "4", "t41": "c2"}, E.CANCELLED, None),
    ],
)
def test_the_venues_text_stands_beside_the_code(
    message: str, tags: dict[str, str], kind: EventKind, code: str | None
) -> None:
    (event,) = events(message, t37="V1", t11="x", t58="so it is", **tags)
    assert (event.kind, event.reason, event.detail) == (kind, code, "so it is")


def test_a_used_id_is_no_refusal() -> None:
    (event,) = events(t150="8", t39="8", t103="6", t58="duplicate")
    assert event.reason == "duplicate_id"


def test_an_execution_has_its_numbers() -> None:
    (event,) = events(
        t150="F", t39="1", t32="4", t31="99.5", t12="0.25", t13="3", t60="20261117-09:30:00.123456"
    )
    assert (event.exec_id, event.quantity, event.price, event.fee) == (
        "E1",
        Decimal(4),
        Decimal("99.5"),
        Decimal("0.25"),
    )
    assert (event.cum_quantity, event.leaves_quantity) == (Decimal(4), Decimal(6))
    assert event.venue_time == datetime(2026, 11, 17, 9, 30, 0, 123456, UTC)


@pytest.mark.parametrize(
    "tags",
    [
        {"t17": ""},
        {"t32": "many"},
        {"t32": "-4"},
        {"t31": "NaN"},
        {"t31": "1e9999"},
        {"t32": "1" * 60},
        {"t55": "\x7f"},
        {"t150": "H", "t19": ""},
        {"t14": "Infinity"},
    ],
)
def test_an_execution_without_an_id_or_a_count_is_not_read(tags: dict[str, str]) -> None:
    with pytest.raises((ValueError, AssertionError)):
        events(**{"t150": "F", "t39": "1", "t32": "4", "t31": "100"} | tags)


MESSAGES = [
    framed([(35, "8"), (34, str(n)), (58, "x" * n), (95, "5"), (96, "a\x01b=c")])
    for n in range(1, 8)
]


@given(st.lists(st.integers(0, 40), max_size=40))
def test_messages_are_the_same_however_their_bytes_come(sizes: list[int]) -> None:
    data = b"".join(MESSAGES)
    framer = Framer()
    found = []
    for size in [*sizes, len(data)]:
        part = data[:size]
        data = data[size:]
        found += list(framer.feed(part))
    assert [message.raw for message in found if message] == MESSAGES
    assert None not in found


@given(st.binary(max_size=300), st.integers(0, 2**32))
def test_garbled_bytes_make_no_message_and_spoil_none_but_those_they_touch(
    noise: bytes, seed: int
) -> None:
    chance = random.Random(seed)
    broken = bytearray(MESSAGES[0])
    broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(7)
    found = [
        message
        for message in Framer().feed(noise + bytes(broken) + b"\x01" + MESSAGES[1] + MESSAGES[2])
        if message
    ]
    assert all(message.raw in MESSAGES for message in found)


def test_a_length_may_have_leading_zeros() -> None:
    """As jspurefix writes them."""
    (message,) = Framer().feed(b"8=FIX.4.4\x019=0000005\x0135=0\x0110=195\x01")
    assert message
    assert message.fields == [(8, "FIX.4.4"), (35, "0")]


def test_a_secret_is_never_stored_or_shown() -> None:
    logon = framed(
        [(35, "A"), (34, "1"), (553, "ada"), (554, "hidden"), (925, "new"), (58, "554=ok")]
    )
    text = readable(masked(logon))
    assert "hidden" not in text
    assert "new" not in text
    assert "553=ada|554=***|925=***|58=554=ok" in text


def test_a_value_cannot_add_a_field() -> None:
    with pytest.raises(ValueError, match="separator"):
        encode("FIX.4.4", [(58, "a\x0135=D")])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20261117-09:30:00", datetime(2026, 11, 17, 9, 30, tzinfo=UTC)),
        ("20261117-09:30:00.123456789", datetime(2026, 11, 17, 9, 30, 0, 123456, UTC)),
        ("20261231-23:59:60", datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("20261131-09:30:00", None),
        ("2026-11-17", None),
        ("", None),
    ],
)
def test_times_are_read_as_venues_write_them(text: str, expected: datetime | None) -> None:
    assert parse_time(text) == expected


@pytest.mark.parametrize("profile", sorted(path.stem for path in PROFILES.glob("*.toml")))
def test_a_profile_that_comes_with_the_platform_is_complete(profile: str, tmp_path: Path) -> None:
    venue = read_venue(write_profile(tmp_path, 9_000, profile))
    assert venue.capabilities("acme").lookup is LookupKind.OPEN_ONLY
    assert venue.complete("D", [(11, "c1")]) == [(11, "c1"), (21, "1")]


def test_a_profile_adds_changes_and_leaves_out_fields(tmp_path: Path) -> None:
    path = write_profile(tmp_path, 9_000)
    path.write_text(
        path.read_text() + '\n[fields.F]\n38 = ""\n100 = "XNAS"\n[fields.D]\n21 = "2"\n'
    )
    venue = read_venue(path)
    assert venue.complete("F", [(11, "c1"), (38, "10")]) == [(11, "c1"), (100, "XNAS")]
    assert venue.complete("D", []) == [(21, "2")]
    assert venue.complete("G", []) == [(21, "1")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('extends = "nothing"', "none of generic42, generic44, no_resend44"),
        ('extends = "generic44"\nhost = "h"', "port"),
        ('extends = "generic44"\nhost = "h"\nport = "many"', "port"),
        ('extends = "generic44"\nhost = "h"\nport = 1\nhost_name = "x"', "host_name"),
        ('extends = "generic44"\nhost = "h"\nport = 1\ntime_zone = "Mars"', "Mars"),
        ('extends = "generic44"\nhost = "h"\nport = 1\nreset_time = "25:00"', "hour"),
        ('extends = "generic44"\nhost = "h"\nport = 1\nreset_day = "Sun"', "Sun"),
        ('extends = "generic44"\nhost = "h"\nport = 1\nbegin_string = "FIXT.1.1"', "FIXT.1.1"),
        ('extends = "generic44"\nhost = "h"\nport = 1\n[fields.D]\nAccount = "x"', "fields"),
        ('extends = "generic44"\nhost = "h"\nport = 1\nheartbeat_seconds = 0', "heartbeat_seconds"),
        ("port = ", "Invalid value"),
    ],
)
def test_a_wrong_profile_says_what_is_wrong(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "acme.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"acme\.toml: .*{reason}"):
        read_venue(path)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "now", "expected"),
    [
        ({"reset": "never"}, "2026-11-17 12:00", None),
        ({"reset": "daily"}, "2026-11-17 12:00", "2026-11-17 00:00"),
        ({"reset": "daily", "reset_time": "17:00"}, "2026-11-17 12:00", "2026-11-16 17:00"),
        ({"reset": "daily", "reset_time": "17:00"}, "2026-11-17 17:00", "2026-11-17 17:00"),
        ({"reset": "daily", "reset_time": "17:00", "time_zone": NEW_YORK}, "2026-11-17 22:00", "2026-11-17 22:00"),
        ({"reset": "daily", "reset_time": "17:00", "time_zone": NEW_YORK}, "2026-07-01 21:30", "2026-07-01 21:00"),
        ({"reset": "daily", "reset_time": "02:30", "time_zone": NEW_YORK}, "2026-03-08 08:00", "2026-03-08 07:30"),
        ({"reset": "weekly"}, "2026-11-17 12:00", "2026-11-15 00:00"),
        ({"reset": "weekly", "reset_day": "tuesday", "reset_time": "13:00"}, "2026-11-17 12:00", "2026-11-10 13:00"),
    ],
)  # fmt: skip
def test_the_schedule_says_when_numbers_began_anew(
    tmp_path: Path, schedule: dict[str, str], now: str, expected: str | None
) -> None:
    venue: Venue = read_venue(write_profile(tmp_path, 1, **schedule))
    assert venue.last_reset(utc(now)) == (expected and utc(expected))
