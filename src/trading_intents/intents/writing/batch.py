"""One transaction of the write path: lock, read, decide each command in order, append, commit. Two
round trips."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from msgspec import structs

from trading_intents.controls.case import judge
from trading_intents.controls.rules import AccountState
from trading_intents.errors import ControlRejected, PlatformError
from trading_intents.ids import IdText, IdTextMaker
from trading_intents.intents.deciding.compose import compose_leg
from trading_intents.intents.deciding.decide import decide
from trading_intents.intents.model import (
    Accepted,
    EarlierAction,
    PlacedLeg,
    Replayed,
    Submission,
)
from trading_intents.intents.store import ActionRef
from trading_intents.intents.writing import effects, statements
from trading_intents.intents.writing.effects import Append, Effect, Publish, RefusedCommand
from trading_intents.intents.writing.record import (
    HASH_VERSION,
    LINKED_HASH_VERSION,
    LinkedRecord,
    Record,
    canonical,
    chain,
)
from trading_intents.intents.writing.state import (
    NOTHING,
    BatchDependencies,
    BatchState,
    CountedOrder,
    ResolvedSubmission,
    read_state,
)
from trading_intents.orders.model import OrderStatus
from trading_intents.orders.store import OrderRow
from trading_intents.storage.pipeline import (
    ConnectionDropped,
    ConnectionLost,
    Pipeline,
    StatementRefused,
)
from trading_intents.trading import ORDER_TYPES, ActionType, FrozenStruct, OrderKind

PRINCIPAL_TYPE = "API_KEY"
SYSTEM = "SYSTEM"
PLATFORM = "platform"  # the principal of the platform's own commands


class Receipt(FrozenStruct):
    intent_id: str
    seq: int
    replayed: bool = False
    legs: tuple[PlacedLeg, ...] = ()


SubmitOutcome = Receipt | PlatformError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    # None: another transaction holds the lock of its account, or of its key.
    outcomes: list[SubmitOutcome | None]
    held_keys: Collection[str]  # whose budgets another transaction holds
    # One of the actions, whose row proves that the commit happened; None: there is none.
    appended: ActionRef | None
    transaction_id: str
    decided_seconds: float  # by the clock, when only writing and committing were left


class CommitLost(Exception):
    """The connection was lost during the COMMIT, so only the server knows whether it happened."""

    def __init__(self, result: BatchResult) -> None:
        super().__init__()
        self.result = result


async def run_batch(
    dependencies: BatchDependencies,
    submissions: Sequence[Submission],
    locking: statements.Locking,
    on_sent: Callable[[], None] | None = None,
) -> BatchResult:
    """Commits the batch before it returns. CommitLost: it may have been committed. Unavailable,
    StatementRefused: nothing was recorded. `on_sent` runs when only its commit is left to wait
    for."""
    # One for the whole batch, which holds the locks.
    connection = await dependencies.pipeline.connect()
    try:
        state = await read_state(connection, submissions, dependencies, locking)
        outcomes, made = decide_all(state, dependencies.make_id)
        result = BatchResult(
            outcomes=outcomes,
            held_keys=state.limits.budgets.held,
            appended=_last_action(made),
            transaction_id=state.transaction_id,
            decided_seconds=dependencies.clock.monotonic(),
        )
        writes = [*effects.write_effects(made, state.now_text), *state.limits.writes()]
        request = connection.send(writes, more=True)
        # Built while the server works.
        request.append_statements(effects.publish(made, state.now, state.now_text), more=True)
        request.append_statements([statements.COMMIT])
        if on_sent:
            on_sent()
        try:
            *_, committed = await request.all_replies()
        except ConnectionLost:
            raise CommitLost(result) from None
        assert committed.tag == "COMMIT", (
            "an error was swallowed inside a transaction, which then rolled back"
        )
    except StatementRefused:
        with contextlib.suppress(StatementRefused, ConnectionLost):
            await connection.run([statements.ROLLBACK])
        raise
    except CommitLost:
        raise
    except BaseException:
        connection.close(ConnectionDropped())  # which ends the transaction
        raise
    return result


async def wait_for_budgets(pipeline: Pipeline, submissions: Sequence[Submission]) -> None:
    """Waits until nobody holds the budgets of their keys, for as long as for another lock, and
    holds nothing."""
    organizations = {each.organization_id for each in submissions}
    keys = {each.key_id or "" for each in submissions}
    with contextlib.suppress(PlatformError, ConnectionLost):
        connection = await pipeline.connect()
        try:
            await connection.run(statements.wait_for_budgets(organizations, keys - {""}))
        except StatementRefused:
            await connection.run([statements.ROLLBACK])


def decide_all(
    state: BatchState, make_id: IdTextMaker
) -> tuple[list[SubmitOutcome | None], list[Effect]]:
    outcomes = list[SubmitOutcome | None]()
    made = list[Effect]()
    for resolved in state.submissions:
        outcome, own = decide_one(state, resolved, make_id)
        outcomes.append(outcome)
        made += own
    return outcomes, made


def decide_one(
    state: BatchState, resolved: ResolvedSubmission, make_id: IdTextMaker
) -> tuple[SubmitOutcome | None, Sequence[Effect]]:
    """Gives the caller's answer once the effects are committed, with which the state moves on.
    None: it is left for another batch."""
    submission = resolved.submission
    met = state.meet(resolved)
    if met is None:
        return None, ()
    decision = decide(submission, met, state.now)
    if isinstance(decision, Replayed):
        return Receipt(decision.intent_id, decision.seq, True, decision.legs), ()
    if not isinstance(decision, Accepted):
        return decision, ()
    case = state.resolve_case(resolved, decision, met.order)
    if triggered := judge(case):
        rejected = ControlRejected(triggered)
        return rejected, _refuse(state, resolved, decision, rejected, make_id)
    counted = state.count(resolved, decision, case.asked)
    return _append(state, resolved, decision, counted, make_id)


def _append(
    state: BatchState,
    resolved: ResolvedSubmission,
    accepted: Accepted,
    counted: CountedOrder,
    make_id: IdTextMaker,
) -> tuple[Receipt, list[Effect]]:
    """An action, and the CREATEs of its legs right behind it."""
    submission = resolved.submission
    order = state.orders[resolved.order_id] if resolved.order_id else None
    intent_id = order.order_id if order else make_id(state.now)
    append = _append_one(state, resolved, accepted, intent_id, counted)
    seq = append.record.seq
    made = list[Effect]([append])
    legs = list[PlacedLeg]()
    noted = _note_pending(order, accepted.action_type, seq, counted.notional) if order else None
    made.append(Publish(append, noted))
    if noted:
        made.append(noted)
    if accepted.legs:
        unkeyed = structs.replace(submission, idempotency_key=None, body_digest=None)
        resolved = structs.replace(resolved, submission=unkeyed)
    for each in accepted.legs:
        own = compose_leg(accepted, each, intent_id)
        # An exit before its entry's fill, or the other one of a pair, which counts once.
        appended = _append_one(state, resolved, own, make_id(state.now), NOTHING)
        made += [appended, Publish(appended, None)]
        assert own.leg is not None
        legs.append(PlacedLeg(own.leg, appended.record.intent_id, appended.record.seq))
    answered = EarlierAction(submission.body_digest or "", intent_id, seq, tuple(legs))
    state.move(submission, answered, accepted, noted)
    return Receipt(intent_id, seq, legs=answered.legs), made


def _append_one(
    state: BatchState,
    resolved: ResolvedSubmission,
    accepted: Accepted,
    intent_id: str,
    counted: CountedOrder,
) -> Append:
    submission = resolved.submission
    account = resolved.rules.account
    assert account is not None
    seq, previous = state.heads[submission.account_id]
    record = _record(
        state=state,
        submission=submission,
        accepted=accepted,
        account=account,
        intent_id=intent_id,
        seq=seq + 1,
    )
    text = canonical(record)
    digest = chain(previous, text)
    state.heads[submission.account_id] = seq + 1, digest
    return Append(
        record=record,
        seq=str(seq + 1),
        text=text.decode(),
        hash=digest,
        broker=account.broker,
        idempotency_key=submission.idempotency_key,
        body_digest=submission.body_digest,
        trail_amount=accepted.spec.trail_amount,
        trail_bps=None if accepted.spec.trail_bps is None else str(accepted.spec.trail_bps),
        leg=accepted.leg,
        group_id=(accepted.parent_intent_id or intent_id) if accepted.is_linked else None,
        closes=str(accepted.closes),
        opens=counted.opens,
        added=str(counted.added),
        counted=str(counted.notional),
    )


def _record(
    state: BatchState,
    submission: Submission,
    accepted: Accepted,
    account: AccountState,
    intent_id: str,
    seq: int,
) -> Record:
    spec = accepted.spec
    assert spec.time_in_force is not None
    fields: dict[str, Any] = {}
    if accepted.is_linked or spec.kind is OrderKind.TRAILING_STOP:
        names = {"leg": accepted.leg, "parent_intent_id": accepted.parent_intent_id}
        fields = {"trail_amount": spec.trail_amount, "trail_bps": spec.trail_bps} | names
    return (LinkedRecord if fields else Record)(
        account_id=submission.account_id,
        action_type=accepted.action_type,
        client_reference_id=accepted.client_reference_id,
        created_at=state.created_at,
        environment=account.environment,
        hash_version=LINKED_HASH_VERSION if fields else HASH_VERSION,
        intent_id=intent_id,
        limit_price=spec.limit_price,
        order_side=accepted.side,
        order_type=ORDER_TYPES[spec.kind],
        organization_id=account.organization_id,
        principal_id=submission.key_id or submission.halt_id or PLATFORM,
        principal_type=PRINCIPAL_TYPE if submission.key_id else SYSTEM,
        quantity=spec.quantity,
        route_strategy=accepted.route,
        seq=seq,
        stop_price=spec.stop_price,
        symbol=accepted.symbol,
        time_in_force=spec.time_in_force,
        **fields,
    )


def _note_pending(order: OrderRow, action_type: ActionType, seq: int, counted: Decimal) -> OrderRow:
    is_cancel = action_type is ActionType.CANCEL
    return structs.replace(
        order,
        order_status=OrderStatus.PENDING_CANCEL if is_cancel else OrderStatus.PENDING_REPLACE,
        pending_replace_seq=order.pending_replace_seq if is_cancel else seq,
        cancel_requested=is_cancel or order.cancel_requested,
        counted_notional=order.counted_notional if is_cancel else counted,
        version=order.version + 1,
    )


def _refuse(
    state: BatchState,
    resolved: ResolvedSubmission,
    refused: Accepted,
    rejected: ControlRejected,
    make_id: IdTextMaker,
) -> list[Effect]:
    """Keeps what controls refused to a caller."""
    key_id = resolved.submission.key_id
    if key_id is None:
        return []
    return [
        RefusedCommand(
            id=IdText(make_id(state.now)),
            organization_id=IdText(resolved.submission.organization_id),
            account_id=IdText(resolved.submission.account_id),
            action_type=refused.action_type,
            symbol=refused.symbol,
            reasons=rejected.reasons,
            principal_id=key_id,
        )
    ]


def _last_action(made: Sequence[Effect]) -> ActionRef | None:
    """One of the actions, whose row proves that the commit happened."""
    for each in reversed(made):
        if isinstance(each, Append):
            return ActionRef(each.record.account_id, each.record.seq, each.hash)
    return None
