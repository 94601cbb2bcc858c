"""`export`: orders, trades or the log as CSV."""

import os
from datetime import datetime, time, timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from trading_intents_client.cli.commands.arguments import AccountName, find_account
from trading_intents_client.cli.login import open_client
from trading_intents_client.cli.output import exit_codes
from trading_intents_client.cli.plain import echo


class Exported(StrEnum):
    """The records that can be exported."""

    ORDERS = "orders"
    TRADES = "trades"
    INTENTS = "intents"


def parse_time(text: str) -> datetime:
    """A day or a time; of this machine's zone unless it names one."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise typer.BadParameter(
            f"{text}: use a day or a time, as 2026-11-17 or 2026-11-17T15:30:00Z"
        ) from None


def parse_end(text: str) -> datetime:
    """As parse_time; a day is included."""
    found = parse_time(text)
    is_day = len(text) <= len("2026-11-17")
    return (
        datetime.combine(found.date() + timedelta(days=1), time()).astimezone() if is_day else found
    )


From = Annotated[
    datetime | None,
    typer.Option("--from", metavar="TIME", parser=parse_time, help="The first day or time."),
]
To = Annotated[
    datetime | None,
    typer.Option("--to", metavar="TIME", parser=parse_end, help="The last day, or a time."),
]


def add_export_command(cli: typer.Typer, panel: str) -> None:
    cli.command(rich_help_panel=panel)(export)


def export(
    what: Annotated[
        Exported, typer.Argument(help="orders, trades, or intents: the log of commands.")
    ],
    since: From = None,
    until: To = None,
    account: AccountName = "",
) -> None:
    """Write orders, trades or the log as CSV to standard output: all pages, oldest first, times in
    UTC."""
    with exit_codes(), open_client(os.environ) as client:
        chosen = find_account(client, account)
        lists: dict[Exported, Any] = {
            Exported.ORDERS: chosen.orders,
            Exported.TRADES: chosen.trades,
            Exported.INTENTS: chosen.intents,
        }
        pages = lists[what](created_after=since, created_before=until)
        page = pages.csv_page()
        echo(*page.data)
        while page.next_cursor is not None:
            page = pages.csv_page(cursor=page.next_cursor)
            echo(*page.data[1:])
