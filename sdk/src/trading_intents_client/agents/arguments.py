"""The arguments of tools, named as in the API. An unknown one is refused: a mistyped price is never
ignored."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
AccountId = Annotated[Id, Meta(description="The account's id, as `list_accounts` has it.")]
IntentId = Annotated[Id, Meta(description="The order's intent_id.")]
Symbol = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9./:_-]{0,31}$", description="Such as AAPL.")
]
Amount = Annotated[
    str,
    Meta(
        pattern=r"^(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?$",
        description='A decimal number as text, such as "12.5"; a JSON number is refused.',
    ),
]
IdempotencyKey = Annotated[
    str,
    Meta(
        pattern=r"^[\x20-\x7e]{1,128}$",
        description="A new one for each order that is meant, such as a UUID. After a lost answer "
        "repeat the call with the same one and the same arguments: it is carried out once.",
    ),
]
TakeProfit = Annotated[
    Amount, Meta(description="Closes what a BUY or SELL_SHORT filled, at this limit price.")
]
StopLoss = Annotated[
    Amount, Meta(description="Closes what a BUY or SELL_SHORT filled, by this stop price.")
]
TimeInForceText = Literal[
    "DAY", "GOOD_TILL_CANCEL", "IMMEDIATE_OR_CANCEL", "FILL_OR_KILL", "AT_OPEN", "AT_CLOSE", "EXT"
]
Limit = Annotated[int, Meta(ge=1, le=100, description="How many at most.")]
NextCursor = Annotated[str, Meta(description="Of the page before, for the next one.")]
Reason = Annotated[str, Meta(min_length=1, max_length=500, description="Why, for the record.")]


class ToolArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The root of the arguments of all tools."""


class PageArguments(ToolArguments, frozen=True, kw_only=True):
    limit: Limit = 50
    next_cursor: NextCursor | None = None


class AccountArguments(ToolArguments, frozen=True, kw_only=True):
    account_id: AccountId


class AccountPageArguments(PageArguments, frozen=True, kw_only=True):
    account_id: AccountId


class ListOrdersArguments(AccountPageArguments, frozen=True, kw_only=True):
    state: Literal["OPEN", "CLOSED", "REJECTED"] | None = None
    symbol: Symbol | None = None
    intent_id: IntentId | None = None


class SymbolArguments(AccountArguments, frozen=True, kw_only=True):
    symbol: Symbol


class OptionalSymbolArguments(AccountArguments, frozen=True, kw_only=True):
    symbol: Symbol | None = None


class OrderArguments(SymbolArguments, frozen=True, kw_only=True):
    """Without prices it is a market order; with both a stop-limit order."""

    order_side: Literal["BUY", "SELL", "SELL_SHORT"]
    quantity: Amount
    limit_price: Amount | None = None
    stop_price: Amount | None = None
    take_profit: TakeProfit | None = None
    stop_loss: StopLoss | None = None
    time_in_force: TimeInForceText | None = None


class PlaceOrderArguments(OrderArguments, frozen=True, kw_only=True):
    idempotency_key: IdempotencyKey


class ReplaceOrderArguments(AccountArguments, frozen=True, kw_only=True):
    """The whole order as it is to be: a price that is left out would make it an order of another
    kind."""

    intent_id: IntentId
    quantity: Amount
    limit_price: Amount | None = None
    stop_price: Amount | None = None
    time_in_force: TimeInForceText | None = None
    idempotency_key: IdempotencyKey


class IntentArguments(AccountArguments, frozen=True, kw_only=True):
    intent_id: IntentId


class ClosePositionArguments(SymbolArguments, frozen=True, kw_only=True):
    idempotency_key: IdempotencyKey


class HaltArguments(AccountArguments, frozen=True, kw_only=True):
    reason: Reason


def input_schema(kind: type[ToolArguments]) -> dict[str, Any]:
    """JSON Schema of an object, with nothing to look up elsewhere."""
    schema: dict[str, Any] = msgspec.json.schema(kind)["$defs"][kind.__name__]
    schema.pop("title")
    schema.pop("description", None)
    return schema
