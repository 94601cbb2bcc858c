"""The sources of events: HTTP, or gRPC with the extra `grpc`."""

import importlib
from collections.abc import AsyncIterator, Iterable, Sequence
from urllib.parse import quote

from trading_intents_client.errors import NotConfigured
from trading_intents_client.stream.events import Event, PositionEvent, SkippedEvent, StatusMessage
from trading_intents_client.stream.following import Connect
from trading_intents_client.stream.sse import follow_http
from trading_intents_client.transport.http import Transport

POSITIONS = "broker_position"


def event_source(
    transport: Transport, account_id: str | None, kinds: Iterable[str] | None, over: str
) -> Connect:
    """Positions are always asked for: with them the server sends a cursor at once, so that no break
    loses an event."""
    if kinds is None:
        return _source(transport, account_id, None, over)
    wanted = {kinds} if isinstance(kinds, str) else {str(kind) for kind in kinds}
    follow = _source(transport, account_id, sorted(wanted | {POSITIONS}), over)
    return follow if POSITIONS in wanted else lambda cursor: _without_positions(follow(cursor))


async def _without_positions(
    events: AsyncIterator[Event | StatusMessage],
) -> AsyncIterator[Event | StatusMessage]:
    async for event in events:
        if isinstance(event, PositionEvent):
            # Its cursor counts all the same.
            event = SkippedEvent(cursor=event.cursor)
        yield event


def _source(
    transport: Transport, account_id: str | None, kinds: Sequence[str] | None, over: str
) -> Connect:
    if over == "http" and account_id is not None:
        path = f"/v1/accounts/{quote(account_id, safe='')}/events"
        params = {"kinds": ",".join(kinds)} if kinds is not None else {}
        return lambda cursor: follow_http(transport, path, params, cursor)
    if over != "grpc":
        raise ValueError(f"over={over!r}: use http or grpc")
    try:
        module = importlib.import_module("trading_intents_client.stream.grpc_source")
    except ImportError as error:
        raise NotConfigured(
            f"{error.name} is missing: pip install 'trading-intents-client[grpc]'"
        ) from None
    source: Connect = module.grpc_source(
        transport, account_id or "", kinds, transport.options.grpc_target
    )
    return source
