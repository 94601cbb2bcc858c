"""The state in which a batch is decided: heads, orders, rules and what limits need, read under the locks of the
heads."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from trading_intents.brokers.registry import Registry
from trading_intents.controls.limits.model import AskedOrder, Levels, LimitOwner, LimitState
from trading_intents.controls.limits.state.recent import RecentByAccount, find_whole, plan_reads, put_recent
from trading_intents.controls.limits.state.statements import read_recent
from trading_intents.controls.limits.state.tracking import LimitedPlaces, LimitStateReads, Place, TrackedState
from trading_intents.errors import Unavailable
from trading_intents.intents import store
from trading_intents.intents.model import (
    SPEC_AMOUNTS,
    Cancel,
    Close,
    Create,
    EarlierAction,
    KnownOrder,
    NewOrder,
    Spec,
    Submission,
    SubmissionState,
    asked_order,
    closing_order,
)
from trading_intents.intents.writing import statements
from trading_intents.intents.writing.record import OrderTexts, trimmed
from trading_intents.intents.writing.state.rules import (
    NEVER_CHANGED,
    RulesByOrganization,
    RulesCache,
    Subject,
    parse_clock,
    parse_rules,
    parse_versions,
)
from trading_intents.orders.positions import Holding, parse_holdings
from trading_intents.prices.model import PriceRules
from trading_intents.storage.pipeline import ConnectionLost, PipelineConnection, Reply, Statement
from trading_intents.trading import ORDER_KINDS, OrderSide, RouteStrategy, Symbol, TimeInForce


@dataclass(slots=True)
class BatchState:
    """The state in which a batch is decided. Each decision updates its orders, heads and earlier answers."""

    brokers: Registry
    heads: dict[str, tuple[int, str]]
    order_rows: dict[str, OrderTexts]
    orders: dict[str, KnownOrder]
    earlier: dict[tuple[str, str], EarlierAction]
    now: datetime
    now_text: str
    transaction_id: str
    rules: RulesByOrganization
    unread: set[str] = field(default_factory=set)  # accounts whose log must be read before their orders can be judged
    limited: LimitedPlaces = field(default_factory=dict)  # what the limits of these commands need more than the rules
    tracking: TrackedState = field(default_factory=TrackedState)
    holdings: dict[tuple[str, str], Holding] = field(default_factory=dict)  # by account and symbol, that a Close names

    def state(self, submission: Submission) -> SubmissionState:
        account_id, command, key = submission.account_id, submission.command, submission.idempotency_key
        rules = self.rules[submission.organization_id]
        account = rules.accounts.get(account_id)
        order = None if isinstance(command, NewOrder) else self.orders.get(command.ref_intent_id)
        symbol = self.symbol_of(submission)
        return SubmissionState(
            rules.keys.get(submission.key_id) if submission.key_id else None,
            account,
            self.brokers.find(account.broker) if account else None,
            order,
            self.earlier.get((account_id, key)) if key else None,
            rules.controls_of(account_id, symbol),
            *(self._limits_met(submission, order) if rules.limits else ((), None, None)),
            self.holdings.get((account_id, symbol)),
        )

    def symbol_of(self, submission: Submission) -> str:
        """Empty: the command names no order that is known."""
        command = submission.command
        if isinstance(command, NewOrder):
            return command.symbol
        order = self.orders.get(command.ref_intent_id)
        return order.symbol if order else ""

    def subject_of(self, submission: Submission) -> Subject:
        return submission.account_id, submission.key_id or "", self.symbol_of(submission)

    def _limits_met(
        self, submission: Submission, order: KnownOrder | None
    ) -> tuple[Levels, AskedOrder | None, LimitState | None]:
        asked = self._asked(submission, order)
        if asked is None:
            return (), None, None
        account_id, rules = submission.account_id, self.rules[submission.organization_id]
        place = self.limited.get((account_id, asked.symbol))
        if place is None:
            limits = rules.limits_of(account_id, asked.symbol)
            return limits.levels(LimitOwner(submission.organization_id, account_id), asked.symbol), asked, None
        assert account_id in self.tracking.recent or not place.needs_recent
        broker = self.brokers.find(rules.accounts[account_id].broker)
        return place.levels, asked, self.tracking.met_by(account_id, asked, self.now, broker)

    def _asked(self, submission: Submission, order: KnownOrder | None) -> AskedOrder | None:
        """The order that is asked for; None: none that limits judge. The platform's own pass."""
        command = submission.command
        if isinstance(command, Cancel) or submission.key_id is None:
            return None
        if isinstance(command, Create):
            return asked_order(command.symbol, command.side, command.spec)
        if isinstance(command, Close):
            left = self.holdings[submission.account_id, command.symbol].left_to_close
            return closing_order(command.symbol, left) if left else None
        return asked_order(order.symbol, order.side, command.spec, order) if order else None


