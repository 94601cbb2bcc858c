"""The table of balances. Never decides what is told."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from trading_intents.balances.model import AccountBalance
from trading_intents.brokers.port import BrokerBalance
from trading_intents.storage.database import Tx
from trading_intents.storage.pipeline import Statement

_FIELDS = BrokerBalance.__struct_fields__


def write_balances(balances: Sequence[AccountBalance]) -> Statement:
    """One of each account. An older one never takes the place of a newer one."""
    rows = [
        {"account_id": each.account_id, "organization_id": each.organization_id}
        | {name: getattr(each.balance, name) for name in _FIELDS}
        for each in sorted(balances, key=lambda each: str(each.account_id))
    ]
    return Statement(
        """
        INSERT INTO balances AS b (account_id, organization_id, currency, cash, buying_power, equity, as_of)
        SELECT account_id, organization_id, currency, cash, buying_power, equity, as_of
        FROM json_populate_recordset(NULL::balances, $1::text::json)
        ON CONFLICT (account_id) DO UPDATE
        SET currency = excluded.currency, cash = excluded.cash, buying_power = excluded.buying_power,
            equity = excluded.equity, as_of = excluded.as_of
        WHERE excluded.as_of >= b.as_of
        """,
        (msgspec.json.encode(rows).decode(),),
    )


async def find_balance(tx: Tx, account_id: UUID) -> BrokerBalance | None:
    row = await tx.fetchrow(
        "SELECT currency, cash, buying_power, equity, as_of FROM balances WHERE account_id = $1", account_id
    )
    return None if row is None else BrokerBalance(**dict(row))
