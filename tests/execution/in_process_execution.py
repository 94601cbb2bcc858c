"""Workers in the test's own process that execute on a venue in memory what a writer beside them
records."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

from tests.conftest import Urls
from tests.fakes import FakeVenue
from tests.intents.in_process_writer import PRICES, InProcessWriter, open_in_process_writer
from tests.journal import ALL_ROWS, read_messages
from tests.kept_connections import make_pipeline, open_pools
from tests.waiting import eventually_async
from trading_intents.accounts.vault import SecretRef
from trading_intents.brokers.paper.venue.simulation import PaperSimulation
from trading_intents.brokers.port import Integration
from trading_intents.brokers.registry import Registry
from trading_intents.clock import Clock, SystemClock
from trading_intents.execution.service import Execution
from trading_intents.ids import id_maker, id_text_maker
from trading_intents.intents.model import Cancel, Create, Replace, Spec, Submission
from trading_intents.intents.writing.batch import Receipt
from trading_intents.intents.writing.state import BatchDependencies
from trading_intents.intents.writing.system import PlatformActions
from trading_intents.orders.facts import client_order_id
from trading_intents.outbox.worker import WorkerContext
from trading_intents.prices.model import PriceRules
from trading_intents.secret import Secret
from trading_intents.storage.database import WORKER_ROLE
from trading_intents.storage.grouped import GroupTransactions
from trading_intents.storage.signals import Signals, open_signals
from trading_intents.stream import trading_pb2
from trading_intents.telemetry import Metrics, make_log
from trading_intents.trading import OrderKind, OrderSide, RouteStrategy, Symbol

WAIT_SECONDS = 30.0  # a busy machine takes long
POOL_SIZE = 8
ATTEMPT_LIMIT = 10
MAX_AGE_MILLIS = 30_000
# By chance an account is reconciled soon after it connects: not in these tests.
RECONCILE_SECONDS = 1_000_000.0


class OpenVault:
    """Keeps nothing secret: what is sealed is the text itself."""

    async def seal(self, ref: SecretRef, secrets: Any) -> bytes:
        raise NotImplementedError

    async def open(self, ref: SecretRef, sealed: bytes) -> dict[str, Secret]:
        return {"token": Secret(sealed.decode())}

    async def forget(self, ref: SecretRef, sealed: bytes) -> None:
        raise NotImplementedError


@dataclass
class InProcessExecution:
    urls: Urls
    in_process_writer: InProcessWriter
    venue: FakeVenue
    system_cancels: list[UUID] = field(default_factory=list)

    @property
    def account(self) -> UUID:
        return self.in_process_writer.accounts[0]

    async def create(
        self,
        quantity: str = "10",
        symbol: str = "AAPL",
        account: UUID | None = None,
        side: OrderSide = OrderSide.BUY,
    ) -> UUID:
        spec = Spec(
            kind=OrderKind.LIMIT,
            quantity=quantity,
            limit_price="100",
            stop_price=None,
            trail_amount=None,
        )
        command = Create(Symbol(symbol), side, RouteStrategy.SMART, spec)
        return UUID(
            (
                await self.submit(self.in_process_writer.command(account or self.account, command))
            ).intent_id
        )

    async def replace(self, intent_id: UUID, quantity: str) -> int:
        spec = Spec(
            kind=OrderKind.LIMIT,
            quantity=quantity,
            limit_price="100",
            stop_price=None,
            trail_amount=None,
        )
        return (
            await self.submit(
                self.in_process_writer.command(self.account, Replace(str(intent_id), spec))
            )
        ).seq

    async def cancel(self, intent_id: UUID) -> int:
        return (
            await self.submit(self.in_process_writer.command(self.account, Cancel(str(intent_id))))
        ).seq

    async def submit(self, submission: Submission) -> Receipt:
        receipt = await self.in_process_writer.submit(submission)
        assert isinstance(receipt, Receipt), receipt
        return receipt

    async def coid(self, intent_id: UUID, action_type: str = "CREATE") -> str:
        """The client order id of the intent's last action of that type."""
        return client_order_id(
            await self.in_process_writer.owner.fetchval(
                """
                    SELECT action_id FROM actions WHERE intent_id = $1 AND action_type = $2
                    ORDER BY seq DESC LIMIT 1
                """,
                intent_id,
                action_type,
            )
        )

    async def order(self, intent_id: UUID) -> Any:
        return await self.in_process_writer.owner.fetchrow(
            "SELECT * FROM orders WHERE order_id = $1", intent_id
        )

    async def streamed_statuses(self, intent_id: UUID) -> list[str]:
        """Every status of the order in the stream, also a short-lived one."""
        reports = await self.in_process_writer.owner.fetch(ALL_ROWS)
        events = [each.event.broker_order for each in read_messages(reports)]
        reported = [event.order_status for event in events if event.order_id == str(intent_id)]
        return [
            trading_pb2.OrderStatus.Name(status).removeprefix("ORDER_STATUS_")
            for status in reported
        ]

    async def rows(self, intent_id: UUID) -> list[Any]:
        return list(
            await self.in_process_writer.owner.fetch(
                "SELECT * FROM queue_rows JOIN commands USING (id, attempts, created_at)"
                " WHERE order_key = $1 ORDER BY id",
                intent_id,
            )
        )

    async def until_status(
        self, intent_id: UUID, status: str, limit_seconds: float = WAIT_SECONDS
    ) -> Any:
        """The order's row once it has that status, and its finished rows are."""
        last: Any = None

        async def reached() -> bool:
            nonlocal last
            last = await self.order(intent_id)
            return bool(last["order_status"] == status)

        try:
            await eventually_async(reached, limit_seconds)
        except AssertionError:
            raise AssertionError(f"{status} not within {limit_seconds} s: {dict(last)}") from None
        return last

    async def until_queue_is_empty(self, limit_seconds: float = WAIT_SECONDS) -> None:
        """Every command has its outcome."""

        async def is_empty() -> bool:
            queued = await self.in_process_writer.owner.fetchval("SELECT count(*) FROM commands")
            return bool(queued == 0)

        await eventually_async(is_empty, limit_seconds)

    async def until(
        self, condition: Callable[[], Awaitable[bool]], limit_seconds: float = WAIT_SECONDS
    ) -> float:
        return await eventually_async(condition, limit_seconds)

    async def put_off(self, intent_id: UUID) -> None:
        """Once the venue's acts are used up: the intent's command that failed is not tried again
        before `make_due`."""
        owner = self.in_process_writer.owner

        async def is_put_off() -> bool:
            waiting = "FROM commands WHERE order_id = $1 AND sent_at IS NULL AND failed_at IS NULL"
            row = await owner.fetchrow(f"SELECT id, due_at {waiting}", intent_id)
            # Each of them is an attempt, which need not wait for its time.
            is_last = not self.venue.acts
            if row:
                change = (
                    "UPDATE commands SET due_at = clock_timestamp() + make_interval(hours => $1)"
                )
                unchanged = "WHERE id = $2 AND sent_at IS NULL AND due_at = $3 RETURNING true"
                return (
                    bool(await owner.fetchval(f"{change} {unchanged}", int(is_last), *row))
                    and is_last
                )
            return False

        await self.until(is_put_off)

    async def make_due(self) -> None:
        """Every command that waits to be tried again."""
        await self.in_process_writer.owner.execute("UPDATE commands SET due_at = clock_timestamp()")

    async def until_true(
        self, condition: Callable[[], bool], limit_seconds: float = WAIT_SECONDS
    ) -> float:
        async def asked() -> bool:
            return condition()

        return await eventually_async(asked, limit_seconds)

    async def connection(self, account: UUID | None = None) -> str:
        found: str = await self.in_process_writer.owner.fetchval(
            "SELECT connection FROM accounts WHERE id = $1", account or self.account
        )
        return found

    async def until_connected(self) -> None:
        async def is_connected() -> bool:
            return await self.connection() == "connected"

        await self.until(is_connected)

    def fill(self, coid: str, quantity: str = "10", price: str = "100") -> None:
        self.venue.fill(coid, Decimal(quantity), Decimal(price))


