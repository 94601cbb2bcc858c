"""A program on the generated client: places an order, reads it back, and prints what it learns as
JSON.

Run by test_generated_client.py with the generator's own Python: python generated_client_program.py
URL KEY
"""

import json
import sys

from generated.api.accounts.list_accounts import sync as list_accounts  # type: ignore[import-not-found]  # made later
from generated.api.controls.set_symbol_control import sync as set_symbol_control  # type: ignore[import-not-found]  # ″
from generated.api.intents.submit_intent import sync as submit_intent  # type: ignore[import-not-found]  # ″
from generated.api.orders.get_order import sync as get_order  # type: ignore[import-not-found]  # ″
from generated.client import AuthenticatedClient  # type: ignore[import-not-found]  # ″
from generated.models import (  # type: ignore[import-not-found]  # ″
    CreateCommand,
    CreateCommandType,
    CreatePayload,
    ManualSwitch,
    MarketSpec,
    OrderSide,
    Problem,
    SpecBody,
    Submit,
)


def order(symbol: str, quantity: str) -> Submit:
    spec = SpecBody(market=MarketSpec(quantity=quantity))
    payload = CreatePayload(symbol=symbol, order_side=OrderSide.BUY, spec=spec)
    return Submit(command=CreateCommand(type_=CreateCommandType.CREATE, payload=payload))


def main(url: str, key: str) -> None:
    client = AuthenticatedClient(url, key, prefix="", auth_header_name="x-api-key")
    account = list_accounts(client=client, limit=1).data[0].id
    placed = submit_intent(
        account, client=client, body=order("GEN", "1"), idempotency_key="generated"
    )
    read = get_order(account, placed.intent_id, client=client)
    invalid = submit_intent(account, client=client, body=order("GEN", "0"))
    set_symbol_control(account, "HALTED", client=client, body=ManualSwitch(manually_disabled=True))
    refused = submit_intent(account, client=client, body=order("HALTED", "1"))
    missing = get_order(account, "none", client=client)
    assert all(isinstance(answer, Problem) for answer in (invalid, refused, missing))
    answered = {
        "order": [read.order_id == placed.intent_id, read.symbol, read.order_side],
        "invalid": [invalid.status, invalid.code, invalid.errors[0].pointer],
        "refused": [refused.status, refused.code, refused.triggered[0].reason],
        "missing": [missing.status, missing.code],
    }
    print(json.dumps(answered))


if __name__ == "__main__":
    main(*sys.argv[1:])
