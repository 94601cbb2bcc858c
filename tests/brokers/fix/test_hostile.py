"""A counterparty that garbles, floods, goes silent, never reads, or breaks the rules: it is
answered as the standard says, memory stays flat, and other sessions do not notice."""

import asyncio
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from tests.accounts.bao_server import certified
from tests.brokers.fix.conftest import connecting
from tests.brokers.fix.counterparty import Counterparty, counterparty, framed
from tests.brokers.fix.orders import a_ticket, end, expect_working, opened, submit, until_ended
from tests.brokers.fix.venue import Connector
from tests.conftest import Urls
from trading_intents.brokers.fix import session as fix_session
from trading_intents.brokers.port import AuthFailed, BrokerUnavailable, Outcome

FLAT_BYTES = 8_000_000


def count(connector: Connector, incident: str) -> float:
    value = connector.metrics.registry.get_sample_value(
        "ti_fix_incidents_total", {"incident": incident}
    )
    assert value is not None
    return value


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff\x01=8=9\x01" * 50,
        b"8=FIX.4.4\x019=99999999\x0135=0\x01",
        b"8=FIX.4.4\x019=-5\x0135=0\x0110=000\x01",
        b"8=FIX.4.4\x019=5\x0135=0\x0110=999\x01",
        b"8=FIX.4.4\x019=12\x0135=0\x0134=nine\x0110=111\x01",
        b"8=FIX" * 1_000,
        framed([(35, "8"), (34, "2")]).replace(b"35=8", b"3x=8"),
    ],
    ids=[
        "noise",
        "length too large",
        "length below zero",
        "checksum",
        "cut",
        "heads",
        "a tag that is none",
    ],
)
async def test_garbled_bytes_are_left_out(
    connector: Connector, other: Counterparty, garbage: bytes
) -> None:
    broker = await opened(connector, other)
    other.writer.write(garbage)
    await expect_working(broker, other)
    assert count(connector, "garbled") > 0
    await end(broker, other)


