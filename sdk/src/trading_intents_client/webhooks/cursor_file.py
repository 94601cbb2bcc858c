"""The cursor of the last delivered event, in a file that one program at a time uses. Durable when a
write returns."""

import fcntl
import os
from pathlib import Path
from typing import Self

import msgspec

from trading_intents_client.errors import NotConfigured


class DeliveredCursor(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. A file of another account would skip that account's events."""

    account_id: str
    cursor: str


class CursorFile:
    """`with CursorFile(path, account_id) as file` locks it; the lock ends with the process, however
    that ends."""

    def __init__(self, path: Path, account_id: str) -> None:
        self._path = path
        self._account_id = account_id

    def __enter__(self) -> Self:
        # Of a file of its own: the file with the cursor is replaced by each write.
        try:
            self._lock = os.open(f"{self._path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NotConfigured(f"{self._path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise NotConfigured(f"another program forwards events by {self._path}") from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def read(self) -> str | None:
        """None: nothing was delivered yet."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=DeliveredCursor)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise NotConfigured(
                f"{self._path} cannot be read ({error}): forward from now on with another"
            ) from None
        if found.account_id != self._account_id:
            raise NotConfigured(
                f"{self._path} is of account {found.account_id}: each account has a file of its own"
            )
        return found.cursor

    def write(self, cursor: str) -> None:
        """Replaces the file as a whole: a crash leaves the old cursor or the new one."""
        draft = Path(f"{self._path}.new")
        with open(draft, "wb") as out:
            out.write(
                msgspec.json.encode(DeliveredCursor(account_id=self._account_id, cursor=cursor))
            )
            out.flush()
            os.fsync(out.fileno())
        draft.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
