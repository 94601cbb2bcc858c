"""Stand-ins that a test steers by hand. Nothing here sleeps or reads the machine's clock."""

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 5, 15, 0, tzinfo=UTC)


class ManualClock:
    """Stands still until told to move."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._elapsed_seconds = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_seconds)

    def monotonic(self) -> float:
        return self._elapsed_seconds

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "time never runs backwards"
        self._elapsed_seconds += seconds
