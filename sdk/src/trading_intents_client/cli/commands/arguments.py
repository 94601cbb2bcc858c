"""Arguments and options that commands share, and the accounts and orders that they name."""

import os
import re
from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from trading_intents_client import Account, NotFound, TimeInForce, TradingClient
from trading_intents_client.asynchronous.client import MIN_ID_CHARACTERS
from trading_intents_client.asynchronous.requests import check_key
from trading_intents_client.cli.login import account_name
from trading_intents_client.cli.tables import short_ids

WHOLE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
TIMES_IN_FORCE = dict(
    zip(("day", "gtc", "ioc", "fok", "opg", "cls", "ext"), TimeInForce, strict=True)
)


def parse_amount(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise typer.BadParameter(f"{text} is no number") from None
    if not value.is_finite() or value <= 0:
        raise typer.BadParameter(f"{text} is not greater than zero")
    return value


def parse_time_in_force(text: str) -> TimeInForce:
    name = TIMES_IN_FORCE.get(text.lower()) or TimeInForce(text.upper())
    if not name.is_known:
        raise typer.BadParameter(f"{text}: use {', '.join(TIMES_IN_FORCE)}")
    return name


def parse_key(text: str) -> str:
    try:
        return check_key(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


AccountName = Annotated[
    str,
    typer.Option(
        "--account",
        metavar="NAME",
        help="The account's name, id or the first eight characters of it; not needed where there "
        "is one.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs, one value a line.")]
Symbol = Annotated[str, typer.Argument(metavar="SYMBOL", help="Such as AAPL.")]
Quantity = Annotated[
    Decimal, typer.Argument(metavar="QUANTITY", parser=parse_amount, help="How many.")
]
Limit = Annotated[
    Decimal | None,
    typer.Option("--limit", metavar="PRICE", parser=parse_amount, help="A limit price."),
]
Stop = Annotated[
    Decimal | None,
    typer.Option("--stop", metavar="PRICE", parser=parse_amount, help="A stop price."),
]
Trail = Annotated[
    Decimal | None,
    typer.Option(
        "--trail", metavar="AMOUNT", parser=parse_amount, help="A stop so far from the best price."
    ),
]
TrailBps = Annotated[
    int | None,
    typer.Option(
        "--trail-bps", metavar="BPS", help="The same, in basis points of that price.", min=1
    ),
]
TakeProfit = Annotated[
    Decimal | None,
    typer.Option(
        "--take-profit",
        metavar="PRICE",
        parser=parse_amount,
        help="Close what it fills at this limit.",
    ),
]
StopLoss = Annotated[
    Decimal | None,
    typer.Option(
        "--stop-loss",
        metavar="PRICE",
        parser=parse_amount,
        help="Close what it fills by this stop.",
    ),
]
StopLossLimit = Annotated[
    Decimal | None,
    typer.Option(
        "--stop-loss-limit",
        metavar="PRICE",
        parser=parse_amount,
        help="A limit of the --stop-loss.",
    ),
]
Oco = Annotated[
    Decimal | None,
    typer.Option(
        "--oco",
        metavar="PRICE",
        parser=parse_amount,
        help="A stop beside --limit: one cancels the other.",
    ),
]
Tif = Annotated[
    TimeInForce | None,
    typer.Option(
        "--tif",
        metavar="TIF",
        parser=parse_time_in_force,
        help=f"Time in force: {', '.join(TIMES_IN_FORCE)}.",
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait for the order's end, and fail if it is not filled.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.", min=0)
]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        parser=parse_key,
        help="An Idempotency-Key: with it the order is placed once.",
    ),
]
OrderId = Annotated[
    str, typer.Argument(metavar="ID", help="The order's id, or its beginning as `orders` shows it.")
]
WAIT_SECONDS = 30.0


def find_account(client: TradingClient, chosen: str) -> Account:
    name = account_name(chosen, os.environ)
    # A whole id is used as it is: a key that may only trade cannot list accounts.
    return client.account(name) if name and WHOLE_ID.match(name) else client.find_account(name)


def find_order_id(account: Account, given: str) -> str:
    """The id of the open order that begins so. A whole one is used as it is: reads have a
    permission of their own."""
    if WHOLE_ID.match(given) or len(given) < MIN_ID_CHARACTERS:
        return given
    found = [
        order.order_id
        for order in account.orders(state="OPEN")
        if order.order_id.startswith(given.lower())
    ]
    if not found:
        raise NotFound(f"no open order has an id that begins with {given}")
    if len(found) > 1:
        raise NotFound(
            f"{len(found)} open orders begin with {given}, type more: "
            f"{', '.join(short_ids(found).values())}"
        )
    return found[0]
