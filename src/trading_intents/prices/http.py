"""Reference prices over HTTP: parse, call one use case, render."""

import msgspec

from trading_intents.accounts.http import find_account
from trading_intents.accounts.service import Accounts
from trading_intents.errors import LimitReached, NotFound, ValidationFailed, either
from trading_intents.identity.access import Gate, caller_of, organization_of
from trading_intents.identity.model import ApiKeyPrincipal
from trading_intents.prices import model
from trading_intents.prices.service import ReferencePrices
from trading_intents.trading import Environment, parse_symbol
from trading_intents.web.body import (
    Amount,
    named_environment,
    read_amount,
    read_choice,
    read_symbol,
)
from trading_intents.web.paging import PAGE_PARAMETERS, Listing, make_cursor, read_page
from trading_intents.web.request import Answer, Request, answer_json, show_as
from trading_intents.web.routes import Operation, Parameter, Route, Tag

ENVIRONMENT = Parameter(
    "environment",
    "Whose prices: paper or live. An API key reads its own and may leave it out.",
    {"type": "string", "enum": list(Environment)},
)
ACCOUNT = Parameter(
    "account_id",
    "Prices of this account's market. Without it, environment paper has the built-in paper "
    "broker's.",
    {"type": "string", "format": "uuid"},
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


def price_routes(
    read: Gate, write: Gate, prices: ReferencePrices, accounts: Accounts
) -> tuple[Route, ...]:
    @Operation(
        tag=Tag.PRICES,
        answer=Listing[SymbolPrice],
        parameters=(ENVIRONMENT, ACCOUNT, *PAGE_PARAMETERS),
        errors=(NotFound, ValidationFailed),
    )
    async def list_reference_prices(request: Request) -> Answer:
        """List the organization's reference prices, by symbol."""
        market = await asked_market(request)
        organization_id = organization_of(request)
        page = read_page(request, f"reference_prices:{organization_id}:{market}", parse_symbol)
        found = await prices.list(organization_id, market, page)
        cursor = None if found.more_after is None else make_cursor(page.list_name, found.more_after)
        return answer_json(Listing([_show(price) for price in found.prices], cursor))

    @Operation(
        tag=Tag.PRICES,
        answer=SymbolPrice,
        parameters=(ENVIRONMENT, ACCOUNT),
        errors=(NotFound, ValidationFailed),
    )
    async def get_reference_price(request: Request) -> Answer:
        """Read a symbol's reference price."""
        market = await asked_market(request)
        symbol = parse_symbol(request.params["symbol"])
        return answer_json(_show(await prices.find(organization_of(request), market, symbol)))

    @Operation(tag=Tag.PRICES, body=NewReferencePrice, answer=SymbolPrice, errors=(LimitReached,))
    async def post_reference_price(request: Request) -> Answer:
        """Post a symbol's reference price."""
        write.permit_object(request, named_environment(request.json))
        body = request.body(NewReferencePrice, {"price"})
        environment = _permitted(request, write, body.environment, "/environment")
        symbol = read_symbol("", request.params["symbol"])
        price = read_amount("/price", body.price)
        return answer_json(
            _show(await prices.post(organization_of(request), environment, symbol, price))
        )

    async def asked_market(request: Request) -> model.PriceMarket:
        named = request.query.get("account_id")
        if named is None:
            return model.markets_of(_asked_environment(request, read))[0]
        account = await find_account(request, read, accounts, named)
        if request.query.get("environment", account.environment) != account.environment:
            raise ValidationFailed.at(
                "?environment", f"the account is of environment {account.environment}"
            )
        return model.market_of(account.broker, account.environment)

    path = "/v1/reference-prices"
    return (
        Route("GET", path, read, list_reference_prices),
        Route("GET", path + "/{symbol}", read, get_reference_price),
        Route("PUT", path + "/{symbol}", write, post_reference_price),
    )


def _asked_environment(request: Request, gate: Gate) -> Environment:
    text = request.query.get("environment")
    named = None if text is None else read_choice("?environment", text, Environment)
    return _permitted(request, gate, named, "?environment")


def _permitted(
    request: Request, gate: Gate, named: Environment | None, pointer: str
) -> Environment:
    """An API key has one environment; everyone else names it."""
    gate.permit_object(request, named)
    principal = caller_of(request).principal
    if isinstance(principal, ApiKeyPrincipal):
        return principal.environment
    if named is None:
        raise ValidationFailed.at(pointer, ENVIRONMENT_RULE)
    return named


def _show(price: model.ReferencePrice) -> SymbolPrice:
    return show_as(SymbolPrice, price)
