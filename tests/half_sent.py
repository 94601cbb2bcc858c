"""A request whose end is sent while the platform drains."""

import json
import socket
from pathlib import Path

import httpx

from tests.platform import STOP_LIMIT_SECONDS

VALIDATE = "/api/v1/auth/api-key/validate"


def demo_key(data_dir: Path) -> str:
    key: str = json.loads((data_dir / "demo.json").read_text())["api_key"]
    return key


class HalfSent:
    """A request to validate a key whose body is on its way while the platform already works on
    it."""

    def __init__(self, url: str, key: str) -> None:
        self._body = json.dumps({"api_key": key}).encode()
        address = httpx.URL(url)
        self._socket = socket.create_connection(
            (address.host, address.port or 80), timeout=STOP_LIMIT_SECONDS
        )
        head = (
            f"POST {VALIDATE} HTTP/1.1\r\nhost: platform\r\ncontent-type: application/json\r\n"
            f"content-length: {len(self._body)}\r\nexpect: 100-continue\r\n\r\n"
        )
        self._socket.sendall(head.encode())
        # The platform asks for the body only once it has taken the request.
        assert self._socket.recv(1024).startswith(b"HTTP/1.1 100 ")
        self._socket.sendall(self._body[:10])

    def finish(self) -> tuple[bytes, bytes]:
        """Send the rest; the answer's head and body, read until the platform closes the
        connection."""
        self._socket.sendall(self._body[10:])
        answer = b"".join(iter(lambda: self._socket.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        return head, body

    def close(self) -> None:
        self._socket.close()
