"""A consumer of the stream that may be killed at any moment: it keeps each event and its cursor in
a file.

python -m tests.sdk.consumer URL ACCOUNT FILE, with the key in TRADING_INTENTS_API_KEY
"""

import json
import os
import sys
from pathlib import Path

import msgspec

from trading_intents_client import Event, TradingClient


def main(url: str, account_id: str, file: Path) -> None:
    cursor = cut_torn_line(file)
    with TradingClient(url, max_retries=1000) as client, file.open("ab", buffering=0) as kept:
        for event in client.account(account_id).events(after=cursor):
            if event.cursor is not None:
                kept.write(json.dumps([event.cursor, describe(event)]).encode() + b"\n")
                os.fsync(kept.fileno())


def cut_torn_line(file: Path) -> str | None:
    """A kill may have cut the last line: what was not kept whole comes again."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    if len(whole) < len(lines):
        file.write_bytes(b"".join(whole))
    return str(json.loads(whole[-1])[0]) if whole else None


def describe(event: Event) -> str:
    return f"{type(event).__name__} {msgspec.json.encode(event).decode()}"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
