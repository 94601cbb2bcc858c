"""Builds, starts and drains all that a process runs to execute intents."""

import asyncio
from collections.abc import Callable
from uuid import UUID

from trading_intents.accounts.model import ConnectionState
from trading_intents.accounts.vault import Vault
from trading_intents.brokers.port import Outcome
from trading_intents.brokers.registry import Registry
from trading_intents.controls.halts.service import CHANNEL as HALTS
from trading_intents.execution.dispatcher import Dispatcher
from trading_intents.execution.halting.worker import HaltWorker
from trading_intents.execution.reconciler import FOUND, Reconciler
from trading_intents.execution.recorder import Recorder
from trading_intents.execution.sessions.drift import CHECK_SECONDS, DriftCheck
from trading_intents.execution.sessions.event_reader import SessionDependencies
from trading_intents.execution.sessions.leases import CHANNEL, Leases
from trading_intents.ids import IdMaker
from trading_intents.intents.writing.system import PlatformActions
from trading_intents.loops import Wakeup, repeat, start_loop, stop_tasks
from trading_intents.orders.facts import CommandKind
from trading_intents.outbox.model import HANDLER_SECONDS, Queue, channel
from trading_intents.outbox.outcomes import log_failures, make_outbox_series
from trading_intents.outbox.upkeep import keep_outbox
from trading_intents.outbox.worker import WorkerContext
from trading_intents.prices.model import PriceRules
from trading_intents.storage.grouped import GroupTransactions
from trading_intents.storage.signals import Signals
from trading_intents.telemetry import Metrics, make_series
from trading_intents.trading import ActionType


class Execution:
    def __init__(
        self,
        context: WorkerContext,
        brokers: Registry,
        vault: Vault,
        signals: Signals,
        make_id: IdMaker,
        max_age_millis: int,
        actions: PlatformActions,
        open_transactions: Callable[[], GroupTransactions],
        reconcile_seconds: float,
        prices: PriceRules,
        on_trades: Callable[[UUID], None] = lambda _: None,
    ) -> None:
        """`settings` gives a broker's settings by its name."""
        lookup_wakeup = Wakeup()
        claim_wakeup = Wakeup()
        self._recorder = Recorder(
            transactions=open_transactions(),
            lookup_wakeup=lookup_wakeup,
            signals=signals,
            metrics=context.metrics,
            log=context.log,
            on_trades=on_trades,
        )
        dependencies = SessionDependencies(
            pool=context.pool,
            integrations_pool=context.pool.share(),
            brokers=brokers,
            vault=vault,
            signals=signals,
            recorder=self._recorder,
            clock=context.clock,
            metrics=context.metrics,
            log=context.log,
            open_transactions=open_transactions,
            reconcile_seconds=reconcile_seconds,
            prices=prices,
        )
        self.leases = Leases(dependencies, make_id, max_age_millis, claim_wakeup)
        self._dispatcher = Dispatcher(
            context=context,
            transactions=open_transactions(),
            leases=self.leases,
            recorder=self._recorder,
            wakeup=claim_wakeup,
            max_age_millis=max_age_millis,
        )
        self._reconciler = Reconciler(
            context, self.leases, self._recorder, lookup_wakeup, actions.cancel
        )
        self._halts = HaltWorker(context, self.leases, actions, signals)
        self._drift = DriftCheck(context, self.leases, max_age_millis)
        self._context = context
        self._signals = signals
        self._upkeep: list[asyncio.Task[None]] = []
        _make_series(context.metrics, brokers)

    def start(self) -> None:
        self._signals.subscribe(
            channel(Queue.INTENTS), self.leases.wake_lanes, self.leases.has_account
        )
        self._signals.subscribe(channel(Queue.ACCOUNTS), self.leases.wake)
        self._signals.subscribe(CHANNEL, self.leases.wake)
        self._signals.subscribe(HALTS, self._halts.wake)
        self.leases.start()
        self._reconciler.start()
        self._dispatcher.start()
        self._halts.start()
        context = self._context
        upkeep = keep_outbox(Queue.INTENTS, context.pool, context.metrics, context.log)
        log_failed = log_failures(context.log, "drift not checked")
        drift = repeat(self._drift.run, CHECK_SECONDS, log_failed)
        self._upkeep = [start_loop(upkeep), start_loop(drift)]

    async def stop(self, limit_seconds: float) -> None:
        """Stops claiming first, then closes sessions and gives leases back. May be called again."""
        await self._halts.close()
        await self._dispatcher.stop(limit_seconds)
        await stop_tasks(*self._upkeep)
        await self._reconciler.close()
        await self.leases.close(min(limit_seconds, HANDLER_SECONDS))
        await self._recorder.close()


def _make_series(metrics: Metrics, brokers: Registry) -> None:
    make_outbox_series(Queue.INTENTS, [f"intent.{kind.lower()}" for kind in ActionType], metrics)
    commands = [command.lower() for command in CommandKind]
    make_series(metrics.execution_sends, commands, [outcome.lower() for outcome in Outcome])
    make_series(metrics.execution_call_seconds, commands)
    make_series(metrics.execution_lookups, FOUND.values())
    make_series(metrics.execution_links, ConnectionState)
    for broker in brokers.all():
        for metric in (metrics.orders, metrics.fills, metrics.order_rejects):
            make_series(metric, (broker.name,), broker.environments)
