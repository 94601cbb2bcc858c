"""One request and its answer, as small as the hot path needs. Decides nothing."""

import random
import re
from collections.abc import Callable, Collection, Hashable, Iterator
from datetime import datetime, time
from decimal import Decimal
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec

from trading_intents import errors
from trading_intents.clock import rfc3339
from trading_intents.trading import amount_text
from trading_intents.web.body import MAX_BODY_BYTES, convert, read_json

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")
Headers = list[tuple[bytes, bytes]]
MAX_PATH_BYTES = 2 * 1024  # as it was sent, like the query
MAX_QUERY_BYTES = 8 * 1024
MAX_TARGET_BYTES = MAX_PATH_BYTES + len("?") + MAX_QUERY_BYTES
MAX_FORM_BYTES = 8 * 1024
MAX_FIELDS = 50  # of a query or a form
MAX_ENTITY_TAGS = 32
MAX_SHOWN_CHARACTERS = 40
TOKEN_BYTES = 8 * 1024  # of a body, for one token of a rate limit
JSON = b"application/json"
FORM = b"application/x-www-form-urlencoded"
NO_STORE = (b"cache-control", b"no-store")

# This look-up takes a third of the time of isinstance. The encoder renders ids by itself.
_FORMS: dict[type, Callable[[Any], str]] = {
    Decimal: amount_text,
    datetime: rfc3339,
    time: time.isoformat,
}
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}\Z")
_VERSION = re.compile(r"[1-9][0-9]{0,17}\Z")  # only as we send it: a tag is compared as a text
# Parse_qsl keeps these as they are, and takes long to find each.
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ETAG = re.compile(r'\s*(?:(?P<weak>W/)?"(?P<tag>[^"]*)"|(?P<any>\*))\s*\Z')


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    raw_path: bytes
    query_string: bytes
    headers: Headers  # names in lower case
    body: bytes | None  # None: it was larger than MAX_BODY_BYTES, and is not kept
    peer: str
    keep_alive: bool
    taken: bool = True  # False: it began after the process began to stop
    named: dict[bytes, bytes] | None = None  # the headers by name, of two with one name the last
    # It could not be read as a request; this is its answer.
    refusal: errors.PlatformError | None = None

    def join_header(self, name: bytes) -> bytes:
        """A header whose values, if it is sent several times, are one list."""
        return b",".join([value for each, value in self.headers if each == name])

    def check_target(self) -> None:
        """Runs before anything is looked for in the path or the query."""
        if len(self.raw_path) > MAX_PATH_BYTES:
            raise _too_long("path", MAX_PATH_BYTES)
        if len(self.query_string) > MAX_QUERY_BYTES:
            raise _too_long("query", MAX_QUERY_BYTES)


def _too_long(what: str, limit: int) -> errors.UriTooLong:
    return errors.UriTooLong(f"the {what} has more than {limit} bytes, which is the limit")


class PendingAnswer(Protocol):
    """An answer that a handler passes to its request later."""

    def abandon(self) -> None:
        """Called when the caller has hung up."""


class LimitedCaller(Protocol):
    @property
    def slot(self) -> Hashable:
        """The group whose slots its requests take: its organization, or itself if it has none."""

    @property
    def limit_key(self) -> str: ...

    @property
    def organization_limit_key(self) -> str | None:
        """The key of the limit that it shares with others; None: there is none."""


class ResponseWriter(Protocol):
    """Writes a body without an end. Data that is written while it is paused stays in memory."""

    paused: bool

    def write(self, data: bytes) -> None: ...

    def end(self) -> None:
        """Closes the connection after what was written has been sent, or at once if that takes too
        long."""


class StreamingBody(Protocol):
    """A body that goes on until either side ends it."""

    def open(self, wire: ResponseWriter) -> None:
        """Called when the head has been sent."""

    def resume(self) -> None:
        """Called when writing is no longer paused."""

    def close(self) -> None:
        """Called once, when the connection has ended, also if the body was never opened."""


class Answer(msgspec.Struct, kw_only=True):
    """Bytes ready to be sent; with a feed, what it writes follows them."""

    body: bytes = b""
    status: int = 200
    content_type: bytes = JSON
    headers: Headers = []
    feed: StreamingBody | None = None
    # For the log: the request's id and the platform's error.
    failure: tuple[str, errors.PlatformError] | None = None


def answer_json(value: Any, status: int = 200, version: int | None = None) -> Answer:
    """`value` as JSON; a version becomes the ETag."""
    headers = [] if version is None else [(b"etag", b'"%d"' % version)]
    return Answer(
        body=msgspec.json.encode(value), status=status, content_type=JSON, headers=headers
    )


def show_as(kind: type[S], source: object = None, **values: object) -> S:
    """The struct that shows `source`: its attributes of the fields' names, or the `values` that are
    given, each in the form in which the platform sends it."""
    shown = {}
    for name in kind.__struct_fields__:
        value = values[name] if name in values else getattr(source, name)
        form = _FORMS.get(type(value))
        shown[name] = form(value) if form else value
    return kind(**shown)


def request_id(given: bytes | None) -> str:
    if given and _REQUEST_ID.match(given):
        return given.decode()
    return f"{random.getrandbits(96):024x}"


Expected = frozenset[int] | None  # the versions that If-Match accepts


def check_version(version: int, expected: Expected) -> None:
    if expected is not None and version not in expected:
        raise errors.VersionConflict(f"the version is {version}; read it again")


