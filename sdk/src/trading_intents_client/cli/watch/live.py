"""`watch`: a live blotter in the terminal. Events change its state; it is drawn by the clock
alone."""

import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.live import Live

from trading_intents_client import (
    Account,
    EventStream,
    Forbidden,
    NotFound,
    OrderFlag,
    SortOrder,
    TradingError,
    cancel_command,
)
from trading_intents_client.cli.today import read_today
from trading_intents_client.cli.watch.blotter import Blotter, BlotterOrder
from trading_intents_client.cli.watch.keys import press
from trading_intents_client.cli.watch.screen import draw

FRAME_SECONDS = 0.25
KINDS = ("broker_order", "broker_position", "broker_trade", "intent_action", "halt")
# Prices make no events: positions and money are read again this often.
READ_SECONDS = 5.0
RECENT_ORDERS = 50
MAX_TYPED = 1024
CANCEL_SECONDS = 5.0  # for a CANCEL that is on its way at the end


def watch_account(account: Account, url: str) -> None:
    console = Console()
    blotter = Blotter(account.get(), url)
    stop = threading.Event()
    cancels = Cancels(account, blotter)
    typing = _keys(stop, lambda typed: press(typed, blotter, cancels.send))
    with (
        account.events(kinds=KINDS) as stream,
        typing,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        threads = [
            threading.Thread(target=follow, args=(stream, blotter, stop), daemon=True),
            threading.Thread(target=read_again, args=(account, blotter, stop), daemon=True),
        ]
        for thread in threads:
            thread.start()

        def show() -> None:
            is_connected = stream.is_connected
            if is_connected:
                blotter.note_connected()
            live.update(draw(blotter, is_connected, *console.size), refresh=True)

        try:
            run_frames(show, stop)
        except KeyboardInterrupt:
            stop.set()
        cancels.finish()
    if blotter.failure is not None:
        raise blotter.failure


class Cancels:
    """Sends CANCELs without holding up keys and frames, and waits for their answers at the end."""

    def __init__(self, account: Account, blotter: Blotter) -> None:
        self._account = account
        self._blotter = blotter
        self._threads: list[threading.Thread] = []

    def send(self, order: BlotterOrder) -> None:
        self._blotter.notice = f"cancelling {order} ..."
        thread = threading.Thread(target=self._send, args=(order,), daemon=True)
        thread.start()
        self._threads.append(thread)

    def finish(self) -> None:
        for thread in self._threads:
            thread.join(CANCEL_SECONDS)

    def _send(self, order: BlotterOrder) -> None:
        try:
            self._account.submit(cancel_command(order.order_id))
            self._blotter.notice = f"accepted: cancel {order}"
        except TradingError as error:
            self._blotter.notice = f"not cancelled: {order}: {error}"


def run_frames(show: Callable[[], None], stop: threading.Event) -> None:
    """A frame at each tick, however many events came in between."""
    while not stop.is_set():
        began = time.monotonic()
        show()
        stop.wait(max(0.0, FRAME_SECONDS - (time.monotonic() - began)))


def follow(stream: EventStream, blotter: Blotter, stop: threading.Event) -> None:
    try:
        for event in stream:
            blotter.apply(event)
            if stop.is_set():
                return
    # It will not go away: the screen is left, and says it, as its figures would grow old.
    except Exception as error:
        blotter.failure = error
        stop.set()


def read_again(account: Account, blotter: Blotter, stop: threading.Event) -> None:
    is_first = True
    while not stop.is_set():
        try:
            read_all(account, blotter, is_first)
            is_first = False
        except TradingError as error:
            blotter.trouble = str(error)
        except Exception as error:
            blotter.failure = error
            stop.set()
        stop.wait(READ_SECONDS)


def read_all(account: Account, blotter: Blotter, is_first: bool) -> None:
    """All that makes no events, or none that begins with the present state."""
    if is_first:
        blotter.set_orders(account.orders(state="OPEN"))
        blotter.set_orders(account.orders(order=SortOrder.DESC).page(limit=RECENT_ORDERS).data)
        blotter.set_fills(account.trades(order=SortOrder.DESC).page(limit=RECENT_ORDERS).data[::-1])
    blotter.set_orders(account.orders(flag=OrderFlag.UNPROTECTED))
    blotter.account = account.get()
    with suppress(NotFound, Forbidden):  # there was none, or the caller may not read controls
        blotter.set_halt(account.controls.current_halt())
    positions = list(account.positions())
    blotter.set_positions(positions)
    blotter.today = read_today(account, positions)
    blotter.balances = account.balances()


@contextmanager
def _keys(stop: threading.Event, on_typed: Callable[[bytes], bool]) -> Iterator[None]:
    """Keys are read as they are typed, until one ends it, and the terminal is as it was
    afterwards."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    threading.Thread(target=_read_keys, args=(stop, on_typed), daemon=True).start()
    try:
        yield
    finally:
        stop.set()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _read_keys(stop: threading.Event, on_typed: Callable[[bytes], bool]) -> None:
    while not stop.is_set():
        ready, _, _ = select.select([sys.stdin], [], [], FRAME_SECONDS)
        # All that was typed: what stays in a buffer of Python's would not be seen by `select`.
        if ready and (not (typed := os.read(sys.stdin.fileno(), MAX_TYPED)) or not on_typed(typed)):
            stop.set()
