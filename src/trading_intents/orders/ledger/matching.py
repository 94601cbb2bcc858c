"""Matches broker events to orders and finds those that are new. Pure: no I/O, no clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from msgspec.structs import replace

from trading_intents.balances.model import AccountBalance
from trading_intents.brokers.port import BrokerBalance, BrokerEvent, EventKind
from trading_intents.brokers.sanitizing import (
    sanitize,
    sanitize_balance,
    sanitize_id,
    sanitize_text,
)
from trading_intents.ids import IdText, OrganizationId, id_text
from trading_intents.orders.facts import (
    LONG_AGO,
    Fact,
    FactKind,
    admit,
    conflict_with,
    event_fact,
    own_fact,
)
from trading_intents.orders.ledger.store import AccountName, ConcernedNames, Ledger, StoredFact
from trading_intents.orders.store import CommandRow
from trading_intents.trading import ActionType, Environment, FrozenStruct

NEW_ARRIVAL = 1 << 60  # later than all that the database has numbered


@dataclass(frozen=True, slots=True)
class AccountRef:
    """An account as recordings and sessions name it."""

    account_id: UUID
    organization_id: OrganizationId
    environment: Environment
    broker: str
    bust_reopens: bool = True  # at its broker

    @property
    def id_texts(self) -> tuple[IdText, IdText]:
        """Of the account and its organization."""
        return id_text(self.account_id), id_text(self.organization_id)


class PlatformFact(FrozenStruct, frozen=True, kw_only=True):
    """A fact about an order that the platform itself observed."""

    order_id: UUID
    kind: FactKind
    client_order_id: str  # of the command that it is about
    reason: str | None = None
    broker_order_id: str | None = None
    detail: str | None = None


class AccountRecording(FrozenStruct, frozen=True):
    """Events about an account's orders and positions, and the platform's own facts about them."""

    account_ref: AccountRef
    events: Sequence[BrokerEvent] = ()
    own: Sequence[PlatformFact] = ()
    # Orders that are locked and read, also without a new fact.
    also_locked: frozenset[UUID] = frozenset()
    balance: BrokerBalance | None = None


@dataclass(frozen=True, slots=True)
class NewFacts:
    """New facts about an account's orders, by key, with their orders (None: not an order of
    ours)."""

    facts: dict[str, tuple[Fact, IdText | None]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)  # of those that are events
    # Facts that had no order until now.
    adopted: dict[str, tuple[Fact, IdText]] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)  # broker's ids by client order id
    # Reported under a key that was used for something else, and lost but for this; with their
    # orders.
    conflicts: list[tuple[Fact, IdText | None]] = field(default_factory=list)


class PreparedRecording(FrozenStruct, frozen=True, kw_only=True):
    """A recording whose events are sanitized and turned into facts."""

    account_ref: AccountRef
    account_id: IdText
    events: Sequence[BrokerEvent]
    left_out: tuple[str, ...]
    event_facts: Mapping[int, Fact]  # by the event's number
    own: Sequence[tuple[Fact, IdText]]
    also_locked: frozenset[IdText]
    balance: BrokerBalance | None


def prepare(recording: AccountRecording) -> PreparedRecording:
    events, left_out = sanitize(recording.events)
    own = []
    for each in recording.own:
        reason, detail = (text and sanitize_text(text) for text in (each.reason, each.detail))
        sanitized = reason, each.broker_order_id and sanitize_id(each.broker_order_id), detail
        own.append(
            (
                own_fact(each.kind, each.client_order_id, NEW_ARRIVAL, *sanitized),
                id_text(each.order_id),
            )
        )
    event_facts = {
        number: event_fact(event, NEW_ARRIVAL + 1 + number)
        for number, event in enumerate(events)
        if event.kind is not EventKind.POSITION
    }
    account_ref = recording.account_ref
    also_locked = frozenset(map(id_text, recording.also_locked))
    account_id, _ = account_ref.id_texts
    return PreparedRecording(
        account_ref=account_ref,
        account_id=account_id,
        events=events,
        left_out=left_out,
        event_facts=event_facts,
        own=own,
        also_locked=also_locked,
        balance=recording.balance,
    )


def account_balance(
    account_ref: AccountRef, balance: BrokerBalance | None, now: datetime
) -> AccountBalance | None:
    if balance is None:
        return None
    ids = account_ref.account_id, account_ref.organization_id
    return AccountBalance(
        *ids, account_ref.environment, account_ref.broker, sanitize_balance(balance, now)
    )


def concerned_names(prepared: Sequence[PreparedRecording]) -> ConcernedNames:
    names = ConcernedNames(set(), set(), set(), set(), set())
    for each in prepared:
        account_id = each.account_id
        names.order_ids.update(each.also_locked, (order_id for _, order_id in each.own))
        for fact in (*each.event_facts.values(), *(fact for fact, _ in each.own)):
            clients = (fact.client_order_id, fact.replaces)
            names.client_order_ids.update(AccountName(account_id, name) for name in clients if name)
            if fact.broker_order_id:
                names.broker_order_ids.add(AccountName(account_id, fact.broker_order_id))
        names.client_order_ids.update(
            AccountName(account_id, event.parent) for event in each.events if event.parent
        )
        names.keys.update(AccountName(account_id, fact.key) for fact in each.event_facts.values())
        held = (
            event.symbol
            for event in each.events
            if event.kind in (EventKind.POSITION, EventKind.FEE)
        )
        names.symbols.update(AccountName(account_id, symbol) for symbol in held if symbol)
    return names


class LedgerIndex:
    """The ledger's rows, indexed for matching."""

    def __init__(self, read: Ledger) -> None:
        self.histories = read.histories
        self.positions = read.positions
        self.now = read.now
        self.facts = {AccountName(fact.account_id, fact.key): fact for fact in read.facts}
        commands = (
            *read.commands,
            *(each for history in read.histories.values() for each in history.commands),
        )
        self.clients = {
            AccountName(each.account_id, each.client_order_id): each for each in commands
        }
        self.brokers: dict[AccountName, list[CommandRow]] = {}
        # Of two commands with the same broker's id the later one counts: venues reuse their ids.
        for sent in sorted(self.clients.values(), key=lambda each: each.sent_at or LONG_AGO):
            if sent.broker_order_id:
                self.brokers.setdefault(
                    AccountName(sent.account_id, sent.broker_order_id), []
                ).append(sent)
        self.legs: dict[IdText, list[IdText]] = {}  # of an entry
        rows = (history.row for history in read.histories.values())
        legs = [
            (row.create_seq, row.parent_order_id, row.order_id)
            for row in rows
            if row.parent_order_id
        ]
        for _, entry_id, order_id in sorted(legs):
            self.legs.setdefault(entry_id, []).append(order_id)
        self.unmatched: list[StoredFact] = [
            fact
            for fact in self.facts.values()
            if fact.order_id is None and fact.client_order_id is None
        ]

    def entry_of(self, order_id: IdText) -> IdText:
        """The order itself, if it is no leg."""
        return self.histories[order_id].row.parent_order_id or order_id

    def find_leg(self, account_id: IdText, event: BrokerEvent) -> CommandRow | None:
        """The CREATE of the leg that an event names by the order that it was sent with."""
        sent = self.clients.get(AccountName(account_id, event.parent or ""))
        legs = [self.histories[each] for each in self.legs.get(sent.order_id, ())] if sent else []
        commands = (each for leg in legs if leg.row.leg is event.leg for each in leg.commands)
        return next((each for each in commands if each.action_type is ActionType.CREATE), None)


