"""Who wants which events: pure selection over a page of the log. No I/O, no queue."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from trading_intents.stream.model import EventType
from trading_intents.stream.subscriber import Message
from trading_intents.trading import Environment

NARROWED = frozenset({EventType.BROKER_ORDER, EventType.BROKER_POSITION})  # the kinds that a symbol narrows


class StreamEntry(NamedTuple):
    """An event of the log, ready to be sent: the same object for every subscriber."""

    seq: int
    account_id: UUID
    environment: Environment
    kind: EventType
    symbol: str
    message: Message


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription. Its scope is the account, or without one the organization (an API key's environment of it)."""

    account_id: UUID | None
    environment: Environment | None
    kinds: frozenset[EventType]
    symbol: str | None

    def wants(self, entry: StreamEntry) -> bool:
        return (
            entry.kind in self.kinds
            and self.environment in (None, entry.environment)
            and (self.symbol in (None, entry.symbol) or entry.kind not in NARROWED)
        )


class EventPage:
    """Some entries in a row."""

    def __init__(self, entries: Sequence[StreamEntry]) -> None:
        self.entries = entries

    @cached_property
    def by_account(self) -> dict[UUID, list[StreamEntry]]:
        found: dict[UUID, list[StreamEntry]] = {}
        for entry in self.entries:
            found.setdefault(entry.account_id, []).append(entry)
        return found


class SubscriptionFilter:
    """All that one connection wants. An event that several of its subscriptions want is selected once."""

    def __init__(self, wanted: Iterable[Subscription]) -> None:
        self._by_scope: dict[UUID | None, Subscription] = {one.account_id: one for one in wanted}

    def select(self, page: EventPage) -> list[StreamEntry]:
        if len(self._by_scope) == 1:
            ((account_id, only),) = self._by_scope.items()
            candidates = page.entries if account_id is None else page.by_account.get(account_id, ())
            return [entry for entry in candidates if only.wants(entry)]
        return [entry for entry in page.entries if self._wants(entry)]

    def _wants(self, entry: StreamEntry) -> bool:
        scopes = (self._by_scope.get(entry.account_id), self._by_scope.get(None))
        return any(wanted is not None and wanted.wants(entry) for wanted in scopes)
