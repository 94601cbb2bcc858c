"""Commands that show: orders, trades, positions, balances, a quote, events; and login, logout."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
import typer

from trading_intents_client import (
    Event,
    OrderFlag,
    OrderState,
    OrderStatus,
    SortOrder,
    TradingClient,
)
from trading_intents_client.cli.commands.arguments import AccountName, AsJson, Symbol, find_account
from trading_intents_client.cli.lines import event_line, event_time
from trading_intents_client.cli.login import Login, login_file, open_client, write_login
from trading_intents_client.cli.output import USAGE, exit_codes, print_json
from trading_intents_client.cli.plain import echo
from trading_intents_client.cli.reasons import order_reason
from trading_intents_client.cli.tables import SIDES, Fields, print_table, rounded, short_ids, show
from trading_intents_client.cli.today import read_today
from trading_intents_client.transport.credentials import DEMO_URL

ORDERS: Fields = {
    "time": "created_at",
    "symbol": "symbol",
    "side": lambda order: SIDES.get(order.order_side, order.order_side),
    "quantity": "quantity",
    "filled": "filled_quantity",
    "limit": "limit_price",
    "stop": "stop_price",
    "average": lambda order: rounded(order.average_price, order.limit_price, order.stop_price),
    "status": "order_status",
    "leg": "leg",
    "reason": order_reason,
}
TRADES: Fields = {
    "time": "received_at",
    "symbol": "symbol",
    "side": lambda trade: SIDES.get(trade.side, trade.side),
    "quantity": "quantity",
    "price": "price",
    "fee": "fee",
}
POSITIONS: Fields = {
    "symbol": "symbol",
    "quantity": "quantity",
    "cost": lambda position: rounded(position.average_cost, position.market_price),
    "price": "market_price",
    "value": lambda position: rounded(position.market_value, position.market_price),
    "unrealized": lambda position: rounded(position.unrealized_pnl, position.market_price),
    "realized": lambda position: rounded(position.realized_pnl, position.market_price),
    "broker": lambda position: position.broker_quantity if position.differs else None,
}
BALANCES: Fields = {
    "currency": "currency",
    "cash": "cash",
    "buying power": "buying_power",
    "equity": "equity",
    "as of": "as_of",
}
QUOTE: Fields = {
    "symbol": "symbol",
    "bid size": "bid_size",
    "bid": "bid",
    "ask": "ask",
    "ask size": "ask_size",
    "last": "last",
    "source": "source",
    "as of": "as_of",
}
Newest = Annotated[
    int, typer.Option("--limit", "-n", metavar="N", min=1, max=100, help="How many, the newest.")
]


def add_view_commands(cli: typer.Typer, panel: str) -> None:
    for command in (orders, trades, positions, balances, quote, events, watch, login, logout):
        cli.command(rich_help_panel=panel)(command)


def orders(
    every: Annotated[bool, typer.Option("--all", help="Finished ones too, the newest.")] = False,
    status: Annotated[
        str | None, typer.Option(help="Only these statuses, comma separated.")
    ] = None,
    symbol: Annotated[str | None, typer.Option(help="Only this symbol.")] = None,
    flag: Annotated[
        str | None, typer.Option(help="Only with this flag, such as unprotected, open or not.")
    ] = None,
    limit: Newest = 50,
    account: AccountName = "",
    as_json: AsJson = False,
) -> None:
    """Show open orders, or with --all the newest ones."""
    with exit_codes(), open_client(os.environ) as client:
        is_of_any_state = bool(every or status or flag)
        state = None if is_of_any_state else OrderState.OPEN
        wanted = (
            [OrderStatus(name.strip()) for name in status.upper().split(",")] if status else None
        )
        found = find_account(client, account).orders(
            state=state,
            status=wanted,
            symbol=symbol,
            flag=OrderFlag(flag) if flag else None,
            order=SortOrder.DESC,
        )
        shown = found.page(limit=limit).data[::-1]
        ids = short_ids(order.order_id for order in shown)
        fields = ORDERS | {"id": lambda order: ids[order.order_id]}
        _print(
            shown,
            as_json,
            fields,
            "no orders" if is_of_any_state else "no open orders",
            ("reason", "id", "leg"),
        )


def trades(limit: Newest = 50, account: AccountName = "", as_json: AsJson = False) -> None:
    """Show the newest executions."""
    with exit_codes(), open_client(os.environ) as client:
        shown = (
            find_account(client, account).trades(order=SortOrder.DESC).page(limit=limit).data[::-1]
        )
        ids = short_ids(trade.order_id for trade in shown)
        _print(shown, as_json, TRADES | {"order": lambda trade: ids[trade.order_id]}, "no trades")


def positions(
    every: Annotated[bool, typer.Option("--all", help="Also those that are closed.")] = False,
    account: AccountName = "",
    as_json: AsJson = False,
) -> None:
    """Show what the account holds."""
    with exit_codes(), open_client(os.environ) as client:
        asked = find_account(client, account)
        found = list(asked.positions())
        _print(
            [each for each in found if every or each.quantity], as_json, POSITIONS, "no positions"
        )
        if found and not as_json and (today := read_today(asked, found)):
            echo(str(today), "  realized and unrealized, as the daily-loss limit counts it")


def balances(account: AccountName = "", as_json: AsJson = False) -> None:
    """Show the account's money."""
    with exit_codes(), open_client(os.environ) as client:
        balances = find_account(client, account).balances()
        _print(
            [balances], as_json, BALANCES, "no cash and no equity: the broker has reported none yet"
        )


