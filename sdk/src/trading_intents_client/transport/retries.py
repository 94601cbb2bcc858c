"""The rules by which a failed try is repeated, and after how long. Pure: it knows no HTTP client
and no clock."""

from collections.abc import Callable
from enum import Enum

from trading_intents_client.errors import (
    AnswerLost,
    OutcomeUnknown,
    RateLimited,
    TradingError,
    Unavailable,
    Unreachable,
)

FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 5.0
MAX_RETRY_AFTER_SECONDS = 60
JITTER = 0.5
# What a proxy answers whose connection to the platform failed: for us the answer is lost.
PROXY_FAILURES = (502, 503, 504)
SERVER_FAULT = 500
NOT_CARRIED_OUT = (RateLimited, Unavailable, Unreachable)

Random = Callable[[], float]  # from 0 to 1


class Repeat(Enum):
    """The reason why a request is safe to repeat."""

    READ = "it changes nothing"
    KEYED = "its Idempotency-Key makes it the same command"
    WRITE = "nothing: only if it was certainly not carried out"


def may_repeat(failure: TradingError, repeat: Repeat) -> bool:
    """429, `unavailable` and failed connects always; what may have been carried out only if that is
    safe."""
    if isinstance(failure, NOT_CARRIED_OUT):
        return True
    is_lost = isinstance(failure, AnswerLost | OutcomeUnknown) or failure.status in PROXY_FAILURES
    return is_lost and repeat is not Repeat.WRITE


def may_be_carried_out(failure: TradingError) -> bool:
    """Whether the try may have been carried out although it failed; wider than what is worth
    another try."""
    if isinstance(failure, NOT_CARRIED_OUT):
        return False
    return isinstance(failure, AnswerLost | OutcomeUnknown) or (failure.status or 0) >= SERVER_FAULT


def pause_seconds(failure: TradingError, tries: int, random: Random) -> float | None:
    """After the `tries`-th try. None: the server asks for a longer pause than a caller would
    wait."""
    asked = failure.retry_after or 0
    if asked > MAX_RETRY_AFTER_SECONDS:
        return None
    pause: float = min(FIRST_PAUSE_SECONDS * 2 ** (tries - 1), MAX_PAUSE_SECONDS)
    spread = (1 - JITTER) + JITTER * random()
    # Never earlier than asked for, and not all callers at the same moment.
    return asked + pause * spread
