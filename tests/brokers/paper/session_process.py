"""Places orders on a paper account as fast as it can, and prints which were answered, until it is
killed."""

import asyncio
import sys
from uuid import UUID

from tests.brokers.paper.venue import PaperSession, open_venue
from trading_intents.brokers.port import Outcome
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret

SYMBOL_LINES = (
    "buy 1 market",
    "buy 3 limit 100",
    "buy 2 limit 101 ioc",
    "short 1 limit 120",
    "sell 1 market",
)


async def trade(session: PaperSession, name: str) -> None:
    for n in range(1_000_000):
        client_order_id = f"{name}-{n}"
        result = await session.submit(client_order_id, SYMBOL_LINES[n % len(SYMBOL_LINES)])
        # A slow machine may send one too late.
        if result.outcome in (Outcome.ACKED, Outcome.REJECTED):
            print(client_order_id, result.outcome, flush=True)
        if n % 3 == 0:
            await session.cancel(f"{client_order_id}-x", client_order_id)


async def main(login: str, owner: str, organization: str, account: str, name: str) -> None:
    async with open_venue(Secret(login), Secret(owner)) as venue:
        session = await venue.open_session(UUID(account), OrganizationId(UUID(organization)))
        await asyncio.gather(*(trade(session, f"{name}{n}") for n in range(3)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
