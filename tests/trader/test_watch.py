"""The live blotter: it fits the terminal, shows events as they come, and is drawn by the clock
alone."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest
from rich.console import Console
from rich.live import Live

from tests.trader.blotters import AT, blotter, order_event
from tests.trader.conftest import Command
from tests.waiting import eventually
from trading_intents_client import (
    Account,
    Event,
    GapEvent,
    HaltEvent,
    OrderEvent,
    PositionEvent,
    TradeEvent,
)
from trading_intents_client.cli.watch.blotter import MAX_ORDERS, Blotter
from trading_intents_client.cli.watch.keys import press
from trading_intents_client.cli.watch.live import (
    FRAME_SECONDS,
    follow,
    read_again,
    read_all,
    run_frames,
)
from trading_intents_client.cli.watch.screen import draw
from trading_intents_client.stream.events import (
    StreamedHalt,
    StreamedPosition,
    StreamedTrade,
)
from trading_intents_client.types.enums import (
    ConnectionState,
    Environment,
    HaltState,
    OrderSide,
    OrderStatus,
)

SIZES = [(80, 24), (200, 50), (60, 16), (130, 24)]
EVENTS_PER_SECOND = 500
MEASURED_SECONDS = 3
LIMIT_SECONDS = 60
SECOND = timedelta(seconds=1)


def trade_event(number: int) -> TradeEvent:
    trade = StreamedTrade(
        trade_id=f"t{number}",
        order_id="o",
        intent_id="o",
        account_id="a",
        organization_id="o",
        symbol="FILL",
        quantity=Decimal(number),
        price=Decimal("424.25"),
        side=OrderSide.SELL_SHORT,
        received_at=AT,
    )
    return TradeEvent(trade=trade, cursor="c")


def shown(state: Blotter, width: int, height: int, is_connected: bool = True) -> list[str]:
    out = Console(
        width=width,
        height=height,
        file=io.StringIO(),
        force_terminal=True,
        color_system=None,
        record=True,
    )
    out.print(draw(state, is_connected, width, height))
    return out.export_text().splitlines()


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_screen_is_as_large_as_the_terminal(width: int, height: int) -> None:
    state = blotter()
    for number in range(100):
        state.apply(order_event(number, 1))
        position = StreamedPosition(
            account_id="a",
            organization_id="o",
            symbol=f"S{number}",
            quantity=Decimal("1.123456789"),
        )
        state.apply(PositionEvent(position=position, cursor="c"))
    lines = shown(state, width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert "sim" in lines[0]
    assert "100 open" in "".join(lines)
    assert "S99" in "".join(lines)


@pytest.mark.parametrize(
    ("width", "height"), [(20, 5), (40, 10), (80, 8), (200, 5), (130, 12), (1, 1), (80, 2)]
)
def test_a_small_terminal_shows_orders_first(width: int, height: int) -> None:
    state = blotter()
    for number in range(30):
        state.apply(order_event(number, 1))
        position = StreamedPosition(
            account_id="a", organization_id="o", symbol="HELD", quantity=Decimal("1.123456789")
        )
        state.apply(PositionEvent(position=position, cursor="c"))
    state.trouble = "late"
    lines = shown(state, width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    if height >= 5:
        assert "S29" in "".join(lines[1:-1])
        assert "NEW" in "".join(lines[1:-1])
        assert "10" in lines[2], "the quantity"
        assert "q ends" in lines[-1], "the last line says what is wrong, too"


def test_fills_and_stop_prices_stand_beside_open_orders() -> None:
    state = blotter()
    for number in range(30):
        event = order_event(number, 1)
        state.apply(
            OrderEvent(
                order=msgspec.structs.replace(event.order, stop_price=Decimal("187.125")),
                cursor="c",
            )
        )
    for number in (1, 2, 3, 2):
        state.apply(trade_event(number))
    for width in (80, 130, 200):
        reported = "\n".join(shown(state, width, 24))
        assert "30 open" in reported
        assert "187.125" in reported, "no price is cut"
        assert ("reason" in reported) == (width == 200)
    reported = "\n".join(shown(state, 80, 24))
    assert re.findall(r"SHORT (\d) FILL at 424.25", reported.partition("─ events")[0]) == [
        "3",
        "2",
        "1",
    ]


def test_empty_panels_say_so() -> None:
    reported = "\n".join(shown(blotter(), 80, 24))
    assert all(f"no {what}" in reported for what in ("orders", "positions", "fills", "events yet"))


def test_the_list_scrolls_to_the_selected_order() -> None:
    state = blotter()
    for number in range(100):
        state.apply(order_event(number, 1))
    asked: list[str] = []
    assert press(b"\x1b[B" * 51, state, lambda order: asked.append(order.order_id))
    assert state.selected == "o000049", "the first key selects the first order, which is the newest"
    reported = "\n".join(shown(state, 80, 24)).partition("─ positions")[0]
    assert "S49 " in reported
    assert "of 100" in reported
    assert "S99 " not in reported
    for key, selected in (
        (b"G", "o000000"),
        (b"\x1b[A", "o000001"),
        (b"\x1b[H", "o000099"),
        (b"\x1b[6~", "o000089"),
    ):
        press(key, state, lambda order: asked.append(order.order_id))
        assert state.selected == selected
    assert asked == []
    assert not press(b"q", state, lambda order: asked.append(order.order_id))


def test_a_cancel_is_confirmed_and_only_of_an_open_order() -> None:
    state = blotter()
    state.apply(order_event(1, 1))
    state.apply(order_event(2, 2, OrderStatus.FILLED))
    asked: list[str] = []

    def typed(keys: bytes) -> str:
        press(keys, state, lambda order: asked.append(order.order_id))
        return shown(state, 80, 24)[-1]

    assert "select an order first" in typed(b"c")
    assert "cancel - 10 S1? y or n" in typed(b"jc")
    assert "y or n" not in typed(b"q"), "any other key takes it back"
    assert asked == []
    typed(b"cy")
    assert asked == ["o000001"]
    assert "S2 is FILLED" in typed(b"jc")
    assert state.confirming is None


def test_the_time_without_a_connection_begins_with_its_end() -> None:
    state = blotter()
    state.connected_at -= 3600  # an hour in which nothing happened
    state.note_connected()
    assert "DISCONNECTED for 0 s" in shown(state, 80, 24, is_connected=False)[0]


def test_positions_that_were_read_do_not_replace_newer_ones_of_the_stream(account: Account) -> None:
    account.buy("AAPL", 2).wait()
    (read,) = account.positions()
    with account.events() as stream:
        reported = next(event for event in stream if isinstance(event, PositionEvent))
    assert reported.position.received_at == read.received_at, "the two can be compared"
    state = blotter()
    newer = msgspec.structs.replace(
        reported.position, quantity=Decimal(5), received_at=read.received_at + SECOND
    )
    state.apply(PositionEvent(position=newer, cursor="c"))
    state.set_positions([read])
    assert [row.quantity for row in state.positions()] == [5]
    state.set_positions(
        [msgspec.structs.replace(read, quantity=Decimal(6), received_at=read.received_at + SECOND)]
    )
    assert [row.quantity for row in state.positions()] == [6]


def test_a_thread_that_dies_ends_the_screen_whose_figures_would_grow_old(account: Account) -> None:
    class Broken:
        def __iter__(self) -> Iterator[Event]:
            raise KeyError("a fault of ours")

        def __getattr__(self, name: str) -> object:
            raise KeyError("a fault of ours")

    for work in (follow, read_again):
        state = blotter()
        stop = threading.Event()
        work(Broken(), state, stop)  # type: ignore[arg-type]  # what is tested
        assert stop.is_set()
        assert isinstance(state.failure, KeyError)


@pytest.mark.timeout(60)
def test_without_a_terminal_it_says_so(run: Command) -> None:
    done = run("watch")
    assert done.exit_code == 2
    assert "needs a terminal" in done.stderr


def test_a_lost_connection_and_a_live_account_cannot_be_overlooked() -> None:
    assert "DISCONNECTED" in shown(blotter(), 80, 24, is_connected=False)[0]
    assert "DISCONNECTED" not in shown(blotter(), 80, 24)[0]
    assert "LIVE" in shown(blotter(Environment.LIVE), 80, 24)[0]
    named = blotter(Environment.LIVE)
    named.account = msgspec.structs.replace(named.account, name="n" * 128)
    assert shown(named, 80, 24, is_connected=False)[0].startswith(" LIVE  DISCONNECTED for 0 s")


def test_a_halt_and_a_broker_that_is_away_are_seen() -> None:
    state = blotter()
    assert "HALTED" not in shown(state, 80, 24)[0]
    halt = StreamedHalt(
        id="h", organization_id="o", state=HaltState.DONE, reason="strange news", created_at=AT
    )
    state.apply(HaltEvent(halt=halt, cursor="c"))
    state.account = msgspec.structs.replace(
        state.account, connection=ConnectionState.CREDENTIAL_MISSING
    )
    head = shown(state, 120, 24)[0]
    assert re.search(r"HALTED since \d\d:\d\d:\d\d: strange news", head)
    assert "broker credential_missing" in head
    state.apply(HaltEvent(halt=msgspec.structs.replace(halt, state=HaltState.RESUMED), cursor="c"))
    assert "HALTED" not in shown(state, 80, 24)[0]


def test_an_entry_without_protection_is_seen_while_the_platform_says_so() -> None:
    state = blotter()

    def flag(version: int, *flags: str) -> None:
        event = order_event(1, version, OrderStatus.FILLED)
        order = msgspec.structs.replace(event.order, flags=flags)
        state.apply(msgspec.structs.replace(event, order=order))

    flag(1, "unprotected")
    assert "UNPROTECTED: S1" in shown(state, 80, 24)[0]
    flag(2)
    assert "UNPROTECTED" not in shown(state, 80, 24)[0]
    flag(3, "unprotected")
    state.apply(GapEvent(orders=(), positions=(), cursor="c"))
    assert "UNPROTECTED" not in shown(state, 80, 24)[0], "it is read again"


def test_a_halt_that_stands_is_read_at_the_start(account: Account) -> None:
    state = Blotter(account.get(), "")
    read_all(account, state, is_first=True)
    assert state.halt() is None
    account.controls.halt("strange news")
    read_all(account, state, is_first=False)
    assert "strange news" in shown(state, 120, 24)[0]
    account.controls.resume()
    read_all(account, state, is_first=False)
    assert state.halt() is None


def test_an_older_version_of_an_order_never_replaces_a_newer_one() -> None:
    state = blotter()
    state.apply(order_event(1, 3, OrderStatus.FILLED))
    state.apply(order_event(1, 2, OrderStatus.NEW))
    assert [row.status for row in state.orders()] == ["FILLED"]


def test_after_a_gap_only_the_orders_of_the_snapshot_are_open() -> None:
    state = blotter()
    state.apply(order_event(1, 1))
    state.apply(order_event(2, 2, OrderStatus.FILLED))
    state.apply(GapEvent(orders=(), positions=(), cursor="c"))
    assert [row.status for row in state.orders()] == ["FILLED"]


def test_its_memory_is_bounded_and_keeps_open_orders() -> None:
    state = blotter()
    state.apply(order_event(0, 1))
    for number in range(1, MAX_ORDERS + 100):
        state.apply(order_event(number, 1, OrderStatus.FILLED))
    assert len(state.orders()) == MAX_ORDERS
    assert state.orders()[0].order_id == "o000000"


@pytest.mark.deadline
def test_five_hundred_events_a_second_do_not_move_the_frame_rate() -> None:
    state = blotter()
    stop = threading.Event()
    screen = io.StringIO()
    console = Console(width=80, height=24, file=screen, force_terminal=True)
    frames = [0]

    def feed() -> None:
        began = time.monotonic()
        for number in range(EVENTS_PER_SECOND * MEASURED_SECONDS):
            state.apply(order_event(number % 50, number))
            stop.wait(max(0.0, began + number / EVENTS_PER_SECOND - time.monotonic()))
        stop.set()

    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show() -> None:
            frames[0] += 1
            live.update(draw(state, True, 80, 24), refresh=True)

        feeding = threading.Thread(target=feed)
        feeding.start()
        run_frames(show, stop)
        feeding.join()
    expected = MEASURED_SECONDS / FRAME_SECONDS
    assert expected * 0.7 <= frames[0] <= expected + 1
    assert screen.getvalue().count("\x1b[2J") <= 1, (
        "frames are written over each other: clearing would flicker"
    )


@contextmanager
def terminal(
    width: int, height: int, environ: dict[str, str | None], *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command on a terminal of that size: its process and the terminal's other end."""
    end, own = pty.openpty()
    fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    settings = {
        name: value for name, value in (dict(os.environ) | environ).items() if value is not None
    }
    settings |= {"TERM": "xterm-256color"}
    del settings["COLUMNS"]
    command = [sys.executable, "-m", "trading_intents", *arguments]
    process = subprocess.Popen(
        command, stdin=own, stdout=own, stderr=own, env=settings, start_new_session=True
    )
    os.close(own)
    try:
        yield process, end
    finally:
        process.kill()
        process.wait()
        os.close(end)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_it_shows_an_order_on_a_terminal_and_leaves_it_as_it_was(
    account: Account, environ: dict[str, str | None], width: int, height: int
) -> None:
    reported = bytearray()
    with terminal(width, height, environ, "watch") as (process, end):
        threading.Thread(target=drain, args=(end, reported), daemon=True).start()
        eventually(lambda: b"connected" in reported, LIMIT_SECONDS)
        account.buy("ZEBRA", 3).wait()
        eventually(lambda: b"ZEBRA" in reported and b"FILLED" in reported, LIMIT_SECONDS)
        os.write(end, b"xq")
        assert process.wait(LIMIT_SECONDS) == 0, reported
    text = reported.decode(errors="replace")
    assert "Traceback" not in text
    assert "\x1b[?1049h" in text, "the alternate screen"
    assert re.search(r"\x1b\[\?1049l", text), "and back"
    assert "\x1b[?25h" in text, "the cursor is shown again"