class AnyVersion(frozenset[int]):
    """The versions that `If-Match: *` accepts: whichever there is, but there must be one."""

    def __contains__(self, version: object) -> bool:
        return True


class Request:
    answer: "Callable[[Answer | errors.PlatformError], None]"  # after a PendingAnswer

    __slots__ = (
        "_headers",
        "_query",
        "address",
        "answer",
        "caller",
        "form",
        "headers_out",
        "id",
        "incoming",
        "json",
        "params",
    )

    def __init__(self, incoming: Incoming, params: dict[str, str], address: str) -> None:
        self.incoming = incoming
        self.params = params
        self.address = address
        self._headers = dict(incoming.headers) if incoming.named is None else incoming.named
        self.id = request_id(self._headers.get(b"x-request-id"))
        self.caller: LimitedCaller | None = None
        self.headers_out: Headers = [(b"x-request-id", self.id.encode())]
        self.json: Any = None  # the body as plain values, once it was read
        self.form: dict[str, str] = {}  # the fields of a form, once it was read
        self._query: dict[str, str] | None = None

    def header(self, name: bytes) -> str | None:
        """The header's value; a header that is sent twice is refused."""
        value = self._headers.get(name)
        if value is None:
            return None
        repeated = len(self._headers) != len(self.incoming.headers)
        if repeated and sum(key == name for key, _ in self.incoming.headers) > 1:
            raise errors.InvalidRequest(
                f"the header {name.decode()} is sent more than once; send it once"
            )
        return value.decode("latin-1").strip(" \t")

    @property
    def tokens(self) -> int:
        """The cost in tokens of a rate limit: a body of 64 KiB is as much work as many small
        ones."""
        body = self.incoming.body
        size = MAX_BODY_BYTES + 1 if body is None else len(body)
        return max(1, -(-size // TOKEN_BYTES))

    def parameter(self, where: str, name: str) -> str | None:
        if where == "header":
            return self.header(name.encode())
        return self.query.get(name)

    @property
    def query(self) -> dict[str, str]:
        if self._query is None:
            raw = self.incoming.query_string
            self._query = _read_fields(raw, is_form=False) if raw else {}
        return self._query

    def read_body(self, content_type: bytes, max_bytes: int = MAX_BODY_BYTES) -> bytes:
        """Reads the whole body; it must have the media type that the endpoint takes."""
        if self._headers.get(b"content-type") != content_type:
            header = self.header(b"content-type") or ""
            given = header.partition(";")[0].strip().lower()
            if given.encode("latin-1") != content_type:
                shown = given[:MAX_SHOWN_CHARACTERS] or "none"
                raise errors.UnsupportedMediaType(
                    f"found content-type {shown}; send {content_type.decode()}"
                )
        encoding = self.header(b"content-encoding")
        if encoding is not None and encoding.lower() != "identity":
            raise errors.UnsupportedMediaType(
                "the body is compressed; send it without content-encoding"
            )
        body = self.incoming.body
        if body is None or len(body) > max_bytes:
            raise errors.PayloadTooLarge(
                f"the body has more than {max_bytes} bytes, which is the limit"
            )
        return body

    def read_json(self, max_bytes: int = MAX_BODY_BYTES, is_optional: bool = False) -> None:
        """Reads the body as JSON. Its rules are checked later by `body`, after the 403s and 404s.
        An optional body that is left out is an empty object."""
        if is_optional and self.incoming.body == b"":
            self.json = {}
        else:
            self.json = read_json(self.read_body(JSON, max_bytes))

    def read_form(self, max_bytes: int) -> None:
        self.form = _read_fields(self.read_body(FORM, max_bytes), is_form=True)

    def body(self, kind: type[T], amounts: Collection[str] = ()) -> T:
        return convert(self.json, kind, amounts)

    def if_match(self) -> Expected:
        text = self.header(b"if-match")
        if text is None:
            return None
        versions = set()
        for tag in _entity_tags(text):
            if tag == "*":
                return AnyVersion()
            if _VERSION.match(tag):
                versions.add(int(tag))
        return frozenset(versions)


def _read_fields(raw: bytes, is_form: bool) -> dict[str, str]:
    what = "form" if is_form else "query"
    try:
        text = raw.decode("utf-8" if is_form else "ascii")
        if _BAD_ESCAPE.search(text):
            raise ValueError(text)
        pairs = parse_qsl(text, not is_form, is_form, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        raise errors.InvalidRequest(
            f"the {what} is not URL-encoded UTF-8, or has more than {MAX_FIELDS} fields"
        ) from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise errors.InvalidRequest(
            f"a field of the {what} is given more than once; give each once"
        )
    return fields


def check_entity_tags(text: str) -> None:
    list(_entity_tags(text))


def _entity_tags(text: str) -> Iterator[str]:
    parts = text.split(",", MAX_ENTITY_TAGS)
    if len(parts) > MAX_ENTITY_TAGS:
        raise errors.InvalidRequest(
            f"If-Match has more than {MAX_ENTITY_TAGS} entity tags, which is the limit"
        )
    for part in parts:
        match = _ETAG.match(part)
        if not match:
            raise errors.InvalidRequest('If-Match must be a list of entity tags, such as "3"')
        if not match["weak"]:  # a weak tag never matches a strong comparison
            yield "*" if match["any"] else match["tag"]
