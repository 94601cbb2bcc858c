"""Balances over HTTP: parse, call one use case, render."""

from datetime import UTC, datetime, timedelta

import msgspec

from trading_intents.accounts.http import find_account
from trading_intents.accounts.service import Accounts
from trading_intents.balances.model import Resolution
from trading_intents.balances.service import Balances
from trading_intents.clock import Clock
from trading_intents.errors import ValidationFailed
from trading_intents.identity.access import Gate
from trading_intents.web.body import read_choice
from trading_intents.web.paging import query_time
from trading_intents.web.request import Answer, Request, answer_json, show_as
from trading_intents.web.routes import Operation, Parameter, Route, Tag

MAX_SPANS = 1_500
FIRST = datetime(1, 1, 1, tzinfo=UTC)
TIME = {"type": "string", "format": "date-time"}


class Balance(msgspec.Struct, kw_only=True):
    """The broker's last report; null where it reports none."""

    account_id: str
    currency: str | None = None
    cash: str | None = None
    buying_power: str | None = None
    equity: str | None = None
    as_of: str | None = None


class EquitySpan(msgspec.Struct):
    """The last values of a span that began at `at`; null where the broker reports none."""

    at: str
    equity: str | None
    cash: str | None
    realized_pnl: str
    unrealized_pnl: str


class EquityHistory(msgspec.Struct):
    data: list[EquitySpan]


EQUITY_PARAMETERS = (
    Parameter(
        "resolution",
        "The length of a span; default 1h.",
        {"type": "string", "enum": list(Resolution)},
    ),
    Parameter("from", f"The first span; default {MAX_SPANS} spans before `to`.", TIME),
    Parameter("to", "The first span that is left out; default the one after now's.", TIME),
)


def balance_routes(
    gate: Gate, accounts: Accounts, balances: Balances, clock: Clock
) -> tuple[Route, ...]:
    @Operation(tag=Tag.PRICES, answer=Balance)
    async def get_balances(request: Request) -> Answer:
        """Read the account's cash, buying power and equity."""
        account = await find_account(request, gate, accounts)
        balance = await balances.find(account)
        if balance is None:
            return answer_json(Balance(account_id=str(account.id)))
        return answer_json(show_as(Balance, balance, account_id=account.id))

    @Operation(tag=Tag.PRICES, answer=EquityHistory, parameters=EQUITY_PARAMETERS)
    async def get_equity(request: Request) -> Answer:
        """Read the account's equity over time."""
        account = await find_account(request, gate, accounts)
        resolution = read_choice(
            "?resolution", request.query.get("resolution", Resolution.HOUR), Resolution
        )
        span = timedelta(seconds=resolution.seconds)
        longest = MAX_SPANS * span
        end = query_time(request, "to") or clock.now() + span  # with the running span
        end = _begin_of_span(end, resolution)
        start = query_time(request, "from")
        if start is None:
            start = FIRST if end - FIRST < longest else end - longest
        start = _begin_of_span(start, resolution)
        if end - start > longest:
            raise ValidationFailed.at(
                "?from", f"must be at most {MAX_SPANS} spans of {resolution} before `to`"
            )
        points = await balances.list_points(account, resolution, start, end)
        return answer_json(EquityHistory([show_as(EquitySpan, point) for point in points]))

    return (
        Route("GET", "/v1/accounts/{account_id}/balances", gate, get_balances),
        Route("GET", "/v1/accounts/{account_id}/equity", gate, get_equity),
    )


def _begin_of_span(time: datetime, resolution: Resolution) -> datetime:
    return time - (time - FIRST) % timedelta(seconds=resolution.seconds)
