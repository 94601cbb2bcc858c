"""Follows the demo organization over gRPC, from the orders that there are, and goes on after every interruption:

    python examples/follow_stream.py 127.0.0.1:5051

In another language, generate the client from proto/trading.proto.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import grpc

from trading_intents.stream.trading_pb2 import ORDER_DELIVERY_PRIMED, EventType, Subscribe, TradingEvent
from trading_intents.stream.trading_pb2_grpc import TradingServiceStub

AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
PAUSE_SECONDS = 1.0
CONNECT_SECONDS = 5.0
INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended


def main(address: str) -> None:
    key = read_demo_key()
    kinds = [kind for kind in EventType.values() if kind]
    cursor = ""  # a program would keep it where it keeps what it made of the events
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(CONNECT_SECONDS)
        while True:
            asked = Subscribe(subscriptions=kinds, order_delivery=ORDER_DELIVERY_PRIMED, resume_after=cursor)
            try:
                for event in TradingServiceStub(channel).SubscribeEvents(asked, metadata=[("x-api-key", key)]):
                    show(event)
                    cursor = event.cursor or cursor
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.OUT_OF_RANGE:
                    cursor = ""  # away for too long: begin anew
                elif error.code() not in AGAIN:
                    raise
                print(f"{error.code().name}: {error.details()}; trying again", file=sys.stderr)
                time.sleep(PAUSE_SECONDS)


def show(event: TradingEvent) -> None:
    kind = event.WhichOneof("event")
    print(kind, str(getattr(event, kind)).replace("\n", "  "), flush=True)


def read_demo_key() -> str:
    file = Path(os.environ.get("TRADING_INTENTS_DATA_DIR", ".data")) / "demo.json"
    try:
        return json.loads(file.read_text())["api_key"]
    except OSError as error:
        sys.exit(f"{file}: {error.strerror}. Run this in the folder where you typed `make run`.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Follow the demo organization's events.")
    parser.add_argument("address", help="the platform's gRPC port, such as 127.0.0.1:5051")
    arguments = parser.parse_args()
    try:
        main(arguments.address)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except grpc.FutureTimeoutError:
        sys.exit(f"No gRPC server answers at {arguments.address}. `make run` starts one and prints its address.")
    except grpc.RpcError as error:
        sys.exit(f"The platform answers {error.code().name}: {error.details()}")