class LedgerMoved(Exception):
    """An order is concerned that was not locked: the ledger must be read again."""


def find_new_facts(prepared: PreparedRecording, index: LedgerIndex) -> NewFacts:
    """Finds the new facts. Most streamed events repeat an answer, and are dropped here."""
    account_id = prepared.account_id
    known: dict[str, Fact] = {}
    owners: dict[str, IdText | None] = {}
    for fact in prepared.event_facts.values():
        found = index.facts.get(AccountName(account_id, fact.key))
        if found:
            known[fact.key] = found
            owners[fact.key] = found.order_id
    own_clients = {fact.client_order_id: order_id for fact, order_id in prepared.own}
    new_facts = NewFacts()
    for number, unnamed in prepared.event_facts.items():
        fact = reported = _named(unnamed, prepared.events[number], account_id, index)
        order_id = owners.get(fact.key) or find_owner(fact, own_clients, account_id, index)
        sent = index.clients.get(AccountName(account_id, reported.client_order_id or ""))
        if order_id and sent and sent.order_id != order_id:
            # The key was used for another order before: that order keeps its fact, and this fact is
            # lost.
            fact = conflict_with(reported)
            order_id = sent.order_id
            owners[fact.key] = order_id
        if order_id and order_id not in index.histories:
            raise LedgerMoved
        if order_id:
            known.update(
                {
                    each.key: each
                    for each in index.histories[order_id].facts
                    if each.key not in known
                }
            )
        # A repeated fact is dropped, unless its order is known only now.
        is_unowned = fact.key in known and owners.get(fact.key) is None
        admitted = admit(known, fact) or (fact if order_id and is_unowned else None)
        if admitted and admitted is not reported:
            new_facts.conflicts.append((reported, order_id))
        if admitted and (admitted is fact or order_id):
            recorded = known.get(fact.key) if admitted is fact else None
            known[admitted.key] = admitted
            owners[admitted.key] = order_id
            new_facts.numbers[admitted.key] = number
            if recorded and order_id:
                new_facts.adopted[admitted.key] = recorded, order_id
                if fact.client_order_id and fact.broker_order_id:
                    new_facts.named[fact.client_order_id] = fact.broker_order_id
            else:
                new_facts.facts[admitted.key] = admitted, order_id
    _add_own(prepared, index, new_facts)
    _adopt(prepared, index, new_facts)
    return new_facts


