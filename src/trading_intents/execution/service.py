"""All that a process runs to execute intents: built from its parts, started, drained."""

from collections.abc import Callable, Mapping

from trading_intents.accounts.vault import Vault
from trading_intents.brokers.registry import Registry
from trading_intents.execution.jobs import Executor, Rules
from trading_intents.execution.links.leases import CHANNEL, Leases
from trading_intents.execution.links.listening import Exchange
from trading_intents.execution.recorder import Recorder
from trading_intents.execution.watch import AppendCancel, Watch
from trading_intents.ids import IdMaker
from trading_intents.outbox.model import HANDLER_SECONDS, Queue, channel
from trading_intents.outbox.worker import Shop, Worker
from trading_intents.storage.signals import Signals


class Execution:
    def __init__(
        self,
        shop: Shop,
        brokers: Registry,
        vault: Vault,
        settings: Callable[[str], Mapping[str, str]],
        signals: Signals,
        make_id: IdMaker,
        most_age_millis: int,
        append_cancel: AppendCancel,
    ) -> None:
        """`settings` gives those of a broker."""
        pool, clock, metrics, log = shop.pool, shop.clock, shop.metrics, shop.log
        rules = Rules(most_age_millis, shop.attempt_limit)
        self._recorder = Recorder(pool, shop.attempt_limit, lambda: self._watch.stir_after(), signals, metrics, log)
        exchange = Exchange(
            pool=pool,
            integrations_pool=pool.share(),
            brokers=brokers,
            vault=vault,
            settings=settings,
            signals=signals,
            recorder=self._recorder,
            clock=clock,
            metrics=metrics,
            log=log,
            changed=lambda: self.leases.state_changed(),
        )
        self.leases = Leases(exchange, make_id, most_age_millis, lambda: self._worker.wake())
        self._executor = Executor(
            pool, self.leases, self._recorder, rules, lambda: self._worker.wake(), clock, metrics, log
        )
        self._watch = Watch(pool, self.leases, self._recorder, rules, append_cancel, clock, metrics, log)
        self._worker = Worker(
            Queue.INTENTS, self._executor.handlers(), shop, lanes=self.leases.lanes, sweep=self._watch.sweep
        )
        self._signals = signals

    def start(self) -> None:
        self._signals.subscribe(channel(Queue.INTENTS), self._worker.wake)
        self._signals.subscribe(channel(Queue.ACCOUNTS), self.leases.stir)
        self._signals.subscribe(CHANNEL, self.leases.stir)
        self.leases.start()
        self._watch.start()
        self._worker.start()

    async def stop(self, limit_seconds: float) -> None:
        """Claims end first, then links are closed and leases given back. May be repeated."""
        await self._worker.stop(limit_seconds)
        await self._watch.close()
        await self.leases.close(min(limit_seconds, HANDLER_SECONDS))
        await self._executor.close()
        await self._recorder.close()
