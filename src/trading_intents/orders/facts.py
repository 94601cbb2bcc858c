"""Facts: what is known of an order, each once, from its broker and from the platform itself. Pure:
no I/O, no clock."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from itertools import product
from typing import assert_never
from uuid import UUID

from trading_intents.brokers.port import (
    DUPLICATE_ID,
    BrokerEvent,
    CommandResult,
    EventKind,
    Outcome,
)
from trading_intents.trading import FrozenStruct


class FactKind(StrEnum):
    ACCEPTED = "ACCEPTED"
    TRIGGERED = "TRIGGERED"
    FILL = "FILL"
    FILL_BUST = "FILL_BUST"
    FILL_CORRECT = "FILL_CORRECT"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    REJECTED = "REJECTED"
    REPLACED = "REPLACED"
    CANCEL_REJECTED = "CANCEL_REJECTED"
    REPLACE_REJECTED = "REPLACE_REJECTED"
    PENDING_CANCEL = "PENDING_CANCEL"
    PENDING_REPLACE = "PENDING_REPLACE"
    STATUS = "STATUS"
    FEE = "FEE"
    # The platform's own.
    SENT = "SENT"
    UNCERTAIN = "UNCERTAIN"  # sent, and the answer was lost
    NOT_DELIVERED = "NOT_DELIVERED"  # proved absent, or attempts used up and nothing ever sent
    STALE = "STALE"
    # By the broker's answer, or before the send by a control or a disabled account.
    REFUSED = "REFUSED"
    CANCELLED_BEFORE_SEND = "CANCELLED_BEFORE_SEND"
    HALTED = "HALTED"  # a halt came before it was sent
    REPLACE_DROPPED = "REPLACE_DROPPED"
    CANCEL_DROPPED = "CANCEL_DROPPED"
    CONFLICT = "CONFLICT"  # an event came under a key that was used before, for something else


EXECUTIONS = frozenset({FactKind.FILL, FactKind.FILL_BUST, FactKind.FILL_CORRECT})
# Facts by which we end a CREATE that, as far as we know, the broker does not have.
OUR_ENDS = frozenset(
    {
        FactKind.NOT_DELIVERED,
        FactKind.STALE,
        FactKind.REFUSED,
        FactKind.CANCELLED_BEFORE_SEND,
        FactKind.HALTED,
    }
)
_REASONS = {
    FactKind.NOT_DELIVERED: "not_delivered",
    FactKind.STALE: "stale",
    FactKind.CANCELLED_BEFORE_SEND: "before_send",
    FactKind.HALTED: "halted",
    FactKind.CANCEL_REJECTED: "cancel_not_delivered",  # whatever the broker says of it
    FactKind.CANCEL_DROPPED: "cancel_not_delivered",
}
LONG_AGO = datetime.min.replace(tzinfo=UTC)
# Nine pairs of base 32 spell the first 90 bits of a digest: the library's encoder takes five times
# as long.
_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_BASE32_PAIRS = tuple(map("".join, product(_BASE32, repeat=2)))


def client_order_id(action_id: UUID, attempt: int = 0) -> str:
    """The id by which a broker knows a command: short, and revealing to nobody which action it is.
    Only a CANCEL has further attempts, each with an id of its own, since a venue may refuse one
    that was used."""
    name = action_id.bytes + (attempt.to_bytes(4, "big") if attempt else b"")
    digest = hashlib.blake2b(name, digest_size=20).digest()
    number = int.from_bytes(digest[:12], "big") >> 6
    return "".join([_BASE32_PAIRS[number >> shift & 1023] for shift in range(80, -1, -10)])


class CommandKind(StrEnum):
    SUBMIT = "SUBMIT"
    REPLACE = "REPLACE"
    CANCEL = "CANCEL"


class Fact(FrozenStruct, kw_only=True, omit_defaults=True):
    key: str  # the same fact of an order always has the same one
    kind: FactKind
    client_order_id: str | None = None
    broker_order_id: str | None = None
    replaces: str | None = None
    exec_id: str | None = None
    quantity: Decimal | None = None
    price: Decimal | None = None
    fee: Decimal | None = None
    cum_quantity: Decimal | None = None
    average_price: Decimal | None = None
    venue_time: datetime | None = None
    reason: str | None = None
    detail: str | None = None

    @property
    def numbers(self) -> tuple[object, ...]:
        """The values that must be the same when the same fact comes again."""
        if self.kind in EXECUTIONS:
            return self.kind, self.exec_id, self.replaces, self.quantity, self.price
        return self.kind, self.quantity if self.kind is FactKind.FEE else None

    @property
    def moment(self) -> tuple[datetime, int, str]:
        """A sort key that does not depend on the order of arrival. Of one moment the longer key is
        the later one: many venues number their events."""
        return self.venue_time or LONG_AGO, len(self.key), self.key


def event_fact(event: BrokerEvent) -> Fact:
    assert event.kind is not EventKind.POSITION, "a position is no fact of an order"
    duplicate = event.kind is EventKind.REJECTED and event.reason == DUPLICATE_ID
    kind = FactKind.UNCERTAIN if duplicate else FactKind(event.kind.value)
    reported = {name: getattr(event, name) for name in _REPORTED}
    return Fact(key=f"venue:{event.dedupe_key}", kind=kind, **reported)


_REPORTED = tuple(name for name in Fact.__struct_fields__ if name not in ("key", "kind"))


def own_fact(
    kind: FactKind,
    client_order_id: str,
    reason: str | None = None,
    broker_order_id: str | None = None,
    detail: str | None = None,
) -> Fact:
    return Fact(
        key=f"own:{kind}:{client_order_id}",
        kind=kind,
        client_order_id=client_order_id,
        broker_order_id=broker_order_id,
        reason=reason or _REASONS.get(kind),
        detail=detail,
    )


def outcome_kind(command: CommandKind, result: CommandResult) -> FactKind | None:
    """The fact that an answer's outcome is for this kind of command, if any."""
    match result.outcome:
        case Outcome.NOT_SENT:
            return None
        case Outcome.UNKNOWN:
            return FactKind.UNCERTAIN
        case Outcome.ACKED:
            # A REPLACE or CANCEL that was accepted has not been carried out yet.
            return FactKind.ACCEPTED if command is CommandKind.SUBMIT else None
        case Outcome.REJECTED:
            if result.code == DUPLICATE_ID:
                return FactKind.UNCERTAIN
            return {
                CommandKind.SUBMIT: FactKind.REFUSED,
                CommandKind.REPLACE: FactKind.REPLACE_REJECTED,
                CommandKind.CANCEL: FactKind.CANCEL_REJECTED,
            }[command]
        case _:
            assert_never(result.outcome)