@pytest.mark.slow
def test_the_selected_order_is_cancelled(account: Account, environ: dict[str, str | None]) -> None:
    account.buy("ZEBRA", 3, limit=1).wait(until="NEW")
    placed = account.buy("ACME", 5, limit="1.5")
    placed.wait(until="NEW")
    reported = bytearray()
    with terminal(80, 24, environ, "watch") as (process, end):
        threading.Thread(target=drain, args=(end, reported), daemon=True).start()
        eventually(lambda: b"ZEBRA" in reported and b"ACME" in reported, LIMIT_SECONDS)
        os.write(end, b"jc")
        eventually(lambda: b"cancel BUY 5 ACME?" in reported, LIMIT_SECONDS)
        os.write(end, b"y")
        assert placed.wait(timeout=LIMIT_SECONDS).order_status == "CANCELLED"
        eventually(lambda: b"accepted: cancel BUY 5 ACME" in reported, LIMIT_SECONDS)
        os.write(end, b"q")
        assert process.wait(LIMIT_SECONDS) == 0, reported
    assert [order.symbol for order in account.orders(state="OPEN")] == ["ZEBRA"]


def drain(end: int, reported: bytearray) -> None:
    try:
        while chunk := os.read(end, 65536):
            reported += chunk
    except OSError:
        return
