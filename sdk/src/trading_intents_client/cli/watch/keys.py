"""Keys of the live blotter: the arrow keys select an order, `c` cancels it once `y` has confirmed
that, `q` ends."""

import re
from collections.abc import Callable

from trading_intents_client.cli.watch.blotter import MAX_ORDERS, Blotter, BlotterOrder

PAGE = 10
# What terminals send for a key: one byte, or an escape sequence.
KEY = re.compile(rb"\x1b[\[O]\d*[A-Za-z~]|.", re.DOTALL)
STEPS = {
    b"\x1b[A": -1,
    b"\x1bOA": -1,
    b"k": -1,
    b"\x1b[B": 1,
    b"\x1bOB": 1,
    b"j": 1,
    b"\x1b[5~": -PAGE,
    b"\x1b[6~": PAGE,
    b" ": PAGE,
    b"\x1b[H": -MAX_ORDERS,
    b"\x1bOH": -MAX_ORDERS,
    b"\x1b[1~": -MAX_ORDERS,
    b"g": -MAX_ORDERS,
    b"\x1b[F": MAX_ORDERS,
    b"\x1bOF": MAX_ORDERS,
    b"\x1b[4~": MAX_ORDERS,
    b"G": MAX_ORDERS,
}
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
