"""Orders at Alpaca through the fault proxy, while either side restarts: none twice, none lost,
every fill once."""

import asyncio
import contextlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.brokers.alpaca.book import Account
from tests.brokers.alpaca.in_process import AlpacaExecution, integration, open_alpaca
from tests.brokers.alpaca.order import Order
from tests.brokers.alpaca.simulator import Fault, Simulator, simulating
from tests.brokers.alpaca.stage import CutRequests
from tests.conftest import Urls
from tests.execution.in_process_execution import executing
from tests.execution.ledger_invariants import assert_true_books
from tests.execution.worker_processes import HURRY_PROOFS
from tests.proxy import FaultProxy, Verdict
from tests.seeds import seeded
from tests.waiting import eventually_async
from trading_intents.errors import Unavailable
from trading_intents.intents.model import Cancel, Create, Replace, Spec
from trading_intents.intents.writing.batch import Receipt
from trading_intents.storage.database import open_database
from trading_intents.telemetry import Metrics, make_log
from trading_intents.trading import OrderKind, OrderSide, RouteStrategy, Symbol

pytestmark = pytest.mark.slow

D = Decimal
CUTS = (Verdict.CUT_UNSENT, Verdict.CUT_SENT, Verdict.CUT_UNANSWERED)
REQUESTS = (b"POST /v2/orders", b"PATCH /v2/orders", b"DELETE /v2/orders", b"GET /v2/orders:by")
REFUSED = ("REJECTED", "40310000")  # a fault's: insufficient buying power
NEVER_SENT = {
    ("EXPIRED", "stale"),
    ("REJECTED", "not_delivered"),
    ("CANCELLED", "before_send"),
    REFUSED,
}
ENDED = {"filled": "FILLED", "canceled": "CANCELLED", "rejected": "REJECTED", "expired": "EXPIRED"}
RECONCILE_SECONDS = 15.0
AWAY_SECONDS = 1.0
TRADE_SECONDS = 0.05
SETTLE_SECONDS = 180.0  # a busy machine takes long; an idle one about 20 s
FILL_CHANCE = 0.02  # of each working order, each time


@dataclass(frozen=True)
class Course:
    """`mute_seconds` exceeds the delays of a busy machine: else sessions that report everything are
    ended."""

    orders: int
    accounts: int
    faults: int
    seconds: float
    mute_seconds: float
    watch_seconds: float
    muted_seconds: float


SHORT = Course(30, 2, 14, 6.0, mute_seconds=1.5, watch_seconds=1.0, muted_seconds=3.0)
LONG = Course(1_000, 5, 50, 70.0, mute_seconds=4.0, watch_seconds=3.0, muted_seconds=8.0)


