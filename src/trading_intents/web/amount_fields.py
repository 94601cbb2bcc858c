"""Amounts in request bodies: decimal strings, with a clear word where a JSON number is sent."""

from decimal import Decimal
from typing import Annotated, TypeVar

import msgspec

from trading_intents.errors import ValidationFailed
from trading_intents.trading import AMOUNT_PATTERN, AMOUNT_RULE, NUMBER_FOR_AMOUNT, parse_amount
from trading_intents.web.request import Request
from trading_intents.web.validation import FOUND_A_NUMBER

Amount = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": AMOUNT_PATTERN})]
Body = TypeVar("Body", bound=msgspec.Struct)


def read_body(request: Request, kind: type[Body], amounts: frozenset[str]) -> Body:
    """The body of that kind, whose top-level fields `amounts` are amounts."""
    try:
        return request.body(kind)
    except ValidationFailed as error:
        pointer, detail = error.errors[0].pointer, error.errors[0].detail
        if pointer.removeprefix("/") in amounts and detail.endswith(FOUND_A_NUMBER):
            raise ValidationFailed.at(pointer, NUMBER_FOR_AMOUNT) from None
        raise


def read_amount(pointer: str, text: str) -> Decimal:
    amount = parse_amount(text)
    if amount is None:
        raise ValidationFailed.at(pointer, AMOUNT_RULE)
    return amount
