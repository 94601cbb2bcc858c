"""Closes what an account holds in a halt, by bounded steps, each written down. A step goes by the
database and the broker alone: cut off anywhere, another process takes it again."""

from collections.abc import Mapping, Sequence
from decimal import Decimal

from msgspec.structs import replace

from trading_intents.brokers.port import BrokerUnavailable
from trading_intents.clock import Clock
from trading_intents.controls.model import Subject
from trading_intents.controls.rules import find_rules
from trading_intents.errors import PlatformError
from trading_intents.execution.halting import model, store
from trading_intents.execution.halting.store import HaltedAccount
from trading_intents.execution.sessions.session import BrokerSession
from trading_intents.intents.model import Close, Command, Submission
from trading_intents.intents.writing.batch import Receipt
from trading_intents.intents.writing.system import PlatformActions
from trading_intents.loops import pause_after
from trading_intents.orders import store as orders_store
from trading_intents.storage.administration import read_clock
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.trading import Symbol

MAX_APPENDED = 100  # commands in a step
PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0)  # while nothing changes


async def append_commands(
    actions: PlatformActions, halted: HaltedAccount, commands: Sequence[Command]
) -> list[Receipt | PlatformError]:
    submissions = []
    for each in commands:
        submission = Submission(
            account_id=str(halted.account_id),
            organization_id=str(halted.organization_id),
            key_id=None,
            command=each,
            client_reference_id=None,
            idempotency_key=None,
            body_digest=None,
            halt_id=str(halted.halt_id),
        )
        submissions.append(submission)
    return await actions.append(submissions)


class PositionCloser:
    """Remembers between its steps only what saves time: when the broker's positions were first
    found to differ from ours, and how long nothing has changed."""

    def __init__(
        self, halted: HaltedAccount, pool: Pool, actions: PlatformActions, clock: Clock
    ) -> None:
        self._halted = halted
        self._pool = pool
        self._actions = actions
        self._clock = clock
        self._differing: dict[str, model.ReportedQuantity] = {}
        self._last: model.ClosingProgress | None = None
        self._idle_steps = 0

    async def step(self, session: BrokerSession) -> float:
        """Does what can be done now. Gives the seconds until it is worth another look."""
        progress = await self._close(session)
        await self._write(progress)
        self._idle_steps = self._idle_steps + 1 if progress == self._last else 0
        self._last = progress
        return pause_after(PAUSES_SECONDS, self._idle_steps)

    async def _write(self, progress: model.ClosingProgress) -> None:
        halted = self._halted
        async with self._pool.transaction() as tx:
            await store.write_progress(
                tx, halted.halt_id, halted.account_id, halted.organization_id, progress
            )

    def _with_symbols(
        self,
        progress: model.ClosingProgress,
        left: set[str],
        waits: Mapping[str, str | None],
    ) -> model.ClosingProgress:
        return model.with_symbols(progress, str(self._halted.account_id), left, waits)

    async def _close(self, session: BrokerSession) -> model.ClosingProgress:
        """Asks the broker what it holds when something may be closed now."""
        account_id = self._halted.account_id
        async with self._pool.transaction(read_only=True) as tx:
            progress = await store.read_progress(tx, self._halted.halt_id, account_id)
            # Before the orders: one that comes after it keeps the closing orders away.
            seen_seq = await orders_store.last_seq(tx, account_id)
            working = await store.open_symbols(tx, account_id)
            positions = await store.held_positions(tx, self._halted)
            held = {*positions.quantities, *working}
            waits = await self._waits(tx, held, working)
        now_seconds = self._clock.monotonic()
        for symbol, report in self._differing.items():
            if not report.is_confirmed(now_seconds) and waits.get(symbol, "") is None:
                waits[symbol] = model.WaitReason.POSITION_UNCONFIRMED
        if held and None not in waits.values():
            return self._with_symbols(progress, held, waits)
        try:
            reported = await session.read_positions()
        except (BrokerUnavailable, TimeoutError):
            reason = model.WaitReason.BROKER_DISCONNECTED
            return self._with_symbols(progress, held, dict.fromkeys(held, reason))
        return await self._close_reported(progress, working, seen_seq, reported, now_seconds)

    async def _close_reported(
        self,
        progress: model.ClosingProgress,
        working: set[str],
        seen_seq: int,
        reported: Mapping[str, Decimal] | None,
        asked_seconds: float,
    ) -> model.ClosingProgress:
        """`reported` was asked for when only `working` symbols had open orders and `seen_seq` was
        the account's last; None: the broker reports none."""
        async with self._pool.transaction(read_only=True) as tx:
            held = await store.held_positions(tx, self._halted)
            ours = held.quantities
            quantities = ours if reported is None else reported
            waits = await self._waits(tx, {*quantities, *ours, *working}, working)
        self._differing = model.differing(quantities, ours, self._differing, asked_seconds)
        left = working | {symbol for symbol, quantity in quantities.items() if quantity}
        for symbol, report in self._differing.items():
            if not report.is_confirmed(asked_seconds):
                waits[symbol] = waits[symbol] or model.WaitReason.POSITION_UNCONFIRMED
                left.add(symbol)
        due = [symbol for symbol in sorted(left) if waits[symbol] is None][:MAX_APPENDED]
        progress = replace(progress, flat=None if left else held.text)
        progress = self._with_symbols(progress, left, waits)
        if due:
            # The symbols that are to be closed are written first: one that is flat before the next
            # look was closed too.
            await self._write(progress)
            waits |= await self._append(due, quantities, seen_seq)
        return self._with_symbols(progress, left, waits)

    async def _append(
        self, due: Sequence[str], quantities: Mapping[str, Decimal], seen_seq: int
    ) -> dict[str, str]:
        """The reason why each of these symbols is waited for then."""
        closing = [Close(Symbol(each), quantities[each], seen_seq) for each in due]
        outcomes: Sequence[Receipt | PlatformError]
        try:
            outcomes = await append_commands(self._actions, self._halted, closing)
        except PlatformError as error:
            outcomes = [error] * len(due)
        waits = dict[str, str]()
        for symbol, outcome in zip(due, outcomes, strict=True):
            # The next order is for a quantity that is confirmed anew.
            self._differing.pop(symbol, None)
            waits[symbol] = (
                model.WaitReason.CLOSING if isinstance(outcome, Receipt) else outcome.code
            )
        return waits

    async def _waits(self, tx: Tx, symbols: set[str], working: set[str]) -> dict[str, str | None]:
        """The reason why each symbol gets no closing order now; None where it may get one."""
        account_id = self._halted.account_id
        names = sorted(symbols)
        unfilled = await store.unfilled_symbols(tx, account_id, self._halted.created_at)
        subjects = [
            Subject(str(self._halted.organization_id), str(account_id), None, name)
            for name in names
        ]
        rules = await find_rules(PoolTransaction(tx), subjects) if subjects else {}
        now = await read_clock(tx)
        waits: dict[str, str | None] = {}
        for subject, each in rules.items():
            name = subject.symbol
            window = each.controls.time
            waits[name] = model.close_wait(name, working, name in unfilled, window, now)
        return waits
