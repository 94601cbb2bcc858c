"""What becomes of a committed command: checked again and marked, sent once, and its answer written down."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from uuid import UUID

import msgspec

from trading_intents.brokers.port import DUPLICATE_ID, CommandResult, Outcome
from trading_intents.clock import Clock
from trading_intents.controls.store import controls_of
from trading_intents.execution import store
from trading_intents.execution.links.leases import Leases
from trading_intents.execution.links.link import Link
from trading_intents.execution.model import COMMANDS, Decision, Hold, Scene, Send, Settle, Terms, decide, used_up
from trading_intents.execution.recorder import Entry, Gathering, Recorder
from trading_intents.execution.tracker import OwnFact, answer
from trading_intents.orders.facts import CommandKind, FactKind, client_order_id
from trading_intents.orders.model import OrderState
from trading_intents.outbox import model as outbox
from trading_intents.outbox.model import ClaimedRow, Finish, Handler, Release, Status
from trading_intents.outbox.queue import Setback
from trading_intents.storage.database import Pool, Row
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import ORDER_KINDS, OrderSide, RouteStrategy, Symbol, TimeInForce

NOT_OURS_SECONDS = 0.5
CANCEL_NOT_DELIVERED = "cancel_not_delivered"
CANCEL_LOST = frozenset({FactKind.CANCEL_REJECTED, FactKind.CANCEL_DROPPED})
ACTION_TYPES = {CommandKind.SUBMIT: "CREATE", CommandKind.REPLACE: "REPLACE", CommandKind.CANCEL: "CANCEL"}


class _Record(msgspec.Struct):
    """What a ticket takes from an action's record."""

    symbol: str
    order_side: OrderSide
    order_type: str
    quantity: str
    time_in_force: TimeInForce
    route_strategy: RouteStrategy
    limit_price: str | None = None
    stop_price: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """A claimed row whose turn has come, and what was decided of it."""

    client_order_id: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class Rules:
    most_age_millis: int
    attempt_limit: int


