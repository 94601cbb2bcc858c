"""A program that gets Ctrl-C while its order has no answer. It prints the key that the error
carries."""

import asyncio
import os
import signal
import sys
import threading

import httpx

from trading_intents_client import Interrupted, TradingClient


class Answerless(httpx.AsyncBaseTransport):
    """The request arrives, and is never answered."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async with httpx.AsyncHTTPTransport() as real:
            await (await real.handle_async_request(request)).aread()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        raise AssertionError


def main(account_id: str, url: str, api_key: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    try:
        with TradingClient(url, api_key=api_key, transport=Answerless()) as client:
            client.account(account_id).buy("AAPL", 3)
    except Interrupted as interrupt:
        print(interrupt.idempotency_key, threading.active_count())


if __name__ == "__main__":
    main(*sys.argv[1:])
