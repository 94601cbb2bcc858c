"""The state in which a batch is decided: heads, orders, accounts, keys and controls, read under the locks of the
heads."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Any

from trading_intents.brokers.registry import Registry
from trading_intents.controls.limits.model import NO_LIMITS, AppliedLimits, AskedOrder, LimitState, TradingLimits
from trading_intents.controls.limits.state.recent import find_whole, plan_reads, put_recent
from trading_intents.controls.limits.state.statements import read_recent, start_tracking
from trading_intents.controls.limits.state.tracking import (
    LimitedPlace,
    LimitedPlaces,
    LimitMemory,
    LimitStateReads,
    TrackedState,
    limited_place,
)
from trading_intents.controls.limits.store import parse_limits
from trading_intents.controls.model import Controls, StandingHalt, Switch, TimeRule
from trading_intents.errors import Unavailable
from trading_intents.identity.model import Entitlement, Permission
from trading_intents.intents import store
from trading_intents.intents.model import (
    Accepted,
    AccountState,
    Cancel,
    Close,
    Create,
    EarlierAction,
    KeyState,
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
from trading_intents.orders.positions import Holding, parse_holdings
from trading_intents.prices.model import PriceRules
from trading_intents.storage.pipeline import ConnectionLost, PipelineConnection, Reply, Row, Statement
from trading_intents.trading import ORDER_KINDS, ActionType, Environment, OrderSide, RouteStrategy, Symbol, TimeInForce


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
    versions: dict[str, str]  # by organization: of its accounts, keys and controls
    accounts: dict[str, AccountState]
    keys: dict[str, KeyState]
    switches: dict[tuple[str, str], Switch]  # by organization or account, and by symbol or an empty text
    windows: dict[tuple[str, str], TimeRule]
    halts: dict[str, StandingHalt]  # by organization or account
    limits: dict[tuple[str, str], TradingLimits] = field(default_factory=dict)  # as the switches
    tracked: set[str] = field(default_factory=set)  # accounts whose orders are counted
    untracked: set[str] = field(default_factory=set)  # those that must be before their orders can be judged
    unread: set[str] = field(default_factory=set)  # those whose log must be read before
    limited: LimitedPlaces = field(default_factory=dict)
    tracking: TrackedState = field(default_factory=TrackedState)
    _created: dict[int, AskedOrder] = field(default_factory=dict)  # by the identity of the submission
    holdings: dict[tuple[str, str], Holding] = field(default_factory=dict)  # by account and symbol, that a Close names

    def state(self, submission: Submission) -> SubmissionState:
        account_id, command, key = submission.account_id, submission.command, submission.idempotency_key
        account = self.accounts.get(account_id)
        order = None if isinstance(command, NewOrder) else self.orders.get(command.ref_intent_id)
        symbol = command.symbol if isinstance(command, NewOrder) else order.symbol if order else ""
        organization_id, place = submission.organization_id, (account_id, symbol)
        return SubmissionState(
            self.keys.get(submission.key_id) if submission.key_id else None,
            account,
            self.brokers.find(account.broker) if account else None,
            order,
            self.earlier.get((account_id, key)) if key else None,
            Controls(
                organization_id,
                account_id,
                self.switches.get((organization_id, "")),
                self.switches.get((account_id, "")),
                self.switches.get(place),
                self.windows.get(place),
                self.halts.get(organization_id),
                self.halts.get(account_id),
            ),
            *(self._limits_met(submission, order) if self.limits else (NO_LIMITS, None, None)),
            self.holdings.get(place),
        )

    def limits_of(self, submission: Submission, symbol: str) -> AppliedLimits:
        organization_id, account_id = submission.organization_id, submission.account_id
        owners = ((organization_id, ""), (account_id, ""), (account_id, symbol))
        found = [self.limits.get(owner) for owner in owners]
        return AppliedLimits(*found) if any(found) else NO_LIMITS

    def asked(self, submission: Submission, order: KnownOrder | None) -> AskedOrder | None:
        """The order that is asked for; None: none that limits judge. The platform's own pass."""
        command = submission.command
        if isinstance(command, Cancel) or submission.key_id is None:
            return None
        if isinstance(command, Close):
            left = self.holdings[submission.account_id, command.symbol].left_to_close
            return closing_order(command.symbol, left) if left else None
        if isinstance(command, Create):
            if id(submission) not in self._created:
                created = ActionType.CREATE, command.symbol, command.side, command.route, command.spec
                self._created[id(submission)] = asked_order(Accepted(*created, None), None)
            return self._created[id(submission)]
        if order is None:
            return None
        replaced = ActionType.REPLACE, order.symbol, order.side, order.route, command.spec
        return asked_order(Accepted(*replaced, None), order)

    def _limits_met(
        self, submission: Submission, order: KnownOrder | None
    ) -> tuple[AppliedLimits, AskedOrder | None, LimitState | None]:
        asked = self.asked(submission, order)
        if asked is None:
            return NO_LIMITS, None, None
        account_id = submission.account_id
        place = self.limited.get((account_id, asked.symbol))
        if place is None:
            return self.limits_of(submission, asked.symbol), asked, None
        assert account_id in self.tracking.recent or not place.needs_recent
        return place.limits, asked, self.tracking.met_by(account_id, asked, self.now)


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
            *statements.begin(self.organization_ids),
            *([store.share_halt_locks(self.organization_ids)] if self.has_halts else ()),
            *statements.lock_heads(self.account_ids, locking),
            *([statements.lock_orders(sorted(self.references))] if self.references else ()),
        ]

    def reads(self) -> list[Statement]:
        symbols = self.symbols or [""]
        return [
            *self._earlier(),
            *([store.read_holdings(self.holdings)] if self.holdings else ()),
            statements.read_state(self.organization_ids, self.account_ids, self.key_ids, symbols),
        ]

    def checks(self) -> list[Statement]:
        """Used instead of the reads when their results are cached: they say whether the cache still holds."""
        return [*self._earlier(), statements.read_versions(self.organization_ids)]

    def _earlier(self) -> list[Statement]:
        return [statements.read_earlier(self.keyed)] if self.keyed else []


