"""Places orders for alerts that TradingView, or anything else that can POST, sends:
docs/integrations.md.

ALERT_SECRET=... ALERT_SYMBOLS=AAPL,BTCUSD=BTC/USD python examples/tradingview.py [PORT]

It listens on this machine only; let a proxy with TLS pass requests on. The secret is a part of the
URL, as such senders cannot send a secret elsewhere: whoever knows it can trade, so give this
program an API key with a budget.
"""

import hmac
import json
import os
import sys
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trading_intents_client import Account, ControlRejected, TradingClient, TradingError

MAX_BODY_BYTES = 4096
MAX_EXPONENT = 18
MIN_SECRET_CHARACTERS = 32
# TradingView waits three seconds for an answer, and sends an alert again after some that are 5xx.
CONNECT_SECONDS = 0.5
READ_SECONDS = 2.0
SEND_SECONDS = 5  # that a sender may take for its request
FIELDS = {"id", "symbol", "side", "quantity"}
PRICES = {"limit_price", "stop_price"}


class WrongAlert(Exception):
    """An alert that must not become an order; sending it again changes nothing."""


def read_alert(body: bytes) -> dict[str, Any]:
    """JSON, whatever the Content-Type says. Its numbers become exact decimals, never floats."""

    def refuse(text: str) -> Any:
        raise WrongAlert(f"{text} is no number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise WrongAlert("a field is given twice")
        return dict(pairs)

    try:
        alert = json.loads(
            body,
            parse_float=Decimal,
            parse_int=Decimal,
            parse_constant=refuse,
            object_pairs_hook=unique,
        )
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise WrongAlert(f"the alert is no JSON: {error}") from None
    if not isinstance(alert, dict) or not FIELDS <= alert.keys() <= FIELDS | PRICES:
        raise WrongAlert(
            f"an alert has {', '.join(sorted(FIELDS))} and may have {', '.join(sorted(PRICES))}"
        )
    for name in ("id", "symbol", "side"):
        if not isinstance(alert[name], str) or not alert[name]:
            raise WrongAlert(f"{name} must be a text")
    for name in ("quantity", *(PRICES & alert.keys())):
        value = alert[name]
        # Written out in full, 1e999999999 would fill the memory.
        if not isinstance(value, Decimal | str) or (
            isinstance(value, Decimal) and abs(value.adjusted()) > MAX_EXPONENT
        ):
            raise WrongAlert(f"{name} must be a number of a common size")
    return alert


def place_order(
    account: Account, symbols: dict[str, str], alert: dict[str, Any]
) -> tuple[int, str]:
    """The status and a line for the sender. The alert's `id` is the Idempotency-Key: sent twice, it
    is one order."""
    submits = {"buy": account.buy, "sell": account.sell, "short": account.short}
    submit = submits.get(alert["side"].lower())
    if submit is None:
        raise WrongAlert("side must be buy, sell or short")
    if alert["symbol"] not in symbols:
        raise WrongAlert("the symbol is not among ALERT_SYMBOLS")
    prices = {"limit": alert.get("limit_price"), "stop": alert.get("stop_price")}
    try:
        placed = submit(
            symbols[alert["symbol"]], alert["quantity"], **prices, idempotency_key=alert["id"]
        )
    except ControlRejected as error:
        return 409, f"refused: {', '.join(each.reason for each in error.triggered)}"
    except TradingError as error:
        # 5xx: it may or may not have been placed, and the same alert may be sent again.
        status = error.status or 503
        return 503 if error.may_be_recorded or status >= 500 else status, str(error)
    except ValueError as error:
        raise WrongAlert(str(error)) from None
    return 200 if placed.is_replayed else 202, f"order {placed.intent_id}"


def make_handler(
    account: Account, symbols: dict[str, str], secret: str
) -> type[BaseHTTPRequestHandler]:
    class AlertHandler(BaseHTTPRequestHandler):
        timeout = SEND_SECONDS

        def do_POST(self) -> None:
            if not hmac.compare_digest(self.path.encode(), f"/{secret}".encode()):
                self.answer(404, "not found")
                return
            try:
                self.answer(*place_order(account, symbols, self.read()))
            except WrongAlert as error:
                self.answer(422, str(error))

        def read(self) -> dict[str, Any]:
            length = self.headers.get("content-length", "")
            if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY_BYTES:
                raise WrongAlert(f"an alert has at most {MAX_BODY_BYTES} bytes, and says how many")
            return read_alert(self.rfile.read(int(length)))

        def answer(self, status: int, text: str) -> None:
            print(f"{status} {text}", flush=True)
            body = text.encode() + b"\n"
            self.send_response(status)
            self.send_header("content-type", "text/plain; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """The library would log the path, which is the secret."""

    return AlertHandler


def main() -> None:
    secret = os.environ.pop("ALERT_SECRET", "")
    if len(secret) < MIN_SECRET_CHARACTERS or not secret.isalnum() or not secret.isascii():
        sys.exit(
            f"set ALERT_SECRET to {MIN_SECRET_CHARACTERS} or more letters and digits: openssl "
            "rand -hex 32"
        )
    listed = [
        name.strip().partition("=")
        for name in os.environ.get("ALERT_SYMBOLS", "").split(",")
        if name.strip()
    ]
    symbols = {name: symbol or name for name, _, symbol in listed}
    if not symbols:
        sys.exit("set ALERT_SYMBOLS to the symbols that alerts may trade, as AAPL,BTCUSD=BTC/USD")
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    try:
        with TradingClient(
            connect_seconds=CONNECT_SECONDS, read_seconds=READ_SECONDS, max_retries=0
        ) as client:
            account = client.find_account(os.environ.get("TRADING_INTENTS_ACCOUNT"))
            with ThreadingHTTPServer(
                ("127.0.0.1", port), make_handler(account, symbols, secret)
            ) as server:
                print(
                    f"waiting for alerts on http://127.0.0.1:{server.server_port}/ALERT_SECRET",
                    flush=True,
                )
                server.serve_forever()
    except TradingError as error:
        sys.exit(f"no account to trade in: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
