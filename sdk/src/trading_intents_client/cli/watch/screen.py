"""The blotter as a screen of a given size: it fits 80 by 24, uses more, and shows the orders alone on less."""

import time
from decimal import Decimal

from rich.console import RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trading_intents_client.cli.reasons import explain
from trading_intents_client.cli.tables import COLOURS, amount, cell, rounded
from trading_intents_client.cli.watch.blotter import Blotter, BlotterOrder, BlotterPosition

WIDE, NARROW, TINY = 130, 60, 30
LOW = 12  # lines, in which three panels have no room
FRAME_LINES = 3  # of a panel: its two borders, and the head of its table
LIVE = "live"


def draw(blotter: Blotter, is_connected: bool, width: int, height: int) -> Layout:
    body = height - 2
    layout = Layout()
    layout.split_column(
        Layout(_head(blotter, is_connected), size=1), Layout(name="body"), Layout(_foot(blotter), size=1)
    )
    if body < LOW:
        layout["body"].update(_order_table(blotter.orders(), body - 1, width))
        return layout
    if width >= WIDE:
        rows = body - FRAME_LINES
        lower = max(body // 2, 5)
        right = Layout(ratio=2)
        right.split_column(
            Layout(_positions(blotter, body - lower - FRAME_LINES)),
            Layout(_events(blotter, lower - 2), size=lower),
        )
        layout["body"].split_row(Layout(_orders(blotter, rows, width), ratio=3), right)
        return layout
    events, positions = max(body // 4, 4), max(body // 4, 4)
    layout["body"].split_column(
        Layout(_orders(blotter, body - events - positions - FRAME_LINES, width)),
        Layout(_positions(blotter, positions - FRAME_LINES), size=positions),
        Layout(_events(blotter, events - 2), size=events),
    )
    return layout


def _head(blotter: Blotter, is_connected: bool) -> Text:
    account = blotter.account
    is_live = account.environment == LIVE
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(f" {account.environment.upper()} ", style="bold white on red" if is_live else "bold black on green")
    # Before anything that may be too long for the line.
    if is_connected:
        head.append(" connected ", style="green")
    else:
        seconds = int(time.monotonic() - blotter.connected_at)
        head.append(f" DISCONNECTED for {seconds} s: figures are old ", style="bold white on red")
    head.append(f" {account.name}", style="bold")
    money = blotter.balances
    if money is not None:
        head.append(f"  cash {amount(money.cash)}  equity {amount(money.equity)} {money.currency or ''}")
    head.append(f"  {blotter.url}", style="dim")
    return head


def _foot(blotter: Blotter) -> Text:
    foot = Text(" q ends", style="dim", no_wrap=True, overflow="ellipsis")
    if blotter.trouble:
        foot.append(f"  {blotter.trouble}", style="yellow")
    return foot


def _orders(blotter: Blotter, rows: int, width: int) -> Panel:
    found = blotter.orders()
    count = sum(row.is_open for row in found)
    return _panel(_order_table(found, rows, width), f"orders: {count} open")


def _order_table(found: list[BlotterOrder], rows: int, width: int) -> Table:
    columns = ["time", "symbol", "side", "quantity", "filled", "limit", "average", "status"]
    if width >= WIDE:
        columns += ["type", "reason"]
    elif width < NARROW:
        columns = ["symbol", "side", "quantity", "status"]
    table = _table(columns)
    table.show_header = width >= TINY  # else it would take the room of the values
    for row in found[: max(rows, 0) if table.show_header else rows + 1]:
        cells = _order_cells(row)
        table.add_row(*(cells[name] for name in columns))
    return table


def _order_cells(row: BlotterOrder) -> dict[str, Text]:
    return {
        "time": Text(row.at.astimezone().strftime("%H:%M:%S") if row.at else "-"),
        "symbol": Text(row.symbol, style="bold"),
        "side": Text(row.side, style="cyan" if row.side == "BUY" else "magenta"),
        "quantity": cell(row.quantity),
        "filled": cell(row.filled),
        "limit": cell(row.limit_price),
        "average": cell(rounded(row.average_price)),
        "status": Text(row.status, style=COLOURS.get(row.status, "")),
        "type": Text(row.order_type),
        "reason": Text(explain(row.reason) or ""),
    }


def _positions(blotter: Blotter, rows: int) -> Panel:
    found = blotter.positions()
    table = _table(["symbol", "quantity", "cost", "price", "unrealized", "today"])
    for row in found[: max(rows, 0)]:
        table.add_row(*_position_cells(row))
    return _panel(table, f"positions: {len(found)}")


def _position_cells(row: BlotterPosition) -> list[Text]:
    cells = [
        Text(row.symbol, style="bold"),
        cell(row.quantity),
        cell(rounded(row.average_cost)),
        cell(rounded(row.market_price)),
    ]
    return [*cells, _result(row.unrealized_pnl), _result(row.daily_pnl)]


def _result(value: Decimal | None) -> Text:
    told = cell(rounded(value))
    if value:
        told.stylize("green" if value > 0 else "red")
    return told


def _events(blotter: Blotter, rows: int) -> Panel:
    lines = [f"{at.astimezone():%H:%M:%S} {line}" for at, line in blotter.events()[-rows:]] if rows > 0 else []
    return _panel(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), "events")


def _table(columns: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    texts = {"time", "symbol", "side", "status", "type", "reason"}
    for name in columns:
        justify = "left" if name in texts else "right"
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]  # literals
    return table


def _panel(content: RenderableType, title: str) -> Panel:
    return Panel(content, title=title, title_align="left", padding=(0, 1), border_style="dim")
