"""A trader's commands, as typer reads them."""
