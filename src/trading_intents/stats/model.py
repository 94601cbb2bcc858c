"""The measures, the buckets of a window, and the answer made of them. Pure: no I/O, no clock."""

from bisect import bisect_left
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

import msgspec

from trading_intents.clock import rfc3339
from trading_intents.trading import ZERO, ActionType, FrozenStruct, amount_text

MINUTE = 60
TEN_MINUTES = 600
HOUR = 3_600
SIX_HOURS = 21_600
DAY = 86_400
WEEK = 604_800
# Each divides the next. A window is read as the narrow buckets of its first hours and the wide ones
# of the rest: some dozen, whatever its length.
WIDTHS_SECONDS = (MINUTE, TEN_MINUTES, HOUR, SIX_HOURS, DAY, WEEK)
# The longest window that reads the width, and some time for its rounding.
KEEP_SECONDS = {width: 2 * DAY if width < HOUR else 32 * DAY for width in WIDTHS_SECONDS}
ORIGIN = datetime(2000, 1, 1, tzinfo=UTC)
NEVER = datetime(9999, 1, 1, tzinfo=UTC)

TOP_SYMBOLS = 10
# Upper edges of the latency histogram; what took longer counts as the last.
ACK_EDGES_MILLIS = (
    1,
    2,
    3,
    5,
    7,
    10,
    15,
    20,
    30,
    50,
    70,
    100,
    150,
    200,
    300,
    500,
    700,
    1_000,
    1_500,
    2_000,
    3_000,
    5_000,
    7_000,
    10_000,
    15_000,
    30_000,
    60_000,
)
OPEN = "open"  # counted live, beside the measures
EVERY_REASON = ""  # a refusal can have several reasons, so their sum is not its count


class Measure(StrEnum):
    """A count, with its key and its time. It is added in the transaction that it counts."""

    ACTION = "action"  # action type; created
    SYMBOL = "symbol"  # actions by symbol; created
    REFUSED = "refused"  # reason, or EVERY_REASON; refused
    # Final order status; when the intent was created. -1 when an order leaves it again.
    FINISHED = "finished"
    FILLED_QUANTITY = "filled_quantity"  # symbol; filled
    FILLED_NOTIONAL = "filled_notional"  # likewise
    ACK_MILLIS = "ack_millis"  # see ack_key; acknowledged


def ack_key(millis: int) -> str:
    index = bisect_left(ACK_EDGES_MILLIS, millis)
    return str(ACK_EDGES_MILLIS[min(index, len(ACK_EDGES_MILLIS) - 1)])


class Window(StrEnum):
    LAST_HOUR = "last_hour"
    LAST_DAY = "last_day"
    LAST_WEEK = "last_week"
    LAST_MONTH = "last_month"


# How long, and to what `from` is rounded down.
WINDOWS_SECONDS = {
    Window.LAST_HOUR: (HOUR, MINUTE),
    Window.LAST_DAY: (DAY, MINUTE),
    Window.LAST_WEEK: (7 * DAY, HOUR),
    Window.LAST_MONTH: (30 * DAY, HOUR),
}


class ActionCounts(msgspec.Struct):
    total: int
    CREATE: int
    REPLACE: int
    CANCEL: int


class IntentCounts(msgspec.Struct, kw_only=True):
    """By present order status."""

    total: int
    PENDING_NEW: int
    NEW: int
    PARTIALLY_FILLED: int
    PENDING_REPLACE: int
    PENDING_CANCEL: int
    UNKNOWN: int
    FILLED: int
    CANCELLED: int
    EXPIRED: int
    REJECTED: int


class SymbolActions(msgspec.Struct):
    symbol: str
    actions: int


class Refused(msgspec.Struct):
    total: int
    by_reason: dict[str, int]


class SymbolFilled(msgspec.Struct):
    symbol: str
    quantity: str
    notional: str


class Latency(msgspec.Struct):
    p50: int | None
    p99: int | None


class Stats(msgspec.Struct, kw_only=True):
    time_window: Window
    start: str = msgspec.field(name="from")
    to: str
    actions: ActionCounts
    intents: IntentCounts
    symbols: list[SymbolActions]
    refused: Refused
    filled: list[SymbolFilled]
    broker_ack_latency_ms: Latency


Totals = Mapping[tuple[str, str], Decimal]  # by measure and key


class Counted(FrozenStruct, array_like=True):
    measure: str
    key: str
    amount: Decimal = Decimal(1)
    at: datetime | None = None  # None: when it was reported


def begin(window: Window, now: datetime) -> datetime:
    length_seconds, unit_seconds = WINDOWS_SECONDS[window]
    return _floor(now - timedelta(seconds=length_seconds), unit_seconds)


def cover(start: datetime, unit_seconds: int) -> list[tuple[int, datetime, datetime]]:
    """The buckets since `start`, ever wider: width, first, and past the last."""
    ranges = []
    widths = [width for width in WIDTHS_SECONDS if width >= unit_seconds]
    for width, wider in zip(widths, [*widths[1:], None], strict=True):
        end = _floor(start + timedelta(seconds=wider - 1), wider) if wider else NEVER
        if end > start:
            ranges.append((width, start, end))
        start = end
    return ranges


def _floor(moment: datetime, width_seconds: int) -> datetime:
    width = timedelta(seconds=width_seconds)
    return ORIGIN + (moment - ORIGIN) // width * width


def summarize(window: Window, start: datetime, now: datetime, totals: Totals) -> Stats:
    def of(measure: str) -> dict[str, int]:
        counts = {}
        for (name, key), amount in totals.items():
            if name == measure and amount:
                counts[key] = int(amount)
        return counts

    actions = of(Measure.ACTION)
    refused = of(Measure.REFUSED)
    by_type = {kind.value: actions.get(kind, 0) for kind in ActionType}
    by_status = of(OPEN) | of(Measure.FINISHED)
    latencies = of(Measure.ACK_MILLIS)
    by_symbol = of(Measure.SYMBOL)
    ranked = sorted(by_symbol.items(), key=lambda item: (-item[1], item[0]))
    ranked = ranked[:TOP_SYMBOLS]
    return Stats(
        time_window=window,
        start=rfc3339(start),
        to=rfc3339(now),
        actions=ActionCounts(sum(by_type.values()), **by_type),
        intents=IntentCounts(
            total=by_type[ActionType.CREATE],
            **{status: by_status.get(status, 0) for status in IntentCounts.__struct_fields__[1:]},
        ),
        symbols=[SymbolActions(symbol, amount) for symbol, amount in ranked],
        refused=Refused(refused.pop(EVERY_REASON, 0), dict(sorted(refused.items()))),
        filled=[_filled(symbol, totals) for symbol, _ in ranked],
        broker_ack_latency_ms=Latency(_quantile(latencies, 50), _quantile(latencies, 99)),
    )


def _filled(symbol: str, totals: Totals) -> SymbolFilled:
    quantity = totals.get((Measure.FILLED_QUANTITY, symbol), ZERO)
    notional = totals.get((Measure.FILLED_NOTIONAL, symbol), ZERO)
    return SymbolFilled(symbol, amount_text(quantity), amount_text(notional))


def _quantile(counts: Mapping[str, int], percent: int) -> int | None:
    """The upper edge of the quantile's bucket in the histogram."""
    wanted = sum(counts.values()) * percent
    seen = 0
    for edge in sorted(map(int, counts)):
        seen += counts[str(edge)] * 100
        if seen >= wanted:
            return edge
    return None
