"""The platform itself: health, metrics, descriptions, brokers, the embedded identity provider."""

from typing import Any

from trading_intents_client.asynchronous.pages import AsyncPages
from trading_intents_client.asynchronous.requests import query
from trading_intents_client.transport.http import Transport
from trading_intents_client.types.accounts import Broker
from trading_intents_client.types.enums import (
    SortOrderName,
)
from trading_intents_client.types.operations import Health, IssuedToken, OutboxHealth


class AsyncPlatform:
    """Requests of operators: health, brokers, tokens."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def liveness(self) -> Health:
        """Whether the process answers at all."""
        return await self._transport.call("GET", "/healthz", Health)

    async def readiness(self) -> Health:
        """Whether the process can do its work; Unavailable when it cannot."""
        return await self._transport.call("GET", "/readyz", Health)

    async def metrics(self) -> str:
        """The metrics as Prometheus text."""
        return (await self._transport.send("GET", "/metrics")).text

    async def openapi(self) -> dict[str, Any]:
        """The API's description, as OpenAPI 3.1."""
        return await self._transport.call("GET", "/openapi.json", dict[str, Any])

    async def docs_page(self) -> str:
        """The API's description, as HTML."""
        return (await self._transport.send("GET", "/docs")).text

    async def home_page(self) -> str:
        """The first page, as HTML."""
        return (await self._transport.send("GET", "/")).text

    async def outbox_health(self) -> OutboxHealth:
        """The backlog of the accounts queue, for service accounts and internal admins."""
        return await self._transport.call("GET", "/v1/accounts/outbox/health", OutboxHealth)

    def brokers(self, *, order: SortOrderName | None = None) -> AsyncPages[Broker]:
        """The brokers, each with its capabilities."""
        return AsyncPages(self._transport, "/v1/brokers", Broker, query(order=order))

    async def issue_token(
        self, client_id: str, client_secret: str, scope: str | None = None
    ) -> IssuedToken:
        """A token of the embedded identity provider, by client credentials."""
        return await self._transport.fetch_token(client_id, client_secret, scope)

    async def provider_metadata(self) -> dict[str, Any]:
        """The endpoints of the embedded identity provider."""
        return await self._transport.call(
            "GET", "/.well-known/openid-configuration", dict[str, Any]
        )

    async def provider_keys(self) -> dict[str, Any]:
        """The public keys that tokens verify with."""
        return await self._transport.call("GET", "/.well-known/jwks.json", dict[str, Any])
