"""Measures how long an order waits, at a broker that costs nothing, with load by the clock and not
by the last answer: from POST to the answer, to the broker, and from the broker's report to a
subscriber; then CANCELs beside a queue of 10,000 CREATEs. Run it alone on the machine: `python
bench/latency.py`, LATENCY_SECONDS=30 for a short one. Exit code 1 when a bar is missed.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

import null_broker
from execute import Market, market
from plot import Bar, draw, show_bars
from trading_intents.stream import trading_pb2 as pb

PICTURE = Path(__file__).with_name("out") / "latency.png"
SECONDS = float(os.environ.get("LATENCY_SECONDS", "300"))
RATE = 300.0
ACCOUNTS = 64
SYMBOLS = 40
CONNECTIONS = 64
QUEUED = 10_000
CANCELS = 400
MIN_CANCELS = 50
WAIT_SECONDS = 60.0
SHARES = (0.5, 0.9, 0.99, 0.999, 1.0)


class Followed:
    """By intent, in seconds of the wall clock: when the broker reported its final status, and when
    that arrived."""

    def __init__(self) -> None:
        self._over: dict[str, tuple[float, float]] = {}
        self._changed = threading.Condition()

    def add(self, intent_id: str, reported_at: float) -> None:
        with self._changed:
            self._over[intent_id] = reported_at, time.time()
            self._changed.notify_all()

    def take(self, intents: Sequence[str]) -> list[tuple[float, float]]:
        with self._changed:
            assert self._changed.wait_for(
                lambda: all(each in self._over for each in intents), WAIT_SECONDS
            )
            return [self._over[each] for each in intents]


@contextmanager
def following(here: Market) -> Iterator[Followed]:
    """A subscriber of the whole organization."""
    followed = Followed()
    is_ready = threading.Event()
    final = {pb.ORDER_STATUS_FILLED, pb.ORDER_STATUS_CANCELLED}
    with grpc.insecure_channel(here.bench.grpc) as channel:
        call: Any = channel.unary_stream(
            "/trading.TradingService/SubscribeEvents",
            response_deserializer=pb.TradingEvent.FromString,
        )
        request = pb.Subscribe(subscriptions=[pb.EVENT_TYPE_BROKER_ORDER]).SerializeToString()
        events = call(request, metadata=(("x-api-key", here.client.headers["x-api-key"]),))

        def follow() -> None:
            try:
                for event in events:
                    is_ready.set()
                    order = event.broker_order
                    if order.order_status in final:
                        followed.add(order.intent_id, order.broker_sent_at.ToNanoseconds() / 1e9)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.CANCELLED:
                    raise

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            assert is_ready.wait(WAIT_SECONDS)
            yield followed
        finally:
            events.cancel()
            thread.join()


def by_clock(here: Market, followed: Followed) -> dict[str, list[float]]:
    """Milliseconds of each order; a checkpoint runs in the middle."""
    checkpoint = threading.Timer(SECONDS / 2, here.bench.psql, ("CHECKPOINT",))
    checkpoint.start()
    orders = (
        here.order(here.accounts[n % ACCOUNTS], f"S{n % SYMBOLS}")
        for n in range(int(RATE * SECONDS))
    )
    answers = here.bench.load(orders, CONNECTIONS, SECONDS, RATE)["answers"]
    checkpoint.join()
    times = followed.take([intent for _, _, intent in answers])
    pairs = list(zip(answers, times, strict=True))
    return {
        "POST until its answer": [took * 1e3 for _, took, _ in answers],
        "POST until the broker has it": [
            (reported - due) * 1e3 for (due, _, _), (reported, _) in pairs
        ],
        "the broker's report until the subscriber": [
            (arrived - reported) * 1e3 for reported, arrived in times
        ],
    }


def cancels_beside_queue(here: Market, followed: Followed, account: str) -> list[float]:
    """Milliseconds from the POST of a CANCEL until the broker has it, while CREATEs of the first
    account wait."""
    url = f"/v1/accounts/{account}/intents"
    spec = {"Limit": {"quantity": "1", "limit_price": "1"}}
    create = {
        "command": {
            "type": "CREATE",
            "payload": {"symbol": "REST", "order_side": "BUY", "spec": spec},
        }
    }
    resting = [
        here.client.post(url, json=create).raise_for_status().json()["intent_id"]
        for _ in range(CANCELS)
    ]
    here.until_sent()
    here.queue(0, QUEUED)
    found = []
    for intent in resting:
        began = time.time()
        here.client.post(
            url, json={"command": {"type": "CANCEL", "payload": {"ref_intent_id": intent}}}
        ).raise_for_status()
        ((reported, _),) = followed.take([intent])
        found.append((reported - began) * 1e3)
        if not here.is_busy():
            break
    assert len(found) >= MIN_CANCELS, "the queue was empty too early"
    here.cancel_all()
    here.until_finished()
    return found


def main() -> int:
    with market("api,stream,worker") as here:
        here.open_accounts(ACCOUNTS, null_broker.NAME)
        with following(here) as followed:
            found = by_clock(here, followed)
            for name, account in (
                ("of the same account", here.accounts[0]),
                ("of another", here.accounts[1]),
            ):
                millis = cancels_beside_queue(here, followed, account)
                found[f"CANCEL until the broker has it, beside 10,000 CREATEs {name}"] = millis
    return report(found)


def share(millis: list[float], part: float) -> float:
    return sorted(millis)[min(int(len(millis) * part), len(millis) - 1)]


def report(found: dict[str, list[float]]) -> int:
    out = Console()
    table = Table(
        "milliseconds", "orders", *("max" if part == 1 else f"p{part * 100:g}" for part in SHARES)
    )
    for name, millis in found.items():
        table.add_row(name, str(len(millis)), *(f"{share(millis, part):.1f}" for part in SHARES))
    out.print(f"{RATE:.0f} orders/s by the clock for {SECONDS:.0f} s, a checkpoint in the middle")
    out.print(table)
    bars = [
        Bar(
            "POST until the broker has it, p99 ms",
            share(found["POST until the broker has it"], 0.99),
            40,
            20,
            False,
        ),
        Bar(
            "report until the subscriber, p99 ms",
            share(found["the broker's report until the subscriber"], 0.99),
            40,
            20,
            False,
        ),
        *(
            Bar(
                name.replace("until the broker has it", "p99 ms"),
                share(millis, 0.99),
                50,
                20,
                False,
            )
            for name, millis in found.items()
            if name.startswith("CANCEL")
        ),
    ]
    draw(PICTURE, f"bench/latency.py: {RATE:.0f} orders/s by the clock", bars)
    return show_bars(out, bars, decimals=1)


if __name__ == "__main__":
    sys.exit(main())
