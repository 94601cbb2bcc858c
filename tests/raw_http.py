"""HTTP for tests, which ask some ten thousand times: httpx takes a millisecond for each, this a
tenth."""

import contextlib
import json
import re
import select
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

LIMIT_SECONDS = 30
# The server closes a connection that nobody has used for 75 s, perhaps while we send.
REUSE_SECONDS = 30
BODILESS_STATUSES = (204, 304)
PLAIN_PATH = re.compile(r"/[\w.~!$&'()*+,;=:@/-]*(\?[\w.~!$'()*,;=:@/&-]*)?", re.ASCII)
PLAIN_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
FRAMING = {
    "accept-encoding",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "te",
    "transfer-encoding",
}

Pairs = list[tuple[str, str]]


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

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, local_address: str = ""
    ) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection(
            (str(address.hostname), address.port),
            LIMIT_SECONDS,
            (local_address, 0) if local_address else None,
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        self._headers = {"host": address.netloc, "content-type": "application/json"} | dict(
            headers or {}
        )
        self._used_seconds = time.monotonic()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self._request("GET", path, b"", headers)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        return self._request("POST", path, json.dumps(body).encode(), headers)

    def put(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        return self._request("PUT", path, json.dumps(body).encode(), headers)

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Without a body."""
        return self._request(method, path, b"", headers)

    def _request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None
    ) -> Reply:
        self.send(
            method,
            path,
            self._headers | dict(headers or {}) | {"content-length": str(len(body))},
            body,
        )
        status, pairs, content = self.read(method)
        return Reply(status, dict(pairs), content)

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._used_seconds = time.monotonic()
        self._socket.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    def read(self, method: str) -> tuple[int, Pairs, bytes]:
        """The status, the headers and the content."""
        first = self._answers.readline()
        if not first:
            raise ConnectionResetError("hung up before it answered")
        status = int(first.split()[1])
        pairs = self._read_headers()
        reported = dict(pairs)
        if method == "HEAD" or status in BODILESS_STATUSES:
            return status, pairs, b""
        if reported.get("transfer-encoding") == "chunked":
            return status, pairs, b"".join(self._read_chunks())
        length = int(reported["content-length"])
        content = self._answers.read(length)
        if len(content) < length:
            raise ConnectionResetError("hung up in the middle of its answer")
        return status, pairs, content

    def _read_headers(self) -> Pairs:
        pairs = []
        while (line := self._answers.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            pairs.append((name.lower(), value.strip()))
        return pairs

    def _read_chunks(self) -> Iterable[bytes]:
        while size := int(self._answers.readline(), 16):
            yield self._answers.read(size)
            self._answers.readline()
        self._read_headers()

    def limit(self, seconds: float) -> None:
        """Limits each wait for the other side."""
        self._socket.settimeout(seconds)

    def is_usable(self) -> bool:
        """Whether the other side has said nothing that nobody has read, and neither hung up nor is
        about to."""
        if time.monotonic() - self._used_seconds > REUSE_SECONDS:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


class QuickClient(httpx.Client):
    """An httpx.Client that sends plain requests itself, over connections that it keeps; all others
    httpx sends."""

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        timeout: float = LIMIT_SECONDS,
    ) -> None:
        # Certificates are not read, as that takes longer than most tests: loopback speaks plain
        # http.
        super().__init__(base_url=base_url, headers=headers, timeout=timeout, verify=False)
        self._url = base_url
        self._limit_seconds = timeout
        defaults = {name: value for name, value in self.headers.items() if name not in FRAMING}
        self._defaults = {"host": urlsplit(base_url).netloc} | defaults
        self._idle: list[RawHttp] = []

    def request(self, method: str, url: httpx.URL | str, **more: Any) -> httpx.Response:
        method = method.upper()
        plain = self._plain(method, url, **more)
        return self._ask(method, *plain) if plain else super().request(method, url, **more)

    def _plain(
        self,
        method: str,
        url: httpx.URL | str,
        *,
        json: Any = None,
        content: Any = None,
        headers: Any = None,
        params: Any = None,
        **rest: Any,
    ) -> tuple[str, dict[str, str], bytes] | None:
        """The path, headers and body of a request that httpx would send as they are."""
        if (
            any(not (each is None or each is httpx.USE_CLIENT_DEFAULT) for each in rest.values())
            or self.cookies.jar
        ):
            return None
        if (
            not isinstance(url, str)
            or not isinstance(headers or {}, dict)
            or (params and "?" in url)
        ):
            return None
        if not self._url.startswith("http://"):
            return None
        path = f"{url}?{httpx.QueryParams(params)}" if params else url
        sent = {str(name).lower(): value for name, value in (headers or {}).items()}
        body = (
            _encoded(json)
            if json is not None
            else content.encode()
            if isinstance(content, str)
            else content or b""
        )
        if (
            not isinstance(body, bytes)
            or not PLAIN_PATH.fullmatch(url)
            or not FRAMING.isdisjoint(sent)
        ):
            return None
        if not all(
            isinstance(value, str) and PLAIN_VALUE.fullmatch(value) for value in sent.values()
        ):
            return None
        kind = {"content-type": "application/json"} if json is not None else {}
        length = (
            {"content-length": str(len(body))} if body or method in ("POST", "PUT", "PATCH") else {}
        )
        return path, self._defaults | kind | sent | length, body

    def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> httpx.Response:
        connection = self._connection()
        try:
            # It may have answered before it read everything.
            with contextlib.suppress(ConnectionError):
                connection.send(method, path, headers, body)
            status, pairs, content = connection.read(method)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                kind = httpx.ReadTimeout if isinstance(error, TimeoutError) else httpx.ReadError
                raise kind(str(error)) from error
            raise
        if ("connection", "close") in pairs:
            connection.close()
        else:
            self._idle.append(connection)
        response = httpx.Response(status, headers=pairs, content=content)
        if "set-cookie" in response.headers:
            response.request = httpx.Request(method, self._url + path)
            self.cookies.extract_cookies(response)
        return response

    def _connection(self) -> RawHttp:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        try:
            connection = RawHttp(self._url)
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        connection.limit(self._limit_seconds)
        return connection

    def __exit__(self, *error: Any) -> None:
        while self._idle:
            self._idle.pop().close()
        super().__exit__(*error)


def _encoded(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
