"""Shows measured values beside their bars: as a table, and as a PNG, where each is a share of its
bar, so that all fit one picture."""

from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.table import Table

WIDTH = 1100
ROW = 46
LEFT = 380
RIGHT = 130
TOP = 60
MET = "#2e7d32"
MISSED = "#c62828"
INK = "#202124"
FAINT = "#9aa0a6"
MAX_SHARE = 3.0  # times the bar: a longer one is cut here


class Bar(NamedTuple):
    name: str
    value: float
    bar: float
    goal: float
    more_is_better: bool

    @property
    def met(self) -> bool:
        return self.value >= self.bar if self.more_is_better else self.value <= self.bar


def show_bars(out: Console, bars: list[Bar], decimals: int = 2) -> int:
    """Prints them. Gives the program's exit code: 0 when all are met."""
    table = Table("bar", "measured", "bar", "goal", "met")
    for bar in bars:
        met = "yes" if bar.met else "NO"
        table.add_row(bar.name, f"{bar.value:.{decimals}f}", f"{bar.bar}", f"{bar.goal}", met)
    out.print(table)
    return 0 if all(bar.met for bar in bars) else 1


def draw(path: Path, title: str, bars: list[Bar]) -> None:
    picture = Image.new("RGB", (WIDTH, TOP + ROW * len(bars) + 40), "white")
    pen = ImageDraw.Draw(picture)
    font = ImageFont.load_default(16)
    small = ImageFont.load_default(13)
    pen.text((20, 18), title, INK, font)
    unit = (WIDTH - LEFT - RIGHT) / MAX_SHARE
    for row, bar in enumerate(bars):
        y = TOP + row * ROW
        share, goal = (
            min(each / bar.bar, MAX_SHARE) if bar.bar else float(each > 0)
            for each in (bar.value, bar.goal)
        )
        sign = "at least" if bar.more_is_better else "at most"
        pen.text((20, y + 4), bar.name, INK, font)
        pen.text((20, y + 24), f"{sign} {bar.bar:g}, goal {bar.goal:g}", FAINT, small)
        pen.rectangle((LEFT, y + 8, LEFT + share * unit, y + 32), MET if bar.met else MISSED)
        pen.line((LEFT + goal * unit, y + 4, LEFT + goal * unit, y + 36), FAINT, 2)
        pen.text((LEFT + share * unit + 8, y + 11), f"{bar.value:.2f}", INK, font)
    bottom = TOP + ROW * len(bars)
    pen.line((LEFT + unit, TOP - 4, LEFT + unit, bottom), INK, 2)
    pen.text((LEFT + unit - 14, bottom + 6), "bar", INK, small)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
