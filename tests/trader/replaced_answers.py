"""Answers to a trader's commands that a test makes up."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.proxy import FaultProxy, Verdict
from tests.tenants import Tenants


@contextmanager
def answers_replaced(tenants: Tenants, path: bytes, answer: bytes | Verdict) -> Iterator[str]:
    """The platform's URL through a proxy that answers requests of a path, or of several, itself."""
    port = urlsplit(tenants.platform.url).port
    assert port
    proxy = FaultProxy(
        port, lambda data: answer if re.search(path, data.partition(b"\r\n")[0]) else Verdict.PASS
    )
    with proxy.running():
        yield f"http://127.0.0.1:{proxy.port}"


def http(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%s" % (
        status,
        len(body),
        body,
    )
