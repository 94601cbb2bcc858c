"""text/event-stream over HTTP: an account's events from a cursor on, for one connection."""

import json
from collections.abc import AsyncIterator, Callable, Mapping

from trading_intents_client.stream.events import Event, StatusMessage, read_event
from trading_intents_client.transport.http import Transport

MAX_EVENT_BYTES = 1 << 20
ReadMessage = Callable[[bytes], Event | StatusMessage | None]


def read_typed(text: bytes) -> Event | StatusMessage | None:
    return read_event(json.loads(text))


async def follow_http(
    transport: Transport,
    path: str,
    params: Mapping[str, str],
    cursor: str | None,
    read: ReadMessage = read_typed,
) -> AsyncIterator[Event | StatusMessage]:
    headers = {"accept": "text/event-stream"} | ({"last-event-id": cursor} if cursor else {})
    async with transport.stream(path, params, headers) as chunks:
        async for text in read_messages(chunks):
            event = read(text)
            if event is not None:
                yield event


async def read_messages(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The `data` of each whole message. One that the connection cuts is left out: it comes again
    after the cursor."""
    rest = b""
    async for chunk in chunks:
        *messages, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        for message in messages:
            lines = [
                line[5:].lstrip(b" ") for line in message.split(b"\n") if line.startswith(b"data:")
            ]
            if lines:
                yield b"\n".join(lines)
        if len(rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
