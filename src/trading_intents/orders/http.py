"""Orders, trades and positions over HTTP: parse, call one use case, render."""

from uuid import UUID

import msgspec

from trading_intents.accounts.http import find_account
from trading_intents.accounts.model import Account
from trading_intents.accounts.service import Accounts
from trading_intents.errors import ValidationFailed
from trading_intents.identity.access import Gate
from trading_intents.ids import ID_RULE, parse_id
from trading_intents.orders import model
from trading_intents.orders.events import day_of
from trading_intents.orders.executions import TradeFlag
from trading_intents.orders.positions import NetPosition
from trading_intents.orders.service import OrderFilter, Orders, PricedPosition
from trading_intents.prices.model import ReferencePrice
from trading_intents.storage.database import Row
from trading_intents.trading import (
    Environment,
    Leg,
    OrderSide,
    OrderType,
    RouteStrategy,
    TimeInForce,
)
from trading_intents.web import paging
from trading_intents.web.body import (
    MAX_REFERENCE_CHARACTERS,
    read_choice,
    read_reference,
    read_symbol,
)
from trading_intents.web.request import Answer, Request, answer_json, show_as
from trading_intents.web.routes import Operation, Parameter, Route, Tag

FILTERS = (
    Parameter(
        "state", "Only orders in this state.", {"type": "string", "enum": list(model.OrderState)}
    ),
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
            "items": {"type": "string", "enum": list(model.OrderStatus)},
            "minItems": 1,
            "uniqueItems": True,
        },
    ),
    Parameter("parent_intent_id", "Only the legs of this intent's order.", {"type": "string"}),
    *paging.time_parameters("created_at"),
)


class Order(msgspec.Struct, kw_only=True):
    order_id: str
    intent_id: str
    command_seq: int
    external_order_id: str | None
    account_id: str
    organization_id: str
    environment: Environment
    broker: str
    symbol: str
    order_state: model.OrderState
    order_status: model.OrderStatus
    order_type: OrderType
    order_side: OrderSide
    limit_price: str | None
    stop_price: str | None
    average_price: str | None
    route_strategy: RouteStrategy
    quantity: str
    filled_quantity: str
    time_in_force: TimeInForce
    client_reference_id: str | None
    reason: str | None
    detail: str | None
    flags: list[model.OrderFlag]
    broker_sent_at: str | None
    received_at: str
    created_at: str
    updated_at: str
    version: int
    trail_amount: str | None
    trail_bps: int | None
    leg: Leg | None
    parent_intent_id: str | None
    active: bool


class Trade(msgspec.Struct, kw_only=True):
    trade_id: str
    exec_id: str
    order_id: str
    intent_id: str
    account_id: str
    symbol: str
    side: OrderSide
    quantity: str
    price: str
    fee: str | None
    cumulative_quantity: str
    leaves_quantity: str
    client_reference_id: str | None
    flags: list[TradeFlag]
    broker_sent_at: str | None
    received_at: str


class Position(msgspec.Struct, kw_only=True):
    symbol: str
    quantity: str
    average_cost: str | None
    realized_pnl: str
    daily_pnl: str
    received_at: str
    opening_quantity: str
    broker_quantity: str | None
    differs: bool
    market_price: str | None
    market_price_at: str | None
    market_value: str | None
    unrealized_pnl: str | None
    broker_sent_at: str | None