def _add_own(prepared: PreparedRecording, index: LedgerIndex, new_facts: NewFacts) -> None:
    """Adds the platform's own facts. An answer's ACCEPTED is none if an event of the broker says
    the same."""
    accepted = {
        _command(fact) for fact, _ in new_facts.facts.values() if fact.kind is FactKind.ACCEPTED
    }
    for fact, order_id in prepared.own:
        recorded = index.histories[order_id].facts
        is_known = any(each.key == fact.key for each in recorded)
        if fact.kind is FactKind.ACCEPTED:
            same = (
                _command(each) == _command(fact)
                for each in recorded
                if each.kind is FactKind.ACCEPTED
            )
            is_known = is_known or _command(fact) in accepted or any(same)
        if not is_known:
            new_facts.facts[fact.key] = fact, order_id


def _command(fact: Fact) -> tuple[str | None, str | None]:
    return fact.client_order_id, fact.broker_order_id


def _named(fact: Fact, event: BrokerEvent, account_id: IdText, index: LedgerIndex) -> Fact:
    """A leg that its venue names in its own way is known by that name, once it is, else by the
    order that it was sent with."""
    if event.parent is None or AccountName(account_id, fact.client_order_id or "") in index.clients:
        return fact
    known = index.brokers.get(AccountName(account_id, fact.broker_order_id or ""))
    command = known[-1] if known else index.find_leg(account_id, event)
    return replace(fact, client_order_id=command.client_order_id) if command else fact


def find_owner(
    fact: Fact, own_clients: Mapping[str | None, IdText], account_id: IdText, index: LedgerIndex
) -> IdText | None:
    """Finds the order of a fact; None: an order that the platform did not send, which never belongs
    to an intent."""
    names = [fact.client_order_id]
    if fact.kind not in (FactKind.FILL_BUST, FactKind.FILL_CORRECT):  # which replace an execution
        names.append(fact.replaces)
    for name in filter(None, names):
        sent = index.clients.get(AccountName(account_id, name))
        if order_id := own_clients.get(name) or (sent.order_id if sent else None):
            return order_id
    sent_as = index.brokers.get(AccountName(account_id, fact.broker_order_id or ""))
    return sent_as[-1].order_id if sent_as else None


def _adopt(prepared: PreparedRecording, index: LedgerIndex, new_facts: NewFacts) -> None:
    """Takes the broker's ids of commands from facts, and adopts earlier facts that came under such
    an id."""
    account_id = prepared.account_id
    owned = (*new_facts.facts.values(), *new_facts.adopted.values())
    concerned = {order_id for _, order_id in owned if order_id}
    senders: dict[str, list[tuple[datetime, IdText]]] = {}
    names = [*new_facts.named.items()]
    names += [
        (f.client_order_id, f.broker_order_id)
        for f, o in owned
        if o and f.client_order_id and f.broker_order_id
    ]
    for client_id, broker_id in names:
        new_facts.named[client_id] = broker_id
        sent = index.clients.get(AccountName(account_id, client_id))
        if sent and sent.sent_at and sent.broker_order_id in (None, broker_id):
            senders.setdefault(broker_id, []).append((sent.sent_at, sent.order_id))
    for each in index.unmatched:
        if each.account_id != account_id or each.broker_order_id is None:
            continue
        named = index.brokers.get(AccountName(account_id, each.broker_order_id), ())
        sent_as = [
            *senders.get(each.broker_order_id, ()),
            *((e.sent_at, e.order_id) for e in named if e.sent_at),
        ]
        earlier = [(at, order_id) for at, order_id in sent_as if at <= each.recorded_at]
        owner_id = max(earlier)[1] if earlier else None
        if owner_id is not None and owner_id in concerned and each.key not in new_facts.adopted:
            new_facts.adopted[each.key] = each, owner_id
