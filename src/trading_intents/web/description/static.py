"""The files that browsers get: pages, scripts and styles with their security headers, and an ETag
so that a cached one is not sent again."""

import hashlib
from collections.abc import Iterable

from trading_intents.web.request import Answer, Headers, Request

HTML = b"text/html; charset=utf-8"
MEDIA = {
    ".html": HTML,
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}


def browser_headers(connect_origins: Iterable[str] = ()) -> Headers:
    """The policy of every page: scripts and styles are files of ours, and text never becomes markup
    or code."""
    policy = (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        " ".join(("connect-src 'self'", *connect_origins)),
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
    return [
        (b"content-security-policy", "; ".join(policy).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        # A site that opened the page cannot lead it elsewhere.
        (b"cross-origin-opener-policy", b"same-origin"),
    ]


class StaticFile:
    """A file that is the same for everybody. The browser keeps it, and asks each time whether it is
    still the one."""

    def __init__(self, content: bytes, media: bytes, headers: Headers) -> None:
        self._content = content
        self._media = media
        self._etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        self._headers = [*headers, (b"etag", self._etag.encode()), (b"cache-control", b"no-cache")]

    def answer(self, request: Request) -> Answer:
        known = request.header(b"if-none-match") or ""
        answer = Answer(content_type=self._media, headers=list(self._headers))
        if self._etag in known or known == "*":
            answer.status = 304
        else:
            answer.body = self._content
        return answer
