"""What a command prints: tables for people, JSON lines for programs, and an exit code for scripts."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from trading_intents_client import (
    AnswerLost,
    ControlRejected,
    Interrupted,
    NotConfigured,
    TradingError,
    UnexpectedAnswer,
    Unreachable,
    WaitTimeout,
)

REFUSED, USAGE, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130
SERVER_FAULT = 500
MAX_WIDTH = 500
NONE = "-"
PLACES = Decimal("0.0001")
T = TypeVar("T")
COLOURS = {"FILLED": "green", "REJECTED": "red", "CANCELLED": "yellow", "EXPIRED": "yellow", "UNKNOWN": "magenta"}


@contextmanager
def exit_codes() -> Iterator[None]:
    """An expected failure is one line on standard error, and the exit code says of which kind it is."""
    try:
        yield
    except TradingError as error:
        raise typer.Exit(_report(error)) from None
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted) and error.idempotency_key:
            typer.echo(
                f"interrupted; the order may have been placed. Idempotency-Key {error.idempotency_key}", err=True
            )
        raise typer.Exit(INTERRUPTED) from None


def for_each(items: Iterable[T], act: Callable[[T], None]) -> None:
    """Acts on all of them, also after one has failed; the exit code is that of the gravest failure."""
    codes = [0]
    for item in items:
        try:
            act(item)
        except TradingError as error:
            codes.append(_report(error, f"{item}: "))
    if any(codes):
        raise typer.Exit(max(codes))


def _report(error: TradingError, about: str = "") -> int:
    out = Console(stderr=True, highlight=False, emoji=False)
    out.print(f"[bold red]{escape(_title(error))}:[/] {escape(about + str(error))}", soft_wrap=True)
    if isinstance(error, ControlRejected):
        for control in error.triggered:
            out.print(f"  {escape(control.reason)}: {escape(control.detail)}", soft_wrap=True)
    return _code(error)


def _title(error: TradingError) -> str:
    if isinstance(error, NotConfigured):
        return "Not configured"
    if isinstance(error, WaitTimeout):
        return "Not finished"
    if error.may_be_recorded:
        return "Outcome unknown"
    return "Unreachable" if _code(error) == UNREACHABLE else "Refused"


def _code(error: TradingError) -> int:
    if isinstance(error, NotConfigured):
        return USAGE
    is_away = isinstance(error, Unreachable | AnswerLost | UnexpectedAnswer) or (error.status or 0) >= SERVER_FAULT
    # What may have been recorded was not refused: a script must not place it again.
    return UNREACHABLE if is_away or error.may_be_recorded else REFUSED


def print_json(answer: Any) -> None:
    """One line, which is one JSON value."""
    typer.echo(msgspec.json.encode(answer).decode())


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]], empty: str) -> None:
    """Without any value it says what there is none of. It is never cut: a terminal wraps what is too long for it."""
    told = [[cell(value) for value in row] for row in rows]
    out = Console(highlight=False, emoji=False)
    if all(one.plain == NONE for row in told for one in row):
        out.print(empty)
        return
    table = make_table(list(columns), told)
    options = out.options.update(width=MAX_WIDTH, max_width=MAX_WIDTH)
    width = max(out.width, Measurement.get(out, options, table).maximum)
    Console(highlight=False, emoji=False, width=width).print(table)


def make_table(columns: list[str], rows: list[list[Text]]) -> Table:
    """Numbers to the right; a column without any value is left out."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    places = [place for place in range(len(columns)) if any(row[place].plain != NONE for row in rows)]
    for place in places:
        is_number = any(row[place].justify == "right" for row in rows)
        table.add_column(columns[place], justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[place] for place in places))
    return table


def cell(value: object) -> Text:
    match value:
        case None:
            return Text(NONE, style="dim")
        case Decimal() | int():
            return Text(amount(value), justify="right")
        case datetime():
            return Text(value.astimezone().strftime("%m-%d %H:%M:%S"))
        case _:
            return Text(str(value), style=COLOURS.get(str(value), ""))


def amount(value: Decimal | int | None) -> str:
    return NONE if value is None else format(value, "f" if isinstance(value, Decimal) else "d")


def rounded(value: Decimal | None) -> Decimal | None:
    """To four places: averages have many more."""
    if value is None:
        return None
    short = value.quantize(PLACES)
    return short.to_integral_value() if short == short.to_integral_value() else short.normalize()
