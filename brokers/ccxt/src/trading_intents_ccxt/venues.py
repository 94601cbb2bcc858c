"""The venues that are offered, each as data: hosts, what ccxt asks there, and what their codes mean.
One is added when the cards pass against a simulator of it."""

from collections.abc import Mapping
from decimal import Decimal

from trading_intents.brokers import port
from trading_intents.brokers.port import EventKind
from trading_intents.trading import Environment as Env
from trading_intents.trading import FrozenStruct, OrderKind, RouteStrategy, TimeInForce

PREFIX = "ccxt_"
# A market order is executed at once or not at all: at these venues it has no other time.
TIMES = {
    TimeInForce.GOOD_TILL_CANCEL: "GTC",
    TimeInForce.IMMEDIATE_OR_CANCEL: "IOC",
    TimeInForce.FILL_OR_KILL: "FOK",
}


class Venue(FrozenStruct, kw_only=True):
    id: str  # ccxt's
    url: str
    paper_url: str
    paper_headers: Mapping[str, str] = {}
    paths: Mapping[str, str]  # of ccxt's groups of requests: there are no others, so spot alone
    options: Mapping[str, object]  # ccxt's
    credentials: Mapping[str, str]  # ccxt's names of them, by ours
    key_header: str
    requests_per_minute: int
    quantity_step: Decimal  # the smallest of its markets
    state: str  # the field of an order in which the venue's own word for its state is
    ends: Mapping[str, EventKind]  # by that word
    # Codes, which decide before ccxt's classes do.
    duplicates: frozenset[str]  # or texts: "I have this client order id already"
    absences: frozenset[str]  # the venue's own "there is no such order"
    doubts: frozenset[str]  # it says that it does not know what became of the request
    nothing_done: frozenset[str]  # and it may be asked again
    # Where an order is not asked for by its client order id: ccxt's names of the lists that can be,
    # those of open orders first, so that one which ends meanwhile is in the second.
    lookup_lists: tuple[str, ...] = ()
    lookup_field: str = "clientOrderId"
    # Lists: so many rows at most; the next page is asked for by a field of the first or last row.
    order_page: int = 1_000
    trade_page: int
    order_cursor: str = ""
    trade_cursor: str = ""
    cursor_query: str = "after"
    cursor_row: int = -1
    trade_days: int = 0  # of executions that one list can have; 0: any number

    @property
    def name(self) -> str:
        return PREFIX + self.id

    def setting(self, environment: Env) -> str:
        return f"{self.name}_{environment}_url".upper()

    @property
    def capabilities(self) -> port.Capabilities:
        return port.Capabilities(
            name=self.name,
            environments=(Env.PAPER, Env.LIVE),
            times_in_force={
                OrderKind.LIMIT: tuple(TIMES),
                OrderKind.MARKET: (TimeInForce.IMMEDIATE_OR_CANCEL,),
            },
            routes=(RouteStrategy.SMART,),
            native_replace=False,
            credential_fields=tuple(self.credentials),
            quantity_step=self.quantity_step,
            lookup=port.LookupKind.DURABLE,
            requests_per_minute=self.requests_per_minute,
        )


BINANCE = Venue(
    id="binance",
    url="https://api.binance.com",
    paper_url="https://testnet.binance.vision",
    paths={"public": "/api/v3", "private": "/api/v3"},
    options={
        "defaultType": "spot",
        "fetchMarkets": {"types": ["spot"]},
        "fetchMargins": False,
        "fetchOpenOrders": {"warnWithoutSymbol": False},
        "recvWindow": 5_000,  # what is on its way for longer, Binance drops
    },
    credentials={"api_key": "apiKey", "api_secret": "secret"},
    key_header="X-MBX-APIKEY",
    requests_per_minute=900,
    quantity_step=Decimal("0.00000001"),
    state="status",
    ends={
        "CANCELED": EventKind.CANCELLED,
        "EXPIRED": EventKind.EXPIRED,
        "EXPIRED_IN_MATCH": EventKind.CANCELLED,
        "REJECTED": EventKind.REJECTED,
    },
    duplicates=frozenset({"Duplicate order sent."}),
    absences=frozenset({"-2013", "-2026"}),  # the second: it ended unfilled, 90 days ago
    doubts=frozenset({"-1000", "-1001", "-1006", "-1007", "-1016"}),
    nothing_done=frozenset({"-1003", "-1008", "-1015", "-1021"}),
    trade_page=1_000,
)
OKX = Venue(
    id="okx",
    url="https://www.okx.com",
    paper_url="https://www.okx.com",
    paper_headers={"x-simulated-trading": "1"},
    paths={"rest": ""},
    options={
        "defaultType": "spot",
        "fetchMarkets": {"types": ["spot"]},
        "createOrder": "privatePostTradeOrder",
    },
    credentials={"api_key": "apiKey", "api_secret": "secret", "passphrase": "password"},
    key_header="OK-ACCESS-KEY",
    requests_per_minute=900,
    quantity_step=Decimal("0.00000001"),
    state="state",
    ends={"canceled": EventKind.CANCELLED, "mmp_canceled": EventKind.CANCELLED},
    duplicates=frozenset({"51016"}),
    absences=frozenset({"51603"}),
    doubts=frozenset({"50001", "50004", "50005", "50013", "50026"}),
    nothing_done=frozenset({"50011", "50061", "50102"}),
    order_page=100,
    trade_page=100,
    order_cursor="ordId",
    trade_cursor="billId",
)
BYBIT = Venue(
    id="bybit",
    url="https://api.bybit.com",
    paper_url="https://api-testnet.bybit.com",
    paths={"public": "", "private": ""},
    options={
        "defaultType": "spot",
        "fetchMarkets": {"types": ["spot"]},
        # Unified accounts alone, as all new ones are: ccxt needs not ask.
        "enableUnifiedMargin": False,
        "enableUnifiedAccount": True,
        "recvWindow": 5_000,
    },
    credentials={"api_key": "apiKey", "api_secret": "secret"},
    key_header="X-BAPI-API-KEY",
    requests_per_minute=600,
    quantity_step=Decimal("0.00000001"),
    state="orderStatus",
    ends={
        "Cancelled": EventKind.CANCELLED,
        "PartiallyFilledCanceled": EventKind.CANCELLED,
        "Deactivated": EventKind.CANCELLED,
        "Rejected": EventKind.REJECTED,
    },
    duplicates=frozenset({"170141", "110072"}),
    absences=frozenset({"170213"}),
    doubts=frozenset({"10000", "10016", "170001", "170007", "170032", "170146", "170147"}),
    nothing_done=frozenset({"10002", "10006", "10018", "170005", "170191", "170222"}),
    lookup_lists=("fetch_open_orders", "fetch_canceled_and_closed_orders"),
    lookup_field="orderLinkId",
    order_page=50,
    trade_page=100,
    order_cursor="nextPageCursor",
    trade_cursor="nextPageCursor",
    cursor_query="cursor",
    cursor_row=0,
    trade_days=7,
)
VENUES = {venue.id: venue for venue in (BINANCE, BYBIT, OKX)}
