"""The state in which a batch is decided: heads, orders, rules and what limits need, read under the
locks of the heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import structs

from trading_intents.brokers.registry import Registry
from trading_intents.clock import Clock, rfc3339
from trading_intents.controls.limits.state.recent import LogHead, RecentByAccount
from trading_intents.controls.limits.state.tracking import LimitedSubject, LimitTracking
from trading_intents.errors import Unavailable
from trading_intents.ids import IdTextMaker
from trading_intents.intents import store
from trading_intents.intents.deciding.compose import asked_order
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
from trading_intents.intents.writing.state.rules import RulesByOrganization, RulesCache, Subject
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
from trading_intents.trading import EXACT, ZERO, AccountSymbol, ActionType


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
    """The quantity by which a command changes what is open, and what the versions of its order have
    added to days' sums, with it."""

    opens: str
    notional: Decimal


NOTHING = CountedOrder("0", ZERO)


@dataclass(slots=True, kw_only=True)
class BatchState:
    """All that a batch is decided by. It moves on with each command that is accepted."""

    brokers: Registry
    limits: LimitTracking
    heads: dict[str, LogHead] = field(default_factory=dict)  # of the accounts that are locked
    orders: dict[str, OrderRow] = field(default_factory=dict)  # that REPLACEs and CANCELs name
    # By account and Idempotency-Key.
    earlier: dict[tuple[str, str], EarlierAction] = field(default_factory=dict)
    groups: store.Groups = field(default_factory=dict)  # of linked orders that REPLACEs name
    # What REPLACEs of linked orders in this batch ask for.
    replacing: dict[str, Spec] = field(default_factory=dict)
    holdings: dict[AccountSymbol[str], Holding] = field(default_factory=dict)  # that a Close names
    rules: RulesByOrganization = field(default_factory=dict)
    now: datetime = field(init=False)
    now_text: str = field(init=False)  # as PostgreSQL writes it
    created_at: str = field(init=False)  # the same, as records have it
    transaction_id: str = field(init=False)

    def symbol_of(self, submission: Submission) -> str:
        """Empty: the command names no order that is known."""
        command = submission.command
        if isinstance(command, NewOrder):
            return command.symbol
        order = self.orders.get(command.ref_intent_id)
        return order.symbol if order else ""

    def subject_of(self, submission: Submission) -> Subject:
        return submission.account_id, submission.key_id or "", self.symbol_of(submission)

    def limited_subject(
        self, submission: Submission, rules: RulesByOrganization
    ) -> LimitedSubject | None:
        """Gives what the command's limits are judged by, as far as the rules are known. The
        platform's own pass."""
        known = rules.get(submission.organization_id)
        if not known or not known.limits or not submission.key_id:
            return None
        if isinstance(submission.command, Cancel):
            return None
        return known.limited_subject(self.subject_of(submission))

    def is_held(self, submission: Submission) -> bool:
        """Another transaction has locked the account or the key's budget, or the log must be read
        first. An account that does not exist is not held."""
        account_id = submission.account_id
        rules = self.rules[submission.organization_id]
        if account_id not in self.heads:
            return account_id in rules.accounts
        if isinstance(submission.command, Cancel):
            return False
        is_budgeted = submission.key_id in rules.keys and not isinstance(submission.command, Close)
        return account_id in self.limits.minutes.unread or (
            is_budgeted and submission.key_id in self.limits.budgets.held
        )

    def meet(self, submission: Submission) -> SubmissionState:
        account_id = submission.account_id
        command = submission.command
        key = submission.idempotency_key
        rules = self.rules[submission.organization_id]
        symbol = self.symbol_of(submission)
        account = rules.accounts.get(account_id)
        limited = self.limited_subject(submission, self.rules)
        row = None if isinstance(command, NewOrder) else self.orders.get(command.ref_intent_id)
        return SubmissionState(
            key=rules.keys.get(submission.key_id) if submission.key_id else None,
            account=account,
            broker=self.brokers.find(account.broker) if account else None,
            order=self._known(row) if row else None,
            earlier=self.earlier.get((account_id, key)) if key else None,
            controls=rules.controls_of(account_id, symbol),
            judge=partial(self.limits.judge, limited) if limited else None,
            holding=self.holdings.get((account_id, symbol)),
        )

    def count(
        self, submission: Submission, accepted: Accepted, order: KnownOrder | None
    ) -> CountedOrder:
        """Counts it for the commands that follow in the batch."""
        if accepted.action_type is ActionType.CANCEL:
            return NOTHING
        if order is None and not self.limits.counts and not self.holdings:
            return CountedOrder(accepted.spec.quantity, ZERO)
        asked = asked_order(accepted, order)
        key = (submission.account_id, accepted.symbol)
        added = self.limits.accept(
            submission.account_id, self.limited_subject(submission, self.rules), asked
        )
        if held := self.holdings.get(key):
            self.holdings[key] = held.with_order(asked.side, asked.opens, asked.is_create)
        return CountedOrder(str(asked.opens), EXACT.add(asked.counted, added))

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
    state = BatchState(brokers=dependencies.brokers, limits=limits)
    locks = _locking_reads(submissions, locking)
    expected = _limited(state, submissions, cache.known)  # if the rules that are known still hold
    try:
        replies = await connection.run([*locks.values(), *limits.needs(expected)])
        versions = _take(state, dict(zip(locks, replies, strict=False)))
        limits.read(replies[len(locks) :])
        linked: set[str] = set()
        subjects: dict[str, set[Subject]] = {}
        for each in submissions:
            subjects.setdefault(each.organization_id, set()).add(state.subject_of(each))
            if isinstance(each.command, Replace):
                order = state.orders.get(each.command.ref_intent_id)
                if order and order.linked:
                    linked.add(order.order_id)
        if linked:
            (groups,) = await connection.run([store.read_groups([*linked])])
            state.groups = store.parse_groups(groups.texts())
        state.rules = await cache.find(connection, subjects, versions)
        locked = [each for each in submissions if each.account_id in state.heads]
        if late := limits.needs(_limited(state, locked, state.rules)):
            limits.read(await connection.run(late))
    except ConnectionLost:
        raise Unavailable("the connection to the database was lost; nothing was recorded") from None
    return state


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


def _limited(
    state: BatchState, submissions: Sequence[Submission], rules: RulesByOrganization
) -> list[LimitedSubject]:
    """Of those of these commands that have limits."""
    return [found for each in submissions if (found := state.limited_subject(each, rules))]
