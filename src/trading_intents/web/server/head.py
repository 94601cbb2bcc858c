"""Rules for the head of a request, where httptools is more lenient than other programs. Reads no
bytes itself."""

import httptools

from trading_intents.errors import InvalidRequest
from trading_intents.web.request import Headers

MAX_HEADERS = 128
# Programs differ in which of two they believe.
_SINGLE = (b"host", b"content-length", b"transfer-encoding")


def check_head(
    parser: httptools.HttpRequestParser, version: str, headers: Headers, named: dict[bytes, bytes]
) -> None:
    """Refuses heads that httptools accepts and other programs refuse or read differently."""
    if version not in ("1.1", "1.0"):
        raise InvalidRequest("not an HTTP/1.1 request")
    if b"host" not in named and version == "1.1":
        raise InvalidRequest("the Host header is missing")
    if len(named) != len(headers):
        names = [name for name, _ in headers]
        for single in _SINGLE:
            if names.count(single) > 1:
                raise InvalidRequest(f"the header {single.decode()} is sent more than once")
    if len(headers) > MAX_HEADERS:
        raise InvalidRequest(f"the request has more than {MAX_HEADERS} headers")
    coding = named.get(b"transfer-encoding")
    if coding is not None:
        is_chunked = coding.strip(b" \t").lower() == b"chunked"
        if not is_chunked or version == "1.0":
            raise InvalidRequest("Transfer-Encoding must be chunked")
    if parser.should_upgrade() and (coding is not None or b"content-length" in named):
        raise InvalidRequest("a request with a body cannot ask for another protocol")


def says_close(headers: Headers) -> bool:
    """Whether a Connection header says so, beside whatever else; httptools overlooks it in
    HTTP/1.0."""
    for name, value in headers:
        if name == b"connection":
            for option in value.lower().split(b","):
                if option.strip(b" \t") == b"close":
                    return True
    return False
