"""After a restore: what the broker was sent since the backup is found there and booked, and nothing
is sent again."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from tests.conftest import Urls, server
from tests.execution.arranged import leave_marked, prove_absent
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.fakes import Act, FakeVenue
from tests.platform import environment, run_command
from trading_intents.brokers.port import OrderTicket
from trading_intents.storage.migrate import migrate
from trading_intents.telemetry import make_log
from trading_intents.trading import OrderKind, OrderSide, Symbol, TimeInForce

pytest_plugins = ("tests.started_dirs",)
pytestmark = pytest.mark.slow

MANY = 24
FEW = 4  # one less than opens the breaker


@asynccontextmanager
async def opened(urls: Urls, venue: FakeVenue) -> AsyncIterator[InProcessExecution]:
    await migrate(urls.owner, urls.login, make_log("error"))  # the tests' login gets its roles
    async with open_in_process(urls, venue=venue) as in_process:
        yield in_process


def ticket(client_order_id: str, orig: str | None = None, quantity: int = 10) -> OrderTicket:
    return OrderTicket(
        client_order_id=client_order_id,
        orig_client_order_id=orig,
        symbol=Symbol("AAPL"),
        side=OrderSide.BUY,
        kind=OrderKind.LIMIT,
        quantity=Decimal(quantity),
        limit_price=Decimal(100),
        time_in_force=TimeInForce.DAY,
    )


async def mark(in_process: InProcessExecution, intents: Sequence[UUID]) -> None:
    """As a worker leaves commands that died between its mark and its call."""
    for intent in intents:
        await leave_marked(in_process, intent)


async def until_all_missed(in_process: InProcessExecution, count: int) -> None:
    async def missed() -> bool:
        found = "SELECT count(*) = $1 FROM orders WHERE absent_at IS NOT NULL"
        return bool(await in_process.in_process_writer.owner.fetchval(found, count))

    await in_process.until(missed)


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """Orders by what becomes of them between the backup and the disaster. The last three are open
    before the backup."""

    filled: list[UUID]
    working: list[UUID]
    never_sent: list[UUID]
    marked: list[UUID]  # before the backup, as by a worker that died
    doubted: list[UUID]  # sent before the backup, never arrived, and are being looked up
    replaced: UUID
    to_replace: UUID
    to_cancel: UUID

    @property
    def sent(self) -> list[UUID]:
        return [*self.filled, *self.working]

    @property
    def newly_replaced(self) -> UUID:
        """Gets a new REPLACE after the restore, which must not have the older CREATE sent."""
        return self.never_sent[0]

    @property
    def lost(self) -> list[UUID]:
        return [*self.never_sent, *self.marked, *self.doubted]


async def put_on_the_way(in_process: InProcessExecution) -> InFlight:
    async with executing(in_process):
        sent_before = [await in_process.create() for _ in range(3)]
        for intent in sent_before:
            await in_process.until_status(intent, "NEW")
        in_process.venue.acts += [Act.LOSE] * FEW
        doubted = [await in_process.create() for _ in range(FEW)]
        await until_all_missed(in_process, FEW)
    await in_process.replace(sent_before[0], "7")
    await in_process.replace(sent_before[1], "7")
    await in_process.cancel(sent_before[2])
    filled, working, never_sent, marked = [
        [await in_process.create() for _ in range(MANY)] for _ in range(4)
    ]
    await mark(in_process, marked)
    replaced, to_replace, to_cancel = sent_before
    return InFlight(
        filled=filled,
        working=working,
        never_sent=never_sent,
        marked=marked,
        doubted=doubted,
        replaced=replaced,
        to_replace=to_replace,
        to_cancel=to_cancel,
    )


async def go_on(in_process: InProcessExecution, orders: InFlight) -> None:
    """As the platform that is lost afterwards did."""
    for intent in orders.sent:
        in_process.venue.take(in_process.account, "submit", ticket(await in_process.coid(intent)))
    for intent in orders.filled:
        in_process.fill(await in_process.coid(intent))
    replace_id = await in_process.coid(orders.replaced, "REPLACE")
    in_process.venue.take(
        in_process.account, "replace", ticket(replace_id, await in_process.coid(orders.replaced), 7)
    )


async def wait_for_a_replace(in_process: InProcessExecution, intent: UUID) -> None:
    """As a REPLACE leaves its order that is accepted now."""
    await in_process.in_process_writer.owner.execute(
        """
        UPDATE orders SET pending_replace_seq = (SELECT max(seq) + 1 FROM actions
            WHERE account_id = orders.account_id)
        WHERE order_id = $1
        """,
        intent,
    )


# Takes more than five seconds: a hundred orders, of which a quarter waits until it is proved that
# nobody has them.
async def test_a_restore_with_a_hundred_orders_in_flight_sends_none_of_them_again(
    warm: Path, tmp_path: Path
) -> None:
    environ = environment(warm, {})
    venue = FakeVenue("paper")
    with server(warm) as urls:
        async with opened(urls, venue) as in_process:
            orders = await put_on_the_way(in_process)
            done = run_command(environ, "backup", str(tmp_path / "backups"))
            assert done.returncode == 0, done.stderr
            await go_on(in_process, orders)
    journal = list(venue.journal)

    done = run_command(environ, "restore", str(tmp_path / "backups"), "--replace")
    assert done.returncode == 0, done.stderr
    assert f"{4 * MANY + 2} CREATEs and REPLACEs" in done.stdout

    with server(warm) as urls:
        async with opened(urls, venue) as in_process:
            # A proof of absence from before the backup proves nothing any more.
            await until_all_missed(in_process, 0)
        async with opened(urls, venue) as in_process, executing(in_process):
            for intent in orders.filled:
                order = await in_process.until_status(intent, "FILLED")
                assert (order["filled_quantity"], order["flags"]) == (10, [])
            for intent in orders.working:
                await in_process.until_status(intent, "NEW")
            await in_process.until_status(orders.to_cancel, "CANCELLED")
            assert (await in_process.until_status(orders.replaced, "NEW"))["quantity"] == 7
            await until_all_missed(in_process, len(orders.lost) + 1)
            await wait_for_a_replace(in_process, orders.newly_replaced)
            await prove_absent(in_process)
            for intent in orders.lost:
                assert (await in_process.until_status(intent, "EXPIRED"))["reason"] == "stale"
            kept = await in_process.until_status(orders.to_replace, "NEW")
            assert (kept["quantity"], kept["reason"]) == (10, "stale")
            await in_process.until_queue_is_empty()
            # What is new is sent as ever.
            assert await in_process.until_status(await in_process.create(), "NEW")
            cancel_id = await in_process.coid(orders.to_cancel, "CANCEL")
    (*after, (last, _)) = venue.journal[len(journal) :]
    assert (after, last) == ([("cancel", cancel_id)], "submit")
    assert venue.duplicates == []