async def read_state(
    link: PipelineConnection,
    submissions: Sequence[Submission],
    brokers: Registry,
    prices: PriceRules,
    memory: RecentByAccount,
    cache: RulesCache,
    locking: statements.Locking,
) -> BatchState:
    """Locks and reads in one round trip. What the cache does not have is read in another: the rules of organizations,
    and after them what their limits need."""
    cache.use(link)
    expected = _expect_limited(submissions, cache)
    locks, limits = LockingReads(submissions), LimitStateReads(expected)
    try:
        replies = await link.run([*locks.statements(locking), *limits.statements()])
        state, versions = locks.parse(brokers, replies[: locks.count])
        await _find_rules(link, submissions, state, versions, cache)
        state.limited = _find_limited(submissions, state)
        state.tracking.recent = find_whole(memory, state.heads, state.now)
        is_read = {place for place, each in state.limited.items() if expected.get(place) is each}
        early = {place: state.limited[place] for place in is_read}
        limits.put(replies[locks.count :], early, prices, state.tracking, state.now)
        await _read_for_limits(link, state, is_read, prices, memory, locking)
    except ConnectionLost:
        raise Unavailable("the connection to the database was lost; nothing was recorded") from None
    return state


class LockingReads:
    """The locks of a batch, in the order of the locks: heads, then the orders that it names; then reads without a
    lock."""

    def __init__(self, submissions: Sequence[Submission]) -> None:
        self._organization_ids = {s.organization_id for s in submissions}
        self._account_ids = sorted({s.account_id for s in submissions})
        self._references = {s.command.ref_intent_id for s in submissions if not isinstance(s.command, NewOrder)}
        closes = [(s.account_id, s.command) for s in submissions if isinstance(s.command, Close)]
        self._holdings: dict[Place, int | None] = {
            (account_id, each.symbol): each.seen_seq for account_id, each in closes
        }
        self._has_halts = any(s.halt_id for s in submissions)
        self._keyed = [(s.account_id, s.idempotency_key) for s in submissions if s.idempotency_key]
        self.count = 0

    def statements(self, locking: statements.Locking) -> list[Statement]:
        made = [
            *statements.begin(self._organization_ids, locking),
            *([store.share_halt_locks(self._organization_ids)] if self._has_halts else ()),
            statements.lock_heads(self._account_ids, locking),
            *([statements.lock_orders(sorted(self._references))] if self._references else ()),
            *([statements.read_earlier(self._keyed)] if self._keyed else ()),
            *([store.read_holdings(self._holdings)] if self._holdings else ()),
            statements.read_versions(self._organization_ids),
        ]
        self.count = len(made)
        return made

    def parse(self, brokers: Registry, replies: Sequence[Reply]) -> tuple[BatchState, dict[str, str]]:
        """The state without its rules, and the versions that these have."""
        *before, read = replies
        held = before.pop() if self._holdings else None
        earlier = before.pop().texts() if self._keyed else ()
        orders = [OrderTexts(*row) for row in before.pop().texts()] if self._references else []
        heads = before.pop().texts()
        now, transaction_id = parse_clock(read.rows)
        state = BatchState(
            brokers=brokers,
            heads={account_id: (int(seq), digest) for account_id, seq, digest in heads},
            order_rows={row.order_id: row for row in orders},
            orders={row.order_id: _order(row) for row in orders},
            earlier={
                (account_id, key): EarlierAction(digest, intent_id, int(seq))
                for account_id, key, digest, intent_id, seq in earlier
            },
            now=datetime.fromisoformat(now),
            now_text=now,
            transaction_id=transaction_id,
            rules={},
            holdings=parse_holdings(held.texts()) if held else {},
        )
        return state, parse_versions(read.rows)


