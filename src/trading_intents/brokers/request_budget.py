"""How many requests a credential may still make, shared by all its accounts in a process. Pure: times are arguments."""

from collections.abc import Mapping
from math import ceil


class RequestBudget:
    """So many a minute: by the broker's own count where its answers tell one (`X-RateLimit-Remaining` and `-Reset`),
    else by ours. A tenth is kept for CANCELs."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute, self._left, self._resets_seconds = per_minute, per_minute, 0.0

    def take(self, is_cancel: bool, now_seconds: float) -> int:
        """Takes a request, or gives the seconds until one may be free."""
        if now_seconds >= self._resets_seconds:
            self._left, self._resets_seconds = self._per_minute, now_seconds + 60
        if self._left <= (0 if is_cancel else self._per_minute // 10):
            return max(1, ceil(self._resets_seconds - now_seconds))
        self._left -= 1
        return 0

    def learn(self, status: int, headers: Mapping[str, str], now_seconds: float, unix_seconds: float) -> None:
        """A 429 that does not say until when is over after a second."""
        reset, left = (headers.get(f"x-ratelimit-{name}", "") for name in ("reset", "remaining"))
        if status == 429 or (reset.isdecimal() and left.isdecimal()):
            seconds = int(reset) - unix_seconds if reset.isdecimal() else 1.0
            self._resets_seconds = now_seconds + min(60.0, max(1.0, seconds))
            self._left = 0 if status == 429 else int(left)
