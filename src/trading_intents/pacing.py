"""A computation that would hold the event loop for long pauses by a Pacer."""

import asyncio
import time

MAX_HOLD_SECONDS = 0.004


class Pacer:
    """One for each computation, made when it begins."""

    def __init__(self) -> None:
        self._since_seconds = time.monotonic()

    async def pause_if_due(self) -> None:
        """Lets the other tasks run once, if the computation has held the loop for MAX_HOLD_SECONDS."""
        if time.monotonic() - self._since_seconds >= MAX_HOLD_SECONDS:
            await asyncio.sleep(0)
            self._since_seconds = time.monotonic()
