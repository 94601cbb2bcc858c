"""The program `trading-intents`. Commands of other packages are loaded when one of them, or a list,
is asked for."""

from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trading_intents_client import __version__
from trading_intents_client.cli.commands.agents import add_mcp_command
from trading_intents_client.cli.commands.export import add_export_command
from trading_intents_client.cli.commands.halts import add_halt_commands
from trading_intents_client.cli.commands.orders import add_order_commands
from trading_intents_client.cli.commands.views import add_view_commands
from trading_intents_client.cli.commands.webhooks import add_forward_command
from trading_intents_client.cli.plain import echo

# Entry points: the name is their title in --help, the value a Typer.
ADDED_COMMANDS = "trading_intents.commands"
TRADING = "Trading"


class CommandGroup(TyperGroup):
    """Adds the commands of entry points to a trader's. Importing them takes longer than a trader's
    command."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            self._load_added()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        self._load_added()
        return super().list_commands(ctx)

    def _load_added(self) -> None:
        for point in entry_points(group=ADDED_COMMANDS):
            added: Any = typer.main.get_command(point.load())
            for name, command in added.commands.items():
                command.rich_help_panel = point.name.capitalize()
                self.commands.setdefault(name, command)


cli = typer.Typer(cls=CommandGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(is_asked: bool) -> None:
    if not is_asked:
        return
    echo(f"trading-intents {__version__}")
    for point in entry_points(group=ADDED_COMMANDS):
        if point.dist is not None:
            echo(f"{point.name}: {point.dist.name} {point.dist.version}")
    raise typer.Exit


@cli.callback()
def choose_command(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """The Trading Intents Platform. Settings are TRADING_INTENTS_* variables."""


add_order_commands(cli, TRADING)
add_halt_commands(cli, TRADING)
add_view_commands(cli, TRADING)
add_export_command(cli, TRADING)
add_forward_command(cli, TRADING)
add_mcp_command(cli, TRADING)
