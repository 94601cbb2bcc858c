"""Has an order refused by a limit, then stops trading on the demo's paper account, and allows it
again:

python examples/limit_and_halt.py [http://127.0.0.1:8080]
"""

import argparse
import sys
from decimal import Decimal

from trading_intents_client import HaltEvent, HaltState, Limits, TradingClient, TradingError, errors


def main(url: str | None) -> None:
    with TradingClient(url) as client:
        account = client.find_account("sim")
        account.controls.set_symbol_limits("MSFT", Limits(max_order_quantity=Decimal(100)))
        try:
            account.buy("MSFT", 101)
        except errors.ControlRejected as refused:
            print(f"refused: {refused.triggered[0].detail}")
        account.controls.delete_symbol_limits("MSFT")

        order = account.buy("MSFT", 5, limit=1)
        with account.events(kinds=["halt"]) as stream:
            account.controls.halt("the example stops everything")
            ended = (event.halt for event in stream if isinstance(event, HaltEvent))
            halt = next(one for one in ended if one.state is HaltState.DONE)
        print(
            f"halted: {halt.orders_done} of {halt.orders} orders have ended, this one as "
            f"{order.wait().order_status}"
        )
        print(account.controls.resume().state)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Limit and halt the demo's paper account.")
    parser.add_argument(
        "url", nargs="?", help="where the platform is, such as http://127.0.0.1:8080"
    )
    try:
        main(parser.parse_args().url)
    except TradingError as error:
        sys.exit(f"{error}. `make run` starts a platform and prints its address.")
