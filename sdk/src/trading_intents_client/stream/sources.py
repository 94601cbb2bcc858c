"""Where events come from: HTTP, or gRPC with the extra `grpc`."""

import importlib
from collections.abc import Iterable
from urllib.parse import quote

from trading_intents_client.errors import NotConfigured
from trading_intents_client.stream.following import Connect
from trading_intents_client.stream.sse import follow_http
from trading_intents_client.transport.http import Transport


def event_source(
    transport: Transport, account_id: str | None, kinds: Iterable[str] | None, over: str, grpc_target: str | None
) -> Connect:
    wanted = tuple(kinds) if kinds is not None else None
    if over == "http" and account_id is not None:
        path = f"/v1/accounts/{quote(account_id, safe='')}/events"
        params = {"kinds": ",".join(wanted)} if wanted is not None else {}
        return lambda cursor: follow_http(transport, path, params, cursor)
    if over != "grpc":
        raise ValueError(f"over={over!r}: use http or grpc")
    try:
        module = importlib.import_module("trading_intents_client.stream.grpc_source")
    except ImportError as error:
        raise NotConfigured(f"{error.name} is missing: pip install 'trading-intents-client[grpc]'") from None
    source: Connect = module.grpc_source(transport, account_id or "", wanted, grpc_target)
    return source
