"""Commands about orders: buy, sell, short, replace, cancel, halt, resume."""

import os
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from trading_intents_client import (
    Account,
    Order,
    PlacedOrder,
    TimeInForce,
    TradingClient,
    TradingError,
    WaitTimeout,
    cancel_command,
)
from trading_intents_client.asynchronous.requests import check_key
from trading_intents_client.cli.login import account_name, open_client
from trading_intents_client.cli.output import REFUSED, UNREACHABLE, USAGE, exit_codes, for_each, print_json
from trading_intents_client.cli.reasons import order_reason
from trading_intents_client.cli.tables import amount, rounded

TIMES_IN_FORCE = dict(zip(("day", "gtc", "ioc", "fok", "opg", "cls", "ext"), TimeInForce, strict=True))


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
    str, typer.Option("--account", metavar="NAME", help="The account's name or id; not needed where there is one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs, one value a line.")]
Symbol = Annotated[str, typer.Argument(metavar="SYMBOL", help="Such as AAPL.")]
Quantity = Annotated[Decimal, typer.Argument(metavar="QUANTITY", parser=parse_amount, help="How many.")]
Limit = Annotated[Decimal | None, typer.Option("--limit", metavar="PRICE", parser=parse_amount, help="A limit price.")]
Stop = Annotated[Decimal | None, typer.Option("--stop", metavar="PRICE", parser=parse_amount, help="A stop price.")]
Tif = Annotated[
    TimeInForce | None,
    typer.Option(
        "--tif", metavar="TIF", parser=parse_time_in_force, help=f"Time in force: {', '.join(TIMES_IN_FORCE)}."
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the order's end, and fail if it is not filled.")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.", min=0)]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="KEY", parser=parse_key, help="An Idempotency-Key: with it the order is placed once."
    ),
]
OrderId = Annotated[str, typer.Argument(metavar="ID", help="The order's id, as `orders` shows it.")]
WAIT_SECONDS = 30.0


def find_account(client: TradingClient, chosen: str) -> Account:
    return client.find_account(account_name(chosen, os.environ))


def add_order_commands(cli: typer.Typer, panel: str) -> None:
    for name, verb in (("buy", "Buy"), ("sell", "Sell"), ("short", "Sell short")):
        told = f"{verb}: at the market, or with --limit and --stop."
        cli.command(name=name, help=told, rich_help_panel=panel)(_placing(name))
    for command in (cancel, replace, halt, resume):
        cli.command(rich_help_panel=panel)(command)


def _placing(name: str) -> Callable[..., None]:
    def place(
        symbol: Symbol,
        quantity: Quantity,
        limit: Limit = None,
        stop: Stop = None,
        tif: Tif = None,
        account: AccountName = "",
        wait: Wait = False,
        timeout: Timeout = WAIT_SECONDS,
        key: IdempotencyKey = None,
        as_json: AsJson = False,
    ) -> None:
        with exit_codes(), open_client(os.environ) as client:
            chosen = find_account(client, account)
            submit = {"buy": chosen.buy, "sell": chosen.sell, "short": chosen.short}[name]
            placed = submit(symbol, quantity, limit=limit, stop=stop, time_in_force=tif, idempotency_key=key)
            if wait:
                _report_end(placed, timeout, as_json)
            elif as_json:
                print_json(placed)
            else:
                typer.echo(f"accepted: {name} {amount(quantity)} {symbol.upper()}, order {placed.intent_id}")

    return place


def _report_end(placed: PlacedOrder, timeout: float, as_json: bool) -> None:
    try:
        order = placed.wait(timeout=timeout)
    except (TradingError, KeyboardInterrupt) as error:
        # The order is placed, whatever became of the wait: whoever takes it for refused would place it again.
        print_json(placed) if as_json else typer.echo(f"accepted: order {placed.intent_id}, whose end was not seen")
        if isinstance(error, WaitTimeout | KeyboardInterrupt):
            raise
        typer.echo(f"Outcome unknown: {error}", err=True)
        raise typer.Exit(UNREACHABLE) from None
    _print_order(order, as_json)
    if order.order_status != "FILLED":
        raise typer.Exit(REFUSED)


