"""The state in which a batch is decided: heads, orders, rules and what limits need, read under the
locks of the heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

import msgspec
from msgspec import structs

from trading_intents.brokers.port import Capabilities
from trading_intents.brokers.registry import Registry
from trading_intents.clock import Clock, rfc3339
from trading_intents.controls.case import Case
from trading_intents.controls.limits.model import AskedOrder
from trading_intents.controls.limits.state.recent import LogHead, RecentByAccount
from trading_intents.controls.limits.state.tracking import LimitedSubject, LimitTracking
from trading_intents.controls.model import Subject
from trading_intents.controls.rules import Rules, RulesCache
from trading_intents.errors import Unavailable
from trading_intents.ids import IdTextMaker
from trading_intents.intents import store
from trading_intents.intents.deciding.compose import asked_order, purpose_of
from trading_intents.intents.model import (
    Accepted,
    Cancel,
    Close,
    Create,
    EarlierAction,
    KnownOrder,
    NewOrder,
    Replace,
    Spec,
    Submission,
    SubmissionState,
)
from trading_intents.intents.writing import statements
from trading_intents.orders.positions import Holding
from trading_intents.orders.store import OrderRow
from trading_intents.prices.model import PriceRules
from trading_intents.storage.pipeline import (
    ConnectionLost,
    Pipeline,
    PipelineConnection,
    Reply,
    Statement,
)
from trading_intents.trading import EXACT, ZERO, AccountSymbol, ActionType, FrozenStruct


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDependencies:
    """The objects that a batch needs to run."""

    pipeline: Pipeline
    brokers: Registry
    make_id: IdTextMaker
    clock: Clock
    prices: PriceRules
    rules: RulesCache = field(default_factory=RulesCache)
    recent: RecentByAccount = field(default_factory=dict)  # what limits need of the accounts' logs


class CountedOrder(NamedTuple):
    """The quantity by which a command changes what is open, what it adds to its key's sum of the
    day, and what the versions of its order have added to such sums, with it."""

    opens: str
    added: Decimal
    notional: Decimal


NOTHING = CountedOrder("0", ZERO, ZERO)


class ResolvedSubmission(FrozenStruct, kw_only=True):
    """A command with what is the same for it throughout its batch."""

    submission: Submission
    subject: Subject
    order_id: str | None  # of the order that it names
    rules: Rules
    broker: Capabilities | None
    limited: LimitedSubject | None  # None: no limits judge it


@dataclass(slots=True, kw_only=True)
class BatchState:
    """All that a batch is decided by. It moves on with each command that is accepted."""

    limits: LimitTracking
    heads: dict[str, LogHead] = field(default_factory=dict)  # of the accounts that are locked
    orders: dict[str, OrderRow] = field(default_factory=dict)  # that REPLACEs and CANCELs name
    # By account and Idempotency-Key.
    earlier: dict[tuple[str, str], EarlierAction] = field(default_factory=dict)
    groups: store.Groups = field(default_factory=dict)  # of linked orders that REPLACEs name
    # What REPLACEs of linked orders in this batch ask for.
    replacing: dict[str, Spec] = field(default_factory=dict)
    holdings: dict[AccountSymbol[str], Holding] = field(default_factory=dict)  # that a Close names
    submissions: list[ResolvedSubmission] = field(default_factory=list)
    now: datetime = field(init=False)
    now_text: str = field(init=False)  # as PostgreSQL writes it
    created_at: str = field(init=False)  # the same, as records have it
    transaction_id: str = field(init=False)

    def meet(self, resolved: ResolvedSubmission) -> SubmissionState | None:
        """None: another transaction has locked the account or the key's budget, or the log must be
        read first."""
        submission = resolved.submission
        if self._is_held(resolved):
            return None
        key = submission.idempotency_key
        row = self.orders.get(resolved.order_id or "")
        return SubmissionState(
            rules=resolved.rules,
            broker=resolved.broker,
            order=self._known(row) if row else None,
            earlier=self.earlier.get((submission.account_id, key)) if key else None,
            holding=self.holdings.get((submission.account_id, resolved.subject.symbol)),
        )

    def _is_held(self, resolved: ResolvedSubmission) -> bool:
        """An account that does not exist is not held."""
        submission = resolved.submission
        account_id = submission.account_id
        if account_id not in self.heads:
            return resolved.rules.account is not None
        if isinstance(submission.command, Cancel):
            return False
        is_budgeted = resolved.rules.key and not isinstance(submission.command, Close)
        return account_id in self.limits.minutes.unread or bool(
            is_budgeted and submission.key_id in self.limits.budgets.held
        )

    def resolve_case(
        self, resolved: ResolvedSubmission, accepted: Accepted, order: KnownOrder | None
    ) -> Case:
        limited = resolved.limited
        levels = limited.levels if limited else ()
        asked = None
        is_counted = limited or order or self.limits.counts or self.holdings
        if is_counted and accepted.action_type is not ActionType.CANCEL:
            asked = asked_order(accepted, order)
        return Case(
            purpose=purpose_of(accepted, resolved.submission.halt_id),
            controls=resolved.rules.controls,
            now=self.now,
            symbol=accepted.symbol,
            asked=asked,
            levels=levels,
            met=self.limits.meet(limited, asked) if limited and levels and asked else None,
        )

    def count(
        self, resolved: ResolvedSubmission, accepted: Accepted, asked: AskedOrder | None
    ) -> CountedOrder:
        """Counts it for the commands that follow in the batch."""
        if asked is None:
            is_create = accepted.action_type is ActionType.CREATE
            return CountedOrder(accepted.spec.quantity, ZERO, ZERO) if is_create else NOTHING
        account_id = resolved.submission.account_id
        added = self.limits.accept(account_id, resolved.limited, asked)
        if held := self.holdings.get((account_id, asked.symbol)):
            held = held.with_order(asked.side, asked.opens, asked.is_create)
            self.holdings[account_id, asked.symbol] = held
        return CountedOrder(str(asked.opens), added, EXACT.add(asked.counted, added))

    def move(
        self,
        submission: Submission,
        answered: EarlierAction,
        accepted: Accepted,
        noted: OrderRow | None,
    ) -> None:
        """Takes the action that is appended, with those of its legs, and the order as it is
        then."""
        if recent := self.limits.minutes.known.get(submission.account_id):
            recent.head = self.heads[submission.account_id]
        if noted:
            self.orders[noted.order_id] = noted
        if noted and accepted.is_linked and accepted.action_type is ActionType.REPLACE:
            self.replacing[noted.order_id] = accepted.spec
        if submission.idempotency_key and submission.body_digest is not None:
            self.earlier[submission.account_id, submission.idempotency_key] = answered

    def _known(self, row: OrderRow) -> KnownOrder:
        """With the others of its group, and what this batch asks for of them."""
        members = self.groups.get(row.order_id, [])
        others = [*members]
        for each in members:
            if spec := self.replacing.get(each.order_id):
                counted = self.orders[each.order_id].counted_notional
                others.append(structs.replace(each, spec=spec, counted_notional=counted))
        return store.known_order(row, others)


async def read_state(
    connection: PipelineConnection,
    submissions: Sequence[Submission],
    dependencies: BatchDependencies,
    locking: statements.Locking,
) -> BatchState:
    """Locks and reads in one round trip. What the cache does not have is read in another: the rules
    of organizations, and after them what their limits need."""
    cache = dependencies.rules.of(connection)
    memory = dependencies.recent
    limits = LimitTracking(
        dependencies.prices,
        dependencies.brokers,
        memory,
        may_take_long=locking.may_take_long,
        key_locking="FOR UPDATE SKIP LOCKED",
    )
    state = BatchState(limits=limits)
    locks = _locking_reads(submissions, locking)
    expected: list[LimitedSubject] = []  # if the rules that are known still hold
    subjects = [_subject_of(each, {}) for each in submissions]
    for each, subject in zip(submissions, subjects, strict=True):
        known = cache.find_last(subject)
        if known and (limited := _limited_by(each, known)):
            expected.append(limited)
    try:
        replies = await connection.run([*locks.values(), *limits.needs(expected)])
        versions = _take(state, dict(zip(locks, replies, strict=False)))
        limits.read(replies[len(locks) :])
        await _read_groups(connection, state, submissions)
        if state.orders:
            subjects = [_subject_of(each, state.orders) for each in submissions]
        rules = await cache.find(connection, subjects, versions)
        for each, subject in zip(submissions, subjects, strict=True):
            state.submissions.append(_resolve(each, subject, rules[subject], dependencies.brokers))
        judged = [each.limited for each in state.submissions if each.limited]
        if late := limits.needs([each for each in judged if each.account_id in state.heads]):
            limits.read(await connection.run(late))
    except ConnectionLost:
        raise Unavailable("the connection to the database was lost; nothing was recorded") from None
    return state


def _subject_of(submission: Submission, orders: Mapping[str, OrderRow]) -> Subject:
    command = submission.command
    if isinstance(command, NewOrder):
        symbol: str = command.symbol
    else:
        order = orders.get(command.ref_intent_id)
        symbol = order.symbol if order else ""
    return Subject(submission.organization_id, submission.account_id, submission.key_id, symbol)


def _resolve(
    submission: Submission, subject: Subject, rules: Rules, brokers: Registry
) -> ResolvedSubmission:
    command = submission.command
    return ResolvedSubmission(
        submission=submission,
        subject=subject,
        order_id=None if isinstance(command, NewOrder) else command.ref_intent_id,
        rules=rules,
        broker=brokers.find(rules.account.broker) if rules.account else None,
        limited=_limited_by(submission, rules),
    )


def _limited_by(submission: Submission, rules: Rules) -> LimitedSubject | None:
    """The platform's own commands pass all limits, and CANCELs do."""
    is_judged = submission.key_id and not isinstance(submission.command, Cancel)
    return rules.limited if is_judged else None


