"""Matches broker events to orders and finds those that are new. Pure: no I/O, no clock."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
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
    event_fact,
    own_fact,
)
from trading_intents.orders.ledger.booking import Arrivals, DerivedOrder
from trading_intents.orders.ledger.one_pass import advance, is_shown
from trading_intents.orders.ledger.store import AccountName, AstrayFact, ConcernedNames, Ledger
from trading_intents.orders.store import CommandRow, Cover, OrderHead, OrderHistory
from trading_intents.trading import ActionType, Environment, FrozenStruct


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


class PlatformFact(FrozenStruct, kw_only=True):
    """A fact about an order that the platform itself observed."""

    order_id: UUID
    kind: FactKind
    client_order_id: str  # of the command that it is about
    reason: str | None = None
    broker_order_id: str | None = None
    detail: str | None = None


class AccountRecording(FrozenStruct):
    """Events about an account's orders and positions, and the platform's own facts about them."""

    account_ref: AccountRef
    events: Sequence[BrokerEvent] = ()
    own: Sequence[PlatformFact] = ()
    # Orders that are locked and read, also without a new fact.
    also_locked: frozenset[UUID] = frozenset()
    balance: BrokerBalance | None = None


@dataclass(frozen=True, slots=True)
class NewFacts:
    """New facts of an account's orders, by order (None: of no order of ours, and fees)."""

    facts: dict[IdText | None, list[Fact]] = field(default_factory=dict)
    # Of those that are events, by order and key.
    numbers: dict[tuple[IdText | None, str], int] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)  # broker's ids by client order id
    # Reported under a key that was used for something else, and lost but for a CONFLICT; with their
    # orders.
    conflicts: list[tuple[Fact, IdText | None]] = field(default_factory=list)


class PreparedRecording(FrozenStruct, kw_only=True):
    """A recording whose events are sanitized and turned into facts."""

    account_ref: AccountRef
    account_id: IdText
    events: Sequence[BrokerEvent]
    left_out: tuple[str, ...]
    event_facts: Mapping[int, Fact]  # by the event's number
    own: Sequence[tuple[Fact, IdText]]
    own_clients: Mapping[str, IdText]
    also_locked: frozenset[IdText]
    balance: BrokerBalance | None


def prepare(recording: AccountRecording) -> PreparedRecording:
    events, left_out = sanitize(recording.events)
    own = []
    own_clients = {}
    for each in recording.own:
        order_id = id_text(each.order_id)
        own_clients[each.client_order_id] = order_id
        fact = own_fact(
            each.kind,
            each.client_order_id,
            reason=each.reason and sanitize_text(each.reason),
            broker_order_id=each.broker_order_id and sanitize_id(each.broker_order_id),
            detail=each.detail and sanitize_text(each.detail),
        )
        own.append((fact, order_id))
    event_facts = {}
    for number, event in enumerate(events):
        if event.kind is not EventKind.POSITION:
            event_facts[number] = event_fact(event)
    account_id, _ = recording.account_ref.id_texts
    return PreparedRecording(
        account_ref=recording.account_ref,
        account_id=account_id,
        events=events,
        left_out=left_out,
        event_facts=event_facts,
        own=own,
        own_clients=own_clients,
        also_locked=frozenset(map(id_text, recording.also_locked)),
        balance=recording.balance,
    )


def account_balance(
    account_ref: AccountRef, balance: BrokerBalance | None, now: datetime
) -> AccountBalance | None:
    if balance is None:
        return None
    return AccountBalance(
        account_ref.account_id,
        account_ref.organization_id,
        account_ref.environment,
        account_ref.broker,
        sanitize_balance(balance, now),
    )


def concerned_names(prepared: Sequence[PreparedRecording]) -> ConcernedNames:
    names = ConcernedNames(set(), set(), set(), set(), set())
    for each in prepared:
        account_id = each.account_id
        names.order_ids.update(each.also_locked)
        for fact, order_id in each.own:
            names.order_ids.add(order_id)
            _add_ids(names, account_id, fact)
        for fact in each.event_facts.values():
            names.keys.add(AccountName(account_id, fact.key))
            _add_ids(names, account_id, fact)
        for event in each.events:
            if event.parent:
                names.client_order_ids.add(AccountName(account_id, event.parent))
            if event.symbol and event.kind in (EventKind.POSITION, EventKind.FEE):
                names.symbols.add(AccountName(account_id, event.symbol))
    return names


