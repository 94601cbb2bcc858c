"""Quotes of the paper broker, and reference prices."""

from trading_intents_client.asynchronous.pages import AsyncPages
from trading_intents_client.asynchronous.requests import (
    Amount,
    given_fields,
    query,
    segment,
    text_of,
)
from trading_intents_client.transport.http import Transport
from trading_intents_client.types.enums import (
    EnvironmentName,
    SortOrderName,
)
from trading_intents_client.types.market import PostedQuote, Quote, ReferencePrice


class AsyncMarket:
    """Quotes of the paper broker, and reference prices."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def quotes(self, *, order: SortOrderName | None = None) -> AsyncPages[Quote]:
        """The paper broker's quotes, as the organization sees them."""
        return AsyncPages(self._transport, "/v1/paper/quotes", Quote, query(order=order))

    async def quote(self, symbol: str) -> Quote:
        """The paper broker's quote of a symbol."""
        return await self._transport.call("GET", f"/v1/paper/quotes/{segment(symbol)}", Quote)

    async def post_quote(
        self,
        symbol: str,
        *,
        bid: Amount,
        ask: Amount,
        bid_size: Amount,
        ask_size: Amount,
        last: Amount | None = None,
        last_size: Amount | None = None,
    ) -> PostedQuote:
        """Sets the paper price of a symbol for the organization, by which it is priced from then
        on."""
        body = {
            "bid": text_of(bid),
            "ask": text_of(ask),
            "bid_size": text_of(bid_size),
            "ask_size": text_of(ask_size),
        }
        body |= {} if last is None else {"last": text_of(last)}
        body |= {} if last_size is None else {"last_size": text_of(last_size)}
        return await self._transport.call(
            "PUT", f"/v1/paper/quotes/{segment(symbol)}", PostedQuote, body=body
        )

    def reference_prices(
        self,
        *,
        environment: EnvironmentName | None = None,
        account_id: str | None = None,
        order: SortOrderName | None = None,
    ) -> AsyncPages[ReferencePrice]:
        """The prices by which limits and positions are judged, in an account's market. An API key
        has its own environment's; on paper without an account, the built-in paper broker's."""
        params = query(environment=environment, account_id=account_id, order=order)
        return AsyncPages(self._transport, "/v1/reference-prices", ReferencePrice, params)

    async def reference_price(
        self,
        symbol: str,
        *,
        environment: EnvironmentName | None = None,
        account_id: str | None = None,
    ) -> ReferencePrice:
        """A symbol's reference price, in an account's market; NotFound where none is known."""
        path = f"/v1/reference-prices/{segment(symbol)}"
        params = query(environment=environment, account_id=account_id)
        return await self._transport.call("GET", path, ReferencePrice, params=params)

    async def post_reference_price(
        self, symbol: str, price: Amount, *, environment: EnvironmentName | None = None
    ) -> ReferencePrice:
        """Sets a symbol's reference price."""
        body = {"price": text_of(price)} | given_fields(environment=environment)
        return await self._transport.call(
            "PUT", f"/v1/reference-prices/{segment(symbol)}", ReferencePrice, body=body
        )
