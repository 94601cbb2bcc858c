"""The master keys of the embedded vault: a file that processes share, or the environment. Never
shows a key, and never drops one that a secret may still need."""

import base64
import contextlib
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from trading_intents.clock import Clock
from trading_intents.config import PREFIX
from trading_intents.errors import LimitReached, StartupRefused, Unavailable
from trading_intents.secret import Secret, make_file, sync_folder, written_beside
from trading_intents.telemetry import Log
from trading_intents.trading import FrozenStruct

KEY_BYTES = 32
MAX_VERSION = 2**32 - 1
MAX_KEYS = 100
MAX_FILE_BYTES = 64 * 1024
LOCK_TRIES = 500
LOCK_PAUSE_SECONDS = 0.01
# A seal made with the old key just before the new one came is stored by then.
RETIRE_AFTER_SECONDS = 600


@dataclass(frozen=True, slots=True)
class MasterKey:
    version: int
    key: bytes = field(repr=False)
    made_at: int = 0  # seconds since 1970


class EnvironmentKeys:
    """VAULT_MASTER_KEYS, as `1:base64,2:base64`: fixed for the life of the process."""

    def __init__(self, text: Secret) -> None:
        variable = f"{PREFIX}VAULT_MASTER_KEYS"
        keys = [_read_key(part) for part in text.reveal().split(",")]
        self._keys = _by_version((key for key in keys if key), variable)
        if len(self._keys) != len(keys):
            raise StartupRefused(
                f"{variable}: must look like 1:KEY,2:KEY; each KEY is 32 bytes in base64"
            )

    def newest(self) -> MasterKey:
        """The one that seals."""
        return self._keys[max(self._keys)]

    def find(self, version: int) -> MasterKey | None:
        return self._keys.get(version)

    def versions(self) -> tuple[int, ...]:
        return tuple(sorted(self._keys))

    def add(self) -> int:
        raise StartupRefused(f"{PREFIX}VAULT_MASTER_KEYS: holds the keys, so add the new one there")

    def retire(self, version: int) -> bool:
        return False


class KeyFile:
    """Keys in a file of mode 0600. Every process sees at once what another one added."""

    def __init__(self, path: Path, clock: Clock, log: Log) -> None:
        self._path = path
        self._clock = clock
        self._log = log
        try:
            if not path.exists():
                make_file(
                    path, _encode([MasterKey(1, secrets.token_bytes(KEY_BYTES), self._now())])
                )
            self._keys, self._stamp = _read_file(path)
        except OSError as error:
            raise StartupRefused(f"{path}: {error.strerror}") from None

    def newest(self) -> MasterKey:
        # Not from memory: a seal under a key that another process has replaced could outlive that
        # key.
        self._refresh()
        return self._keys[max(self._keys)]

    def find(self, version: int) -> MasterKey | None:
        if version not in self._keys:
            self._refresh()
        return self._keys.get(version)

    def versions(self) -> tuple[int, ...]:
        self._refresh()
        return tuple(sorted(self._keys))

    def add(self) -> int:
        """Make a new newest key and return its version. Waits for a lock: not for the event
        loop."""
        with self._changing() as keys:
            if len(keys) >= MAX_KEYS:
                raise LimitReached("the vault has as many master keys as it may have; retire some")
            version = max(keys) + 1
            keys[version] = MasterKey(version, secrets.token_bytes(KEY_BYTES), self._now())
        return version

    def retire(self, version: int) -> bool:
        """Drop a key that no row uses; False while it must stay. Waits for a lock: not for the
        event loop."""
        with self._changing() as keys:
            newest = keys[max(keys)]
            if version == newest.version or self._now() < newest.made_at + RETIRE_AFTER_SECONDS:
                return False
            keys.pop(version, None)
        return True

    def _now(self) -> int:
        return int(self._clock.now().timestamp())

    def _refresh(self) -> None:
        try:
            if _stamp_of(os.stat(self._path)) != self._stamp:
                self._keys, self._stamp = _read_file(self._path)
        except (OSError, StartupRefused) as error:
            self._log.error("vault keys unreadable", path=str(self._path), error=str(error))
            raise Unavailable("the vault cannot be used: its master keys cannot be read") from None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[int, MasterKey]]:
        """The keys as they are now, to be changed in place; written when the block ends well."""
        try:
            path = self._path.resolve()  # so that a symlink to the file stays one
            with _locked(path):
                before, _ = _read_file(path)
                keys = dict(before)
                yield keys
                if keys != before:
                    with written_beside(path, _encode(keys.values())) as draft:
                        # Rotating for the service's user, who must be able to read it.
                        if os.geteuid() == 0:
                            os.chown(draft, path.stat().st_uid, path.stat().st_gid)
                        os.replace(draft, path)
                    sync_folder(path.parent)
        except OSError as error:
            raise StartupRefused(f"{self._path}: {error.strerror}") from None


class _Stored(FrozenStruct):
    keys: tuple[MasterKey, ...]


def _encode(keys: Iterable[MasterKey]) -> bytes:
    return msgspec.json.encode(_Stored(tuple(keys)))


def _read_key(part: str) -> MasterKey | None:
    version, _, encoded = part.strip().partition(":")
    try:
        key = base64.b64decode(encoded, validate=True)
    except ValueError:
        return None
    if not version.isascii() or not version.isdigit() or len(version) > len(str(MAX_VERSION)):
        return None
    return MasterKey(int(version), key)


def _by_version(keys: Iterable[MasterKey], source: str) -> dict[int, MasterKey]:
    """Keys from outside, checked; a refusal names versions only."""
    found: dict[int, MasterKey] = {}
    for key in keys:
        if not 1 <= key.version <= MAX_VERSION or len(key.key) != KEY_BYTES:
            raise StartupRefused(
                f"{source}: key {key.version} must be 32 bytes, its version 1 to {MAX_VERSION}"
            )
        if key.version in found:
            raise StartupRefused(f"{source}: key {key.version} is there twice")
        found[key.version] = key
    return found


def _read_file(path: Path) -> tuple[dict[int, MasterKey], tuple[int, ...]]:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise StartupRefused(f"{path}: others may read it; make it yours alone (chmod 600)")
        content = file.read(MAX_FILE_BYTES + 1)
    try:
        stored = (
            msgspec.json.decode(content, type=_Stored).keys
            if len(content) <= MAX_FILE_BYTES
            else ()
        )
    except ValueError:
        stored = ()
    keys = _by_version(stored, str(path))
    if not keys:
        raise StartupRefused(
            f"{path}: holds no master keys; have it back from a backup, as secrets need them"
        )
    return keys, _stamp_of(status)


def _stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """Differs for every content, as each is a file of its own that replaced the other."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among those who change the keys. The folder is locked: the file is replaced, and a lock
    on it with it."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        for _ in range(LOCK_TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(LOCK_PAUSE_SECONDS)
        else:
            raise StartupRefused(f"{path}: another process has been changing it for too long")
        yield
    finally:
        os.close(folder)