async def read_state(
    link: PipelineConnection,
    submissions: Sequence[Submission],
    brokers: Registry,
    prices: PriceRules,
    memory: LimitMemory,
    locking: statements.Locking,
) -> BatchState:
    """What the limits of a place needed in earlier batches is read with the rest, which saves a round trip, and used if
    they need the same now."""
    reads, expected = BatchReads(submissions), LimitStateReads(())
    locks = reads.locks(locking)
    try:
        if reads.references:  # only the orders know the symbols
            locked = await link.run(locks)
            reads.symbols |= {Symbol(_texts(row)[_SYMBOL]) for row in locked[-1].rows}
            replies = [*locked, *await link.run(reads.reads())]
            early: list[Reply] = []
        else:
            created = [(s.account_id, s.command.symbol) for s in submissions if isinstance(s.command, Create)]
            expected = LimitStateReads(memory.places[place] for place in created if place in memory.places)
            ahead = expected.statements()
            replies = await link.run([*locks, *reads.reads(), *ahead])
            early = replies[len(replies) - len(ahead) :]
            replies = replies[: len(replies) - len(ahead)]
        state = parse_replies(brokers, reads, replies)
        state.tracking.recent = find_whole(memory.recent, state.heads, state.now)
        needed = _find_limited(submissions, state, memory.places) if state.limits else []
        if not needed:
            return state
        windows = {each.account_id: each.window_millis for each in needed if each.needs_recent}
        missing = plan_reads(windows, memory.recent, state.tracking.recent, state.now)
        starts: list[Statement] = []
        if state.untracked and locking.may_track:
            starts = start_tracking(sorted(state.untracked))
            state.tracked |= state.untracked
            state.untracked.clear()
        more = LimitStateReads(needed) if starts or not expected.covers(needed) else None
        logs = [read_recent(missing, may_take_long=locking.may_track)] if missing else []
        late = [*starts, *logs, *(more.statements() if more else ())]
        replies = (await link.run(late))[len(starts) :] if late else []
    except ConnectionLost:
        raise Unavailable("the connection to the database was lost; nothing was recorded") from None
    if missing:
        found = put_recent(memory.recent, missing, replies.pop(0).texts(), state.heads, state.now)
        state.tracking.recent |= found
        state.unread = {read.account_id for read in missing} - found.keys()
    (more or expected).put(replies if more else early, needed, prices, state.tracking, state.now)
    return state


