"""A thread that works while a test goes on."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor


@contextlib.contextmanager
def working(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs `work` until the block ends, which sets its event. What it raises is raised here, after
    the block."""
    over = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(work, over)
        try:
            yield
        finally:
            over.set()
        result.result()