class RecordingActions(PlatformActions):
    """The platform's own commands; its CANCELs are noted too."""

    def __init__(self, tools: BatchDependencies, signals: Signals, cancels: list[UUID]) -> None:
        super().__init__(tools, signals)
        self._cancels = cancels

    async def cancel(
        self,
        organization_id: UUID | str,
        account_id: UUID | str,
        order_id: UUID | str,
        once: bool = True,
    ) -> bool:
        assert isinstance(order_id, UUID)
        self._cancels.append(order_id)
        return await super().cancel(organization_id, account_id, order_id, once)


@contextlib.asynccontextmanager
async def open_in_process(
    urls: Urls, accounts: int = 1, venue: FakeVenue | None = None
) -> AsyncIterator[InProcessExecution]:
    """Accounts of a broker that is the venue, for the worker alone if it is called paper. No worker
    yet."""
    venue = venue or FakeVenue("paper")
    integration = None if venue.integration.name == "paper" else venue.integration
    async with open_in_process_writer(
        urls.login, urls.owner, accounts, integration=integration
    ) as in_process_writer:
        yield InProcessExecution(urls, in_process_writer, venue)


@contextlib.asynccontextmanager
async def executing(
    in_process: InProcessExecution,
    max_age_millis: int = MAX_AGE_MILLIS,
    attempt_limit: int = ATTEMPT_LIMIT,
    metrics: Metrics | None = None,
    level: str = "critical",
    clock: Clock | None = None,
    integration: Integration | None = None,
    others: Sequence[Integration] = (),
    reconcile_seconds: float = RECONCILE_SECONDS,
) -> AsyncIterator[Execution]:
    """One worker, with connections of its own. `integration` replaces the venue's, `others` are
    beside it."""
    log = make_log(level)
    clock = clock or SystemClock()
    counted = metrics or Metrics()

    login = in_process.urls.login
    async with (
        contextlib.AsyncExitStack() as stack,
        open_pools(login, POOL_SIZE, counted) as database,
        open_signals(login, log) as signals,
    ):
        worker_context = WorkerContext(database.worker, attempt_limit, clock, counted, log)
        brokers = Registry([integration or in_process.venue.integration, *others])
        pipeline = stack.enter_context(contextlib.closing(make_pipeline(login, WORKER_ROLE)))
        tools = BatchDependencies(
            pipeline=pipeline, brokers=brokers, make_id=id_text_maker(), clock=clock, prices=PRICES
        )
        actions = RecordingActions(tools, signals, in_process.system_cancels)
        stack.enter_context(contextlib.closing(actions))
        execution = Execution(
            context=worker_context,
            brokers=brokers,
            vault=OpenVault(),
            signals=signals,
            make_id=id_maker(clock),
            max_age_millis=max_age_millis,
            actions=actions,
            open_transactions=lambda: stack.enter_context(
                contextlib.closing(GroupTransactions(make_pipeline(login, WORKER_ROLE)))
            ),
            reconcile_seconds=reconcile_seconds,
            prices=PriceRules(900, PaperSimulation(1)),
        )
        execution.start()
        try:
            yield execution
        finally:
            await asyncio.shield(execution.stop(5))
