"""Commands about halts: halt, resume."""

import os
from collections.abc import Callable
from typing import Annotated

import typer

from trading_intents_client import Account, TradingClient
from trading_intents_client.cli.commands.arguments import AccountName, AsJson, find_account
from trading_intents_client.cli.login import open_client
from trading_intents_client.cli.output import USAGE, exit_codes, for_each, print_json
from trading_intents_client.cli.plain import echo


def add_halt_commands(cli: typer.Typer, panel: str) -> None:
    for command in (halt, resume):
        cli.command(rich_help_panel=panel)(command)


def _chosen_accounts(client: TradingClient, account: str, all_accounts: bool) -> list[Account]:
    if not all_accounts:
        return [find_account(client, account)]
    if account:
        echo("--account and --all: use one of them", err=True)
        raise typer.Exit(USAGE)
    return [client.account(found.id) for found in client.accounts() if found.closed_at is None]


def _for_accounts(
    client: TradingClient, account: str, all_accounts: bool, act: Callable[[Account], None]
) -> None:
    chosen = _chosen_accounts(client, account, all_accounts)
    if not chosen:
        echo("no open accounts")
    for_each(chosen, act, lambda each: f"account {each.id}")


AllAccounts = Annotated[
    bool, typer.Option("--all", help="All accounts of the API key's environment.")
]


def halt(
    reason: Annotated[str, typer.Argument(help="Why, for the record.")],
    all_accounts: AllAccounts = False,
    keep_orders: Annotated[
        bool, typer.Option("--keep-orders", help="Leave open orders as they are.")
    ] = False,
    close_positions: Annotated[
        bool, typer.Option("--close-positions", help="Close all positions.")
    ] = False,
    account: AccountName = "",
    as_json: AsJson = False,
) -> None:
    """Stop trading at once, and cancel open orders."""
    with exit_codes(), open_client(os.environ) as client:

        def halt_one(chosen: Account) -> None:
            made = chosen.controls.halt(
                reason, cancel_orders=not keep_orders, close_positions=close_positions
            )
            line = f"halted: account {chosen.id}, {made.state}"
            if made.cancel_orders:
                line += f", {made.orders} orders"
            if made.close_positions:
                line += f", {made.positions} positions"
            print_json(made) if as_json else echo(line)

        _for_accounts(client, account, all_accounts, halt_one)


def resume(
    all_accounts: AllAccounts = False, account: AccountName = "", as_json: AsJson = False
) -> None:
    """Trade again after a halt."""
    with exit_codes(), open_client(os.environ) as client:

        def resume_one(chosen: Account) -> None:
            ended = chosen.controls.resume()
            print_json(ended) if as_json else echo(f"resumed: account {chosen.id}")

        _for_accounts(client, account, all_accounts, resume_one)
