"""The stream over HTTP: text/event-stream, written straight to the connection. Encodes nothing for
each subscriber."""

from trading_intents.errors import (
    CursorExpired,
    InternalError,
    LimitReached,
    ValidationFailed,
    either,
)
from trading_intents.identity.access import Gate
from trading_intents.stream.log import open_cursor
from trading_intents.stream.model import EventType
from trading_intents.stream.service import Stream, Streams, SubscribeRequest
from trading_intents.stream.subscriber import failure
from trading_intents.telemetry import Log
from trading_intents.web.request import Answer, Request, ResponseWriter
from trading_intents.web.routes import Operation, Parameter, Route, Tag

EVENT_STREAM = b"text/event-stream"
# Proxies must not collect events before they pass them on.
HEADERS = [(b"x-accel-buffering", b"no")]
LAST_EVENT_ID = Parameter(
    "last-event-id",
    "The cursor to go on after.",
    {"type": "string"},
    where="header",
    check=lambda text: text and open_cursor(text),  # an empty one means none, as in browsers
)
KINDS = {kind.name.lower(): kind for kind in EventType}
# These were all kinds once: a client that names none gets no kind that it does not know.
DEFAULT_KINDS = ("intent_action", "broker_order", "broker_trade", "broker_position")
KINDS_PARAMETER = Parameter(
    "kinds",
    f"The kinds of events wanted, comma-separated: {', '.join(KINDS)}. Default: "
    f"{', '.join(DEFAULT_KINDS)}.",
    {"type": "string", "default": ",".join(DEFAULT_KINDS)},
)


class _EventFeed:
    """Writes a subscriber's events to its connection, for as long as the connection takes them."""

    def __init__(self, streams: Streams, request: Request, log: Log) -> None:
        self._streams = streams
        self._log = log
        self._wire: ResponseWriter | None = None
        self.stream: Stream = streams.open("sse", request, self.resume)

    def open(self, wire: ResponseWriter) -> None:
        self._wire = wire
        self.resume()

    def resume(self) -> None:
        wire = self._wire
        subscriber = self.stream.subscriber
        if wire is None:
            return
        try:
            while not wire.paused and (batch := subscriber.take()):
                wire.write(batch.text)
                subscriber.sent(len(batch.messages), batch.size)
        except Exception as fault:  # the hub calls this, and has other subscribers to serve
            self._log.error("stream failed", exc_info=fault)
            subscriber.end(InternalError("an error of the platform; its log has the details"))
        if subscriber.error is not None and self._wire is not None:
            self._wire = None
            wire.write(failure(subscriber.error.detail).text)
            wire.end()

    def close(self) -> None:
        self._wire = None
        self._streams.close(self.stream)


def event_routes(gate: Gate, streams: Streams, log: Log) -> tuple[Route, ...]:
    @Operation(
        tag=Tag.EVENTS,
        parameters=(LAST_EVENT_ID, KINDS_PARAMETER),
        errors=(CursorExpired, LimitReached),
        answer_media=EVENT_STREAM,
    )
    async def stream_events(request: Request) -> Answer:
        """Follow an account's events as they happen."""
        feed = _EventFeed(streams, request, log)
        try:
            account_id = request.params["account_id"]
            try:
                kinds = _kinds(request.query.get("kinds"))
            except ValidationFailed:
                await streams.find_account(request, account_id)  # 404 and 403 come first
                raise
            requested = SubscribeRequest(
                account_id, kinds, resume_after=request.header(b"last-event-id") or ""
            )
            await streams.subscribe(feed.stream, requested)
        except BaseException:
            feed.close()
            raise
        return Answer(content_type=EVENT_STREAM, headers=list(HEADERS), feed=feed)

    return (Route("GET", "/v1/accounts/{account_id}/events", gate, stream_events),)


def _kinds(text: str | None) -> frozenset[EventType]:
    kinds = set()
    for name in DEFAULT_KINDS if text is None else text.split(","):
        if name not in KINDS:
            raise ValidationFailed.at(
                "?kinds", f"found {name[:40]!r}; use {either(KINDS)}, separated by commas"
            )
        kinds.add(KINDS[name])
    return frozenset(kinds)
