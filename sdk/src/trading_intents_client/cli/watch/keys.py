"""Keys of the live blotter: the arrow keys select an order, `c` cancels it once `y` has confirmed
that, `q` ends."""

import re
from collections.abc import Callable

from trading_intents_client.cli.watch.blotter import MAX_ORDERS, Blotter, BlotterOrder

PAGE = 10
# What terminals send for a key: one byte, or an escape sequence.
KEY = re.compile(rb"\x1b[\[O]\d*[A-Za-z~]|.", re.DOTALL)
MOVES = {
    -1: (b"\x1b[A", b"\x1bOA", b"k"),
    1: (b"\x1b[B", b"\x1bOB", b"j"),
    -PAGE: (b"\x1b[5~",),
    PAGE: (b"\x1b[6~", b" "),
    -MAX_ORDERS: (b"\x1b[H", b"\x1bOH", b"\x1b[1~", b"g"),
    MAX_ORDERS: (b"\x1b[F", b"\x1bOF", b"\x1b[4~", b"G"),
}
STEPS = {key: steps for steps, keys in MOVES.items() for key in keys}
HELP = " q ends  arrows select  c cancels"


def press(typed: bytes, blotter: Blotter, cancel: Callable[[BlotterOrder], None]) -> bool:
    """Does what was typed. False if that is to end."""
    for key in KEY.findall(typed):
        if blotter.confirming is not None:
            order = blotter.confirming
            blotter.confirming = None
            if key in (b"y", b"Y"):
                cancel(order)
        elif key in STEPS:
            blotter.move(STEPS[key])
        elif key in (b"c", b"C"):
            blotter.ask_to_cancel()
        elif key in (b"q", b"Q"):
            return False
    return True
