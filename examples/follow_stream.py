"""Follows the demo organization over gRPC, and goes on after every interruption:

    python examples/follow_stream.py [127.0.0.1:5051]

In another language, generate the client from proto/trading.proto.
"""

import argparse
import sys

from trading_intents_client import Event, GapEvent, TradingClient, TradingError

INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended


def main(address: str | None) -> None:
    with TradingClient(grpc_target=address) as client:
        # A program would keep each event's cursor where it keeps what it made of the event, and
        # begin `after` it.
        for event in client.events():
            show(event)


def show(event: Event) -> None:
    if isinstance(event, GapEvent):
        print(f"events were missed; {len(event.orders)} orders are open now", flush=True)
    else:
        print(event, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Follow the demo organization's events.")
    parser.add_argument(
        "address", nargs="?", help="the platform's gRPC port, such as 127.0.0.1:5051"
    )
    try:
        main(parser.parse_args().address)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except TradingError as error:
        sys.exit(f"{error}. `make run` starts a platform and prints its address.")