async def _find_rules(
    link: PipelineConnection,
    submissions: Sequence[Submission],
    state: BatchState,
    versions: Mapping[str, str],
    cache: RulesCache,
) -> None:
    """Takes the rules from the cache. Those of an organization that has another version now, or of which a command is
    not covered, are read for all of its commands."""
    subjects: dict[str, set[Subject]] = {}
    for each in submissions:
        subjects.setdefault(each.organization_id, set()).add(state.subject_of(each))
    for organization_id, own in [*subjects.items()]:
        known = cache.get(organization_id)
        if known and known.version == versions.get(organization_id, NEVER_CHANGED) and own <= known.covered:
            state.rules[organization_id] = known
            del subjects[organization_id]
    if subjects:
        account_ids, key_ids, symbols = map(set, zip(*(one for own in subjects.values() for one in own), strict=True))
        (read,) = await link.run([statements.read_rules(subjects, account_ids, key_ids - {""}, symbols)])
        for rules in parse_rules(subjects, read.rows):
            state.rules[rules.organization_id] = cache.put(rules)


def _expect_limited(submissions: Sequence[Submission], cache: RulesCache) -> LimitedPlaces:
    """What will be needed if the cached rules still hold."""
    expected: LimitedPlaces = {}
    for each in submissions:
        rules, command = cache.get(each.organization_id), each.command
        if rules and rules.limits and isinstance(command, Create) and each.key_id:
            place = each.account_id, command.symbol
            if (each.account_id, each.key_id, command.symbol) in rules.covered and (
                limited := rules.limited_place(place)
            ):
                expected[place] = limited
    return expected


def _find_limited(submissions: Sequence[Submission], state: BatchState) -> LimitedPlaces:
    """The places of these commands whose limits need more than the rules. The platform's own commands pass. A command
    that names no order has no symbol, and is refused."""
    found: LimitedPlaces = {}
    for each in submissions:
        rules = state.rules[each.organization_id]
        if rules.limits and each.key_id and not isinstance(each.command, Cancel) and each.account_id in state.heads:
            place = each.account_id, state.symbol_of(each)
            if place[1] and (limited := rules.limited_place(place)):
                found[place] = limited
    return found


async def _read_for_limits(
    link: PipelineConnection,
    state: BatchState,
    is_read: Container[Place],
    prices: PriceRules,
    memory: RecentByAccount,
    locking: statements.Locking,
) -> None:
    """Reads what the limits of the state's other places need, and the logs by which accounts are judged, as far as they
    are not known. Notes the accounts whose log must be read first, if that may take too long."""
    windows = {each.account_id: each.window_millis for each in state.limited.values() if each.needs_recent}
    missing = plan_reads(windows, memory, state.tracking.recent, state.now)
    logs = [read_recent(missing, may_take_long=locking.may_take_long)] if missing else []
    others = {place: each for place, each in state.limited.items() if place not in is_read}
    limits = LimitStateReads(others)
    late = [*logs, *limits.statements()]
    replies = await link.run(late) if late else []
    if missing:
        known = put_recent(memory, missing, replies.pop(0).texts(), state.heads, state.now)
        state.tracking.recent |= known
        state.unread = {each.account_id for each in missing} - known.keys()
    limits.put(replies, others, prices, state.tracking, state.now)


def _order(row: OrderTexts) -> KnownOrder:
    texts = ((name, getattr(row, name)) for name in SPEC_AMOUNTS)
    amounts: dict[str, Any] = {name: text and trimmed(text) for name, text in texts}
    return KnownOrder(
        account_id=row.account_id,
        symbol=Symbol(row.symbol),
        side=OrderSide(row.order_side),
        route=RouteStrategy(row.route_strategy),
        spec=Spec(ORDER_KINDS[row.order_type], time_in_force=TimeInForce(row.time_in_force), **amounts),
        client_reference_id=row.client_reference_id,
        status=row.order_status,
        cancel_requested=row.cancel_requested == "t",
        replace_pending=row.pending_replace_seq is not None,
        version=int(row.version),
        command_seq=int(row.command_seq),
        filled_quantity=Decimal(row.filled_quantity),
    )