def _print_order(order: Order, as_json: bool) -> None:
    if as_json:
        print_json(order)
        return
    told = f"{order.order_side} {amount(order.quantity)} {order.symbol}: {order.order_status}"
    if order.filled_quantity:
        average = rounded(order.average_price, order.limit_price, order.stop_price)
        told += f" {amount(order.filled_quantity)} at {amount(average)}"
    reason = order_reason(order)
    typer.echo(told + (f", {reason}" if reason else "") + f", order {order.order_id}")


def cancel(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of orders.")] = None,
    all_orders: Annotated[bool, typer.Option("--all", help="All open orders of the account.")] = False,
    symbol: Annotated[str | None, typer.Option("--symbol", help="With --all: of this symbol only.")] = None,
    account: AccountName = "",
    as_json: AsJson = False,
) -> None:
    """Cancel orders by their ids, or all open ones."""
    if bool(ids) == all_orders or (symbol is not None and not all_orders):
        raise typer.BadParameter("name orders, or use --all, also with --symbol")
    with exit_codes(), open_client(os.environ) as client:
        chosen = find_account(client, account)

        def cancel_one(order_id: str) -> None:
            placed = chosen.submit(cancel_command(order_id))
            print_json(placed) if as_json else typer.echo(f"accepted: cancel {placed.intent_id}")

        for_each(ids or (), cancel_one)
        while all_orders:
            answer = chosen.cancel_all(symbol)
            for submitted in answer.intents:
                print_json(submitted) if as_json else typer.echo(f"accepted: cancel {submitted.intent_id}")
            if not answer.more:
                break


def replace(
    order_id: OrderId,
    quantity: Annotated[
        Decimal | None, typer.Option("--quantity", parser=parse_amount, help="The new total quantity.")
    ] = None,
    limit: Limit = None,
    stop: Stop = None,
    tif: Tif = None,
    account: AccountName = "",
    as_json: AsJson = False,
) -> None:
    """Change an order's quantity, prices or time in force; what is left out stays."""
    if quantity is None and limit is None and stop is None and tif is None:
        raise typer.BadParameter("say what to change: --quantity, --limit, --stop or --tif")
    with exit_codes(), open_client(os.environ) as client:
        order = find_account(client, account).order(order_id)
        placed = order.replace(quantity=quantity, limit=limit, stop=stop, time_in_force=tif)
        print_json(placed) if as_json else typer.echo(f"accepted: replace {placed.intent_id}")


def _chosen_accounts(client: TradingClient, account: str, all_accounts: bool) -> list[Account]:
    if not all_accounts:
        return [find_account(client, account)]
    if account:
        typer.echo("--account and --all: use one of them", err=True)
        raise typer.Exit(USAGE)
    return [client.account(found.id) for found in client.accounts() if found.closed_at is None]


AllAccounts = Annotated[bool, typer.Option("--all", help="All accounts of the API key's environment.")]


def halt(
    reason: Annotated[str, typer.Argument(help="Why, for the record.")],
    all_accounts: AllAccounts = False,
    keep_orders: Annotated[bool, typer.Option("--keep-orders", help="Leave open orders as they are.")] = False,
    close_positions: Annotated[bool, typer.Option("--close-positions", help="Close all positions.")] = False,
    account: AccountName = "",
    as_json: AsJson = False,
) -> None:
    """Stop trading at once, and cancel open orders."""
    with exit_codes(), open_client(os.environ) as client:

        def halt_one(chosen: Account) -> None:
            made = chosen.controls.halt(reason, cancel_orders=not keep_orders, close_positions=close_positions)
            told = f"halted: account {chosen.id}, {made.state}, {made.orders} orders, {made.positions} positions"
            print_json(made) if as_json else typer.echo(told)

        for_each(_chosen_accounts(client, account, all_accounts), halt_one)


def resume(all_accounts: AllAccounts = False, account: AccountName = "", as_json: AsJson = False) -> None:
    """Trade again after a halt."""
    with exit_codes(), open_client(os.environ) as client:

        def resume_one(chosen: Account) -> None:
            ended = chosen.controls.resume()
            print_json(ended) if as_json else typer.echo(f"resumed: account {chosen.id}")

        for_each(_chosen_accounts(client, account, all_accounts), resume_one)
