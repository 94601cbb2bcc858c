"""Reference prices over HTTP: parse, call one use case, render."""

from dataclasses import dataclass

import msgspec

from trading_intents.clock import rfc3339
from trading_intents.errors import Forbidden, LimitReached, NotFound, ValidationFailed, either
from trading_intents.identity.access import Gate, caller_of
from trading_intents.identity.model import ApiKeyPrincipal
from trading_intents.prices import model
from trading_intents.prices.service import ReferencePrices
from trading_intents.trading import SYMBOL_RULE, Environment, amount_text, parse_symbol
from trading_intents.web.amount_fields import Amount, read_amount, read_body
from trading_intents.web.paging import PAGE_PARAMETERS, Listing, make_cursor, read_page
from trading_intents.web.request import Answer, Request, answer_json
from trading_intents.web.routing import Operation, Parameter, Route, Tag

ENVIRONMENT = Parameter(
    "environment",
    "Whose prices: paper or live. An API key reads its own and may leave it out.",
    {"type": "string", "enum": list(Environment)},
)
ENVIRONMENT_RULE = f"is missing; use {either(Environment)}"


class NewReferencePrice(msgspec.Struct, forbid_unknown_fields=True):
    """An API key posts for its own environment and may leave it out."""

    price: Amount
    environment: Environment | None = None


class SymbolPrice(msgspec.Struct):
    symbol: str
    environment: Environment
    price: str
    source: model.PriceSource
    as_of: str


@dataclass(frozen=True, slots=True)
class PriceHandlers:
    prices: ReferencePrices

    async def listing(self, request: Request) -> Answer:
        environment, organization_id = _asked_environment(request), caller_of(request).organization_id
        page = read_page(request, f"reference_prices:{organization_id}:{environment}", parse_symbol)
        found = await self.prices.list(organization_id, environment, page)
        cursor = None if found.more_after is None else make_cursor(page.list_name, found.more_after)
        return answer_json(Listing([_show(price) for price in found.prices], cursor))

    async def one(self, request: Request) -> Answer:
        environment, symbol = _asked_environment(request), parse_symbol(request.params["symbol"])
        return answer_json(_show(await self.prices.find(caller_of(request).organization_id, environment, symbol)))

    async def put(self, request: Request) -> Answer:
        body = read_body(request, NewReferencePrice, frozenset({"price"}))
        environment = _permitted(request, body.environment, "/environment")
        symbol = parse_symbol(request.params["symbol"])
        if symbol is None:
            raise ValidationFailed.at("", SYMBOL_RULE)
        price = read_amount("/price", body.price)
        return answer_json(
            _show(await self.prices.post(caller_of(request).organization_id, environment, symbol, price))
        )


def price_routes(read: Gate, write: Gate, prices: ReferencePrices) -> tuple[Route, ...]:
    handlers, path = PriceHandlers(prices), "/v1/reference-prices"
    return (
        Route(
            "GET",
            path,
            read,
            handlers.listing,
            "List the organization's reference prices, by symbol.",
            operation=Operation("list_reference_prices", Tag.PRICES),
            answer=Listing[SymbolPrice],
            parameters=(ENVIRONMENT, *PAGE_PARAMETERS),
            errors=(ValidationFailed,),
        ),
        Route(
            "GET",
            path + "/{symbol}",
            read,
            handlers.one,
            "Read a symbol's reference price.",
            operation=Operation("get_reference_price", Tag.PRICES),
            answer=SymbolPrice,
            parameters=(ENVIRONMENT,),
            errors=(NotFound, ValidationFailed),
        ),
        Route(
            "PUT",
            path + "/{symbol}",
            write,
            handlers.put,
            "Post a symbol's reference price.",
            operation=Operation("post_reference_price", Tag.PRICES),
            body=NewReferencePrice,
            answer=SymbolPrice,
            errors=(LimitReached,),
        ),
    )


def _asked_environment(request: Request) -> Environment:
    text = request.query.get("environment")
    if text is not None and text not in set(Environment):
        raise ValidationFailed.at("?environment", f"found {text[:40]!r}; use {either(Environment)}")
    return _permitted(request, None if text is None else Environment(text), "?environment")


def _permitted(request: Request, named: Environment | None, pointer: str) -> Environment:
    """An API key has one environment; everyone else names it."""
    principal = caller_of(request).principal
    if isinstance(principal, ApiKeyPrincipal):
        if named not in (None, principal.environment):
            raise Forbidden(f"the API key is of environment {principal.environment}, the prices of {named}")
        return principal.environment
    if named is None:
        raise ValidationFailed.at(pointer, ENVIRONMENT_RULE)
    return named


def _show(price: model.ReferencePrice) -> SymbolPrice:
    return SymbolPrice(price.symbol, price.environment, amount_text(price.price), price.source, rfc3339(price.as_of))
