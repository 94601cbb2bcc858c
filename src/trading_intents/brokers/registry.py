"""Which brokers there are and what each can do, known without a connection."""

from collections.abc import Iterable

from trading_intents.brokers.port import Capabilities
from trading_intents.trading import Environment, OrderKind, RouteStrategy, TimeInForce

_T = TimeInForce
_PAPER_TIMES = (_T.DAY, _T.GOOD_TILL_CANCEL, _T.IMMEDIATE_OR_CANCEL, _T.FILL_OR_KILL)
_AUCTION_TIMES = (*_PAPER_TIMES, _T.AT_OPEN, _T.AT_CLOSE)

Manifest = Capabilities

PAPER = Manifest(
    name="paper",
    environments=(Environment.PAPER,),
    times_in_force=dict.fromkeys(OrderKind, _PAPER_TIMES),
    routes=(RouteStrategy.SMART,),
    native_replace=True,
    credential_fields=(),
)
ALPACA = Manifest(
    name="alpaca",
    environments=(Environment.PAPER, Environment.LIVE),
    times_in_force={
        OrderKind.MARKET: _AUCTION_TIMES,
        OrderKind.LIMIT: (*_AUCTION_TIMES, _T.EXT),
        OrderKind.STOP: (_T.DAY, _T.GOOD_TILL_CANCEL),
        OrderKind.STOP_LIMIT: (_T.DAY, _T.GOOD_TILL_CANCEL),
    },
    routes=(RouteStrategy.SMART,),
    native_replace=True,
    credential_fields=("api_key_id", "api_secret"),
)


class Registry:
    def __init__(self, manifests: Iterable[Manifest] = (ALPACA, PAPER)) -> None:
        self._by_name = {manifest.name: manifest for manifest in sorted(manifests, key=lambda m: m.name)}

    def find(self, name: str) -> Manifest | None:
        return self._by_name.get(name)

    def all(self) -> list[Manifest]:
        return list(self._by_name.values())
