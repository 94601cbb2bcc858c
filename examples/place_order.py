"""Places an order on the demo's paper account and shows what became of it:

python examples/place_order.py [http://127.0.0.1:8080]
"""

import argparse
import sys

from trading_intents_client import Interrupted, TradingClient, TradingError

INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended


def main(url: str | None) -> None:
    with TradingClient(url) as client:
        # It is placed once, however often the connection breaks: each try has the same
        # Idempotency-Key.
        order = client.find_account("sim").buy("MSFT", 5).wait(timeout=10)
        print(f"{order.order_side} {order.quantity} {order.symbol}: {order.order_status}", end=" ")
        print(f"{order.filled_quantity} at {order.average_price}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Place an order on the demo's paper account.")
    parser.add_argument(
        "url", nargs="?", help="where the platform is, such as http://127.0.0.1:8080"
    )
    try:
        main(parser.parse_args().url)
    except KeyboardInterrupt as interrupt:
        key = interrupt.idempotency_key if isinstance(interrupt, Interrupted) else None
        print(
            "interrupted" + (f"; the order may be placed, its key is {key}" if key else ""),
            file=sys.stderr,
        )
        sys.exit(INTERRUPTED)
    except TradingError as error:
        sys.exit(f"{error}. `make run` starts a platform and prints its address.")