async def _read_groups(
    connection: PipelineConnection, state: BatchState, submissions: Sequence[Submission]
) -> None:
    """Of the linked orders that REPLACEs name."""
    linked: set[str] = set()
    for each in submissions:
        if isinstance(each.command, Replace):
            order = state.orders.get(each.command.ref_intent_id)
            if order and order.linked:
                linked.add(order.order_id)
    if linked:
        (groups,) = await connection.run([store.read_groups([*linked])])
        state.groups = store.parse_groups(groups.texts())


def _locking_reads(
    submissions: Sequence[Submission], locking: statements.Locking
) -> dict[str, Statement]:
    """The locks of a batch by their names, in the order of the locks: heads, then the orders that
    it names; then reads without a lock."""
    organization_ids: set[str] = set()
    account_ids: set[str] = set()
    references: set[str] = set()
    closes: dict[AccountSymbol[str], int | None] = {}
    keyed: list[tuple[str, str]] = []
    has_halts = False
    for each in submissions:
        organization_ids.add(each.organization_id)
        account_ids.add(each.account_id)
        if each.idempotency_key:
            keyed.append((each.account_id, each.idempotency_key))
        if each.halt_id:
            has_halts = True
        command = each.command
        if isinstance(command, Close):
            closes[each.account_id, command.symbol] = command.seen_seq
        elif not isinstance(command, Create):
            references.add(command.ref_intent_id)
    begin = statements.begin(organization_ids, locking)
    reads = {str(number): statement for number, statement in enumerate(begin)}
    if has_halts:
        reads["halts"] = statements.share_halt_locks(organization_ids)
    reads["heads"] = statements.lock_heads(sorted(account_ids), locking)
    if references:
        reads["orders"] = statements.lock_orders(sorted(references))
    if keyed:
        reads["earlier"] = statements.read_earlier(keyed)
    if closes:
        reads["holdings"] = store.read_holdings(closes)
    reads["versions"] = statements.read_versions(organization_ids)
    return reads


def _take(state: BatchState, replies: Mapping[str, Reply]) -> dict[str, str]:
    """Puts the replies to `_locking_reads` into the state; gives the versions of the rules, by
    organization."""
    versions: dict[str, str] = {}
    for name, value, transaction_id in replies["versions"].texts():
        if name == "clock":
            state.now_text = value
            state.transaction_id = transaction_id
        else:
            versions[name] = value
    state.now = datetime.fromisoformat(state.now_text)
    state.created_at = rfc3339(state.now)
    for account_id, seq, digest in replies["heads"].texts():
        state.heads[account_id] = int(seq), digest
    if orders := replies.get("orders"):
        state.orders = {row.order_id: row for row in orders.parse(OrderRow)}
    if earlier := replies.get("earlier"):
        for account_id, key, text in earlier.texts():
            state.earlier[account_id, key] = msgspec.json.decode(text, type=EarlierAction)
    if holdings := replies.get("holdings"):
        for account_id, symbol, text in holdings.texts():
            state.holdings[account_id, symbol] = msgspec.json.decode(text, type=Holding)
    state.limits.begin(state.heads, state.now)
    return versions
