"""A load generator: keep-alive connections that send prepared requests and count the answers. Bounded in time.

Used by the other programs: `python bench/load.py HOST PORT CONNECTIONS SECONDS FILE`, where FILE has one JSON object a
line with `path`, `headers` and `body`; each is sent at most once, in turn. Prints one JSON object.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import cast

import uvloop


class Connection(asyncio.Protocol):
    """One request at a time; the next one leaves when the answer is complete."""

    def __init__(self, requests: Iterator[bytes], until: float, tally: "Tally") -> None:
        self._requests, self._until, self._tally = requests, until, tally
        self._buffer = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        start = self._buffer.find(b"content-length: ") + 16
        length = int(self._buffer[start : self._buffer.find(b"\r", start)])
        if len(self._buffer) < head + 4 + length:
            return
        self._tally.answer(self._buffer[9:12], time.perf_counter() - self._sent_at, self._buffer)
        self._buffer = b""
        self._send()

    def _send(self) -> None:
        request = next(self._requests, None)
        if request is None or time.perf_counter() > self._until:
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(request)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Tally:
    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.sample = ""

    def answer(self, status: bytes, seconds: float, whole: bytes) -> None:
        self.statuses[status.decode()] += 1
        self.seconds.append(seconds)
        if status[:1] != b"2" and not self.sample:
            self.sample = whole.decode(errors="replace")[-400:]


def requests_of(path: str, host: str) -> Iterator[bytes]:
    with open(path) as lines:
        for line in lines:
            item = json.loads(line)
            headers = "".join(f"{name}: {value}\r\n" for name, value in item["headers"].items())
            body = item["body"]
            yield (
                f"POST {item['path']} HTTP/1.1\r\nhost: {host}\r\n{headers}"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
            ).encode()


async def main(host: str, port: int, connections: int, seconds: float, path: str) -> None:
    requests, tally = iter(list(requests_of(path, host))), Tally()
    started = time.perf_counter()
    loop = asyncio.get_running_loop()
    protocols = [
        (await loop.create_connection(lambda: Connection(requests, started + seconds, tally), host, port))[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(protocol.done for protocol in protocols))
    took = time.perf_counter() - started
    ordered = sorted(tally.seconds) or [0.0]
    print(
        json.dumps(
            {
                "seconds": took,
                "statuses": tally.statuses,
                "per_second": sum(n for status, n in tally.statuses.items() if status[0] == "2") / took,
                "p50_ms": ordered[len(ordered) // 2] * 1000,
                "p99_ms": ordered[len(ordered) * 99 // 100] * 1000,
                "sample": tally.sample,
            }
        )
    )


if __name__ == "__main__":
    _, host, port, connections, seconds, path = sys.argv
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(host, int(port), int(connections), float(seconds), path))
