"""The state in which a batch is decided: heads, orders, rules and what limits need, read under the locks of the
heads."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from trading_intents.brokers.registry import Registry
from trading_intents.controls.limits.model import AskedOrder, Levels, LimitOwner, LimitState
from trading_intents.controls.limits.state.recent import RecentByAccount, find_whole, plan_reads, put_recent
from trading_intents.controls.limits.state.statements import read_recent
from trading_intents.controls.limits.state.tracking import LimitedPlaces, LimitStateReads, TrackedState
from trading_intents.errors import Unavailable
from trading_intents.intents import store
from trading_intents.intents.model import (
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
from trading_intents.intents.writing.record import trimmed
from trading_intents.intents.writing.state.rules import Rules, RulesCache, parse_clock, parse_rules
from trading_intents.orders.positions import Holding, parse_holdings
from trading_intents.prices.model import PriceRules
from trading_intents.storage.pipeline import ConnectionLost, PipelineConnection, Reply, Row, Statement
from trading_intents.trading import ORDER_KINDS, OrderSide, RouteStrategy, Symbol, TimeInForce


@dataclass(slots=True)
class BatchState:
    """The state in which a batch is decided. Each decision updates its orders, heads and earlier answers."""

    brokers: Registry
    heads: dict[str, tuple[int, str]]
    order_rows: dict[str, statements.OrderTexts]
    orders: dict[str, KnownOrder]
    earlier: dict[tuple[str, str], EarlierAction]
    now: datetime
    now_text: str
    transaction_id: str
    rules: Rules
    unread: set[str] = field(default_factory=set)  # accounts whose log must be read before their orders can be judged
    limited: LimitedPlaces = field(default_factory=dict)
    tracking: TrackedState = field(default_factory=TrackedState)
    holdings: dict[tuple[str, str], Holding] = field(default_factory=dict)  # by account and symbol, that a Close names

    def state(self, submission: Submission) -> SubmissionState:
        account_id, command, key = submission.account_id, submission.command, submission.idempotency_key
        rules = self.rules
        account = rules.accounts.get(account_id)
        order = None if isinstance(command, NewOrder) else self.orders.get(command.ref_intent_id)
        symbol = command.symbol if isinstance(command, NewOrder) else order.symbol if order else ""
        return SubmissionState(
            rules.keys.get(submission.key_id) if submission.key_id else None,
            account,
            self.brokers.find(account.broker) if account else None,
            order,
            self.earlier.get((account_id, key)) if key else None,
            rules.controls_of(submission.organization_id, account_id, symbol),
            *(self._limits_met(submission, order) if rules.limits else ((), None, None)),
            self.holdings.get((account_id, symbol)),
        )

    def _limits_met(
        self, submission: Submission, order: KnownOrder | None
    ) -> tuple[Levels, AskedOrder | None, LimitState | None]:
        asked = self._asked(submission, order)
        if asked is None:
            return (), None, None
        account_id = submission.account_id
        place = self.limited.get((account_id, asked.symbol))
        if place is None:
            limits = self.rules.limits_of(submission.organization_id, account_id, asked.symbol)
            return limits.levels(LimitOwner(submission.organization_id, account_id), asked.symbol), asked, None
        assert account_id in self.tracking.recent or not place.needs_recent
        broker = self.brokers.find(self.rules.accounts[account_id].broker)
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


class BatchReads:
    """The locks and reads of a batch, in the order of the locks: heads, then the orders that it names, then reads
    without a lock."""

    def __init__(self, submissions: Sequence[Submission]) -> None:
        self.organization_ids = {s.organization_id for s in submissions}
        self.account_ids = sorted({s.account_id for s in submissions})
        self.key_ids = {s.key_id for s in submissions if s.key_id}
        self.references = {s.command.ref_intent_id for s in submissions if not isinstance(s.command, NewOrder)}
        self.symbols = {s.command.symbol for s in submissions if isinstance(s.command, NewOrder)}
        closes = [(s.account_id, s.command) for s in submissions if isinstance(s.command, Close)]
        self.holdings: dict[tuple[str, str], int | None] = {
            (account_id, each.symbol): each.seen_seq for account_id, each in closes
        }
        self.has_halts = any(s.halt_id for s in submissions)
        self.keyed = [(s.account_id, s.idempotency_key) for s in submissions if s.idempotency_key]

    def locks(self, locking: statements.Locking) -> list[Statement]:
        return [
            *statements.begin(self.organization_ids, locking),
            *([store.share_halt_locks(self.organization_ids)] if self.has_halts else ()),
            statements.lock_heads(self.account_ids, locking),
            *([statements.lock_orders(sorted(self.references))] if self.references else ()),
        ]

    def reads(self) -> list[Statement]:
        holdings = [store.read_holdings(self.holdings)] if self.holdings else ()
        return [*self._earlier(), *holdings, self.read_rules()]

    def read_rules(self) -> Statement:
        symbols = self.symbols or [""]
        return statements.read_state(self.organization_ids, self.account_ids, self.key_ids, symbols)

    def checks(self) -> list[Statement]:
        """Used instead of the reads when the rules are cached: they say whether the cache still holds."""
        return [*self._earlier(), statements.read_versions(self.organization_ids)]

    def _earlier(self) -> list[Statement]:
        return [statements.read_earlier(self.keyed)] if self.keyed else []


async def read_state(
    link: PipelineConnection,
    submissions: Sequence[Submission],
    brokers: Registry,
    prices: PriceRules,
    memory: RecentByAccount,
    cache: RulesCache | None,
    locking: statements.Locking,
) -> BatchState:
    """Takes one round trip; another one for the symbols of the orders that are named, and for what limits need if the
    rules are not cached."""
    try:
        early: EarlyReads | None = None
        if cache and cache.covers(link, submissions):
            state, early = await _read_with_cache(link, submissions, brokers, cache, locking)
        else:
            state = await _read_all(link, BatchReads(submissions), brokers, locking)
            state.limited = _find_limited(submissions, state)
        state.tracking.recent = find_whole(memory, state.heads, state.now)
        if state.limited:
            await _read_for_limits(link, state, prices, memory, early, locking)
    except ConnectionLost:
        raise Unavailable("the connection to the database was lost; nothing was recorded") from None
    return state


EarlyReads = tuple[LimitStateReads, list[Reply]]


async def _read_all(
    link: PipelineConnection, reads: BatchReads, brokers: Registry, locking: statements.Locking
) -> BatchState:
    locks = reads.locks(locking)
    if not reads.references:
        return parse_replies(brokers, reads, await link.run([*locks, *reads.reads()]))
    locked = await link.run(locks)  # only the orders know the symbols
    reads.symbols |= {Symbol(_texts(row)[_SYMBOL]) for row in locked[-1].rows}
    return parse_replies(brokers, reads, [*locked, *await link.run(reads.reads())])


async def _read_with_cache(
    link: PipelineConnection,
    submissions: Sequence[Submission],
    brokers: Registry,
    cache: RulesCache,
    locking: statements.Locking,
) -> tuple[BatchState, EarlyReads | None]:
    """Reads only the rules' versions, and right behind them what limits need; the rules themselves if the cache is
    stale."""
    reads = BatchReads(submissions)
    request = link.send([*reads.locks(locking), *reads.checks()], more=True)
    limited = cache.find_limited(submissions)
    limit_reads = LimitStateReads(limited)
    request.append_statements(limit_reads.statements())
    first = await request.first_replies()
    state = parse_replies(brokers, reads, first)
    replies = (await request.all_replies())[len(first) :]
    if cache.check(state.rules.versions):
        state.rules = cache.rules
        state.limited = {place: each for place, each in limited.items() if each.account_id in state.heads}
        return state, (limit_reads, replies)
    (read,) = await link.run([reads.read_rules()])
    state.rules = parse_rules(reads.organization_ids, read.rows)
    state.limited = _find_limited(submissions, state)
    return state, None


async def _read_for_limits(
    link: PipelineConnection,
    state: BatchState,
    prices: PriceRules,
    memory: RecentByAccount,
    early: EarlyReads | None,
    locking: statements.Locking,
) -> None:
    """Reads what the limits of the state's places need, unless it was read with the locks. Notes the accounts whose log
    must be read first, if that may take too long."""
    windows = {each.account_id: each.window_millis for each in state.limited.values() if each.needs_recent}
    missing = plan_reads(windows, memory, state.tracking.recent, state.now)
    logs = [read_recent(missing, may_take_long=locking.may_take_long)] if missing else []
    reads, replies = early or (LimitStateReads(state.limited), [])
    late = [*logs, *(() if early else reads.statements())]
    late_replies = await link.run(late) if late else []
    if missing:
        known = put_recent(memory, missing, late_replies.pop(0).texts(), state.heads, state.now)
        state.tracking.recent |= known
        state.unread = {each.account_id for each in missing} - known.keys()
    reads.put(replies if early else late_replies, state.limited, prices, state.tracking, state.now)


def _find_limited(submissions: Sequence[Submission], state: BatchState) -> LimitedPlaces:
    """The places of these commands whose limits need more than the rules. The platform's own commands pass. A command
    that names no order has no symbol, and is refused."""
    if not state.rules.limits:
        return {}
    judged = [each for each in submissions if each.key_id is not None and not isinstance(each.command, Cancel)]
    places = {(each.account_id, symbol_of(each, state.order_rows)) for each in judged}
    found = {place: state.rules.limited_place(*place) for place in places if place[0] in state.heads and place[1]}
    return {place: each for place, each in found.items() if each}


_SYMBOL = statements.OrderTexts._fields.index("symbol")


def symbol_of(submission: Submission, orders: dict[str, statements.OrderTexts]) -> str:
    command = submission.command
    if isinstance(command, NewOrder):
        return command.symbol
    row = orders.get(command.ref_intent_id)
    return row.symbol if row else ""


def _texts(row: Row) -> list[Any]:
    return [None if value is None else value.decode() for value in row]


def parse_replies(brokers: Registry, reads: BatchReads, replies: Sequence[Reply]) -> BatchState:
    """Makes the state from the replies to all locks and reads, or to all locks and checks."""
    *before, read = replies
    held = before.pop() if reads.holdings else None
    earlier = map(_texts, before.pop().rows) if reads.keyed else ()
    orders = [statements.OrderTexts(*_texts(row)) for row in before.pop().rows] if reads.references else []
    heads = [_texts(row) for row in before.pop().rows]
    now, transaction_id = parse_clock(read.rows)
    return BatchState(
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
        rules=parse_rules(reads.organization_ids, read.rows),
        holdings=parse_holdings(map(_texts, held.rows)) if held else {},
    )


def _order(row: statements.OrderTexts) -> KnownOrder:
    spec = Spec(
        ORDER_KINDS[row.order_type],
        trimmed(row.quantity),
        row.limit_price and trimmed(row.limit_price),
        row.stop_price and trimmed(row.stop_price),
        TimeInForce(row.time_in_force),
    )
    return KnownOrder(
        account_id=row.account_id,
        symbol=Symbol(row.symbol),
        side=OrderSide(row.order_side),
        route=RouteStrategy(row.route_strategy),
        spec=spec,
        client_reference_id=row.client_reference_id,
        status=row.order_status,
        cancel_requested=row.cancel_requested == "t",
        replace_pending=row.pending_replace_seq is not None,
        version=int(row.version),
        command_seq=int(row.command_seq),
        filled_quantity=Decimal(row.filled_quantity),
    )
