"""Plays one of QuickFIX's acceptance scripts as the initiator. I sends, E expects, i and e connect
and disconnect."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

SOH = "\x01"
WAIT_SECONDS = 20.0
# Times, lengths and checksums are the player's own to make; they are only looked at for being
# there.
UNCOMPARED = frozenset({"9", "10", "52", "122", "60"})
_TIME = re.compile(r"<TIME(?:([+-])(\d+))?>")


class Wrong(AssertionError):
    pass


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self) -> str:
        async with asyncio.timeout(WAIT_SECONDS):
            data = await self.reader.readuntil(b"\x0110=")
            return (data + await self.reader.readuntil(b"\x01")).decode("latin-1")


async def play(script: Path, port: int) -> None:
    """Wrong: the acceptor did something else, in this line."""
    clients: dict[str, Client] = {}
    for number, line in enumerate(script.read_text("latin-1").splitlines(), 1):
        line = line.strip("\r\n")
        if not line or line[0] not in "IEie":
            continue
        found = re.match(r"[IEie](\d),", line)
        name, text = (found[1], line[3:]) if found else ("1", line[1:])
        try:
            await _play_line(line[0], text, name, clients, port)
        except (Wrong, TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            shown = line.replace(SOH, "|")
            raise Wrong(f"line {number}: {shown}: {type(error).__name__} {error}") from None
    for client in clients.values():
        client.writer.close()


async def _play_line(
    kind: str, text: str, name: str, clients: dict[str, Client], port: int
) -> None:
    if kind == "i" and text == "CONNECT":
        clients[name] = Client(*await asyncio.open_connection("127.0.0.1", port))
    elif kind == "i":
        clients.pop(name).writer.close()
    elif kind == "e":
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                rest = await clients[name].reader.read()
            except ConnectionError:
                rest = b""
        if rest:
            raise Wrong(f"expected the end, got {rest!r}")
        clients.pop(name).writer.close()
    elif kind == "I":
        clients[name].writer.write(_framed(_timed(text)).encode("latin-1"))
        await clients[name].writer.drain()
    else:
        _compare(text, await clients[name].read())


def _timed(text: str) -> str:
    def at(found: "re.Match[str]") -> str:
        seconds = int(f"{found[1] or '+'}{found[2] or 0}")
        if seconds > 0:  # whole seconds are written: what is to be 121 s ahead must not be less
            seconds += 1
        return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y%m%d-%H:%M:%S}"

    return _TIME.sub(at, text)


def _framed(text: str) -> str:
    """With a length and a checksum, where the script gives none."""
    if not text.startswith("8="):
        return text
    head, _, rest = text.partition(SOH)
    given = re.search(r"\x01(10=[^\x01]*\x01)$", text)
    body = rest[: -len(given[1])] if given else rest
    length = "" if re.search(r"(^|\x01)9=", rest) else f"9={len(body)}{SOH}"
    message = f"{head}{SOH}{length}{body}"
    return message + (given[1] if given else f"10={sum(message.encode('latin-1')) % 256:03}{SOH}")


def _compare(expected: str, found: str) -> None:
    left = _fields(expected)
    right = _fields(found)
    shown = found.replace(SOH, "|")
    if [tag for tag, _ in left] != [tag for tag, _ in right]:
        raise Wrong(f"found {shown}")
    for (tag, want), (_, got) in zip(left, right, strict=True):
        if tag not in UNCOMPARED and want != got:
            raise Wrong(f"tag {tag} is {got}, in {shown}")


def _fields(text: str) -> list[tuple[str, str]]:
    pairs = [each.partition("=")[::2] for each in text.split(SOH) if each]
    return [(tag, value) for tag, value in pairs if tag not in ("9", "10")]