def _find_limited(submissions: Sequence[Submission], state: BatchState, limited: LimitedPlaces) -> list[LimitedPlace]:
    """Those of these submissions. Notes them for later batches, and accounts that must be tracked first."""
    if len(limited) > MAX_LIMITED:
        limited.clear()
    for each in submissions:
        symbol, account = symbol_of(each, state.order_rows), state.accounts.get(each.account_id)
        is_judged = each.key_id is not None and not isinstance(each.command, Cancel)  # the platform's own pass
        if not is_judged or not symbol or account is None or each.account_id not in state.heads:
            continue
        place, limits = (each.account_id, symbol), state.limits_of(each, symbol)
        known = limited.get(place)
        if known is None or known.limits != limits:
            if not limits.needs_state:
                limited.pop(place, None)
                continue
            known = limited[place] = limited_place(
                *place, account.organization_id, account.environment, account.broker, limits
            )
        state.limited[place] = known
        if known.needs_tracking and each.account_id not in state.tracked:
            state.untracked.add(each.account_id)
    return list(state.limited.values())


MAX_LIMITED = 50_000
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
    of: dict[bytes | None, list[Row]] = defaultdict(list)
    for row in read.rows:
        of[row[0]].append(row)
    ((_, now, transaction_id, *_),) = map(_texts, of[_CLOCK])
    heads = [_texts(row) for row in before.pop().rows]
    return BatchState(
        brokers=brokers,
        heads={account_id: (int(seq), digest) for account_id, seq, digest, _ in heads},
        order_rows={row.order_id: row for row in orders},
        orders={row.order_id: _order(row) for row in orders},
        earlier={
            (account_id, key): EarlierAction(digest, intent_id, int(seq))
            for account_id, key, digest, intent_id, seq in earlier
        },
        now=datetime.fromisoformat(now),
        now_text=now,
        transaction_id=transaction_id,
        versions=dict.fromkeys(reads.organization_ids, _NEVER_CHANGED) | dict(map(_version, of[_RULES])),
        accounts=dict(map(_account, of[_ACCOUNT])),
        keys=dict(map(_key, of[_KEY])),
        switches=dict(map(_switch, of[_SWITCH])),
        windows=dict(map(_window, of[_WINDOW])),
        halts=dict(map(_halt, of[_HALT])),
        limits=dict(map(_limits, of[_LIMIT])),
        tracked={account_id for account_id, _, _, tracked in heads if tracked == "t"},
        holdings=parse_holdings(map(_texts, held.rows)) if held else {},
    )


_CLOCK, _RULES, _ACCOUNT, _KEY, _SWITCH, _WINDOW, _HALT, _LIMIT = (kind.encode() for kind in statements.Kind)
_NEVER_CHANGED = "0"


def _version(row: Row) -> tuple[str, str]:
    _, organization_id, version, *_ = _texts(row)
    return organization_id, version


# These are cached because the same rows come again and again.
@lru_cache(maxsize=10_000)
def _account(row: Row) -> tuple[str, AccountState]:
    _, account_id, organization_id, environment, broker, disabled, closed, stored = _texts(row)
    return account_id, AccountState(
        organization_id, _ENVIRONMENTS[environment], broker, disabled == _TRUE, closed == _TRUE, stored == _TRUE
    )


@lru_cache(maxsize=10_000)
def _key(row: Row) -> tuple[str, KeyState]:
    _, key_id, organization_id, environment, permissions, entitlements, disabled, _ = _texts(row)
    return key_id, KeyState(
        organization_id,
        _ENVIRONMENTS[environment],
        frozenset(map(Permission, _members(permissions))),
        frozenset(map(Entitlement, _members(entitlements))),
        disabled == _TRUE,
    )


@lru_cache(maxsize=10_000)
def _switch(row: Row) -> tuple[tuple[str, str], Switch]:
    _, owner_id, symbol, reason, *_ = _texts(row)
    return (owner_id, symbol), Switch(True, reason)


@lru_cache(maxsize=10_000)
def _window(row: Row) -> tuple[tuple[str, str], TimeRule]:
    _, owner_id, symbol, start, end, stale, zone, _ = _texts(row)
    return (owner_id, symbol), TimeRule(_time(start), _time(end), stale and int(stale), zone)


@lru_cache(maxsize=10_000)
def _halt(row: Row) -> tuple[str, StandingHalt]:
    _, owner_id, halt_id, reason, *_ = _texts(row)
    return owner_id, StandingHalt(halt_id, reason)


def _limits(row: Row) -> tuple[tuple[str, str], TradingLimits]:
    _, owner_id, symbol, rules, *_ = _texts(row)
    return (owner_id, symbol), parse_limits(rules)


_TRUE = "true"
_ENVIRONMENTS = {str(each): each for each in Environment}


def _time(text: str | None) -> time | None:
    return None if text is None else time.fromisoformat(text)


def _members(text: str) -> list[str]:
    return text.strip("{}").split(",") if text != "{}" else []


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
        counted=row.counted == "t",
    )
