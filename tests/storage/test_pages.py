"""Columns as the platform sends them: PostgreSQL makes the texts that Python would."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

from tests.conftest import Urls
from tests.kept_connections import open_pools
from trading_intents.clock import rfc3339
from trading_intents.storage.pages import shown_columns
from trading_intents.telemetry import Metrics
from trading_intents.trading import maybe_text

LARGEST = Decimal("9" * 72 + "." + "9" * 36)
AMOUNTS = [
    None,
    *(
        Decimal(text)
        for text in ("0", "0.00", "-0.10", "1", "1.500", "100", "100.00", "1e-18", "1e20")
    ),
    *(LARGEST, -LARGEST),
]
NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)
TIMES = [
    *(NOON, NOON.replace(microsecond=1), NOON.replace(microsecond=120_000), NOON.replace(year=1)),
    *(NOON.astimezone(timezone(timedelta(hours=14))), NOON.replace(year=9999, month=12, day=30)),
]
QUERY = """
    SELECT {shown} FROM unnest($1::numeric[]) WITH ORDINALITY AS amounts (amount, number)
    FULL JOIN unnest($2::timestamptz[]) WITH ORDINALITY AS times (at, number) USING (number)
    ORDER BY number
"""


async def test_amounts_and_times_are_the_same_texts_as_elsewhere(urls: Urls) -> None:
    query = QUERY.format(
        shown=shown_columns({"number": "bigint", "amount": "numeric", "at": "timestamptz"})
    )
    async with (
        open_pools(urls.login, 1, Metrics()) as database,
        database.service.transaction([], read_only=True) as tx,
    ):
        await tx.execute("SET LOCAL timezone = 'America/New_York'")
        rows = await tx.fetch(query, AMOUNTS, TIMES)
    assert [row["amount"] for row in rows] == [maybe_text(amount) for amount in AMOUNTS]
    assert [row["at"] for row in rows[: len(TIMES)]] == [rfc3339(at) for at in TIMES]
