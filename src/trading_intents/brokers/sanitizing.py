"""All that a broker says passes here before it is recorded: without what a database, a stream or a
log does not take. Pure: no I/O."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from trading_intents.brokers.port import BrokerBalance, BrokerEvent, EventKind
from trading_intents.trading import parse_symbol

MAX_TEXT_CHARACTERS = 500
MAX_CURRENCY_CHARACTERS = 16
_DIGEST_BYTES = 16


def sanitize(events: Iterable[BrokerEvent]) -> tuple[list[BrokerEvent], tuple[str, ...]]:
    """Gives sanitized events, and the keys of those that mean nothing: positions and fees of
    invalid symbols."""
    legible = []
    left_out = []
    for event in events:
        clean = _sanitize_event(event)
        needs_symbol = clean.kind in (EventKind.POSITION, EventKind.FEE)
        if needs_symbol and parse_symbol(clean.symbol or "") is None:
            left_out.append(clean.dedupe_key)
        else:
            legible.append(clean)
    return legible, tuple(left_out)


def sanitize_balance(balance: BrokerBalance, now: datetime) -> BrokerBalance:
    """Never of the future, whatever the venue's clock says."""
    currency = balance.currency and sanitize_text(balance.currency)[:MAX_CURRENCY_CHARACTERS]
    return replace(balance, currency=currency, as_of=min(balance.as_of, now))


def sanitize_id(text: str) -> str:
    """Sanitizes an id; different ids stay different, whatever had to be replaced or cut."""
    clean = sanitize_text(text)
    if clean == text:
        return text
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{clean[: MAX_TEXT_CHARACTERS - len(digest) - 1]}~{digest}"


def sanitize_text(text: str) -> str:
    """Replaces control characters, lone surrogates and all else that cannot be printed by question
    marks."""
    clipped = text[:MAX_TEXT_CHARACTERS]
    if clipped.isprintable():
        return clipped
    return "".join([each if each.isprintable() else "?" for each in clipped])


def host_of(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def cause_of(error: Exception) -> str:
    """The error at the beginning of a chain, as the socket's; only the system's own texts, which
    hold no secret."""
    while isinstance(earlier := error.__cause__ or error.__context__, Exception):
        error = earlier
    text = f": {error}" if isinstance(error, OSError) and str(error) else ""
    return sanitize_text(f"{type(error).__name__}{text}")


def _sanitize_event(event: BrokerEvent) -> BrokerEvent:
    changed: dict[str, Any] = {}
    for name, sanitize_field in _SANITIZERS.items():
        text = getattr(event, name)
        if text is not None and (clean := sanitize_field(text)) != text:
            changed[name] = clean
    return replace(event, **changed) if changed else event


def _sanitize_symbol(text: str) -> str:
    return parse_symbol(text) or sanitize_text(text)


_SANITIZERS: Mapping[str, Callable[[str], str]] = {
    "dedupe_key": sanitize_id,
    "client_order_id": sanitize_id,
    "broker_order_id": sanitize_id,
    "replaces": sanitize_id,
    "exec_id": sanitize_id,
    "reason": sanitize_text,
    "detail": sanitize_text,
    "symbol": _sanitize_symbol,
}