@dataclass
class Run:
    alpaca: AlpacaExecution
    proxy: FaultProxy
    socket: Path
    cuts: CutRequests
    chance: random.Random
    course: Course
    intents: dict[UUID, UUID] = field(default_factory=dict)  # with their accounts
    done: Counter[str] = field(default_factory=Counter)
    is_settling: bool = False
    is_over: bool = False
    restart: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def simulator(self) -> Simulator:
        return self.alpaca.simulator

    async def work(self) -> None:
        """Runs a worker, and starts another whenever `restart` is set."""
        made = integration(
            self.simulator,
            f"http://127.0.0.1:{self.proxy.port}",
            per_minute=None,
            mute_seconds=self.course.mute_seconds,
            watch_seconds=self.course.watch_seconds,
        )
        while not self.is_over:
            self.restart.clear()
            async with executing(
                self.alpaca.in_process, integration=made, reconcile_seconds=RECONCILE_SECONDS
            ):
                await self.restart.wait()

    async def send(self) -> None:
        """All orders, evenly in the time; some are replaced and some cancelled a moment later."""
        orders = self.course.orders
        seconds = self.course.seconds
        accounts = self.alpaca.in_process.in_process_writer.accounts

        async def one(number: int) -> None:
            await asyncio.sleep(number * seconds / orders)
            account = accounts[number % len(accounts)]
            intent = await self.create(account)
            self.intents[intent] = account
            for _ in range(self.chance.choice((0, 0, 1, 2))):
                await asyncio.sleep(self.chance.random() * AWAY_SECONDS)
                await self.change(account, intent)

        await asyncio.gather(*(one(number) for number in range(orders)))

    async def create(self, account: UUID) -> UUID:
        """Asked again, as a caller would, while the platform is too busy to take it."""
        writer = self.alpaca.in_process.in_process_writer
        spec = Spec(
            kind=OrderKind.LIMIT,
            quantity="10",
            limit_price="100",
            stop_price=None,
            trail_amount=None,
        )
        command = Create(Symbol("AAPL"), OrderSide.BUY, RouteStrategy.SMART, spec)
        while True:
            answer = await writer.submit(writer.command(account, command))
            if isinstance(answer, Receipt):
                return UUID(answer.intent_id)
            assert isinstance(answer, Unavailable), answer
            self.done["busy"] += 1

    async def change(self, account: UUID, intent: UUID) -> None:
        spec = Spec(
            kind=OrderKind.LIMIT,
            quantity=str(self.chance.choice((8, 12, 15))),
            limit_price="100",
            stop_price=None,
            trail_amount=None,
        )
        command = self.chance.choice((Cancel(str(intent)), Replace(str(intent), spec)))
        writer = self.alpaca.in_process.in_process_writer
        # One that is refused comes too late.
        answer = await writer.submit(writer.command(account, command))
        self.done[type(command).__name__ if hasattr(answer, "seq") else "too late"] += 1

    async def trade(self) -> None:
        """The market: fills parts of orders, also while nobody listens, and now and then takes one
        back."""
        while not self.is_over:
            await asyncio.sleep(TRADE_SECONDS)
            for account in self.simulator.accounts.values():
                for order in _working(account):
                    if self.chance.random() > FILL_CHANCE and not self.is_settling:
                        continue
                    execution = account.fill(
                        order, min(order.leaves, D(self.chance.choice((3, 5, 10)))), D(99)
                    )
                    fate = self.chance.random()
                    if fate < 0.02 and order.is_open:
                        account.bust(execution)
                        self.done["bust"] += 1
                    elif fate < 0.04:
                        quantity = D(
                            next(a["qty"] for a in account.activities if a["ref_id"] == execution)
                        )
                        account.correct(execution, quantity, D(98))
                        self.done["correction"] += 1

    async def harm(self, until: float) -> None:
        """So many faults, evenly until then."""
        kinds: list[Callable[[], Awaitable[None]]] = [
            self._cut, self._cut, self._cut, self._answer, self._answer, self._answer, self._away, self._half,
            self._reset, self._stall, self._mute, self._refuse_streams, self._restart_alpaca, self._restart_worker,
        ]  # fmt: skip
        for number in range(self.course.faults):
            kind = kinds[number] if number < len(kinds) else self.chance.choice(kinds)
            await kind()
            self.done[kind.__name__] += 1
            left = until - time.monotonic()
            await asyncio.sleep(max(TRADE_SECONDS, left / (self.course.faults - number)))

    async def _cut(self) -> None:
        self.cuts.verdict = self.chance.choice(CUTS)
        self.cuts.text = self.chance.choice(REQUESTS)

    async def _answer(self) -> None:
        kind = self.chance.choice(("close", "half", "refuse", "status", "too_many"))
        reset = self.chance.choice((None, 2.0))
        takes = kind != "too_many" and self.chance.random() < 0.5
        self.simulator.faults.append(
            Fault(kind, takes, status=self.chance.choice((500, 504)), reset_seconds=reset)
        )

    async def _half(self) -> None:
        await self._while(lambda: self.proxy.cut_after(self.chance.randrange(50, 3000)))

    async def _away(self) -> None:
        await self._while(self.proxy.refuse)

    async def _reset(self) -> None:
        await self._while(self.proxy.reset)

    async def _stall(self) -> None:
        await self._while(self.proxy.stall)

    async def _while(self, fault: Callable[[], None]) -> None:
        fault()
        await asyncio.sleep(self.chance.random() * AWAY_SECONDS)
        self.proxy.work()

    async def _mute(self) -> None:
        self.simulator.is_mute = True
        await asyncio.sleep(self.course.muted_seconds)
        self.simulator.is_mute = False

    async def _refuse_streams(self) -> None:
        self.simulator.refuses_streams = True
        self.simulator.break_connections()
        await asyncio.sleep(self.course.muted_seconds)
        self.simulator.refuses_streams = False

    async def _restart_alpaca(self) -> None:
        await self.simulator.stop()
        await asyncio.sleep(self.chance.random() * AWAY_SECONDS)
        await self.simulator.start(self.socket)

    async def _restart_worker(self) -> None:
        self.restart.set()

    async def settle(self) -> None:
        """Nothing goes wrong any more, and every order is filled that is not cancelled."""
        owner = self.alpaca.in_process.in_process_writer.owner
        self.is_settling = True
        self.simulator.faults.clear()
        self.cuts.text = b""

        async def is_settled() -> bool:
            if self.course is SHORT:
                await owner.execute(HURRY_PROOFS)
            await owner.execute(
                """
                    UPDATE orders SET lookup_due_at = now()
                    WHERE lookup_due_at > now() + interval '12 s'
                """
            )
            return bool(
                await owner.fetchval("SELECT count(*) = 0 FROM orders WHERE finished_at IS NULL")
            )

        try:
            await eventually_async(is_settled, SETTLE_SECONDS)
        except AssertionError:
            rows = await owner.fetch("SELECT * FROM orders WHERE finished_at IS NULL")
            connections = await owner.fetch("SELECT connection, count(*) FROM accounts GROUP BY 1")
            streams = [len(account.streams) for account in self.simulator.accounts.values()]
            raise AssertionError(
                (len(rows), connections, streams, dict(self.done), [dict(row) for row in rows[:3]])
            ) from None

    async def converge(self) -> None:
        """Waits until the platform shows what Alpaca has. An order may be final by the count in an
        answer before its execution is booked from the stream or the next snapshot; one that is lost
        is missing at the timeout."""
        wrong = ""

        async def is_right() -> bool:
            nonlocal wrong
            try:
                assert not any(_working(account) for account in self.simulator.accounts.values()), (
                    "orders work on"
                )
                await self.check()
            except AssertionError as error:
                self.done["unequal"] += 1
                wrong = str(error)
                return False
            return True

        try:
            await eventually_async(is_right, SETTLE_SECONDS)
        except AssertionError:
            raise AssertionError(wrong) from None

    async def check(self) -> None:
        """Compares what the platform shows with Alpaca's books."""
        in_process = self.alpaca.in_process
        rows = dict[UUID, Any]()
        owner = in_process.in_process_writer.owner
        for row in await owner.fetch("SELECT * FROM orders"):
            rows[row["order_id"]] = row
        assert rows.keys() == self.intents.keys()
        for intent, account_id in self.intents.items():
            row = rows[intent]
            account = self.simulator.accounts[str(account_id)]
            first = account.by_client.get(await in_process.coid(intent))
            if first is None:
                assert (row["order_status"], row["reason"]) in NEVER_SENT, dict(row)
                continue
            chain = _chain(account, first)
            found = await owner.fetch(
                "SELECT * FROM trades WHERE order_id = $1 AND quantity > 0", intent
            )
            booked = {trade["exec_id"]: (trade["quantity"], trade["price"]) for trade in found}
            assert booked == _executions(account, chain), dict(row)
            assert row["filled_quantity"] == sum((order.filled for order in chain), D(0)), dict(row)
            assert row["order_status"] == ENDED[chain[-1].json["status"]], (
                dict(row),
                chain[-1].json,
            )
        arrived = [each for account in self.simulator.accounts.values() for each in account.arrived]
        assert len(arrived) == len(set(arrived))
        for row in await owner.fetch("SELECT account_id, symbol, quantity FROM holdings"):
            held = self.simulator.accounts[str(row["account_id"])].positions[row["symbol"]][0]
            assert row["quantity"] == held


