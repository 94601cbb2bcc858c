"""Measures orders at a FIX venue, from POST until filled and booked: through one session, over ten,
and beside paper accounts, all in one process. Run it alone on the machine: `python bench/fix.py`.
Exit code 1 when a bar is missed.
"""

import asyncio
import multiprocessing
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

from rich.console import Console
from rich.table import Table

from execute import Market, Wave, market
from plot import Bar, show_bars
from trading_intents.brokers.fix.messages import Numbers, ReceivedMessage, SentMessage, SessionRules
from trading_intents.brokers.fix.session import FixSession
from trading_intents.clock import SystemClock

ROUNDS = 3
SESSIONS = 10
START_SECONDS = 20.0
ORDERS_A_SESSION = 1_000
ORDERS = 4_000
PRICE = "100"
SENDER = re.compile(rb"\x0149=([^\x01]*)\x01")


class Forgetful:
    """The venue keeps nothing: what it costs is not measured."""

    async def write(
        self, numbers: Numbers, received: Sequence[ReceivedMessage], sent: Sequence[SentMessage]
    ) -> Sequence[ReceivedMessage]:
        return received

    async def take_resend(self, epoch: int, first: int, last: int) -> tuple[list[SentMessage], int]:
        return [], 0


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes every order and fills it at once."""
    data = await reader.read(65_536)
    found = SENDER.search(data)
    assert found
    reader.feed_data(data)
    client = found[1].decode()
    rules = SessionRules(begin_string="FIX.4.4", sender="VENUE", target=client, is_initiator=False)

    def deliver(batch: Sequence[ReceivedMessage]) -> None:
        for received in batch:
            fill(received)

    def fill(received: ReceivedMessage) -> None:
        order = received.message
        base = [
            (37, f"V{received.number}"),
            (11, order.get(11)),
            (55, order.get(55)),
            (54, order.get(54)),
        ]
        quantity = order.get(38)
        for code, status, left, done in (("0", "0", quantity, "0"), ("F", "2", "0", quantity)):
            name = [(17, f"{code}{received.number}"), (150, code), (39, status), (38, quantity)]
            session._put(
                "8", [*base, *name, (151, left), (14, done), (6, PRICE), (32, done), (31, PRICE)]
            )

    session = FixSession(rules, Numbers(), Forgetful(), (reader, writer), SystemClock(), deliver)
    await session.run()


def run_venue(port: "multiprocessing.Queue[int]", over: Event) -> None:
    async def run() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port.put(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(over.wait)

    asyncio.run(run())


@contextmanager
def venue() -> Iterator[int]:
    """The port of a venue in a process of its own."""
    spawned = multiprocessing.get_context("spawn")
    port = spawned.Queue()
    over = spawned.Event()
    process = spawned.Process(target=run_venue, args=(port, over))
    process.start()
    try:
        yield port.get(timeout=START_SECONDS)
    finally:
        over.set()
        process.join(START_SECONDS)


def open_fix_accounts(here: Market, number: int) -> None:
    """The paper accounts after them, one for each."""
    for n in range(number):
        body = {"name": f"f{n}", "broker": "bench", "environment": "paper"}
        account = here.client.post("/v1/accounts", json=body).raise_for_status().json()["id"]
        secrets = {"sender_comp_id": f"US{n}", "target_comp_id": "VENUE"}
        answer = here.client.post(f"/v1/accounts/{account}/credentials", json={"secrets": secrets})
        answer.raise_for_status()
        here.accounts.append(account)
    here.open_accounts(2 * number)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ti-bench-") as folder, venue() as port:
        text = (
            f'extends = "generic44"\nhost = "127.0.0.1"\nport = {port}\ntls = '
            "false\ncalls_at_once = 50\n"
        )
        Path(folder, "bench.toml").write_text(text)
        with market("api,stream,worker", FIX_VENUES=folder, WORKERS="0") as here:
            open_fix_accounts(here, SESSIONS)
            waves: dict[str, list[Wave]] = {}
            for _ in range(ROUNDS):
                here.bench.psql("CHECKPOINT")
                for name, accounts, orders in (
                    ("one session", 1, ORDERS_A_SESSION),
                    ("ten sessions", SESSIONS, ORDERS),
                    ("ten sessions and ten paper accounts", 2 * SESSIONS, ORDERS),
                ):
                    waves.setdefault(name, []).append(here.wave(accounts, 40, orders))
    return report(
        {name: max(rounds, key=lambda each: each.per_second) for name, rounds in waves.items()}
    )


def report(waves: dict[str, Wave]) -> int:
    out = Console()
    table = Table(
        "orders over", "filled and booked/s", "accepted/s", "service us", "postgres us", "stale"
    )
    for name, each in waves.items():
        rates = (each.per_second, each.accepted_per_second, each.service_us, each.postgres_us)
        table.add_row(name, *(f"{value:.0f}" for value in rates), str(each.stale))
    out.print(table)
    bars = [
        Bar("filled and booked/s, one session", waves["one session"].per_second, 200, 400, True),
        Bar("likewise, ten sessions", waves["ten sessions"].per_second, 1_000, 1_500, True),
        Bar("stale", max(each.stale for each in waves.values()), 0, 0, False),
    ]
    return show_bars(out, bars, decimals=0)


if __name__ == "__main__":
    sys.exit(main())
