"""The part of its limits that an API key has used, as its row has it. Pure: no I/O, no clock."""

from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec

from trading_intents.controls.limits.model import RATE_SECONDS
from trading_intents.trading import EXACT, ZERO


class KeyUse(msgspec.Struct):
    """It moves on with each order that is accepted."""

    key_id: str
    day: date  # in UTC
    daily_notional: Decimal
    seconds: dict[int, int]  # accepted orders of the last minute, by second

    @property
    def orders_last_minute(self) -> int:
        return sum(self.seconds.values())

    def accept(self, orders: int, notional: Decimal, now: datetime) -> None:
        second = int(now.timestamp())
        self.seconds[second] = self.seconds.get(second, 0) + orders
        self.daily_notional = EXACT.add(self.daily_notional, notional)


def parse_use(text: str | bytes, now: datetime) -> KeyUse:
    """Without what is of a day before, or of more than a minute ago."""
    use = msgspec.json.decode(text, type=KeyUse)
    today = now.astimezone(UTC).date()
    if use.day < today:
        use.day = today
        use.daily_notional = ZERO
    oldest = int(now.timestamp()) - RATE_SECONDS
    use.seconds = {second: orders for second, orders in use.seconds.items() if second > oldest}
    return use
