"""A venue that answers when a test lets it."""

import asyncio

from tests.fakes import FakeVenue, VenueSession
from trading_intents.brokers.port import CommandResult, IntegrationContext, OrderTicket


class SlowVenue(FakeVenue):
    """Takes commands, and answers none before the test lets it."""

    def __init__(self, **capabilities: object) -> None:
        super().__init__("paper", **capabilities)
        self.commands: list[str] = []
        self.answers = asyncio.Event()

    def connect(self, context: IntegrationContext) -> VenueSession:
        return SlowSession(self, context.account.id)


class SlowSession(VenueSession):
    async def _call(self, command: str, ticket: OrderTicket) -> CommandResult:
        assert isinstance(self._venue, SlowVenue)
        self._venue.commands.append(command)
        await self._venue.answers.wait()
        return await super()._call(command, ticket)
