"""A venue on QuickFIX's Python binding, run as a program: QuickFIX checks each message against its
dictionary before this sees it. A limit order of 10 is filled by 4 at once; it is replaced,
cancelled, and asked for."""

import importlib
import itertools
import sys
import threading
from typing import Any

fix: Any = importlib.import_module("quickfix")  # its module has no types
Fields = dict[int, str] | None
NUMBERS = itertools.count(1)


class Venue(fix.Application):  # type: ignore[misc] # of no known type
    def __init__(self) -> None:
        super().__init__()
        self.filled: dict[str, str] = {}

    def _ignore(self, *_: object) -> None: ...

    onCreate = onLogon = onLogout = toAdmin = fromAdmin = toApp = _ignore  # noqa: N815 - QuickFIX's names

    def fromApp(self, message: Any, session_id: object) -> None:  # noqa: N802 - QuickFIX's name
        kind = _header(message, 35)
        name = _get(message, 11)
        quantity = _get(message, 38) or "10"
        if kind == "D":
            self._report(
                message=message,
                session_id=session_id,
                code="0",
                status="0",
                quantity=quantity,
                done="0",
            )
            self._report(
                message=message,
                session_id=session_id,
                code="F",
                status="1",
                quantity=quantity,
                done="4",
                more={32: "4", 31: _get(message, 44)},
            )
            self.filled[name] = "4"
        elif kind == "H":
            known = name in self.filled
            refused = {} if known else {103: "5"}
            self._report(
                message=message,
                session_id=session_id,
                code="I",
                status="1" if known else "8",
                quantity=quantity,
                done="4" if known else "0",
                more=refused,
            )
        elif _get(message, 41) not in self.filled:
            answer = {
                37: "NONE",
                11: name,
                41: _get(message, 41),
                39: "8",
                434: "1" if kind == "F" else "2",
                102: "1",
            }
            self._send("9", answer, session_id)
        else:
            self.filled[name] = self.filled[_get(message, 41)]
            code, status = ("4", "4") if kind == "F" else ("5", "1")
            self._report(
                message=message,
                session_id=session_id,
                code=code,
                status=status,
                quantity=quantity,
                done="4",
                more={41: _get(message, 41)},
            )

    def _report(
        self,
        message: Any,
        session_id: object,
        code: str,
        status: str,
        quantity: str,
        done: str,
        more: dict[int, str] | None = None,
    ) -> None:
        left = "0" if status in "48" else str(int(quantity) - int(done))
        fields = {37: "Q1", 11: _get(message, 11), 17: f"E{next(NUMBERS)}", 150: code, 39: status}
        fields |= {
            55: _get(message, 55),
            54: _get(message, 54),
            38: quantity,
            151: left,
            14: done,
            6: "100",
        }
        self._send("8", fields | (more or {}), session_id)

    def _send(self, kind: str, fields: dict[int, str], session_id: object) -> None:
        made = fix.Message()
        made.getHeader().setField(fix.MsgType(kind))
        for tag, value in fields.items():
            made.setField(fix.StringField(tag, value))
        fix.Session.sendToTarget(made, session_id)


def _get(message: Any, tag: int) -> str:
    return str(message.getField(tag)) if message.isSetField(tag) else ""


def _header(message: Any, tag: int) -> str:
    return str(message.getHeader().getField(tag))


if __name__ == "__main__":
    settings = fix.SessionSettings(sys.argv[1])
    venue = Venue()
    acceptor = fix.SocketAcceptor(venue, fix.FileStoreFactory(settings), settings)
    acceptor.start()
    threading.Event().wait()
