"""Places an order on the demo's paper account and shows what became of it:

python examples/place_order.py http://127.0.0.1:8080
"""

import argparse
import json
import os
import sys
import time
import uuid
from pathlib import Path

import httpx

FINAL = ("FILLED", "CANCELLED", "EXPIRED", "REJECTED")
LIMIT_SECONDS = 10.0
INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended


def main(url: str) -> None:
    with httpx.Client(base_url=url, headers={"x-api-key": read_demo_key()}) as client:
        account = get(client, "/v1/accounts?limit=1")["data"][0]["id"]
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
        while (found := get(client, order))["order_status"] not in FINAL and time.monotonic() < until:
            time.sleep(0.1)
    print(f"{found['order_side']} {found['quantity']} {found['symbol']}: {found['order_status']}", end=" ")
    print(f"{found['filled_quantity']} at {found['average_price']}")


def get(client: httpx.Client, path: str) -> dict:
    return client.get(path).raise_for_status().json()


def read_demo_key() -> str:
    file = Path(os.environ.get("TRADING_INTENTS_DATA_DIR", ".data")) / "demo.json"
    try:
        return json.loads(file.read_text())["api_key"]
    except OSError as error:
        sys.exit(f"{file}: {error.strerror}. Run this in the folder where you typed `make run`.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Place an order on the demo's paper account.")
    parser.add_argument("url", help="where the platform is, such as http://127.0.0.1:8080")
    arguments = parser.parse_args()
    try:
        main(arguments.url)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except httpx.HTTPStatusError as error:
        sys.exit(f"The platform answers {error.response.status_code}: {error.response.text}")
    except (httpx.TransportError, httpx.InvalidURL) as error:
        sys.exit(f"No platform answers at {arguments.url} ({error}). `make run` starts one and prints its address.")
