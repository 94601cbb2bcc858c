"""Places an order on the demo's paper account and shows what became of it:

python examples/place_order.py http://127.0.0.1:8080
"""

import json
import sys
import time
import uuid
from pathlib import Path

import httpx

FINAL = ("FILLED", "CANCELLED", "EXPIRED", "REJECTED")
LIMIT_SECONDS = 10.0


def main(url: str) -> None:
    key = json.loads(Path(".data/demo.json").read_text())["api_key"]
    with httpx.Client(base_url=url, headers={"x-api-key": key}) as client:
        account = client.get("/v1/accounts", params={"limit": 1}).json()["data"][0]["id"]
        # With the same key a retry answers the first order again: it is never placed twice.
        placed = client.post(
            f"/v1/accounts/{account}/intents",
            headers={"idempotency-key": str(uuid.uuid4())},
            json={
                "command": {
                    "type": "CREATE",
                    "payload": {"symbol": "MSFT", "order_side": "BUY", "spec": {"Market": {"quantity": "5"}}},
                }
            },
        ).raise_for_status()
        order = f"/v1/accounts/{account}/orders/{placed.json()['intent_id']}"
        until = time.monotonic() + LIMIT_SECONDS
        while (found := client.get(order).json())["order_status"] not in FINAL and time.monotonic() < until:
            time.sleep(0.1)
    print(f"{found['order_side']} {found['quantity']} {found['symbol']}: {found['order_status']}", end=" ")
    print(f"{found['filled_quantity']} at {found['average_price']}")


if __name__ == "__main__":
    main(sys.argv[1])