def latest(times: Iterable[datetime | None]) -> datetime | None:
    return max(filter(None, times), default=None)


def admit(known: Mapping[str, Fact], fact: Fact) -> Fact | None:
    """Gives the fact to record beside the known ones of its order: itself, none, or a CONFLICT if
    its key has other numbers."""
    kept = known.get(fact.key)
    if kept is None:
        return fact
    if kept.numbers == fact.numbers:
        return None
    conflict = Fact(key=f"own:{FactKind.CONFLICT}:{fact.key}", kind=FactKind.CONFLICT)
    return None if conflict.key in known else conflict


def is_conflict(fact: Fact, known: Iterable[Fact]) -> bool:
    """Whether it is an execution that came before, under another key and with other numbers, so
    that it is lost."""
    if fact.kind is not FactKind.FILL:
        return False
    for each in known:
        is_same = each.kind is FactKind.FILL and each.exec_id == fact.exec_id
        if is_same and each.numbers != fact.numbers:
            return True
    return False


def distinct(facts: Iterable[Fact]) -> tuple[tuple[Fact, ...], bool]:
    """Gives each fact once, by moment, and whether one came again with other numbers. Of facts in
    the order in which they came, the first is kept."""
    by_key, keys_conflict = _first(facts, lambda fact: fact.key)
    once, executions_conflict = _first(
        by_key, lambda fact: fact.exec_id if fact.kind is FactKind.FILL else None
    )
    return tuple(sorted(once, key=lambda fact: fact.moment)), keys_conflict or executions_conflict


def _first(
    facts: Iterable[Fact], identity: Callable[[Fact], str | None]
) -> tuple[list[Fact], bool]:
    kept: dict[str, Fact] = {}
    others = []
    conflict = False
    for fact in facts:
        name = identity(fact)
        if name is None:
            others.append(fact)
            continue
        first = kept.setdefault(name, fact)
        if first is fact:
            continue
        if first.numbers != fact.numbers:
            conflict = True
        elif _completeness(fact) > _completeness(first):
            kept[name] = fact
    return [*kept.values(), *others], conflict


def _completeness(fact: Fact) -> tuple[int, str, str]:
    # The same execution may come from a stream and from a list, which differ in fields beside its
    # numbers.
    fields = (
        fact.fee,
        fact.cum_quantity,
        fact.average_price,
        fact.venue_time,
        fact.client_order_id,
        fact.broker_order_id,
        fact.reason,
        fact.detail,
    )
    return len(fields) - fields.count(None), fact.key, repr(fields)
