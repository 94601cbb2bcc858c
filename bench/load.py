"""A load generator: keep-alive connections that send prepared requests and count the answers.
Bounded in time.

Used by the other programs: `python bench/load.py HOST PORT CONNECTIONS SECONDS FILE [RATE]`, where
FILE has one JSON object a line with `path`, `headers` and `body`; each is sent at most once, in
turn. Prints one JSON object. It shares the machine with what it measures, so it does as little as
it can: no event loop, and it looks only for an answer's end.

Without RATE a connection sends its next request when the last is answered (closed loop). With it
requests leave by the clock, so many a second, whatever is answered (open loop); one that finds no
free connection waits, and its time counts from when it was due.
"""

import gc
import json
import select
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator

ANSWER_BYTES = 65536
WAIT_SECONDS = 10.0


class Connection:
    """One request at a time; the next one leaves when the answer is complete."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.sent_at = 0.0

    def complete(self) -> bool:
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0:
            return False
        start = self.buffer.find(b"content-length: ") + 16
        return len(self.buffer) >= head + 4 + int(
            self.buffer[start : self.buffer.find(b"\r", start)]
        )


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


def run(host: str, port: int, count: int, seconds: float, path: str) -> dict[str, object]:
    requests = iter(list(requests_of(path, host)))
    connections = {
        made.socket.fileno(): made for made in (Connection(host, port) for _ in range(count))
    }
    statuses: Counter[bytes] = Counter()
    latencies: list[float] = []
    sample = b""
    clock = time.perf_counter
    gc.freeze()
    gc.disable()
    with select.epoll() as poll:
        began = time.time()
        started = clock()
        until = started + seconds
        for number, connection in connections.items():
            poll.register(number, select.EPOLLIN)
            connection.sent_at = clock()
            connection.socket.sendall(next(requests))
        busy = count
        while busy:
            ready = poll.poll(WAIT_SECONDS)
            assert ready, "no answer came"
            for number, _ in ready:
                connection = connections[number]
                data = connection.socket.recv(ANSWER_BYTES)
                now = clock()
                assert data, "the connection was closed"
                connection.buffer += data
                if not connection.complete():
                    continue
                status = connection.buffer[9:12]
                statuses[status] += 1
                latencies.append(now - connection.sent_at)
                if status[:1] != b"2" and not sample:
                    sample = connection.buffer[-400:]
                connection.buffer = b""
                request = next(requests, None) if now < until else None
                if request is None:
                    poll.unregister(number)
                    busy -= 1
                else:
                    connection.sent_at = clock()
                    connection.socket.sendall(request)
        took = clock() - started
    ordered = sorted(latencies)
    return {
        "began": began,
        "seconds": took,
        "statuses": {status.decode(): number for status, number in statuses.items()},
        "per_second": sum(number for status, number in statuses.items() if status[:1] == b"2")
        / took,
        "p50_ms": ordered[len(ordered) // 2] * 1000,
        "p99_ms": ordered[len(ordered) * 99 // 100] * 1000,
        "sample": sample.decode(errors="replace"),
    }


def run_by_clock(
    host: str, port: int, count: int, seconds: float, path: str, rate: float
) -> dict[str, object]:
    """Gives of each request when it was due, the seconds until its answer, and the intent's id."""
    requests = list(requests_of(path, host))[: int(seconds * rate)]
    connections = {
        made.socket.fileno(): made for made in (Connection(host, port) for _ in range(count))
    }
    free = deque(connections.values())
    answers: list[tuple[float, float, bytes]] = []
    gc.freeze()
    gc.disable()
    with select.epoll() as poll:
        for number in connections:
            poll.register(number, select.EPOLLIN)
        sent = 0
        started = time.time()
        while len(answers) < len(requests):
            now = time.time()
            while free and sent < len(requests) and started + sent / rate <= now:
                connection = free.popleft()
                connection.sent_at = started + sent / rate  # when it was due
                connection.socket.sendall(requests[sent])
                sent += 1
            wait = (
                started + sent / rate - time.time()
                if free and sent < len(requests)
                else WAIT_SECONDS
            )
            for number, _ in poll.poll(max(wait, 0)):
                connection = connections[number]
                data = connection.socket.recv(ANSWER_BYTES)
                assert data, "the connection was closed"
                connection.buffer += data
                if connection.complete():
                    answers.append(
                        (connection.sent_at, time.time() - connection.sent_at, connection.buffer)
                    )
                    connection.buffer = b""
                    free.append(connection)
    shown = []
    for due, took, answer in answers:
        assert answer[9:12] == b"202", answer
        intent = json.loads(answer.partition(b"\r\n\r\n")[2])
        shown.append((due, took, intent["intent_id"]))
    return {"answers": shown}


if __name__ == "__main__":
    _, host, port, connections, seconds, path, *rate = sys.argv
    where = host, int(port), int(connections), float(seconds), path
    print(json.dumps(run_by_clock(*where, float(rate[0])) if rate else run(*where)))
