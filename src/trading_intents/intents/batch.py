"""One transaction of the write path: lock, read, decide each command in order, append. The caller commits."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from trading_intents.accounts.model import AccountId
from trading_intents.brokers.registry import Registry
from trading_intents.clock import rfc3339
from trading_intents.controls.model import Controls
from trading_intents.controls.store import controls_of
from trading_intents.errors import ControlRejected, PlatformError
from trading_intents.identity.model import Entitlement, Permission
from trading_intents.ids import IdMaker, OrganizationId
from trading_intents.intents import store
from trading_intents.intents.model import (
    Accepted,
    AccountState,
    ActionType,
    Create,
    Earlier,
    KeyState,
    OrderState,
    Replayed,
    Spec,
    State,
    Submission,
    decide,
)
from trading_intents.intents.record import (
    HASH_VERSION,
    Record,
    action_payload,
    canonical,
    chain,
    marked_order_payload,
    maybe_text,
    new_order_payload,
)
from trading_intents.intents.stats import buckets
from trading_intents.intents.stats.model import EVERY_REASON, Entry, Measure
from trading_intents.storage.database import Row, Tx
from trading_intents.stream import log as stream_log
from trading_intents.stream.model import Event, EventType
from trading_intents.trading import (
    ORDER_KINDS,
    ORDER_TYPES,
    Environment,
    OrderSide,
    RouteStrategy,
    Symbol,
    TimeInForce,
    amount_text,
)

PRINCIPAL_TYPE = "API_KEY"


class Receipt(NamedTuple):
    intent_id: UUID
    seq: int
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    outcomes: list[Receipt | PlatformError | None]  # None: its account is locked elsewhere
    appended: store.Place | None  # one of the actions, which proves that the commit happened; None: there is none
    transaction_id: str | None


async def run_batch(
    tx: Tx, submissions: Sequence[Submission], brokers: Registry, make_id: IdMaker, wait: bool
) -> Settled:
    account_ids = sorted({s.account_id for s in submissions})
    heads = {row["account_id"]: (row["seq"], row["hash"]) for row in await store.lock_heads(tx, account_ids, wait)}
    scene = await _read(tx, submissions, heads, brokers)
    work = _Work(scene, make_id)
    outcomes: list[Receipt | PlatformError | None] = []
    for submission in submissions:
        # An account that is there but not locked is locked elsewhere; one that is not there can be refused.
        skipped = submission.account_id not in heads and submission.account_id in scene.accounts
        outcomes.append(None if skipped else work.settle(submission))
    await work.write(tx)
    return Settled(outcomes, work.batch.last(), scene.transaction_id)


@dataclass(slots=True)
class _Scene:
    """What the batch meets. Orders, heads and earlier answers move on with each decision."""

    now: datetime
    transaction_id: str
    brokers: Registry
    accounts: dict[UUID, AccountState]
    keys: dict[UUID, KeyState]
    orders: dict[UUID, OrderState]
    order_rows: dict[UUID, Row]
    earlier: dict[tuple[UUID, str], Earlier]
    controls: dict[tuple[UUID, str], Controls]
    heads: dict[UUID, tuple[int, str]]

    def state(self, submission: Submission) -> State:
        command, account = submission.command, self.accounts.get(submission.account_id)
        order = None if isinstance(command, Create) else self.orders.get(command.ref_intent_id)
        symbol = command.symbol if isinstance(command, Create) else order.symbol if order else ""
        key = submission.idempotency_key
        return State(
            key=self.keys.get(submission.key_id),
            account=account,
            manifest=self.brokers.find(account.broker) if account else None,
            order=order,
            earlier=self.earlier.get((submission.account_id, key)) if key else None,
            controls=self.controls.get((submission.account_id, symbol)) or _no_controls(submission),
        )


def _no_controls(submission: Submission) -> Controls:
    return Controls(submission.organization_id, AccountId(submission.account_id))


async def _read(
    tx: Tx, submissions: Sequence[Submission], heads: dict[UUID, tuple[int, str]], brokers: Registry
) -> _Scene:
    """In the order of the locks: the heads are held, the orders that are named come next."""
    ready = [s for s in submissions if s.account_id in heads]
    references = sorted({s.command.ref_intent_id for s in ready if not isinstance(s.command, Create)})
    order_rows = {row["order_id"]: row for row in await store.lock_orders(tx, references)} if references else {}
    keyed = [(s.account_id, s.idempotency_key) for s in ready if s.idempotency_key]
    earlier = await store.read_earlier(tx, *zip(*keyed, strict=True)) if keyed else []
    triples = {(s.account_id, s.key_id, _symbol(s, order_rows)) for s in submissions}
    rows = await store.read_scene(tx, *zip(*triples, strict=True))
    *_, now, transaction_id = rows[0].values()
    scene = _Scene(
        now=now,
        transaction_id=transaction_id,
        brokers=brokers,
        accounts={},
        keys={},
        orders={order_id: _order(row) for order_id, row in order_rows.items()},
        order_rows=order_rows,
        earlier={
            (row["account_id"], row["idempotency_key"]): Earlier(row["body_digest"], row["intent_id"], row["seq"])
            for row in earlier
        },
        controls={},
        heads=heads,
    )
    for row in rows:
        _set(scene, row)
    return scene


def _set(scene: _Scene, row: Row) -> None:
    values: list[Any] = list(row.values())
    account_id, key_id, symbol, environment, broker, disabled, closed, has_credential, *key = values[13:-2]
    if values[0] is not None:
        controls = controls_of(row)
        scene.controls[account_id, symbol] = controls
        scene.accounts[account_id] = AccountState(
            controls.organization_id, Environment(environment), broker, disabled, closed, has_credential
        )
    if key[0] is not None and key_id not in scene.keys:
        organization_id, key_environment, permissions, entitlements, key_disabled = key
        scene.keys[key_id] = KeyState(
            OrganizationId(organization_id),
            Environment(key_environment),
            frozenset(map(Permission, permissions)),
            frozenset(map(Entitlement, entitlements)),
            key_disabled,
        )


def _symbol(submission: Submission, order_rows: dict[UUID, Row]) -> str:
    command = submission.command
    if isinstance(command, Create):
        return command.symbol
    row = order_rows.get(command.ref_intent_id)
    return row["symbol"] if row else ""


class _Work:
    """Decides command after command and gathers what is to be written."""

    def __init__(self, scene: _Scene, make_id: IdMaker) -> None:
        self._scene, self._make_id = scene, make_id
        self._created_at = rfc3339(scene.now)
        self.batch = store.Batch()
        self._refusals: list[tuple[object, ...]] = []
        self._counts: list[Entry] = []
        self._events: list[Event] = []

    def settle(self, submission: Submission) -> Receipt | PlatformError:
        decision = decide(submission, self._scene.state(submission), self._scene.now)
        match decision:
            case Accepted():
                return self._append(submission, decision)
            case Replayed():
                return Receipt(decision.intent_id, decision.seq, replayed=True)
            case ControlRejected():
                self._refuse(submission, decision)
        return decision

    async def write(self, tx: Tx) -> None:
        """In the order of the locks; the organizations' stream heads last."""
        now, batch = self._scene.now, self.batch
        if self._refusals:
            await store.insert_refusals(tx, self._refusals, now)
        if batch.changed_orders:
            await store.mark_orders(tx, batch, now)
        if batch.rows:
            await store.append(tx, batch, now)
        if batch.cancelled_intents:
            await store.hurry(tx, batch.cancelled_intents)
        if self._counts:
            await buckets.add(tx, self._counts)
        if self._events:
            await stream_log.append(tx, self._events)

    def _append(self, submission: Submission, accepted: Accepted) -> Receipt:
        scene, batch, command = self._scene, self.batch, submission.command
        account_id = submission.account_id
        account = scene.accounts[account_id]
        intent_id = self._make_id() if isinstance(command, Create) else command.ref_intent_id
        seq, previous = scene.heads[account_id]
        seq += 1
        record = self._record(submission, accepted, account, intent_id, seq)
        text = canonical(record)
        digest = chain(previous, text)
        scene.heads[account_id] = batch.heads[account_id] = (seq, digest)
        batch.rows.append(
            (
                record.account_id,
                str(seq),
                record.intent_id,
                record.organization_id,
                record.action_type,
                submission.idempotency_key,
                submission.body_digest.hex() if submission.body_digest else None,
                text.decode(),
                digest,
                record.environment,
                account.broker,
                record.symbol,
                record.order_type,
                record.order_side,
                record.time_in_force,
                record.route_strategy,
                record.quantity,
                record.limit_price,
                record.stop_price,
                record.client_reference_id,
            )
        )
        if submission.idempotency_key and submission.body_digest is not None:
            key = (account_id, submission.idempotency_key)
            scene.earlier[key] = Earlier(submission.body_digest, intent_id, seq)
        self._follow(record, accepted, account, account_id, intent_id)
        return Receipt(intent_id, seq)

    def _record(
        self, submission: Submission, accepted: Accepted, account: AccountState, intent_id: UUID, seq: int
    ) -> Record:
        spec = accepted.spec
        assert spec.time_in_force is not None
        return Record(
            str(submission.account_id),
            accepted.action_type,
            accepted.client_reference_id,
            self._created_at,
            account.environment,
            HASH_VERSION,
            str(intent_id),
            spec.limit_price,
            accepted.side,
            ORDER_TYPES[spec.kind],
            str(account.organization_id),
            str(submission.key_id),
            PRINCIPAL_TYPE,
            spec.quantity,
            accepted.route,
            seq,
            spec.stop_price,
            accepted.symbol,
            spec.time_in_force,
        )

    def _follow(
        self, record: Record, accepted: Accepted, account: AccountState, account_id: UUID, intent_id: UUID
    ) -> None:
        """The order's own change, and the two events that tell of it."""
        if accepted.action_type is ActionType.CREATE:
            order = new_order_payload(record, account.broker, self._scene.now)
        else:
            order = self._mark(accepted.action_type, intent_id, record.seq)
        action = action_payload(record, self._scene.now)
        for kind, payload in ((EventType.INTENT_ACTION, action), (EventType.BROKER_ORDER, order)):
            self._events.append(
                Event(account.organization_id, account_id, account.environment, kind, record.symbol, payload)
            )

    def _mark(self, action_type: ActionType, intent_id: UUID, seq: int) -> bytes:
        """A pending command shows from its commit until it is answered; the fields stay as last confirmed."""
        old, row = self._scene.orders[intent_id], self._scene.order_rows[intent_id]
        is_cancel = action_type is ActionType.CANCEL
        replace_seq = row["pending_replace_seq"] if is_cancel else seq
        earlier = self.batch.changed_orders.get(intent_id)
        if earlier and is_cancel:
            replace_seq = earlier[1]
        status = "PENDING_CANCEL" if is_cancel else "PENDING_REPLACE"
        new = old._replace(
            status=status,
            cancel_requested=is_cancel or old.cancel_requested,
            replace_pending=replace_seq is not None,
            version=old.version + 1,
        )
        self._scene.orders[intent_id] = new
        self.batch.changed_orders[intent_id] = (status, replace_seq, new.cancel_requested, new.version)
        if is_cancel:
            self.batch.cancelled_intents.append(intent_id)
        return marked_order_payload(row, status, new.version)

    def _refuse(self, submission: Submission, rejected: ControlRejected) -> None:
        symbol = _symbol(submission, self._scene.order_rows)
        is_create = isinstance(submission.command, Create)
        reasons = ",".join(rejected.reasons)
        action_type = ActionType.CREATE if is_create else ActionType.REPLACE
        key_id, organization_id = str(submission.key_id), submission.organization_id
        self._refusals.append(
            (self._make_id(), organization_id, submission.account_id, action_type, symbol, reasons, key_id)
        )
        self._counts += [
            Entry(submission.account_id, organization_id, self._scene.now, Measure.REFUSED, reason)
            for reason in (EVERY_REASON, *rejected.reasons)
        ]


def _order(row: Row) -> OrderState:
    spec = Spec(
        ORDER_KINDS[row["order_type"]],
        amount_text(row["quantity"]),
        maybe_text(row["limit_price"]),
        maybe_text(row["stop_price"]),
        TimeInForce(row["time_in_force"]),
    )
    return OrderState(
        account_id=row["account_id"],
        symbol=Symbol(row["symbol"]),
        side=OrderSide(row["order_side"]),
        route=RouteStrategy(row["route_strategy"]),
        spec=spec,
        client_reference_id=row["client_reference_id"],
        status=row["order_status"],
        cancel_requested=row["cancel_requested"],
        replace_pending=row["pending_replace_seq"] is not None,
        version=row["version"],
        command_seq=row["command_seq"],
    )
