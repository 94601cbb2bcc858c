"""Tables for people: decimals line up, and what has no room in the terminal's width stands below
its row."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console

from trading_intents_client.asynchronous.client import MIN_ID_CHARACTERS
from trading_intents_client.cli.plain import PlainText, plain

NONE = "-"
GAP = "  "
MIN_PRICE_PLACES = 2
MIN_PLACES = 4
COLOURS = {
    "FILLED": "green",
    "REJECTED": "red",
    "CANCELLED": "yellow",
    "EXPIRED": "yellow",
    "UNKNOWN": "magenta",
}
SIDES = {"SELL_SHORT": "SHORT"}
# A column's title, and the field that it shows or what makes it of a record.
Fields = dict[str, str | Callable[[Any], object]]


class Column(Struct, frozen=True):
    """A column with the cells that show its values. Numbers stand at its right."""

    name: str
    values: list[object]
    cells: list[str]
    width: int
    is_numeric: bool


def print_table(
    fields: Fields, records: Iterable[object], empty: str, below: Sequence[str] = ()
) -> None:
    """Leaves columns without any value out. `below` names those that move below their row when
    there is no room."""
    shown = list(records)
    columns = _read_columns(fields, shown)
    out = Console(highlight=False, emoji=False)
    if not columns:
        out.print(empty)
        return
    moved: list[Column] = []
    for name in below:
        if name in columns and _width(columns) > out.width:
            moved.append(columns.pop(name))
    out.print(_title_line(columns), soft_wrap=True)
    for row in range(len(shown)):
        out.print(_row_line(columns, row), soft_wrap=True)
        for column in moved:
            if column.values[row] is not None:
                for line in textwrap.wrap(
                    column.cells[row], out.width, initial_indent=GAP, subsequent_indent=GAP
                ):
                    out.print(PlainText(line, style="dim"), soft_wrap=True)


def _read_columns(fields: Fields, records: Sequence[object]) -> dict[str, Column]:
    columns = {}
    for name, field in fields.items():
        getter = attrgetter(field) if isinstance(field, str) else field
        values = list(map(getter, records))
        if any(value is not None for value in values):
            columns[name] = _make_column(name, values)
    return columns


def _make_column(name: str, values: list[object]) -> Column:
    cells = align(values)
    width = max(map(cell_len, (name, *cells)))
    return Column(name, values, cells, width, any(map(_is_number, values)))


def _is_number(value: object) -> bool:
    return isinstance(value, Decimal | int)


def _width(columns: Mapping[str, Column]) -> int:
    return sum(column.width for column in columns.values()) + len(GAP) * (len(columns) - 1)


def _title_line(columns: Mapping[str, Column]) -> PlainText:
    line = PlainText()
    for name, column in columns.items():
        _append_cell(line, column, name, "bold")
    line.rstrip()
    return line


def _row_line(columns: Mapping[str, Column], row: int) -> PlainText:
    line = PlainText()
    for column in columns.values():
        text = column.cells[row]
        _append_cell(line, column, text, COLOURS.get(text, ""))
    line.rstrip()
    return line


def _append_cell(line: PlainText, column: Column, text: str, style: str) -> None:
    room = " " * (column.width - cell_len(text))
    if line:
        line.append(GAP)
    if column.is_numeric:
        line.append(room)
    line.append(text, style)
    if not column.is_numeric:
        line.append(room)


def align(values: Sequence[object]) -> list[str]:
    """The cells of a column. Numbers have as much behind their point, in blanks, as the longest of
    them."""
    cells = list(map(show, values))
    places = 0
    for cell, value in zip(cells, values, strict=True):
        if _is_number(value):
            places = max(places, len(cell.partition(".")[2]))
    if not places:
        return cells
    return [each if each == NONE else each + " " * _missing(each, places) for each in cells]


def _missing(text: str, places: int) -> int:
    tail = text.partition(".")[2]
    return places - len(tail) + ("." not in text)


def show(value: object) -> str:
    match value:
        case None:
            return NONE
        case Decimal() | int():
            return amount(value)
        case datetime():
            local = value.astimezone()
            is_today = local.date() == datetime.now(local.tzinfo).date()
            return local.strftime("%H:%M:%S" if is_today else "%m-%d %H:%M:%S")
        case _:
            return plain(str(value))


def amount(value: Decimal | int | None) -> str:
    return NONE if value is None else format(value, "f" if isinstance(value, Decimal) else "d")


def rounded(value: Decimal | None, *prices: Decimal | None) -> Decimal | None:
    """An average or a result, with the digits of its prices; without any to four places, or to four
    digits."""
    if value is None:
        return None
    places = [len(amount(price).partition(".")[2]) for price in prices if price is not None]
    if places:
        return value.quantize(Decimal(1).scaleb(-max(MIN_PRICE_PLACES, *places)))
    short = value.quantize(Decimal(1).scaleb(-max(MIN_PLACES, MIN_PLACES - 1 - value.adjusted())))
    return short.to_integral_value() if short == short.to_integral_value() else short.normalize()


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """The beginning of each id, long enough that no other of them has it, and never shorter than
    commands take."""
    known = sorted(set(ids))
    found = {}
    for index, one in enumerate(known):
        neighbours = (*known[max(index - 1, 0) : index], *known[index + 1 : index + 2])
        size = MIN_ID_CHARACTERS
        while any(other[:size] == one[:size] for other in neighbours) and size < len(one):
            size += 1
        found[one] = one[:size]
    return found
