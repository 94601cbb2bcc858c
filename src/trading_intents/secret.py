"""A text that must not be seen: no repr, format, log line, exception or JSON can show it; and files
for such texts."""

import contextlib
import hmac
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


class Secret:
    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one call that needs it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(_bytes(self), _bytes(other))

    def __hash__(self) -> int:
        return hash((Secret, self._text))


def _bytes(secret: Secret) -> bytes:
    return secret.reveal().encode("utf-8", "surrogatepass")


def make_file(path: Path, content: bytes) -> None:
    """Makes a file of mode 0600, which nobody sees half written and a power cut does not take,
    unless there is one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A hard link, not a rename: it never replaces the file of a process that was faster.
    with written_beside(path, content) as draft, contextlib.suppress(FileExistsError):
        os.link(draft, path)
    sync_folder(path.parent)


@contextlib.contextmanager
def written_beside(path: Path, content: bytes) -> Iterator[str]:
    """A file with this content, next to `path` until the block ends."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        Path(draft).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
