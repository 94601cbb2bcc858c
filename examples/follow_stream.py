"""Follows the demo organization over gRPC, from the orders that there are, and goes on after every interruption:

    python examples/follow_stream.py 127.0.0.1:5051

In another language, generate the client from proto/trading.proto.
"""

import json
import sys
import time
from pathlib import Path

import grpc

from trading_intents.stream.trading_pb2 import ORDER_DELIVERY_PRIMED, EventType, Subscribe, TradingEvent
from trading_intents.stream.trading_pb2_grpc import TradingServiceStub

AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
PAUSE_SECONDS = 1.0


def main(address: str) -> None:
    key = json.loads(Path(".data/demo.json").read_text())["api_key"]
    kinds = [kind for kind in EventType.values() if kind]
    cursor = ""  # a program would keep it where it keeps what it made of the events
    with grpc.insecure_channel(address) as channel:
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
                time.sleep(PAUSE_SECONDS)


def show(event: TradingEvent) -> None:
    kind = event.WhichOneof("event")
    print(kind, str(getattr(event, kind)).replace("\n", "  "), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
