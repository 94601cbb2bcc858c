"""Orders that were accepted one by one become an entry and its legs, as one POST accepts them."""

from collections.abc import Mapping
from uuid import UUID

import asyncpg

from trading_intents.trading import EXITS, Leg


async def group_orders(owner: asyncpg.Connection, entry: UUID, legs: Mapping[Leg, UUID]) -> None:
    """Makes a group of orders of one symbol, none of which is sent yet."""
    change = """
        UPDATE orders SET linked = true, leg = $2, parent_order_id = $3, active = $4
        WHERE order_id = $1
    """
    for leg, order_id in legs.items():
        await owner.execute(change, order_id, leg, entry, leg not in EXITS)
        await owner.execute("DELETE FROM outbox WHERE order_key = $1", order_id)
        quantity = "SELECT account_id, symbol, order_side, quantity FROM orders WHERE order_id = $1"
        row = await owner.fetchrow(quantity, order_id)
        side = "open_buy" if row["order_side"] == "BUY" else "open_sell"
        await owner.execute(
            f"UPDATE holdings SET {side} = {side} - $3 WHERE account_id = $1 AND symbol = $2",
            row["account_id"],
            row["symbol"],
            row["quantity"],
        )
    await owner.execute("UPDATE orders SET linked = true WHERE order_id = $1", entry)
