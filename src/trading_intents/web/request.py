"""One request and its answer, as small as the hot path needs. Knows ASGI; decides nothing."""

import asyncio
import re
import secrets
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec

from trading_intents.errors import InvalidRequest, PayloadTooLarge, RequestTimeout, UnsupportedMediaType
from trading_intents.web.body import MAX_BODY_BYTES, convert, read_json

T = TypeVar("T")
Scope = dict[str, Any]
BODY_SECONDS = 10
MAX_QUERY_FIELDS = 50
JSON = b"application/json"
FORM = b"application/x-www-form-urlencoded"

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}\Z")
_ETAG = re.compile(r'\s*(?:(?P<weak>W/)?"(?P<tag>[^"]*)"|(?P<any>\*))\s*\Z')


class Receive(Protocol):
    async def __call__(self) -> dict[str, Any]: ...


class Caller(Protocol):
    @property
    def limit_key(self) -> str: ...


class Answer:
    """Bytes ready to be sent."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        body: bytes = b"",
        status: int = 200,
        content_type: bytes = JSON,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self.body, self.status, self.content_type = body, status, content_type
        self.headers = headers or []


def answer_json(value: Any, status: int = 200, version: int | None = None) -> Answer:
    """`value` as JSON; a version becomes the ETag."""
    headers = [] if version is None else [(b"etag", b'"%d"' % version)]
    return Answer(msgspec.json.encode(value), status, JSON, headers)


class Request:
    __slots__ = ("_query", "_receive", "address", "caller", "headers_out", "id", "params", "scope", "tree")

    def __init__(self, scope: Scope, receive: Receive, params: dict[str, str], address: str) -> None:
        self.scope, self._receive, self.params, self.address = scope, receive, params, address
        given = self._header_values(b"x-request-id")
        usable = len(given) == 1 and _REQUEST_ID.match(given[0])
        self.id = given[0].decode() if usable else secrets.token_hex(12)
        self.caller: Caller | None = None
        self.headers_out: list[tuple[bytes, bytes]] = [(b"x-request-id", self.id.encode())]
        self.tree: Any = None  # the body as plain values, once it was read
        self._query: dict[str, str] | None = None

    def header(self, name: bytes) -> str | None:
        """The header's one value; a header that is sent twice says two things and is refused."""
        values = self._header_values(name)
        if not values:
            return None
        if len(values) > 1:
            raise InvalidRequest(f"the header {name.decode()} is sent more than once")
        return values[0].decode("latin-1").strip(" \t")

    def _header_values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.scope["headers"] if key == name]

    @property
    def query(self) -> dict[str, str]:
        if self._query is None:
            self._query = self._parse_query()
        return self._query

    def _parse_query(self) -> dict[str, str]:
        raw = self.scope["query_string"]
        if not raw:
            return {}
        try:
            pairs = parse_qsl(
                raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS
            )
        except ValueError:
            raise InvalidRequest("the query string cannot be read") from None
        query = dict(pairs)
        if len(query) != len(pairs):
            raise InvalidRequest("a query parameter is given more than once")
        return query

    async def read_body(self, content_type: bytes) -> bytes:
        """The whole body, at most 64 KiB, of exactly the media type that the endpoint takes."""
        given = (self.header(b"content-type") or "").partition(";")[0].strip().lower()
        if given.encode("latin-1") != content_type:
            raise UnsupportedMediaType(f"send the body as {content_type.decode()}")
        if (self.header(b"content-encoding") or "identity").lower() != "identity":
            raise UnsupportedMediaType("send the body without content-encoding")
        length = self.header(b"content-length")
        if length and (not length.isascii() or not length.isdigit() or len(length) > 9 or int(length) > MAX_BODY_BYTES):
            raise PayloadTooLarge(f"at most {MAX_BODY_BYTES} bytes")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await self._receive_body()
        except TimeoutError:
            raise RequestTimeout(f"the body did not arrive within {BODY_SECONDS} s") from None

    async def _receive_body(self) -> bytes:
        message = await self._receive()
        body: bytes = message.get("body", b"")
        while message.get("more_body"):
            if len(body) > MAX_BODY_BYTES:
                break
            message = await self._receive()
            body += message.get("body", b"")
        if message["type"] == "http.disconnect":
            raise InvalidRequest("the client went away before the body was complete")
        if len(body) > MAX_BODY_BYTES:
            raise PayloadTooLarge(f"at most {MAX_BODY_BYTES} bytes")
        return body

    async def read_json(self) -> None:
        """Phase one: the body can be read. Its rules are checked by `body`, after the 403s and 404s."""
        self.tree = read_json(await self.read_body(JSON))

    def body(self, kind: type[T]) -> T:
        return convert(self.tree, kind)

    def if_match(self) -> frozenset[int] | None:
        """The versions that a conditional write accepts; None when it is not conditional."""
        text = self.header(b"if-match")
        if text is None:
            return None
        versions = set()
        for tag in _entity_tags(text):
            if tag == "*":
                return None
            if tag.isascii() and tag.isdigit() and len(tag) <= 18:
                versions.add(int(tag))
        return frozenset(versions)


def _entity_tags(text: str) -> Iterator[str]:
    for part in text.split(","):
        match = _ETAG.match(part)
        if not match:
            raise InvalidRequest('If-Match must be a list of entity tags, such as "3"')
        if not match["weak"]:  # a weak tag never matches a strong comparison
            yield "*" if match["any"] else match["tag"]
