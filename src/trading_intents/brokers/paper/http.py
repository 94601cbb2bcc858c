"""Prices of the paper broker over HTTP: parse, call one use case, render."""

from collections.abc import Callable

import msgspec

from trading_intents.brokers.paper.model import Prices, Quote, Source
from trading_intents.brokers.paper.quotes import Quotes
from trading_intents.errors import LimitReached, NotFound, ValidationFailed
from trading_intents.ids import OrganizationId
from trading_intents.trading import parse_symbol
from trading_intents.web.body import Amount, read_amount, read_symbol
from trading_intents.web.paging import PAGE_PARAMETERS, Listing, read_page
from trading_intents.web.request import Answer, Request, answer_json, show_as
from trading_intents.web.routes import IF_MATCH, Operation, Policy, Route, Tag


class NewQuote(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`last` is a trade, which triggers stops; with its size it also fills resting orders that it
    went through."""

    bid: Amount
    ask: Amount
    bid_size: Amount
    ask_size: Amount
    last: Amount | None = None
    last_size: Amount | None = None


class PaperQuote(msgspec.Struct, kw_only=True):
    organization_id: str
    symbol: str
    bid: str
    ask: str
    bid_size: str
    ask_size: str
    last: str | None
    last_size: str | None
    updated_at: str
    version: int


class PresentQuote(msgspec.Struct, kw_only=True):
    """As the caller's organization sees it: the last that it posted, or the walk's."""

    symbol: str
    bid: str
    ask: str
    bid_size: str
    ask_size: str
    last: str | None
    last_size: str | None
    source: Source
    as_of: str


def quote_routes(
    read: Policy,
    write: Policy,
    organization_of: Callable[[Request], OrganizationId],
    quotes: Quotes,
) -> tuple[Route, ...]:
    @Operation(tag=Tag.PAPER, answer=Listing[PresentQuote], parameters=PAGE_PARAMETERS)
    async def list_paper_quotes(request: Request) -> Answer:
        """List the quotes that the organization posted last, by symbol."""
        organization_id = organization_of(request)
        page = read_page(request, f"paper_quotes:{organization_id}", parse_symbol)
        found = await quotes.list(organization_id, page)
        answer = page.answer(
            found, lambda each: each.symbol, lambda each: _show_present(each.symbol, each)
        )
        return answer_json(answer)

    @Operation(tag=Tag.PAPER, answer=PresentQuote, errors=(NotFound,))
    async def get_paper_quote(request: Request) -> Answer:
        """Read a symbol's present quote: posted, or the walk's."""
        symbol = parse_symbol(request.params["symbol"])
        if symbol is None:
            raise NotFound("no such symbol")
        quote = await quotes.find(organization_of(request), symbol)
        return answer_json(_show_present(symbol, quote))

    @Operation(
        tag=Tag.PAPER,
        body=NewQuote,
        answer=PaperQuote,
        parameters=(IF_MATCH,),
        errors=(LimitReached,),
    )
    async def post_paper_quote(request: Request) -> Answer:
        """Post a quote for the organization's paper accounts."""
        organization_id = organization_of(request)
        symbol = read_symbol("", request.params["symbol"])
        posted = await quotes.post(organization_id, symbol, _read(request), request.if_match())
        shown = show_as(
            PaperQuote,
            posted,
            organization_id=organization_id,
            symbol=symbol,
            updated_at=posted.at,
            version=posted.number,
        )
        return answer_json(shown, version=posted.number)

    return (
        Route("GET", "/v1/paper/quotes", read, list_paper_quotes),
        Route("GET", "/v1/paper/quotes/{symbol}", read, get_paper_quote),
        Route("PUT", "/v1/paper/quotes/{symbol}", write, post_paper_quote),
    )


def _read(request: Request) -> Prices:
    body = request.body(NewQuote, NewQuote.__struct_fields__)
    given = msgspec.structs.asdict(body).items()
    amounts = {name: read_amount(f"/{name}", text) for name, text in given if text is not None}
    prices = Prices(**amounts)
    if prices.bid > prices.ask:
        raise ValidationFailed.at("/bid", "must be at most the ask")
    if prices.last is None and prices.last_size is not None:
        raise ValidationFailed.at("/last_size", "needs `last`")
    return prices


def _show_present(symbol: str, quote: Quote) -> PresentQuote:
    return show_as(PresentQuote, quote, symbol=symbol, as_of=quote.at)
