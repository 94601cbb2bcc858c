"""The commands `fix log` and `fix reset`: parse, call, print."""

from typing import Annotated
from uuid import UUID

import typer

from trading_intents.brokers.fix.messages import masked, readable
from trading_intents.brokers.fix.store import list_log, reset_numbers
from trading_intents.brokers.port import OperatorContext
from trading_intents.clock import rfc3339
from trading_intents.errors import InvalidRequest
from trading_intents.telemetry import Log

MAX_SHOWN = 10_000


async def show_log(
    context: OperatorContext,
    log: Log,
    account: Annotated[UUID, typer.Argument(help="The account's id.")],
    limit: Annotated[
        int, typer.Option(help="Messages at most, the newest.", min=1, max=MAX_SHOWN)
    ] = 100,
) -> None:
    """Show an account's messages, oldest first: when stored, direction, epoch and number, the
    message. Heartbeats and test requests are not kept."""
    async with context.database.transaction(read_only=True) as tx:
        logged = await list_log(tx, account, limit)
    for each in logged:
        skipped = "\tskipped as too old" if each.skipped_at else ""
        number = f"{each.epoch}.{each.number}"
        text = readable(masked(each.raw))
        typer.echo(f"{rfc3339(each.at)}\t{each.direction}\t{number}\t{text}{skipped}")


async def reset(
    context: OperatorContext,
    log: Log,
    account: Annotated[UUID, typer.Argument(help="The account's id.")],
    reason: Annotated[
        str, typer.Option(help="Why, and who agreed at the venue: kept in the log of messages.")
    ],
    give_up: Annotated[
        bool,
        typer.Option(
            "--give-up-unanswered", help="Never send commands again that have no answer yet."
        ),
    ] = False,
) -> None:
    """Begin an account's numbers at 1, as agreed with the venue, which must do so too. Not while it
    is logged on."""
    async with context.database.transaction() as tx:
        if await context.is_connected(tx, account):
            raise InvalidRequest(
                "the session is logged on: stop the workers, or delete its credential, first"
            )
        epoch, unanswered = await reset_numbers(
            tx, account, f"numbers reset by {context.operator}: {reason}"
        )
        if unanswered and not give_up:
            raise InvalidRequest(
                f"{unanswered} commands have no answer yet: see --give-up-unanswered"
            )
    log.warning(
        "fix numbers reset", account=str(account), by=context.operator, reason=reason, epoch=epoch
    )
    typer.echo(
        f"the next logon has number 1, of epoch {epoch}; {unanswered} commands are never sent again"
    )


COMMANDS = {"log": show_log, "reset": reset}
