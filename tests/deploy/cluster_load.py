"""Submits orders through the cluster's HAProxy for a while, in its network: a line of JSON for each order that was
accepted, and one at the end. Each order has its Idempotency-Key, and is tried until it is answered."""

import itertools
import json
import ssl
import sys
import time
from collections import Counter

import httpx

URL = "https://10.0.0.10"
SPEC = {"Market": {"quantity": "1"}}
BODY = {"command": {"type": "CREATE", "payload": {"symbol": "AAPL", "order_side": "BUY", "spec": SPEC}}}


def main(key: str, account: str, seconds: str, certificate: str) -> None:
    answers: Counter[str] = Counter()
    ends, last, longest = time.monotonic() + float(seconds), time.monotonic(), 0.0
    context = ssl.create_default_context(cafile=certificate)
    with httpx.Client(base_url=URL, verify=context, headers={"x-api-key": key}, timeout=10) as client:
        for number in itertools.count():
            while True:
                try:
                    headers = {"idempotency-key": f"order-{number}"}
                    answer = client.post(f"/v1/accounts/{account}/intents", json=BODY, headers=headers)
                    answers[str(answer.status_code)] += 1
                except httpx.TransportError as error:
                    answers[type(error).__name__] += 1
                    continue
                if answer.status_code == 202:
                    break
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            print(json.dumps({"key": f"order-{number}", "intent": answer.json()["intent_id"]}), flush=True)
            if last >= ends:
                break
    print(json.dumps({"answers": answers, "longest_seconds": round(longest, 2)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
