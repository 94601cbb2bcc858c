"""`forward`: an account's events as webhooks."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from trading_intents_client import NotConfigured
from trading_intents_client.cli.commands.arguments import AccountName, find_account
from trading_intents_client.cli.login import open_async_client, open_client
from trading_intents_client.cli.output import exit_codes
from trading_intents_client.cli.plain import echo
from trading_intents_client.webhooks.cursor_file import CursorFile
from trading_intents_client.webhooks.forwarding import DEFAULT_KINDS, KINDS, Forwarder
from trading_intents_client.webhooks.signing import HOW_TO_MAKE, WebhookSigner
from trading_intents_client.webhooks.target import ATTEMPT_SECONDS, WebhookTarget

SECRET_VARIABLE = "TRADING_INTENTS_WEBHOOK_SECRET"  # noqa: S105  # a variable's name


def parse_kinds(text: str) -> str:
    unknown = [kind for kind in text.split(",") if kind not in KINDS]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: use {', '.join(KINDS)}")
    return text


def add_forward_command(cli: typer.Typer, panel: str) -> None:
    cli.command(rich_help_panel=panel)(forward)


def forward(
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="URL", help="Where events are posted: https, or http to loopback."
        ),
    ],
    state: Annotated[
        Path,
        typer.Option(
            "--state", metavar="FILE", help="Keeps the cursor of the last delivered event."
        ),
    ],
    account: AccountName = "",
    kinds: Annotated[
        str,
        typer.Option(
            "--kinds", parser=parse_kinds, metavar="KIND,...", help=f"Of {', '.join(KINDS)}."
        ),
    ] = ",".join(DEFAULT_KINDS),
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file", metavar="FILE", help=f"Holds whsec_...; else {SECRET_VARIABLE} does."
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long an answer may take."),
    ] = ATTEMPT_SECONDS,
) -> None:
    """Post each event to a URL, signed and in order, until Ctrl-C; after a break it goes on where
    it was."""
    with exit_codes():
        target = WebhookTarget(to, WebhookSigner(_read_secret(secret_file)), timeout)
        with open_client(os.environ) as client:
            account_id = find_account(client, account).id
        with CursorFile(state, account_id) as file:
            asyncio.run(_forward(target, file, account_id, kinds.split(",")))


async def _forward(
    target: WebhookTarget, file: CursorFile, account_id: str, kinds: list[str]
) -> None:
    forwarder = Forwarder(target, file, lambda line: echo(line, err=True))
    async with target, open_async_client(os.environ) as client:
        await forwarder.run(client, account_id, kinds)


def _read_secret(file: Path | None) -> str:
    if file is None:
        secret = os.environ.get(SECRET_VARIABLE)
        if not secret:
            raise NotConfigured(
                f"no webhook secret: name a --secret-file or set {SECRET_VARIABLE}; {HOW_TO_MAKE}"
            )
        return secret
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise NotConfigured(f"{file} cannot be read ({type(error).__name__})") from None
