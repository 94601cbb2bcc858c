"""`mcp`: tools for AI agents."""

import asyncio
import os
from typing import Annotated

import typer

from trading_intents_client import NotConfigured, __version__
from trading_intents_client.cli.login import open_async_client
from trading_intents_client.cli.output import exit_codes

OF_EXTRA = ("mcp", "mcp_types")


def add_mcp_command(cli: typer.Typer, panel: str) -> None:
    cli.command(rich_help_panel=panel)(mcp)


def mcp(
    allow_trading: Annotated[
        bool, typer.Option("--allow-trading", help="Offer tools that trade too, where the key may.")
    ] = False,
) -> None:
    """Serve tools to an AI agent over standard input and output (Model Context Protocol)."""
    with exit_codes():
        try:
            from trading_intents_client.agents.server import serve_stdio  # noqa: PLC0415  # slow
        except ModuleNotFoundError as error:
            if error.name not in OF_EXTRA:
                raise
            raise NotConfigured(
                "this command needs mcp: pip install 'trading-intents-client[mcp]'"
            ) from None
        asyncio.run(serve_stdio(open_async_client(os.environ), allow_trading, __version__))