def _add_ids(names: ConcernedNames, account_id: IdText, fact: Fact) -> None:
    for client_id in (fact.client_order_id, fact.replaces):
        if client_id:
            names.client_order_ids.add(AccountName(account_id, client_id))
    if fact.broker_order_id:
        names.broker_order_ids.add(AccountName(account_id, fact.broker_order_id))


class LedgerIndex:
    """The ledger's rows, indexed for matching."""

    def __init__(self, read: Ledger) -> None:
        self.heads = read.heads
        self.histories: dict[IdText, OrderHistory] = {}  # of those that were read whole
        self.positions = read.positions
        self.covers: dict[AccountName, Cover] = {}  # of symbols with uncovered entries
        self.now = read.now
        # Of an order, or of an account's that have none, by key.
        self.facts: dict[IdText, dict[str, Fact]] = {}
        self.astray: dict[IdText, list[AstrayFact]] = {}
        for each in read.facts:
            fact = each.fact
            self.facts.setdefault(each.account_id, {})[fact.key] = fact
            if fact.kind is not FactKind.FEE and not fact.client_order_id:
                self.astray.setdefault(each.account_id, []).append(each)
        commands = list(read.commands)
        rows = []
        self.uncovered: dict[IdText, list[IdText]] = {}  # entries, by account
        for order_id, head in read.heads.items():
            self.facts[order_id] = {each.key: each for each in head.facts}
            commands += head.commands
            rows.append(head.row)
            if head.row.uncovered_since:
                self.uncovered.setdefault(head.row.account_id, []).append(head.row.order_id)
        self.legs: dict[IdText, list[IdText]] = {}  # of an entry
        for row in sorted(rows, key=lambda row: (row.create_seq, row.order_id)):
            if row.parent_order_id:
                self.legs.setdefault(row.parent_order_id, []).append(row.order_id)
        self.clients: dict[AccountName, CommandRow] = {}
        for sent in commands:
            self.clients[AccountName(sent.account_id, sent.client_order_id)] = sent
        self.brokers: dict[AccountName, list[CommandRow]] = {}
        # Of two commands with the same broker's id the later one counts: venues reuse their ids.
        for sent in sorted(self.clients.values(), key=lambda each: each.sent_at or LONG_AGO):
            if sent.broker_order_id:
                name = AccountName(sent.account_id, sent.broker_order_id)
                self.brokers.setdefault(name, []).append(sent)

    def head_of(self, order_id: IdText) -> OrderHead:
        if order_id not in self.heads:
            raise LedgerMoved
        return self.heads[order_id]

    def entry_of(self, order_id: IdText) -> IdText:
        """The order itself, if it is no leg."""
        return self.head_of(order_id).row.parent_order_id or order_id

    def group_of(self, order_id: IdText) -> list[IdText]:
        """An order, or an entry and then its legs."""
        entry_id = self.entry_of(order_id)
        return [entry_id, *self.legs.get(entry_id, ())]

    def find_leg(self, account_id: IdText, event: BrokerEvent) -> CommandRow | None:
        """The CREATE of the leg that an event names by the order that it was sent with."""
        sent = self.clients.get(AccountName(account_id, event.parent or ""))
        if sent is None:
            return None
        for order_id in self.legs.get(sent.order_id, ()):
            leg = self.heads[order_id]
            for command in leg.commands:
                if leg.row.leg is event.leg and command.action_type is ActionType.CREATE:
                    return command
        return None


class LedgerMoved(Exception):
    """An order is concerned that was not locked: the ledger must be read again."""


def find_new_facts(prepared: PreparedRecording, index: LedgerIndex) -> NewFacts:
    """Finds the new facts. Most streamed events repeat an answer, and are dropped here."""
    account_id = prepared.account_id
    new_facts = NewFacts()
    for number, unnamed in prepared.event_facts.items():
        fact = _named(unnamed, prepared.events[number], account_id, index)
        order_id = find_owner(fact, prepared.own_clients, account_id, index)
        admitted = _admit(fact, order_id, account_id, index, new_facts)
        if admitted:
            new_facts.numbers[order_id, admitted.key] = number
    _add_own(prepared, index, new_facts)
    _adopt(prepared, index, new_facts)
    return new_facts


class Advanced(NamedTuple):
    """The orders that one pass derived, and those that are to be read whole."""

    orders: dict[IdText, DerivedOrder]
    whole: set[IdText]


