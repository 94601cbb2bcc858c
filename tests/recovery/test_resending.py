"""After a restore: what the broker was sent since the backup is found there and booked, and nothing is sent again."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from tests.conftest import Urls, server
from tests.execution.in_process_execution import Floor, executing, open_floor
from tests.execution.test_sending import prove_absent
from tests.platform import environment, run_command
from trading_intents.brokers.port import OrderTicket
from trading_intents.storage.migrate import migrate
from trading_intents.telemetry import make_log
from trading_intents.testing.fakes import Act, FakeVenue
from trading_intents.trading import OrderKind, OrderSide, Symbol, TimeInForce

pytest_plugins = ("tests.started_dirs",)
pytestmark = pytest.mark.quiet

MANY = 24
FEW = 4  # one less than opens the breaker


@asynccontextmanager
async def opened(urls: Urls, venue: FakeVenue) -> AsyncIterator[Floor]:
    await migrate(urls.owner, urls.login, make_log("error"))  # the tests' login gets its roles
    async with open_floor(urls, venue=venue) as floor:
        yield floor


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


async def mark(floor: Floor, intents: Sequence[UUID]) -> None:
    """As a worker leaves commands that died between its mark and its call."""
    for intent in intents:
        await floor.office.owner.execute(
            """
            INSERT INTO commands (account_id, client_order_id, organization_id, order_id, seq, action_type, sent_at)
            SELECT account_id, $2, organization_id, intent_id, seq, 'CREATE', clock_timestamp() FROM actions
            WHERE intent_id = $1
            """,
            intent,
            await floor.coid(intent),
        )


async def until_all_missed(floor: Floor, count: int) -> None:
    async def missed() -> bool:
        found = "SELECT count(*) = $1 FROM orders WHERE absent_at IS NOT NULL"
        return bool(await floor.office.owner.fetchval(found, count))

    await floor.until(missed)


@dataclass(frozen=True)
class InFlight:
    """Orders by what becomes of them between the backup and the disaster. The last three are open before the backup."""

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
    def lost(self) -> list[UUID]:
        return [*self.never_sent, *self.marked, *self.doubted]


async def put_in_flight(floor: Floor) -> InFlight:
    async with executing(floor):
        settled = [await floor.create() for _ in range(3)]
        for intent in settled:
            await floor.until_status(intent, "NEW")
        floor.venue.acts += [Act.LOSE] * FEW
        doubted = [await floor.create() for _ in range(FEW)]
        await until_all_missed(floor, FEW)
    await floor.replace(settled[0], "7")
    await floor.replace(settled[1], "7")
    await floor.cancel(settled[2])
    filled, working, never_sent, marked = [[await floor.create() for _ in range(MANY)] for _ in range(4)]
    await mark(floor, marked)
    replaced, to_replace, to_cancel = settled
    return InFlight(filled, working, never_sent, marked, doubted, replaced, to_replace, to_cancel)


async def go_on(floor: Floor, orders: InFlight) -> None:
    """As the platform that is lost afterwards did."""
    for intent in orders.sent:
        floor.venue.take(floor.account, "submit", ticket(await floor.coid(intent)))
    for intent in orders.filled:
        floor.fill(await floor.coid(intent))
    replace_id = await floor.coid(orders.replaced, "REPLACE")
    floor.venue.take(floor.account, "replace", ticket(replace_id, await floor.coid(orders.replaced), 7))


async def test_a_restore_with_a_hundred_orders_in_flight_sends_none_of_them_again(warm: Path, tmp_path: Path) -> None:
    environ, venue = environment(warm, {}), FakeVenue("paper")
    with server(warm) as urls:
        async with opened(urls, venue) as floor:
            orders = await put_in_flight(floor)
            done = run_command(environ, "backup", str(tmp_path / "backups"))
            assert done.returncode == 0, done.stderr
            await go_on(floor, orders)
    journal = list(venue.journal)

    done = run_command(environ, "restore", str(tmp_path / "backups"), "--replace")
    assert done.returncode == 0, done.stderr
    assert f"{4 * MANY + 2} CREATEs and REPLACEs" in done.stdout

    with server(warm) as urls:
        async with opened(urls, venue) as floor:
            # A proof of absence from before the backup proves nothing any more.
            await until_all_missed(floor, 0)
        async with opened(urls, venue) as floor, executing(floor):
            for intent in orders.filled:
                order = await floor.until_status(intent, "FILLED")
                assert (order["filled_quantity"], order["flags"]) == (10, [])
            for intent in orders.working:
                await floor.until_status(intent, "NEW")
            await floor.until_status(orders.to_cancel, "CANCELLED")
            assert (await floor.until_status(orders.replaced, "NEW"))["quantity"] == 7
            await until_all_missed(floor, len(orders.lost) + 1)
            await prove_absent(floor)
            for intent in orders.lost:
                assert (await floor.until_status(intent, "EXPIRED"))["reason"] == "stale"
            kept = await floor.until_status(orders.to_replace, "NEW")
            assert (kept["quantity"], kept["reason"]) == (10, "stale")
            await floor.until_rows_are("completed")
            # What is new is sent as ever.
            assert await floor.until_status(await floor.create(), "NEW")
            cancel_id = await floor.coid(orders.to_cancel, "CANCEL")
    (*after, (last, _)) = venue.journal[len(journal) :]
    assert (after, last) == ([("cancel", cancel_id)], "submit")
    assert venue.duplicates == []


async def test_a_new_replace_does_not_have_an_older_create_sent(warm: Path, tmp_path: Path) -> None:
    environ, venue = environment(warm, {}), FakeVenue("paper")
    with server(warm) as urls:
        async with opened(urls, venue) as floor:
            intent = await floor.create()
            assert run_command(environ, "backup", str(tmp_path / "backups")).returncode == 0
    assert run_command(environ, "restore", str(tmp_path / "backups"), "--replace").returncode == 0
    with server(warm) as urls:
        async with opened(urls, venue) as floor, executing(floor):
            await until_all_missed(floor, 1)
            command = await floor.office.owner.fetchrow("SELECT * FROM actions WHERE intent_id = $1", intent)
            await floor.office.owner.execute(
                "UPDATE orders SET pending_replace_seq = $2 WHERE order_id = $1", intent, command["seq"] + 1
            )
            await prove_absent(floor)
            await floor.until_status(intent, "EXPIRED")
    assert venue.journal == []