def _working(account: Account) -> list[Order]:
    return [
        order
        for order in account.orders.values()
        if order.json["status"] in ("new", "partially_filled")
    ]


def _chain(account: Account, order: Order) -> list[Order]:
    chain = [order]
    while chain[-1].json["replaced_by"]:
        chain.append(account.orders[chain[-1].json["replaced_by"]])
    return chain


def _executions(account: Account, chain: list[Order]) -> dict[str, tuple[Decimal, Decimal]]:
    """The executions of an order after busts and corrections, by the id that each had first."""
    ids = {order.json["id"] for order in chain}
    found = dict[str, tuple[Decimal, Decimal]]()
    for each in account.activities:
        if each["details"]["order_id"] not in ids:
            continue
        match each["details"]["execution_type"]:
            case "fill":
                found[each["ref_id"]] = D(each["qty"]), D(each["price"])
            case "trade_correct":
                found[each["previous_id"]] = D(each["qty"]), D(each["price"])
            case "trade_bust":
                del found[each["previous_id"]]
    return found


@pytest.mark.timeout(900)
# The short one has each of the fourteen faults once, some of which last for seconds.
@pytest.mark.parametrize(
    "course", [SHORT, pytest.param(LONG, marks=pytest.mark.chaos)], ids=["short", "long"]
)
async def test_every_order_is_sent_once_and_every_fill_booked_once(
    urls: Urls, course: Course
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "s")
        cuts = CutRequests()
        proxy = FaultProxy(socket, cuts)
        async with (
            simulating(socket) as simulator,
            open_alpaca(urls, simulator, course.accounts) as alpaca,
        ):
            simulator.limit_per_minute = 1_000_000
            run = Run(alpaca, proxy, socket, cuts, seeded("alpaca"), course)
            with proxy.running():
                began = time.monotonic()
                working, trading = (asyncio.create_task(each) for each in (run.work(), run.trade()))
                await asyncio.gather(run.send(), run.harm(began + course.seconds))
                sent = time.monotonic() - began
                await run.settle()
                await run.converge()
                run.is_over = True
                run.restart.set()
                await asyncio.gather(working, trading)
                print(
                    f"\nsent in {sent:.0f} s, settled in {time.monotonic() - began - sent:.0f} s: {dict(run.done)}"
                )
            await run.check()
    async with open_database(urls.login, 2, make_log("critical"), Metrics()) as database:

        async def are_true() -> bool:
            # A busy machine reads so many facts too slowly for a statement.
            with contextlib.suppress(Unavailable):
                assert await assert_true_books(database, bust_reopens=False) == course.orders
                return True
            return False

        await eventually_async(are_true, SETTLE_SECONDS)