def advance_common(
    prepared: PreparedRecording, new_facts: NewFacts, index: LedgerIndex
) -> Advanced:
    uncommon = {*prepared.also_locked, *index.uncovered.get(prepared.account_id, ())}
    arrivals = Arrivals(new_facts.numbers, index.now)
    advanced = Advanced({}, set())
    for order_id, facts in new_facts.facts.items():
        if order_id is None:
            continue
        order = advance(index.head_of(order_id), facts, arrivals)
        if order is None or order_id in uncommon:
            uncommon.add(order_id)
        else:
            advanced.orders[order_id] = order
    for order_id in uncommon:
        advanced.whole.update(index.group_of(order_id))
    return advanced


def _admit(
    fact: Fact,
    order_id: IdText | None,
    account_id: IdText,
    index: LedgerIndex,
    new_facts: NewFacts,
) -> Fact | None:
    """Adds a fact that is new to its order, or to the account; gives what is added."""
    if order_id:
        index.head_of(order_id)
    known = index.facts.setdefault(order_id or account_id, {})
    admitted = admit(known, fact)
    if admitted is None:
        return None
    known[admitted.key] = admitted
    if admitted is not fact:
        new_facts.conflicts.append((fact, order_id))
        if order_id is None:
            return None
    new_facts.facts.setdefault(order_id, []).append(admitted)
    return admitted


def _add_own(prepared: PreparedRecording, index: LedgerIndex, new_facts: NewFacts) -> None:
    """Adds the platform's own facts. An answer's ACCEPTED is none if the broker has shown the
    order under that id."""
    for fact, order_id in prepared.own:
        row = index.head_of(order_id).row
        is_known = is_shown(row) and fact.broker_order_id in (None, row.external_order_id)
        shown = [each for each in new_facts.facts.get(order_id, ()) if each.kind is fact.kind]
        is_reported = _command(fact) in map(_command, shown)
        if fact.kind is not FactKind.ACCEPTED or not (is_known or is_reported):
            _admit(fact, order_id, prepared.account_id, index, new_facts)


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
    fact: Fact, own_clients: Mapping[str, IdText], account_id: IdText, index: LedgerIndex
) -> IdText | None:
    """Finds the order of a fact; None: an order that the platform did not send, which never belongs
    to an intent, or a fee, which belongs to the account."""
    if fact.kind is FactKind.FEE:
        return None
    names = [fact.client_order_id]
    if fact.kind not in (FactKind.FILL_BUST, FactKind.FILL_CORRECT):  # which replace an execution
        names.append(fact.replaces)
    for name in names:
        if not name:
            continue
        if name in own_clients:
            return own_clients[name]
        sent = index.clients.get(AccountName(account_id, name))
        if sent:
            return sent.order_id
    sent_as = index.brokers.get(AccountName(account_id, fact.broker_order_id or ""))
    return sent_as[-1].order_id if sent_as else None


def _adopt(prepared: PreparedRecording, index: LedgerIndex, new_facts: NewFacts) -> None:
    """Takes the broker's ids of commands from facts, and adopts earlier facts that came under such
    an id alone."""
    account_id = prepared.account_id
    for order_id, facts in new_facts.facts.items():
        for fact in facts:
            if order_id and fact.client_order_id and fact.broker_order_id:
                new_facts.named[fact.client_order_id] = fact.broker_order_id
    for astray in index.astray.get(account_id, ()):
        fact = astray.fact
        sent_as = []
        for command in _find_commands(fact, account_id, index, new_facts.named):
            if command.sent_at and command.sent_at <= astray.recorded_at:
                sent_as.append((command.sent_at, command.order_id))
        is_adopted = any(fact.key in index.facts.get(owner_id, ()) for _, owner_id in sent_as)
        if sent_as and not is_adopted:
            _, owner_id = max(sent_as)
            if owner_id in new_facts.facts:
                _admit(fact, owner_id, account_id, index, new_facts)


def _find_commands(
    fact: Fact, account_id: IdText, index: LedgerIndex, named: Mapping[str, str]
) -> Iterator[CommandRow]:
    """Those that the broker gave the fact's id, also just now."""
    yield from index.brokers.get(AccountName(account_id, fact.broker_order_id or ""), ())
    for client_id, broker_id in named.items():
        command = index.clients.get(AccountName(account_id, client_id))
        if broker_id == fact.broker_order_id and command and command.broker_order_id is None:
            yield command