def quote(symbol: Symbol, as_json: AsJson = False) -> None:
    """Show the paper broker's price of a symbol."""
    with exit_codes(), open_client(os.environ) as client:
        _print([client.market.quote(symbol)], as_json, QUOTE, "")


def _print(
    shown: Iterable[object], as_json: bool, fields: Fields, empty: str, below: Sequence[str] = ()
) -> None:
    if not as_json:
        print_table(fields, shown, empty, below)
        return
    for each in shown:
        print_json(each)


def events(
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on after this cursor.")
    ] = None,
    account: AccountName = "",
    as_json: AsJson = False,
) -> None:
    """Follow what happens, until Ctrl-C."""
    with exit_codes(), open_client(os.environ) as client:
        if not as_json:
            echo("following the account's events; Ctrl-C ends", err=True)
        for event in find_account(client, account).events(after=after):
            if as_json:
                print_json(_event_json(event))
            else:
                echo(f"{show(event_time(event))}  {event_line(event)}")


def _event_json(event: Event) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(event)
    return {"event": type(event).__name__.removesuffix("Event").lower()} | fields


def watch(account: AccountName = "") -> None:
    """Show orders, positions and events as they change, until q or Ctrl-C."""
    from trading_intents_client.cli.watch.live import watch_account  # noqa: PLC0415  # slow

    if not sys.stdout.isatty():
        echo("watch needs a terminal; `trading-intents events` prints lines", err=True)
        raise typer.Exit(USAGE)
    with exit_codes(), open_client(os.environ) as client:
        watch_account(find_account(client, account), client.url)


def login(
    url: Annotated[
        str, typer.Option(prompt="URL of the platform", help="Where the platform is.")
    ] = DEMO_URL,
    account: Annotated[
        str, typer.Option(help="The account that commands mean without --account.")
    ] = "",
) -> None:
    """Store the platform's URL and an API key, which is asked for, in your configuration folder."""
    with exit_codes():
        key = (
            typer.prompt("API key", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
        ).strip()
        with TradingClient(url, api_key=key) as client:
            environment = client.organization.validate_api_key(key).environment
            if account:
                client.find_account(account)
        file = write_login(os.environ, Login(url=url, api_key=key, account=account))
        echo(f"stored in {file}: a key of environment {environment} at {url}")


def logout() -> None:
    """Remove what `login` stored."""
    file = login_file(os.environ)
    is_there = file.exists()
    file.unlink(missing_ok=True)
    echo(f"removed {file}" if is_there else "nothing was stored")
