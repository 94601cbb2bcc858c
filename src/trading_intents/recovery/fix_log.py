"""The command `fix log`: parse, call, print."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from uuid import UUID

import typer

from trading_intents import app
from trading_intents.brokers.fix.messages import masked, readable
from trading_intents.brokers.fix.store import list_log
from trading_intents.clock import rfc3339
from trading_intents.config import Settings
from trading_intents.telemetry import Log

MAX_SHOWN = 10_000

Run = Callable[[Callable[[Settings, Log], Coroutine[Any, Any, int | None]]], None]


def add_fix(cli: typer.Typer, run: Run) -> None:
    fix = typer.Typer(help="Sessions with FIX venues.", no_args_is_help=True)
    cli.add_typer(fix, name="fix")

    @fix.command(name="log")
    def show_log(
        account: Annotated[UUID, typer.Argument(help="The account's id.")],
        limit: Annotated[int, typer.Option(help="Messages at most, the newest.", min=1, max=MAX_SHOWN)] = 100,
    ) -> None:
        """Show an account's messages, oldest first: when stored, direction, epoch and number, the message. Heartbeats
        and test requests are not kept."""

        async def work(settings: Settings, log: Log) -> None:
            async with (
                app.open_infrastructure(settings, log) as parts,
                parts.database.worker.transaction(read_only=True) as tx,
            ):
                rows = await list_log(tx, account, limit)
            for row in rows:
                skipped = "\tskipped as too old" if row["skipped_at"] else ""
                number = f"{row['epoch']}.{row['number']}"
                text = readable(masked(row["raw"]))
                typer.echo(f"{rfc3339(row['at'])}\t{row['direction']}\t{number}\t{text}{skipped}")

        run(work)
