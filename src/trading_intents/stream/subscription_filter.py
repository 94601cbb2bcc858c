"""Selects the events of a page of the log that a connection wants. Pure: no I/O, no queue."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from uuid import UUID

from trading_intents.stream.log import LoggedEvent
from trading_intents.stream.model import EventType
from trading_intents.stream.text import Message
from trading_intents.trading import Environment, FrozenStruct

# The kinds that a symbol narrows.
NARROWED = frozenset({EventType.BROKER_ORDER, EventType.BROKER_POSITION})


class Subscription(FrozenStruct):
    """One subscription. Its scope is the account, or without one the organization (an API key's
    environment of it)."""

    account_id: UUID | None
    environment: Environment | None
    kinds: frozenset[EventType]
    symbol: str | None

    def wants(self, event: LoggedEvent) -> bool:
        return (
            event.kind in self.kinds
            and (self.environment in (None, event.environment) or event.account_id is None)
            and (self.symbol in (None, event.symbol) or event.kind not in NARROWED)
        )


class EventPage:
    """Consecutive events of the log."""

    def __init__(self, events: Sequence[LoggedEvent]) -> None:
        self.events = events

    def of_account(self, account_id: UUID) -> Sequence[LoggedEvent]:
        """The account's events and those of the organization itself, in their order."""
        return self._by_account.get(account_id, self._by_account[None])

    @cached_property
    def _by_account(self) -> dict[UUID | None, list[LoggedEvent]]:
        of_organization: list[LoggedEvent] = []
        found: dict[UUID | None, list[LoggedEvent]] = {None: of_organization}
        for event in self.events:
            if event.account_id is None:
                for events in found.values():
                    events.append(event)
            elif event.account_id in found:
                found[event.account_id].append(event)
            else:
                found[event.account_id] = [*of_organization, event]
        return found


class SubscriptionFilter:
    """All that one connection wants. An event that several of its subscriptions want is selected
    once."""

    def __init__(self, wanted: Iterable[Subscription]) -> None:
        self._by_scope: dict[UUID | None, Subscription] = {one.account_id: one for one in wanted}

    def select(self, page: EventPage) -> list[LoggedEvent]:
        if len(self._by_scope) == 1:
            ((account_id, only),) = self._by_scope.items()
            candidates = page.events if account_id is None else page.of_account(account_id)
            return [event for event in candidates if only.wants(event)]
        return [event for event in page.events if self._wants(event)]

    def select_messages(self, page: EventPage) -> list[Message]:
        return [event.message for event in self.select(page)]

    def _wants(self, event: LoggedEvent) -> bool:
        if event.account_id is None:
            return any(wanted.wants(event) for wanted in self._by_scope.values())
        for scope in (event.account_id, None):
            wanted = self._by_scope.get(scope)
            if wanted is not None and wanted.wants(event):
                return True
        return False
