"""Prices nobody posted: a walk in whole ticks, made from the seed and the time alone, so that
nothing is stored and every process sees the same market."""

import hashlib
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from trading_intents.brokers.paper.model import Quote, Source
from trading_intents.trading import Symbol

TICK_MILLIS = 250
CENT = Decimal("0.01")
HALF_SPREAD_CENTS = 1
# Between 50 and 500 USD: the walk strays from it by half a block at most, which is 20.48.
LOWEST_CENTS = 5_000
CENTS_RANGE = 45_000
LOT = 100
MAX_LOTS = 10
# A block's second half reverses the steps of its first, so that every block begins at its base.
HALF_BLOCK = 2_048
_ALL = (1 << HALF_BLOCK) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(milliseconds=TICK_MILLIS)


def tick_number(at: datetime) -> int:
    return (at - _EPOCH) // _TICK


def tick_time(tick: int) -> datetime:
    return _EPOCH + tick * _TICK


def walk_middle_cents(seed: int, symbol: Symbol, tick: int) -> int:
    """Gives the walk's middle price, which moves by one cent a tick."""
    return _number(seed, symbol, "base") % CENTS_RANGE + LOWEST_CENTS + _level(seed, symbol, tick)


def walk_quote(seed: int, symbol: Symbol, tick: int) -> Quote:
    middle = walk_middle_cents(seed, symbol, tick)
    chance = _number(seed, symbol, "size", tick)
    return Quote(
        source=Source.WALK,
        number=tick,
        at=tick_time(tick),
        bid=(middle - HALF_SPREAD_CENTS) * CENT,
        ask=(middle + HALF_SPREAD_CENTS) * CENT,
        bid_size=Decimal((chance % MAX_LOTS + 1) * LOT),
        ask_size=Decimal((chance // MAX_LOTS % MAX_LOTS + 1) * LOT),
    )


def _level(seed: int, symbol: Symbol, tick: int) -> int:
    """The walk's distance from its base, by counting bits: each bit is a step of one tick, up or
    down."""
    block, steps = divmod(tick, 2 * HALF_BLOCK)
    shake = hashlib.shake_256(_text(seed, symbol, "steps", block))
    bits = int.from_bytes(shake.digest(HALF_BLOCK // 8), "big")
    if steps <= HALF_BLOCK:
        return _sum(bits, steps)
    shift = _number(seed, symbol, "turn", block) % HALF_BLOCK
    back = (bits >> shift | bits << (HALF_BLOCK - shift)) & _ALL
    return _sum(bits, HALF_BLOCK) - _sum(back, steps - HALF_BLOCK)


def _sum(bits: int, steps: int) -> int:
    return 2 * (bits & ((1 << steps) - 1)).bit_count() - steps


def _number(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(_text(*parts), digest_size=8).digest(), "big")


def _text(*parts: object) -> bytes:
    return "\x1f".join(map(str, parts)).encode()
