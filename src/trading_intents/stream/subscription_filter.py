"""Selects the events of a page of the log that a connection wants. Pure: no I/O, no queue."""

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
    """An event of the log, ready to be sent: the same object for every subscriber. Without an account it is of the
    organization itself and goes to every scope and environment. `kind` is an EventType, or one of a later version."""

    seq: int
    account_id: UUID | None
    environment: Environment
    kind: int
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
            and (self.environment in (None, entry.environment) or entry.account_id is None)
            and (self.symbol in (None, entry.symbol) or entry.kind not in NARROWED)
        )


class EventPage:
    """Consecutive entries."""

    def __init__(self, entries: Sequence[StreamEntry]) -> None:
        self.entries = entries

    def of_account(self, account_id: UUID) -> Sequence[StreamEntry]:
        """The account's entries and those of the organization itself, in their order."""
        return self._by_account.get(account_id, self._by_account[None])

    @cached_property
    def _by_account(self) -> dict[UUID | None, list[StreamEntry]]:
        of_organization: list[StreamEntry] = []
        found: dict[UUID | None, list[StreamEntry]] = {None: of_organization}
        for entry in self.entries:
            if entry.account_id is None:
                for entries in found.values():
                    entries.append(entry)
            elif entry.account_id in found:
                found[entry.account_id].append(entry)
            else:
                found[entry.account_id] = [*of_organization, entry]
        return found


class SubscriptionFilter:
    """All that one connection wants. An event that several of its subscriptions want is selected once."""

    def __init__(self, wanted: Iterable[Subscription]) -> None:
        self._by_scope: dict[UUID | None, Subscription] = {one.account_id: one for one in wanted}

    def select(self, page: EventPage) -> list[StreamEntry]:
        if len(self._by_scope) == 1:
            ((account_id, only),) = self._by_scope.items()
            candidates = page.entries if account_id is None else page.of_account(account_id)
            return [entry for entry in candidates if only.wants(entry)]
        return [entry for entry in page.entries if self._wants(entry)]

    def _wants(self, entry: StreamEntry) -> bool:
        if entry.account_id is None:
            return any(wanted.wants(entry) for wanted in self._by_scope.values())
        scopes = (self._by_scope.get(entry.account_id), self._by_scope.get(None))
        return any(wanted is not None and wanted.wants(entry) for wanted in scopes)