class Executor:
    """`wake` is for rows that are put back for a moment."""

    def __init__(
        self,
        pool: Pool,
        leases: Leases,
        recorder: Recorder,
        rules: Rules,
        wake: Callable[[], None],
        clock: Clock,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._pool, self._leases, self._recorder, self._rules = pool, leases, recorder, rules
        self._wake, self._clock, self._metrics, self._log = wake, clock, metrics, log
        self._marking = Gathering(self._mark, at_once=1)

    def handlers(self) -> Mapping[str, Handler]:
        return dict.fromkeys(COMMANDS, self.handle)

    async def close(self) -> None:
        await self._marking.close()

    async def handle(self, row: ClaimedRow) -> outbox.Outcome:
        link = self._leases.links.get(row.lane) if row.lane else None
        if link is None:
            return Release(NOT_OURS_SECONDS)
        async with link.slots:
            began_seconds = self._clock.monotonic()
            turn = await self._marking.put(None, row)
            entry = Entry(link.desk, row=row, client_order_id=turn.client_order_id)
            match turn.decision:
                case Hold(after_seconds):
                    self._wake_after(after_seconds)
                    return Release(after_seconds)
                case Settle(own, unclear):
                    entry = replace(entry, own=own, is_unclear=unclear, look_up=unclear)
                case Send() as send:
                    result = await self._send(link, COMMANDS[row.event_type], send, began_seconds)
                    entry = self._answered(entry, row, result)
        # Should they not be written, the command is found to have been sent, and is looked up.
        link.remember(entry.events)
        return Finish(lambda: self._finish(entry, row))

    async def _finish(self, entry: Entry, row: ClaimedRow) -> Status | None:
        written = await self._recorder.write(entry)
        lost_cancel = any(fact.kind in CANCEL_LOST for fact in entry.own)
        booked = written.orders.get(row.order_key)
        if lost_cancel and booked and booked.view.state is OrderState.OPEN:
            alert_lost_cancel(row.order_key, self._metrics, self._log)
        return written.status

    async def _send(self, link: Link, command: CommandKind, send: Send, began_seconds: float) -> CommandResult:
        ticket, clock = send.ticket, self._clock
        if send.left_seconds is not None:
            spent_seconds = clock.monotonic() - began_seconds
            ticket = replace(ticket, not_after=clock.now() + timedelta(seconds=send.left_seconds - spent_seconds))
        with self._metrics.execution_call_seconds.labels(command.lower()).time():
            return await link.call(command, ticket, began_seconds + send.call_seconds)

    def _answered(self, entry: Entry, row: ClaimedRow, result: CommandResult) -> Entry:
        command, coid = COMMANDS[row.event_type], entry.client_order_id
        own = answer(row.order_key, command, coid, result)
        entry = replace(entry, events=result.updates, own=tuple(map(_with_code, own)))
        match result.outcome:
            case Outcome.NOT_SENT:
                if row.attempts >= self._rules.attempt_limit:
                    entry = replace(entry, own=(used_up(command, row.order_key, coid),))
                after_seconds = result.retry_after_seconds
                self._wake_after(outbox.backoff_seconds(row.attempts) if after_seconds is None else after_seconds)
                setback = Setback(row, f"not sent: {result.message}", after_seconds)
                return replace(entry, setback=setback, is_unsent=True)
            case Outcome.UNKNOWN:
                return replace(entry, is_unclear=True, look_up=True)
            case Outcome.REJECTED if result.code == DUPLICATE_ID:
                return replace(entry, is_unclear=True, look_up=True)
            case Outcome.REJECTED:
                # A broker that refuses to change an order may know more of it than we do.
                return replace(entry, look_up=command is not CommandKind.SUBMIT)
            case Outcome.ACKED:
                return entry

    def _wake_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._wake)

    async def _mark(self, rows: list[ClaimedRow]) -> list[Turn]:
        """One transaction that decides each row under its order's lock, and marks those that are to be sent."""
        async with self._pool.transaction(plans="by_key") as tx:
            orders = {order["order_id"]: order for order in await store.lock_orders(tx, {r.order_key for r in rows})}
            asked = [self._asked(row, orders[row.order_key]) for row in rows]
            scenes = await store.read_scenes(tx, self._leases.worker_id, asked)
            found = {scene["place"] - 1: scene for scene in scenes}
            turns = [self._turn(row, orders[row.order_key], found[place]) for place, row in enumerate(rows)]
            sent = [
                (row.lane, turn.client_order_id, row.organization_id, row.order_key, row.payload["seq"], kind)
                for row, turn in zip(rows, turns, strict=True)
                if row.lane and isinstance(turn.decision, Send) and (kind := ACTION_TYPES[COMMANDS[row.event_type]])
            ]
            if sent:
                await store.mark_sent(tx, sent)
        return turns

    def _asked(self, row: ClaimedRow, order: Row) -> tuple[int, UUID, UUID, str, UUID, int, int, int]:
        account_id, seq = order["account_id"], row.payload["seq"]
        link = self._leases.links.get(account_id)
        place = row.order_key, seq, order["command_seq"], link.token if link else 0
        return row.id, row.token, account_id, order["symbol"], *place

    def _turn(self, row: ClaimedRow, order: Row, scene: Row) -> Turn:
        coid = client_order_id(scene["action_id"])
        link = self._leases.links.get(order["account_id"])
        if scene["claim_seconds"] is None or link is None:
            return Turn(coid, Hold(NOT_OURS_SECONDS))
        decision = decide(self._scene(row, order, scene, coid))
        if isinstance(decision, Send):
            is_cancel = COMMANDS[row.event_type] is CommandKind.CANCEL
            wait_seconds = link.budget.wait_seconds(is_cancel, self._clock.monotonic())
            if not link.is_up or (link.breaker.is_open and not is_cancel):
                return Turn(coid, Hold(NOT_OURS_SECONDS))
            if wait_seconds > 0:
                return Turn(coid, Hold(wait_seconds))
            link.budget.take()
        return Turn(coid, decision)

    def _scene(self, row: ClaimedRow, order: Row, scene: Row, coid: str) -> Scene:
        record = msgspec.json.decode(scene["record"], type=_Record)
        return Scene(
            command=COMMANDS[row.event_type],
            order_id=row.order_key,
            client_order_id=coid,
            confirmed_id=client_order_id(scene["confirmed_action_id"]),
            broker_order_id=order["external_order_id"],
            terms=Terms(
                Symbol(record.symbol),
                record.order_side,
                ORDER_KINDS[record.order_type],
                Decimal(record.quantity),
                Decimal(record.limit_price) if record.limit_price else None,
                Decimal(record.stop_price) if record.stop_price else None,
                record.time_in_force,
                record.route_strategy,
            ),
            now=scene["now"],
            age_seconds=scene["age_seconds"],
            claim_seconds=scene["claim_seconds"],
            order_status=order["order_status"],
            acknowledged=scene["acknowledged"],
            cancel_requested=order["cancel_requested"],
            is_sent=scene["is_sent"],
            lookups=order["lookups"],
            account_disabled=scene["disabled"],
            controls=controls_of(scene),
            most_age_seconds=self._rules.most_age_millis / 1000,
        )


def alert_lost_cancel(order_id: UUID, metrics: Metrics, log: Log) -> None:
    metrics.execution_alerts.labels("cancel_not_delivered").inc()
    log.error("cancel not delivered, the order is still open", order=str(order_id))


def _with_code(fact: OwnFact) -> OwnFact:
    """A CANCEL that was refused came to nothing, whatever words the broker has for it."""
    return replace(fact, reason=CANCEL_NOT_DELIVERED) if fact.kind is FactKind.CANCEL_REJECTED else fact