async def test_a_message_with_a_wrong_checksum_is_asked_for_again(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    sending = submit(broker, a_ticket())
    order = await other.expect("D")
    number = other.next_out
    report = {
        37: "V1",
        11: order[11],
        17: "E1",
        150: "0",
        39: "0",
        55: "ACME",
        54: "1",
        38: "10",
        151: "10",
        14: "0",
    }
    raw = bytearray(other.make("8", list(report.items())))
    raw[-2] = ord("0") + (raw[-2] - ord("0") + 1) % 10
    other.writer.write(bytes(raw))
    other.send("0")
    await other.expect("2", t7=str(number), t16="0")
    other.send("8", list(report.items()), number=number, is_again=True)
    assert (await sending).broker_order_id == "V1"
    await expect_working(broker, other)
    await end(broker, other)


async def test_a_flood_of_unfinished_messages_keeps_no_more_than_one(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    tracemalloc.start()
    try:
        for _ in range(40):
            other.writer.write(b"8=FIX.4.4\x019=65000\x0135=8\x0158=" + b"x" * 1_000_000)
            await other.writer.drain()
        assert tracemalloc.get_traced_memory()[1] < FLAT_BYTES * 2
    finally:
        tracemalloc.stop()
    await end(broker, other)


@pytest.mark.parametrize("requests", [500, pytest.param(10_000, marks=pytest.mark.chaos)])
async def test_a_flood_of_resend_requests_is_answered_in_flat_memory(
    connector: Connector, other: Counterparty, requests: int
) -> None:
    broker = await opened(connector, other)
    for _ in range(3):
        await expect_working(broker, other)
    reading = asyncio.create_task(_read_until_heartbeat(other))
    tracemalloc.start()
    try:
        for _ in range(requests // 100):
            other.writer.write(b"".join(other.make("2", [(7, "1"), (16, "0")]) for _ in range(100)))
            await other.writer.drain()
        other.send("1", [(112, "OVER")])
        await reading
        assert tracemalloc.get_traced_memory()[1] < FLAT_BYTES
    finally:
        tracemalloc.stop()
    assert b"35=D" not in other.read_bytes
    await end(broker, other)


async def _read_until_heartbeat(other: Counterparty) -> None:
    other.read_bytes = b""
    while (await other.read()).get(112) != "OVER":
        pass


async def test_what_waits_for_a_gap_is_bounded(connector: Connector, other: Counterparty) -> None:
    """A message that has no room is not lost: it is sent again with the rest."""
    broker = await opened(connector, other)
    missing = other.next_out
    tracemalloc.start()
    try:
        for number in range(missing + 1, missing + 1_001):
            other.send("B", [(148, "x" * 10_000)], number=number)
            await other.writer.drain()
        await other.expect("2", t7=str(missing))
        assert tracemalloc.get_traced_memory()[1] < fix_session.MAX_QUEUED * 25_000 + FLAT_BYTES
    finally:
        tracemalloc.stop()
    other.next_out = missing + 1_001
    other.send("4", [(123, "Y"), (36, str(other.next_out))], number=missing, is_again=True)
    await expect_working(broker, other)
    await end(broker, other)


@pytest.mark.parametrize(
    "fields", [[(36, "1")], [(36, "1"), (123, "Y")], [], [(36, "many"), (123, "Y")]]
)
async def test_a_sequence_reset_that_is_refused_counts_for_nothing(
    connector: Connector, other: Counterparty, fields: list[tuple[int, str]]
) -> None:
    broker = await opened(connector, other)
    number = other.next_out
    other.send("4", fields, number=number)
    await other.expect("3", t45=str(number), t372="4")
    await expect_working(broker, other)  # its answer has that number, and leaves no gap
    assert count(connector, "gap") == 0
    await end(broker, other)


@pytest.mark.parametrize(
    ("message", "reason"),
    [({"sender": "STRANGER"}, "9"), ({"seconds": -300}, "10"), ({"seconds": 300}, "10")],
    ids=["of somebody else", "of another time", "of the future"],
)
async def test_a_message_that_is_not_the_counterpartys_ends_the_session_and_counts_for_nothing(
    connector: Connector, other: Counterparty, message: dict[str, object], reason: str
) -> None:
    broker = await opened(connector, other)
    number = other.next_out
    other.send("8", [(37, "V1"), (11, "o"), (17, "1"), (150, "0"), (39, "0"), (55, "A")], **message)  # type: ignore[arg-type] # of the table
    await other.expect("3", t45=str(number), t373=reason)
    await other.expect("5")
    await other.expect_end()
    assert (
        await broker.submit(a_ticket(), asyncio.get_running_loop().time() + 5)
    ).outcome is Outcome.NOT_SENT
    await broker.close()
    other.next_out = number
    later = await opened(connector, other)
    await expect_working(later, other)
    await end(later, other)


async def test_a_number_that_is_too_low_ends_the_session(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    other.send("0", number=1)
    assert "MsgSeqNum too low, expecting 3 but received 1" in (await other.expect("5"))[58]
    await other.expect_end()
    assert "too low" in await until_ended(broker)
    await end(broker, other)


async def test_a_repeated_message_is_left_out(connector: Connector, other: Counterparty) -> None:
    broker = await opened(connector, other)
    other.send("8", [(37, "V"), (11, "o"), (17, "1"), (150, "F")], number=1, is_again=True)
    await expect_working(broker, other)
    await end(broker, other)


async def test_a_report_without_a_header_field_is_rejected_and_kept(
    connector: Connector, other: Counterparty
) -> None:
    """The venue has executed it, whatever its header lacks: it is no reason to know nothing of
    it."""
    broker = await opened(connector, other)
    sending = submit(broker, a_ticket())
    order = await other.expect("D")
    body = [
        (37, "V1"),
        (11, order[11]),
        (17, "E1"),
        (150, "0"),
        (39, "0"),
        (55, "ACME"),
        (54, "1"),
        (38, "10"),
    ]
    number = other.next_out
    other.next_out = other.next_out + 1
    other.writer.write(
        framed([(35, "8"), (34, str(number)), (49, "VENUE"), (56, other.client), *body])
    )
    await other.expect("3", t45=str(number), t371="52", t373="1")
    assert (await sending).outcome is Outcome.ACKED
    await expect_working(broker, other)
    await end(broker, other)


@pytest.mark.parametrize(
    "order_id", ["V\0-1", "V" * 60_000, "'; DROP TABLE fix_in; --", "\x7f\xe4"]
)
async def test_a_report_with_any_id_is_kept(
    connector: Connector, other: Counterparty, order_id: str
) -> None:
    """An id that no table can hold must not end the session each time it is sent again."""
    broker = await opened(connector, other)
    sending = submit(broker, a_ticket())
    other.report(await other.expect("D"), more={37: order_id})
    assert (await sending).outcome is Outcome.ACKED
    await expect_working(broker, other)
    assert len((await broker.snapshot(datetime.now(UTC) - timedelta(hours=1), ())).open_orders) == 2
    await end(broker, other)


async def test_a_silent_counterparty_is_asked_and_then_left(
    connector: Connector, other: Counterparty
) -> None:
    connector.more["heartbeat_seconds"] = 1
    broker = await opened(connector, other)
    await other.expect("1")
    await other.expect_end()
    assert await until_ended(broker) == "the counterparty is silent"
    await end(broker, other)


async def test_a_counterparty_that_does_not_fill_a_gap_is_left(
    connector: Connector, other: Counterparty
) -> None:
    connector.more["heartbeat_seconds"] = 1
    broker = await opened(connector, other)
    other.next_out += 1
    other.send("0")
    await other.expect("2")
    ending = asyncio.create_task(until_ended(broker))
    while not ending.done():
        other.send("0")  # it lives
        await asyncio.wait({ending}, timeout=0.3)
    assert "does not send again" in await ending
    await end(broker, other)


@pytest.mark.slow
async def test_a_counterparty_that_never_reads_is_left_and_delays_nobody(
    connector: Connector,
    other: Counterparty,
    tenants_database: Urls,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fix_session, "WRITE_SECONDS", 1.0)
    broker = await opened(connector, other)
    folder = tmp_path / "second"
    folder.mkdir()
    async with (
        counterparty("US-SECOND") as second,
        connecting(tenants_database, folder, "US-SECOND", second.port) as to,
    ):
        to.shared = connector.shared  # the sessions of a process write together
        quick = await opened(to, second)
        tracemalloc.start()
        try:
            ending = asyncio.create_task(until_ended(broker))
            while not ending.done():  # each is answered, and nobody takes the answers
                if other.writer.transport.get_write_buffer_size() < FLAT_BYTES // 4:
                    other.writer.write(
                        b"".join(other.make("1", [(112, "x" * 30_000)]) for _ in range(50))
                    )
                await expect_working(quick, second)
            assert tracemalloc.get_traced_memory()[1] < FLAT_BYTES * 4
        finally:
            tracemalloc.stop()
        assert "TimeoutError" in await ending
        await end(quick, second)
    await end(broker, other)


async def test_a_reset_in_the_middle_of_the_day_begins_a_new_epoch(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    await expect_working(broker, other)
    other.next_out = 1
    other.send("A", [(98, "0"), (108, "30"), (141, "Y")])
    await other.expect("A", t34="1", t141="Y")
    await expect_working(broker, other)
    assert count(connector, "reset") == 1
    async with connector.pool.transaction(read_only=True) as tx:
        query = "SELECT epoch, next_in, next_out FROM fix_sessions WHERE account_id = $1"
        assert tuple((await tx.fetchrow(query, connector.account_id) or {}).values()) == (2, 3, 3)
    await end(broker, other)


async def test_a_venue_that_resets_with_its_answer_to_the_logon_is_followed(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    await end(broker, other)
    later = connector.connect()
    _, logon = await asyncio.gather(later.open(), other.log_on(resets=True))
    assert logon.get(141) is None
    sending = submit(later, a_ticket())
    order = await other.expect("D")
    assert int(order[34]) == int(logon[34]) + 2
    other.report(order)
    assert (await sending).outcome is Outcome.ACKED
    await end(later, other)


async def test_a_refused_logon_says_why(connector: Connector, other: Counterparty) -> None:
    for text, error in (("Invalid password", AuthFailed), ("come back later", BrokerUnavailable)):
        broker = connector.connect()
        opening = asyncio.create_task(broker.open())
        await other.accept()
        await other.expect("A")
        other.send("5", [(58, text)])
        with pytest.raises(error, match=text):
            await opening
        await end(broker, other)


async def test_a_venue_that_answers_a_logon_with_nothing_is_left(
    connector: Connector, other: Counterparty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trading_intents.brokers.fix.broker.LOGON_SECONDS", 0.3)
    broker = connector.connect()
    with pytest.raises(BrokerUnavailable, match="does not answer the logon"):
        await broker.open()
    await broker.close()
    await other.accept()
    await other.expect_end()


async def test_a_venue_is_known_by_its_certificate(tenants_database: Urls, tmp_path: Path) -> None:
    context, authority = certified(tmp_path)
    async with (
        counterparty("US-TLS", context) as other,
        connecting(tenants_database, tmp_path, "US-TLS", other.port) as connector,
    ):
        connector.more |= {"tls": True, "tls_ca_file": str(authority)}
        broker = await opened(connector, other)
        await expect_working(broker, other)
        await end(broker, other)
        nothing = str(tmp_path / "nothing.pem")
        for wrong, cause in (
            ("", "SSLCertVerificationError: .*verify failed"),
            (nothing, "FileNotFoundError"),
        ):
            connector.more["tls_ca_file"] = wrong
            stranger = connector.connect()
            with pytest.raises(
                BrokerUnavailable, match=f":{other.port} cannot be reached: {cause}"
            ):
                await stranger.open()
            await stranger.close()


async def test_two_accounts_cannot_have_one_session(
    connector: Connector, other: Counterparty
) -> None:
    broker = await opened(connector, other)
    connector.account_id = uuid4()
    second = connector.connect()
    with pytest.raises(
        AuthFailed, match="another account has this sender_comp_id and target_comp_id"
    ):
        await second.open()
    await second.close()
    await expect_working(broker, other)
    await end(broker, other)
