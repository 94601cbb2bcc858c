"""Programs that nobody here wrote take the simulators for the venues: ccxt with a transport of its own,
python-binance, pybit and python-okx."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import ccxt
import pytest
from binance_simulator import BinanceSimulator
from bybit_simulator import BybitSimulator
from okx_simulator import OkxSimulator
from simulator import Answer, SaidFault, Simulator
from simulators import SIMULATORS
from stage import SYMBOL

from trading_intents_ccxt.venues import VENUES, Venue

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from binance.client import Client
    from binance.exceptions import BinanceAPIException
    from okx.Account import AccountAPI
    from okx.Trade import TradeAPI
    from pybit.exceptions import InvalidRequestError
    from pybit.unified_trading import HTTP

D = Decimal
pytestmark = pytest.mark.filterwarnings("ignore")
QUOTE = (D(99), D(100), D(1_000))
NEVER = "AAAAAAAAAAAAAAAAAA"
FIRST = "AAAAAAAAAAAAAAAAAB"
SECOND = "AAAAAAAAAAAAAAAAAC"
THIRD = "AAAAAAAAAAAAAAAAAD"


@contextlib.contextmanager
def simulating(made: Simulator) -> Iterator[str]:
    made.book.quote(*QUOTE)
    with made.serving() as url:
        yield url


@pytest.mark.parametrize("name", sorted(VENUES))
def test_ccxt_itself_trades_there(name: str) -> None:
    venue = VENUES[name]
    simulator = SIMULATORS[name]()
    keys = {theirs: simulator.credentials[ours] for ours, theirs in venue.credentials.items()}
    exchange = getattr(ccxt, name)({**keys, "options": dict(venue.options), "number": str})
    exchange.has["fetchCurrencies"] = False
    exchange.headers |= venue.paper_headers
    with simulating(simulator) as url:
        exchange.urls["api"] = {group: url + path for group, path in venue.paths.items()}
        assert list(exchange.load_markets()) == [SYMBOL]
        assert exchange.fetch_balance()["USDT"]["total"] is not None
        exchange.create_order(SYMBOL, "market", "buy", "2", None, {"clientOrderId": FIRST})
        resting = exchange.create_order(
            SYMBOL, "limit", "buy", "1", "90", {"clientOrderId": SECOND}
        )
        found = find(exchange, venue, FIRST)
        assert (found["status"], found["clientOrderId"]) == ("closed", FIRST)
        assert [D(found["filled"]), D(found["average"])] == [2, 100]
        (trade,) = exchange.fetch_my_trades(SYMBOL)
        assert [D(trade["amount"]), D(trade["price"]), trade["side"]] == [2, 100, "buy"]
        assert (D(trade["fee"]["cost"]), trade["fee"]["currency"]) == (D("0.002"), "BTC")
        (working,) = exchange.fetch_open_orders(SYMBOL)
        assert (working["id"], working["clientOrderId"]) == (resting["id"], SECOND)
        exchange.cancel_order(resting["id"], SYMBOL)
        ended = find(exchange, venue, SECOND)
        assert ended["status"] == "canceled"
        with pytest.raises(ccxt.OrderNotFound):
            find(exchange, venue, NEVER)
        with pytest.raises(ccxt.InsufficientFunds):
            exchange.create_order(SYMBOL, "limit", "sell", "900", "110")
        with pytest.raises(ccxt.ExchangeError):
            exchange.cancel_order(resting["id"], SYMBOL)
        exchange.create_order(SYMBOL, "limit", "buy", "1", "90", {"clientOrderId": THIRD})
        with pytest.raises(ccxt.InvalidOrder, match=r"[Dd]uplicate|51016"):
            exchange.create_order(SYMBOL, "limit", "buy", "1", "90", {"clientOrderId": THIRD})


def find(exchange: Any, venue: Venue, name: str) -> Any:
    """As each venue is asked for an order by its client order id."""
    query = {venue.lookup_field: name}
    if not venue.lookup_lists:
        return exchange.fetch_order(None, SYMBOL, query)
    for method in venue.lookup_lists:
        for row in getattr(exchange, method)(SYMBOL, None, None, query):
            return row
    raise ccxt.OrderNotFound(name)


def test_pybit_trades_there() -> None:
    simulator = BybitSimulator()
    keys = tuple(simulator.credentials.values())
    with simulating(simulator) as url, contextlib.ExitStack() as stack:

        def open_client(secret: str) -> Any:
            client: Any = HTTP(api_key=keys[0], api_secret=secret, max_retries=1)
            stack.callback(client.client.close)
            client.endpoint = url
            return client

        client = open_client(keys[1])
        assert client.get_wallet_balance(accountType="UNIFIED")["retCode"] == 0
        terms = {"category": "spot", "symbol": "BTCUSDT", "side": "Buy"}
        at = {"category": "spot", "symbol": "BTCUSDT"}
        bought = client.place_order(
            **terms, orderType="Market", qty="2", marketUnit="baseCoin", orderLinkId=FIRST
        )
        order_id = bought["result"]["orderId"]
        client.place_order(**terms, orderType="Limit", qty="1", price="90", orderLinkId=SECOND)
        (working,) = client.get_open_orders(**at)["result"]["list"]
        assert (working["orderLinkId"], working["orderStatus"]) == (SECOND, "New")
        client.cancel_order(**at, orderLinkId=SECOND)
        (ended,) = client.get_order_history(**at, orderLinkId=SECOND)["result"]["list"]
        assert ended["orderStatus"] == "Cancelled"
        (trade,) = client.get_executions(**at, orderId=order_id)["result"]["list"]
        assert (trade["execQty"], trade["execFee"], trade["feeCurrency"]) == ("2", "0.002", "BTC")
        assert client.get_order_history(**at, orderLinkId=NEVER)["result"]["list"] == []
        limit = {**terms, "orderType": "Limit"}
        wrong = open_client("wrong")
        refusals: tuple[tuple[int, Callable[[], object]], ...] = (
            (170142, lambda: client.cancel_order(**at, orderLinkId=SECOND)),
            (170139, lambda: client.cancel_order(**at, orderLinkId=FIRST)),
            (170213, lambda: client.cancel_order(**at, orderLinkId=NEVER)),
            (
                170131,
                lambda: client.place_order(**limit, qty="9000", price="9000", orderLinkId="M"),
            ),
            (
                170137,
                lambda: client.place_order(**limit, qty="1.1111111", price="9", orderLinkId="D"),
            ),
            (10004, lambda: wrong.get_open_orders(**at)),
        )
        for code, call in refusals:
            with pytest.raises(InvalidRequestError) as raised:
                call()
            assert raised.value.status_code == code


def test_python_binance_trades_there() -> None:
    simulator = BinanceSimulator()
    with simulating(simulator) as url, contextlib.ExitStack() as stack:
        client: Any = Client(*simulator.credentials.values(), ping=False)
        stack.callback(client.session.close)
        client.API_URL = f"{url}/api"
        client.ping()
        info = client.get_symbol_info("BTCUSDT")
        assert {each["filterType"] for each in info["filters"]} >= {"LOT_SIZE", "PRICE_FILTER"}
        bought = client.order_market_buy(symbol="BTCUSDT", quantity="2", newClientOrderId=FIRST)
        assert (bought["status"], bought["fills"][0]["commissionAsset"]) == ("FILLED", "BTC")
        client.order_limit_buy(symbol="BTCUSDT", quantity="1", price="90", newClientOrderId=SECOND)
        (working,) = client.get_open_orders(symbol="BTCUSDT")
        assert (working["clientOrderId"], working["status"]) == (SECOND, "NEW")
        client.cancel_order(symbol="BTCUSDT", origClientOrderId=SECOND)
        ended = client.get_order(symbol="BTCUSDT", origClientOrderId=SECOND)
        assert ended["status"] == "CANCELED"
        (trade,) = client.get_my_trades(symbol="BTCUSDT", orderId=bought["orderId"])
        assert (trade["qty"], trade["commission"]) == ("2.00000000", "0.00200000")
        assert D(client.get_asset_balance(asset="BTC")["free"]) == D("2.498")
        refusals: tuple[tuple[int, Callable[[], object]], ...] = (
            (-2013, lambda: client.get_order(symbol="BTCUSDT", origClientOrderId=NEVER)),
            (-2011, lambda: client.cancel_order(symbol="BTCUSDT", origClientOrderId=SECOND)),
            (-1121, lambda: client.get_open_orders(symbol="NOSUCH")),
            (-1013, lambda: client.order_market_buy(symbol="BTCUSDT", quantity="0.000001")),
            (-2010, lambda: client.order_market_sell(symbol="BTCUSDT", quantity="900")),
        )
        for code, call in refusals:
            with pytest.raises(BinanceAPIException) as raised:
                call()
            assert raised.value.code == code
        text = "Timeout waiting for response from backend server."
        answer = Answer(400, {"code": -1007, "msg": text})
        simulator.faults.append(SaidFault(answer, is_done=True))
        with pytest.raises(BinanceAPIException) as raised:
            client.order_limit_buy(symbol="BTCUSDT", quantity="1", price="90")
        assert raised.value.code == -1007
        assert len(client.get_open_orders()) == 1
        wrong: Any = Client(simulator.credentials["api_key"], "wrong", ping=False)
        stack.callback(wrong.session.close)
        wrong.API_URL = f"{url}/api"
        with pytest.raises(BinanceAPIException) as raised:
            wrong.get_account()
        assert raised.value.code == -1022


def test_python_okx_trades_there() -> None:
    simulator = OkxSimulator()
    keys = tuple(simulator.credentials.values())
    with simulating(simulator) as url, contextlib.ExitStack() as stack:
        client: Any = stack.enter_context(TradeAPI(*keys, flag="1", domain=url))
        account: Any = stack.enter_context(AccountAPI(*keys, flag="1", domain=url))
        assert account.get_account_balance()["code"] == "0"
        terms = {"instId": "BTC-USDT", "tdMode": "cash", "side": "buy"}
        bought = client.place_order(
            **terms, ordType="market", sz="2", tgtCcy="base_ccy", clOrdId=FIRST
        )
        assert (bought["code"], bought["data"][0]["sCode"]) == ("0", "0")
        client.place_order(**terms, ordType="limit", sz="1", px="90", clOrdId=SECOND)
        (working,) = client.get_order_list(instType="SPOT")["data"]
        assert (working["clOrdId"], working["state"]) == (SECOND, "live")
        client.cancel_order("BTC-USDT", clOrdId=SECOND)
        (ended,) = client.get_order("BTC-USDT", clOrdId=SECOND)["data"]
        assert ended["state"] == "canceled"
        (trade,) = client.get_fills_history("SPOT", instId="BTC-USDT")["data"]
        assert (trade["fillSz"], trade["fee"], trade["feeCcy"]) == ("2", "-0.002", "BTC")
        assert client.get_order("BTC-USDT", clOrdId=NEVER)["code"] == "51603"
        for code, answer in (
            ("51400", client.cancel_order("BTC-USDT", clOrdId=SECOND)),
            ("51008", client.place_order(**terms, ordType="limit", sz="9000", px="9000")),
            ("51121", client.place_order(**terms, ordType="limit", sz="1.000001", px="90")),
        ):
            assert (answer["code"], answer["data"][0]["sCode"]) == ("1", code)
        wrong: Any = stack.enter_context(TradeAPI(*keys[:2], "wrong", flag="1", domain=url))
        assert wrong.get_order_list()["code"] == "50105"
