"""The command `trading-intents`: a trader's commands, which use the public API alone, and those
that packages add."""

import sys

OF_EXTRA = ("rich", "typer")


def main() -> None:
    try:
        from trading_intents_client.cli.program import cli  # noqa: PLC0415  # of an extra
    except ModuleNotFoundError as error:
        if error.name not in OF_EXTRA:
            raise
        sys.exit(f"this command needs {error.name}: pip install 'trading-intents-client[cli]'")
    cli()
