"""Reads an account's trades and its equity over time into tables, and draws the equity:

python examples/research.py [http://127.0.0.1:8080]
"""

import argparse
import sys
from collections import defaultdict
from decimal import Decimal

from trading_intents_client import TradingClient, TradingError

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 72


def draw(values: list[Decimal]) -> str:
    """A line of bars, from the lowest value to the highest; of many values the last that fit."""
    shown = values[-WIDTH:]
    low = min(shown)
    span = max(shown) - min(shown)
    return "".join(
        BARS[int((value - low) / span * (len(BARS) - 1)) if span else len(BARS) // 2]
        for value in shown
    )


def main(url: str | None) -> None:
    with TradingClient(url) as client:
        account = client.find_account("sim")
        # Rows of dicts: `pandas.DataFrame(trades)` and `polars.DataFrame(trades)` take them as they
        # are.
        trades = account.trades().to_dicts()
        equity = [
            row for row in account.equity(resolution="1m").to_dicts() if row["equity"] is not None
        ]
    traded: dict[str, Decimal] = defaultdict(Decimal)
    for trade in trades:
        traded[trade["symbol"]] += trade["quantity"] * trade["price"]
    print(f"{len(trades)} trades")
    for symbol, value in sorted(traded.items()):
        print(f"  {symbol:8}{value:>16,.2f}")
    if not equity:
        print("no equity is recorded yet: it is once a minute")
        return
    print(f"equity from {equity[0]['at']:%Y-%m-%d %H:%M} to {equity[-1]['at']:%Y-%m-%d %H:%M} UTC")
    print(f"  {draw([row['equity'] for row in equity])} {equity[-1]['equity']:,.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Show an account's trades and its equity over time."
    )
    parser.add_argument(
        "url", nargs="?", help="where the platform is, such as http://127.0.0.1:8080"
    )
    try:
        main(parser.parse_args().url)
    except TradingError as error:
        sys.exit(f"{error}. `make run` starts a platform and prints its address.")
