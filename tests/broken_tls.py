"""A TLS server whose connections break after the handshake, so that what it answers cannot be
decrypted."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.accounts.bao_server import certified

UNREADABLE_RECORD = b"\x17\x03\x03\x00\x20" + b"x" * 32
REQUEST_BYTES = 65536


@contextlib.contextmanager
def broken_tls(folder: Path) -> Iterator[tuple[str, Path]]:
    """Its URL, and the file of the authority that signed for it."""
    tls, authority = certified(folder)

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # the listener is closed
            with contextlib.suppress(OSError), tls.wrap_socket(client, server_side=True) as stream:
                stream.recv(REQUEST_BYTES)
                with socket.socket(fileno=stream.detach()) as plain:
                    plain.sendall(UNREADABLE_RECORD)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}", authority
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
