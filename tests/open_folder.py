"""Folders that other users can enter, unlike those that tests usually have."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PARENTS = (tempfile.gettempdir(), "/tmp", "/var/tmp")


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A new one, which is still ours alone: only the way to it is open."""
    parent = next(folder for folder in map(Path, PARENTS) if _is_open(folder))
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _is_open(folder: Path) -> bool:
    """Whether others may pass through it and all above it."""
    return all(each.exists() and each.stat().st_mode & 0o001 for each in (folder, *folder.parents))
