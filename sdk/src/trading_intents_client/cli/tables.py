"""Tables for people: decimals line up, and what has no room in the terminal's width stands below
its row."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from trading_intents_client.asynchronous.client import MIN_ID_CHARACTERS

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


def print_table(
    fields: Fields, records: Iterable[object], empty: str, below: Sequence[str] = ()
) -> None:
    """Leaves columns without any value out. `below` names those that move below their row when
    there is no room."""
    shown = list(records)
    getters = {
        name: attrgetter(field) if isinstance(field, str) else field
        for name, field in fields.items()
    }
    columns = {name: [getter(record) for record in shown] for name, getter in getters.items()}
    texts = {
        name: align(values)
        for name, values in columns.items()
        if any(value is not None for value in values)
    }
    out = Console(highlight=False, emoji=False)
    if not texts:
        out.print(empty)
        return
    moved: list[str] = []
    for name in (name for name in below if name in texts):
        if _width(texts, moved) > out.width:
            moved.append(name)
    kept = [name for name in texts if name not in moved]
    widths = {name: max(map(cell_len, (name, *texts[name]))) for name in kept}
    rights = {
        name for name in kept if any(isinstance(value, Decimal | int) for value in columns[name])
    }
    out.print(_line(((name, name, "bold") for name in kept), widths, rights), soft_wrap=True)
    for row in range(len(shown)):
        cells = ((name, texts[name][row], COLOURS.get(texts[name][row], "")) for name in kept)
        out.print(_line(cells, widths, rights), soft_wrap=True)
        for name in moved:
            if columns[name][row] is not None:
                filled = textwrap.fill(
                    texts[name][row], out.width, initial_indent=GAP, subsequent_indent=GAP
                )
                out.print(Text(filled, style="dim"), soft_wrap=True)


def _width(texts: Mapping[str, Sequence[str]], moved: Sequence[str]) -> int:
    widths = [
        max(map(cell_len, (name, *values))) for name, values in texts.items() if name not in moved
    ]
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _line(
    cells: Iterable[tuple[str, str, str]], widths: Mapping[str, int], rights: set[str]
) -> Text:
    line = Text()
    for name, text, style in cells:
        room = " " * (widths[name] - cell_len(text))
        line.append((GAP if line else "") + (room if name in rights else ""))
        line.append(text, style)
        line.append("" if name in rights else room)
    line.rstrip()
    return line


def align(values: Sequence[object]) -> list[str]:
    """The cells of a column. Numbers have as much behind their point, in blanks, as the longest of
    them."""
    texts = [show(value) for value in values]
    numbers = [isinstance(value, Decimal | int) for value in values]
    tails = [
        len(text.partition(".")[2])
        for text, is_number in zip(texts, numbers, strict=True)
        if is_number
    ]
    if not any(tails):
        return texts
    return (
        [text + " " * _missing(text, max(tails)) for text in texts]
        if all(numbers)
        else _mixed(texts, max(tails))
    )


def _mixed(texts: Sequence[str], places: int) -> list[str]:
    return [text if text == NONE else text + " " * _missing(text, places) for text in texts]


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
            return str(value)


def cell(value: object) -> Text:
    return Text(show(value), style="dim" if value is None else COLOURS.get(str(value), ""))


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
