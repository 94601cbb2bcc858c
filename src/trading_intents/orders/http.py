"""Orders, trades and positions over HTTP: parse, call one use case, render."""

from functools import partial
from uuid import UUID

import msgspec

from trading_intents.accounts.http import find_account
from trading_intents.accounts.model import Account
from trading_intents.accounts.service import Accounts
from trading_intents.errors import ValidationFailed
from trading_intents.identity.access import Gate
from trading_intents.ids import ID_RULE, parse_id
from trading_intents.orders.events import day_of
from trading_intents.orders.model import (
    OrderFlag,
    OrderState,
    OrderStatus,
)
from trading_intents.orders.service import Orders, PricedPosition
from trading_intents.orders.store import Order, OrderFilter, Trade
from trading_intents.web.body import (
    MAX_REFERENCE_CHARACTERS,
    read_choice,
    read_reference,
    read_symbol,
)
from trading_intents.web.paging import (
    PAGE_PARAMETERS,
    Listing,
    make_cursor,
    name_times,
    parse_seq,
    read_page,
    read_times,
    time_parameters,
)
from trading_intents.web.request import Answer, Request, answer_json, show_as
from trading_intents.web.routes import Operation, Parameter, Route, Tag

FILTERS = (
    Parameter("state", "Only orders in this state.", {"type": "string", "enum": list(OrderState)}),
    Parameter("symbol", "Only orders of this symbol.", {"type": "string"}),
    Parameter("intent_id", "Only the order of this intent.", {"type": "string"}),
    Parameter(
        "client_reference_id",
        "Only orders with this reference.",
        {"type": "string", "maxLength": MAX_REFERENCE_CHARACTERS},
    ),
    Parameter(
        "status",
        "Only orders of this status, or of one of several, separated by commas.",
        {
            "type": "array",
            "items": {"type": "string", "enum": list(OrderStatus)},
            "minItems": 1,
            "uniqueItems": True,
        },
    ),
    Parameter("parent_intent_id", "Only the legs of this intent's order.", {"type": "string"}),
    Parameter("flag", "Only orders with this flag.", {"type": "string", "enum": list(OrderFlag)}),
    *time_parameters("created_at"),
)


class Position(msgspec.Struct, kw_only=True):
    symbol: str
    quantity: str
    average_cost: str | None
    realized_pnl: str
    daily_pnl: str
    received_at: str
    opening_quantity: str
    broker_quantity: str | None
    differs: bool | None
    market_price: str | None
    market_price_at: str | None
    market_value: str | None
    unrealized_pnl: str | None
    broker_sent_at: str | None


# A row without the seq by which it is listed.
_show_order = partial(msgspec.convert, type=Order, from_attributes=True)
_show_trade = partial(msgspec.convert, type=Trade, from_attributes=True)


def order_routes(gate: Gate, accounts: Accounts, orders: Orders) -> tuple[Route, ...]:
    async def find(request: Request) -> Account:
        return await find_account(request, gate, accounts)

    @Operation(
        tag=Tag.ORDERS,
        answer=Listing[Order],
        parameters=(*FILTERS, *PAGE_PARAMETERS),
        csv_columns=Order.__struct_fields__,
    )
    async def list_orders(request: Request) -> Answer:
        """List the account's orders, in the order of their CREATEs."""
        account = await find(request)
        wanted = _filter(request)
        page = read_page(request, f"orders:{account.id}:{wanted}{_name_added(wanted)}", parse_seq)
        found = await orders.list(account, wanted, page)
        cursor = None
        if found.more_after is not None:
            cursor = make_cursor(page.list_name, str(found.more_after))
        return answer_json(Listing([_show_order(row) for row in found.rows], cursor))

    @Operation(tag=Tag.ORDERS, answer=Order)
    async def get_order(request: Request) -> Answer:
        """Read an order."""
        row = await orders.find(await find(request), parse_id(request.params["order_id"]))
        return answer_json(_show_order(row), version=row.version)

    @Operation(
        tag=Tag.ORDERS,
        answer=Listing[Trade],
        parameters=(*time_parameters("received_at"), *PAGE_PARAMETERS),
        csv_columns=Trade.__struct_fields__,
    )
    async def list_trades(request: Request) -> Answer:
        """List the account's trades, in the order of the stream."""
        account = await find(request)
        times = read_times(request)
        page = read_page(request, f"trades:{account.id}{name_times(times)}", parse_seq)
        rows = await orders.trades(account, times, page)
        return answer_json(page.answer(rows, lambda row: str(row.seq), _show_trade))

    @Operation(
        tag=Tag.ORDERS,
        answer=Listing[Position],
        parameters=PAGE_PARAMETERS,
        csv_columns=Position.__struct_fields__,
    )
    async def list_positions(request: Request) -> Answer:
        """List the account's positions, by symbol."""
        account = await find(request)
        page = read_page(request, f"positions:{account.id}")
        rows = await orders.positions(account, page)
        return answer_json(page.answer(rows, lambda each: each.row.symbol, _position))

    of_account = "/v1/accounts/{account_id}"
    return (
        Route("GET", of_account + "/orders", gate, list_orders),
        Route("GET", of_account + "/orders/{order_id}", gate, get_order),
        Route("GET", of_account + "/trades", gate, list_trades),
        Route("GET", of_account + "/positions", gate, list_positions),
    )


def _filter(request: Request) -> OrderFilter:
    query = request.query
    state = query.get("state")
    symbol = query.get("symbol")
    reference = query.get("client_reference_id")
    flag = query.get("flag")
    statuses = query.get("status")
    return OrderFilter(
        state=None if state is None else read_choice("?state", state, OrderState),
        symbol=None if symbol is None else read_symbol("?symbol", symbol),
        intent_id=_read_id(request, "intent_id"),
        client_reference_id=None
        if reference is None
        else read_reference("?client_reference_id", reference),
        statuses=frozenset() if statuses is None else _read_statuses(statuses.split(",")),
        created=read_times(request),
        parent_intent_id=_read_id(request, "parent_intent_id"),
        flag=None if flag is None else read_choice("?flag", flag, OrderFlag),
    )


def _read_id(request: Request, name: str) -> UUID | None:
    text = request.query.get(name)
    if text is None:
        return None
    found = parse_id(text)
    if found is None:
        raise ValidationFailed.at(f"?{name}", ID_RULE)
    return found


def _read_statuses(names: list[str]) -> frozenset[OrderStatus]:
    found = frozenset(read_choice("?status", name, OrderStatus) for name in names)
    if len(found) != len(names):
        raise ValidationFailed.at("?status", "names a status more than once; name each once")
    return found


def _name_added(wanted: OrderFilter) -> str:
    """For the list's name, so that a cursor fits no other statuses, times, parent and flag."""
    statuses = ":" + ",".join(sorted(wanted.statuses)) if wanted.statuses else ""
    parent = f":of {wanted.parent_intent_id}" if wanted.parent_intent_id else ""
    flag = f":{wanted.flag}" if wanted.flag else ""
    return statuses + name_times(wanted.created) + parent + flag


def _position(priced: PricedPosition) -> Position:
    row = priced.row
    price = priced.price
    return show_as(
        Position,
        row,
        daily_pnl=row.daily_pnl(day_of(row.now)),
        market_price=price.price if price else None,
        market_price_at=price.as_of if price else None,
        market_value=row.market_value(price.price) if price else None,
        unrealized_pnl=row.unrealized_pnl(price.price) if price else None,
    )
