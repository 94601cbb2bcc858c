"""Trades a moving-average cross on paper prices. Kill it at any moment and start it again: no order
is placed twice.

python examples/moving_average.py AAPL --ticks 60
"""

import argparse
import json
import time
import uuid
from pathlib import Path
from statistics import mean
from typing import Any

from trading_intents_client import FILLED, Account, TradingClient

FAST = 3
SLOW = 9
QUANTITY = 10


def main(symbol: str, ticks: int, pause_seconds: float, file: Path) -> None:
    state: dict[str, Any] = {"tick": 0, "cents": [], "holds": False, "order": None}
    state |= json.loads(file.read_text()) if file.exists() else {}
    with TradingClient(max_retries=10) as client:
        account = client.find_account("sim")
        finish_order(account, symbol, state, file)  # one that was decided before a restart
        while state["tick"] < ticks:
            price = client.market.reference_price(symbol).price
            state |= {
                "tick": state["tick"] + 1,
                "cents": [*state["cents"], int(price * 100)][-SLOW:],
            }
            is_rising = mean(state["cents"][-FAST:]) > mean(state["cents"])
            if len(state["cents"]) == SLOW and is_rising != state["holds"]:
                # Written before it is sent: whoever starts again sends the same order under the
                # same key.
                state["order"] = {"side": "buy" if is_rising else "sell", "key": str(uuid.uuid4())}
            save(state, file)
            finish_order(account, symbol, state, file)
            time.sleep(pause_seconds)


def finish_order(account: Account, symbol: str, state: dict[str, Any], file: Path) -> None:
    if state["order"]:
        order = getattr(account, state["order"]["side"])(
            symbol, QUANTITY, idempotency_key=state["order"]["key"]
        ).wait()
        print(
            f"{state['tick']}: {order.order_side} {symbol} {order.order_status} at "
            f"{order.average_price}",
            flush=True,
        )
        state |= {
            "holds": (order.order_side == "BUY") == (order.order_status == FILLED),
            "order": None,
        }
        save(state, file)
        if order.order_status != FILLED:
            raise SystemExit(f"not filled: {order.reason}")  # the next start decides anew


def save(state: dict[str, Any], file: Path) -> None:
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(state))
    draft.replace(file)  # a kill leaves the old state or the new one


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Trade a moving-average cross.")
    parser.add_argument("symbol")
    parser.add_argument("--ticks", type=int, default=60)
    parser.add_argument(
        "--pause", type=float, default=1.0, help="seconds between two looks at the price"
    )
    parser.add_argument("--state", type=Path, default=Path("moving_average.json"))
    main(*vars(parser.parse_args()).values())
