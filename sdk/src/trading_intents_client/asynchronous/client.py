"""The client for asyncio: its endpoint, its credentials, its accounts, market, organization."""

import os
from collections.abc import Iterable
from typing import Self

import httpx

from trading_intents_client.asynchronous.account import AsyncAccount
from trading_intents_client.asynchronous.market import AsyncMarket
from trading_intents_client.asynchronous.orders import AsyncBasket
from trading_intents_client.asynchronous.organization import AsyncOrganization
from trading_intents_client.asynchronous.pages import AsyncPages
from trading_intents_client.asynchronous.platform import AsyncPlatform
from trading_intents_client.asynchronous.requests import given_fields, query
from trading_intents_client.errors import NotFound
from trading_intents_client.stream.events import GapEvent
from trading_intents_client.stream.following import AsyncEventStream
from trading_intents_client.stream.sources import event_source
from trading_intents_client.transport.credentials import Credentials, find_endpoint
from trading_intents_client.transport.http import (
    CONNECT_SECONDS,
    MAX_RETRIES,
    READ_SECONDS,
    Options,
    Transport,
)
from trading_intents_client.types.accounts import TradingAccount
from trading_intents_client.types.enums import (
    EnvironmentName,
    SortOrderName,
)
from trading_intents_client.types.trading import OrderRecord, Position

MIN_ID_CHARACTERS = 8  # of an id that is not typed whole


class AsyncTradingClient:
    """A client of the Trading Intents Platform, for asyncio.

    The URL and the credential are taken from the arguments, else from TRADING_INTENTS_URL and
    TRADING_INTENTS_API_KEY, else from the demo of a `make run` in the current folder.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        credentials: Credentials | None = None,
        organization_id: str | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
        max_retries: int = MAX_RETRIES,
        grpc_target: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        options = Options(
            connect_seconds=connect_seconds,
            read_seconds=read_seconds,
            max_retries=max_retries,
            organization_id=organization_id,
            transport=transport,
            grpc_target=grpc_target,
        )
        self._transport = Transport(find_endpoint(url, api_key, credentials, os.environ), options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections, and ends the streams and waits of other tasks."""
        await self._transport.aclose()

    @property
    def url(self) -> str:
        """The platform's URL."""
        return self._transport.url

    @property
    def organization(self) -> AsyncOrganization:
        """The organization's switch, limits, halt and API keys."""
        return AsyncOrganization(self._transport)

    @property
    def market(self) -> AsyncMarket:
        """Quotes and reference prices."""
        return AsyncMarket(self._transport)

    @property
    def platform(self) -> AsyncPlatform:
        """Health, metrics, brokers and descriptions."""
        return AsyncPlatform(self._transport)

    def account(self, account_id: str) -> AsyncAccount:
        """An account by its id. This asks the platform nothing."""
        return AsyncAccount(self._transport, account_id)

    def basket(self) -> AsyncBasket:
        """An empty basket, for orders of any accounts that are to be sent side by side."""
        return AsyncBasket(self.account)

    async def find_account(self, name: str | None = None) -> AsyncAccount:
        """The open account with this name or id, or the first eight characters of one; without a
        name the only one."""
        accounts = [account async for account in self.accounts() if account.closed_at is None]
        found = [account for account in accounts if name in (None, account.name, account.id)]
        if name and len(name) >= MIN_ID_CHARACTERS:
            found = found or [
                account for account in accounts if account.id.startswith(name.lower())
            ]
        if len(found) == 1:
            return self.account(found[0].id)
        if not found:
            raise NotFound(
                f"there is no open account {name}" if name else "there is no open account"
            )
        names = ", ".join(f"{account.name} ({account.id})" for account in found)
        raise NotFound(f"{len(found)} accounts fit, name one: {names}")

    def accounts(self, *, order: SortOrderName | None = None) -> AsyncPages[TradingAccount]:
        """The organization's accounts, closed ones too. An API key sees those of its
        environment."""
        return AsyncPages(self._transport, "/v1/accounts", TradingAccount, query(order=order))

    async def create_account(
        self,
        name: str,
        broker: str,
        environment: EnvironmentName,
        *,
        external_account_id: str | None = None,
    ) -> TradingAccount:
        """Makes an account at a broker that `platform.brokers()` lists."""
        body = {"name": name, "broker": broker, "environment": str(environment)}
        body |= given_fields(external_account_id=external_account_id)
        return await self._transport.call("POST", "/v1/accounts", TradingAccount, body=body)

    def events(
        self, *, after: str | None = None, kinds: Iterable[str] | None = None
    ) -> AsyncEventStream:
        """The events of all accounts of the organization, over gRPC: it needs the extra `grpc`."""

        async def snapshot(cursor: str | None) -> GapEvent:
            orders = list[OrderRecord]()
            positions = list[Position]()
            async for account in self.accounts():
                gap = await self.account(account.id)._snapshot(cursor)
                orders += gap.orders
                positions += gap.positions
            return GapEvent(orders=tuple(orders), positions=tuple(positions), cursor=cursor)

        source = event_source(self._transport, None, kinds, "grpc")
        return AsyncEventStream(source, snapshot, after, self._transport.options.max_retries)
