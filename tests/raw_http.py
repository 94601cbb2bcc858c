"""One keep-alive connection, for what asks thousands of times: httpx takes a millisecond for each, this a tenth."""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

LIMIT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Reply:
    status_code: int
    headers: dict[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)


class RawHttp:
    """For one thread at a time. `headers` go with every request."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, local_address: str = "") -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection(
            (str(address.hostname), address.port), LIMIT_SECONDS, (local_address, 0) if local_address else None
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        self._headers = {"host": address.netloc, "content-type": "application/json"} | dict(headers or {})

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self._request("GET", path, b"", headers)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        return self._request("POST", path, json.dumps(body).encode(), headers)

    def put(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        return self._request("PUT", path, json.dumps(body).encode(), headers)

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Without a body."""
        return self._request(method, path, b"", headers)

    def _request(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None) -> Reply:
        sent = self._headers | dict(headers or {}) | {"content-length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        self._socket.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        return self._read()

    def _read(self) -> Reply:
        first = self._answers.readline()
        if not first:
            raise ConnectionResetError("hung up before it answered")
        told: dict[str, str] = {}
        while (line := self._answers.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            told[name.lower()] = value.strip()
        return Reply(int(first.split()[1]), told, self._answers.read(int(told.get("content-length", 0))))

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