def order_routes(gate: Gate, accounts: Accounts, orders: Orders) -> tuple[Route, ...]:
    async def find(request: Request) -> Account:
        return await find_account(request, gate, accounts)

    @Operation(
        tag=Tag.ORDERS,
        answer=paging.Listing[Order],
        parameters=(*FILTERS, *paging.PAGE_PARAMETERS),
        csv_columns=Order.__struct_fields__,
    )
    async def list_orders(request: Request) -> Answer:
        """List the account's orders, in the order of their CREATEs."""
        account = await find(request)
        wanted = _filter(request)
        page = paging.read_page(
            request, f"orders:{account.id}:{wanted}{_name_added(wanted)}", paging.parse_seq
        )
        found = await orders.list(account, wanted, page)
        cursor = (
            None
            if found.more_after is None
            else paging.make_cursor(page.list_name, str(found.more_after))
        )
        return answer_json(paging.Listing([_order(row) for row in found.rows], cursor))

    @Operation(tag=Tag.ORDERS, answer=Order)
    async def get_order(request: Request) -> Answer:
        """Read an order."""
        row = await orders.find(await find(request), parse_id(request.params["order_id"]))
        return answer_json(_order(row), version=row["version"])

    @Operation(
        tag=Tag.ORDERS,
        answer=paging.Listing[Trade],
        parameters=(*paging.time_parameters("received_at"), *paging.PAGE_PARAMETERS),
        csv_columns=Trade.__struct_fields__,
    )
    async def list_trades(request: Request) -> Answer:
        """List the account's trades, in the order of the stream."""
        account = await find(request)
        times = paging.read_times(request)
        page = paging.read_page(
            request, f"trades:{account.id}{paging.name_times(times)}", paging.parse_seq
        )
        rows = await orders.trades(account, times, page)
        return answer_json(page.answer(rows, lambda row: str(row["seq"]), _trade))

    @Operation(
        tag=Tag.ORDERS,
        answer=paging.Listing[Position],
        parameters=paging.PAGE_PARAMETERS,
        csv_columns=Position.__struct_fields__,
    )
    async def list_positions(request: Request) -> Answer:
        """List the account's positions, by symbol."""
        account = await find(request)
        page = paging.read_page(request, f"positions:{account.id}")
        rows = await orders.positions(account, page)
        return answer_json(page.answer(rows, lambda each: str(each.row["symbol"]), _position))

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
    statuses = query.get("status")
    return OrderFilter(
        state=None if state is None else read_choice("?state", state, model.OrderState),
        symbol=None if symbol is None else read_symbol("?symbol", symbol),
        intent_id=_read_id(request, "intent_id"),
        client_reference_id=None
        if reference is None
        else read_reference("?client_reference_id", reference),
        statuses=frozenset() if statuses is None else _read_statuses(statuses.split(",")),
        created=paging.read_times(request),
        parent_intent_id=_read_id(request, "parent_intent_id"),
    )


def _read_id(request: Request, name: str) -> UUID | None:
    text = request.query.get(name)
    if text is not None and parse_id(text) is None:
        raise ValidationFailed.at(f"?{name}", ID_RULE)
    return None if text is None else parse_id(text)


def _read_statuses(names: list[str]) -> frozenset[model.OrderStatus]:
    found = frozenset(read_choice("?status", name, model.OrderStatus) for name in names)
    if len(found) != len(names):
        raise ValidationFailed.at("?status", "names a status more than once; name each once")
    return found


def _name_added(wanted: OrderFilter) -> str:
    """For the list's name, so that a cursor fits no other statuses, times and parent."""
    statuses = ":" + ",".join(sorted(wanted.statuses)) if wanted.statuses else ""
    parent = f":of {wanted.parent_intent_id}" if wanted.parent_intent_id else ""
    return statuses + paging.name_times(wanted.created) + parent


def _order(row: Row) -> Order:
    shown = dict(row)
    shown["intent_id"] = row["order_id"]
    shown["parent_intent_id"] = row["parent_order_id"]
    shown["order_state"] = model.state_of(row["order_status"])
    return Order(**{name: shown[name] for name in Order.__struct_fields__})


def _trade(row: Row) -> Trade:
    shown = dict(row)
    shown["intent_id"] = row["order_id"]
    return Trade(**{name: shown[name] for name in Trade.__struct_fields__})


def _position(priced: PricedPosition) -> Position:
    position = msgspec.convert(dict(priced.row), NetPosition)
    derived = {
        "average_cost": position.average_cost,
        "daily_pnl": position.daily_pnl(day_of(priced.row["now"])),
    }
    return show_as(Position, **{**priced.row, **derived, **_market(position, priced.price)})


def _market(position: NetPosition, price: ReferencePrice | None) -> dict[str, object]:
    if price is None:
        return dict.fromkeys(("market_price", "market_price_at", "market_value", "unrealized_pnl"))
    return {
        "market_price": price.price,
        "market_price_at": price.as_of,
        "market_value": position.market_value(price.price),
        "unrealized_pnl": position.unrealized_pnl(price.price),
    }
