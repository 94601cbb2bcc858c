"""The blotter as a screen of a given size: it fits 80 by 24, uses more, and shows the orders alone
on less."""

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal

from rich.console import Group, JustifyMethod, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table

from trading_intents_client import ConnectionState
from trading_intents_client.cli.plain import PlainText
from trading_intents_client.cli.tables import COLOURS, NONE, align, amount, rounded
from trading_intents_client.cli.watch.blotter import Blotter, BlotterOrder
from trading_intents_client.cli.watch.keys import HELP

WIDE = 130
ROOMY = 110
NARROW = 60
TINY = 30  # columns
LOW = 12  # lines, in which three panels have no room
FRAME_LINES = 3  # of a panel: its two borders, and the head of its table
LIVE = "live"
PRICES = ("limit", "stop", "average")  # columns that are left out while they are empty


def draw(blotter: Blotter, is_connected: bool, width: int, height: int) -> Layout:
    body = height - 2
    layout = Layout()
    layout.split_column(
        Layout(_head(blotter, is_connected), size=1),
        Layout(name="body"),
        Layout(_foot(blotter), size=1),
    )
    if body < LOW:
        layout["body"].update(_order_table(blotter, blotter.orders(), body - 1, width)[0])
        return layout
    if width >= WIDE:
        part = body // 3
        right = Layout(ratio=2)
        right.split_column(
            Layout(_positions(blotter, part - FRAME_LINES, WIDE), size=part),
            Layout(_fills(blotter, part - 2), size=part),
            Layout(_events(blotter, body - 2 * part - 2)),
        )
        layout["body"].split_row(
            Layout(_orders(blotter, body - FRAME_LINES, width * 3 // 5), ratio=3), right
        )
        return layout
    events = max(body // 5, 4)
    middle = max(body // 3, 4)
    beside = Layout(size=middle)
    beside.split_row(
        Layout(_positions(blotter, middle - FRAME_LINES, width // 2)),
        Layout(_fills(blotter, middle - 2)),
    )
    layout["body"].split_column(
        Layout(_orders(blotter, body - events - middle - FRAME_LINES, width)),
        beside,
        Layout(_events(blotter, events - 2), size=events),
    )
    return layout


def _head(blotter: Blotter, is_connected: bool) -> PlainText:
    account = blotter.account
    is_live = account.environment == LIVE
    head = PlainText(no_wrap=True, overflow="ellipsis")
    head.append(
        f" {account.environment.upper()} ",
        style="bold white on red" if is_live else "bold black on green",
    )
    # Before anything that may be too long for the line.
    if is_connected:
        head.append(" connected ", style="green")
    else:
        seconds = int(time.monotonic() - blotter.connected_at)
        head.append(f" DISCONNECTED for {seconds} s: figures are old ", style="bold white on red")
    if (halt := blotter.halt()) is not None:
        head.append(
            f" HALTED since {_clock(halt.created_at)}: {halt.reason} ", style="bold white on red"
        )
    if symbols := blotter.unprotected():
        head.append(f" UNPROTECTED: {', '.join(symbols)} ", style="bold white on red")
    if account.connection != ConnectionState.CONNECTED:
        head.append(f" broker {account.connection} ", style="bold black on yellow")
    head.append(f" {account.name}", style="bold")
    money = blotter.balances
    if money is not None:
        head.append(
            f"  cash {amount(money.cash)}  equity {amount(money.equity)} {money.currency or ''}"
        )
    if blotter.today is not None:
        head.append(f"  {blotter.today}")
    head.append(f"  {blotter.url}", style="dim")
    return head


def _foot(blotter: Blotter) -> PlainText:
    if blotter.confirming is not None:
        return PlainText(
            f" cancel {blotter.confirming}? y or n",
            style="bold yellow",
            no_wrap=True,
            overflow="ellipsis",
        )
    foot = PlainText(HELP, style="dim", no_wrap=True, overflow="ellipsis")
    for text in (blotter.notice, blotter.trouble):
        foot.append(f"  {text}" if text else "", style="yellow")
    return foot


def _orders(blotter: Blotter, rows: int, width: int) -> Panel:
    found = blotter.orders()
    if not found:
        return _panel(PlainText("no orders", style="dim"), "orders")
    table, first, last = _order_table(blotter, found, rows, width)
    count = sum(row.is_open for row in found)
    shown_of = f", {first + 1} to {last} of {len(found)}" if last - first < len(found) else ""
    return _panel(table, f"orders: {count} open{shown_of}")


def _order_table(
    blotter: Blotter, found: list[BlotterOrder], rows: int, width: int
) -> tuple[Table, int, int]:
    """Scrolled so that the selected order is seen."""
    has_header = width >= TINY  # else it would take the room of the values
    room = max(rows if has_header else rows + 1, 0)
    index = next((index for index, row in enumerate(found) if row.order_id == blotter.selected), 0)
    first = max(0, index - room + 1) if room else 0
    shown = found[first : first + room]
    columns = _order_columns(shown, width)
    table = _table(list(columns))
    table.show_header = has_header
    for row, cells in zip(shown, zip(*columns.values(), strict=True), strict=True):
        table.add_row(*cells, style="reverse" if row.order_id == blotter.selected else "")
    return table, first, first + len(shown)


def _order_columns(shown: list[BlotterOrder], width: int) -> dict[str, list[PlainText]]:
    """Those that have room, without the prices that no order has."""
    columns = _all_order_columns(shown)
    if width < NARROW:
        return _choose(columns, "symbol", "side", "quantity", "status")
    for name in PRICES:
        if all(cell.plain == NONE for cell in columns[name]):
            del columns[name]
    if width < ROOMY:
        del columns["reason"]
        if "stop" in columns:
            columns.pop("average", None)  # the fills show their prices
    return columns


def _all_order_columns(shown: list[BlotterOrder]) -> dict[str, list[PlainText]]:
    averages = [rounded(row.average_price, row.limit_price, row.stop_price) for row in shown]
    columns: dict[str, list[PlainText]] = {"time": [], "symbol": [], "side": []}
    for row in shown:
        columns["time"].append(PlainText(_clock(row.at)))
        columns["symbol"].append(PlainText(row.symbol, style="bold"))
        columns["side"].append(
            PlainText(row.side, style="cyan" if row.side == "BUY" else "magenta")
        )
    columns["quantity"] = _numbers([row.quantity for row in shown])
    columns["filled"] = _numbers([row.filled for row in shown])
    columns["limit"] = _numbers([row.limit_price for row in shown])
    columns["stop"] = _numbers([row.stop_price for row in shown])
    columns["average"] = _numbers(averages)
    columns["status"] = [PlainText(row.status, style=COLOURS.get(row.status, "")) for row in shown]
    columns["reason"] = [PlainText(row.reason or "") for row in shown]
    return columns


def _choose(columns: dict[str, list[PlainText]], *names: str) -> dict[str, list[PlainText]]:
    return {name: columns[name] for name in names}


def _numbers(values: Sequence[Decimal | None]) -> list[PlainText]:
    return [PlainText(text, style="dim" if text == NONE else "") for text in align(values)]


def _positions(blotter: Blotter, rows: int, width: int) -> Panel:
    found = blotter.positions()
    if not found:
        return _panel(PlainText("no positions", style="dim"), "positions")
    shown = found[: max(rows, 0)]
    columns = {
        "symbol": [PlainText(row.symbol, style="bold") for row in shown],
        "quantity": _numbers([row.quantity for row in shown]),
        "cost": _numbers([rounded(row.average_cost, row.market_price) for row in shown]),
        "price": _numbers([row.market_price for row in shown]),
        "unrealized": _results([rounded(row.unrealized_pnl, row.market_price) for row in shown]),
    }
    if width < NARROW:
        columns = _choose(columns, "symbol", "quantity", "price", "unrealized")
    table = _table(list(columns))
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return _panel(table, f"positions: {len(found)}")


def _results(values: Sequence[Decimal | None]) -> list[PlainText]:
    cells = _numbers(values)
    for cell, value in zip(cells, values, strict=True):
        if value:
            cell.stylize("green" if value > 0 else "red")
    return cells


def _fills(blotter: Blotter, rows: int) -> Panel:
    found = blotter.fills()[: max(rows, 0)]
    lines = []
    for fill in found:
        what = f"{fill.side} {amount(fill.quantity)} {fill.symbol} at {amount(fill.price)}"
        lines.append(f"{_clock(fill.at)} {what}")
    return _panel(_lines(lines or ["no fills"]), "fills")


def _clock(at: datetime | None) -> str:
    return at.astimezone().strftime("%H:%M:%S") if at else NONE


def _events(blotter: Blotter, rows: int) -> Panel:
    lines = [f"{_clock(at)} {line}" for at, line in blotter.events()[-rows:]] if rows > 0 else []
    return _panel(_lines(lines or ["no events yet"]), "events")


def _lines(lines: Iterable[str]) -> Group:
    return Group(*[PlainText(line, no_wrap=True, overflow="ellipsis") for line in lines])


def _table(columns: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    texts = {"time", "symbol", "side", "status", "reason"}
    for name in columns:
        justify: JustifyMethod = "left" if name in texts else "right"
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")
    return table


def _panel(content: RenderableType, title: str) -> Panel:
    return Panel(content, title=title, title_align="left", padding=(0, 1), border_style="dim")
