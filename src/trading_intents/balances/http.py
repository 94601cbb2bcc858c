"""Balances over HTTP: parse, call one use case, render."""

import msgspec

from trading_intents.accounts.http import find_account
from trading_intents.accounts.service import Accounts
from trading_intents.balances.service import Balances
from trading_intents.identity.access import Gate
from trading_intents.web.request import Answer, Request, answer_json, render
from trading_intents.web.routes import Operation, Route, Tag


class Balance(msgspec.Struct):
    """What the broker last told; null where it tells none."""

    account_id: str
    currency: str | None = None
    cash: str | None = None
    buying_power: str | None = None
    equity: str | None = None
    as_of: str | None = None


def balance_routes(gate: Gate, accounts: Accounts, balances: Balances) -> tuple[Route, ...]:
    @Operation(Tag.PRICES, answer=Balance)
    async def get_balances(request: Request) -> Answer:
        """Read the account's cash, buying power and equity."""
        account = await find_account(request, gate, accounts)
        told = await balances.find(account)
        if told is None:
            return answer_json(Balance(str(account.id)))
        return answer_json(render(Balance, told, account_id=account.id))

    return (Route("GET", "/v1/accounts/{account_id}/balances", gate, get_balances),)
