"""API keys and client secrets: their format, their making, their digests. Never stores, logs or
looks one up."""

import hashlib
import hmac
import re
import secrets
import string
import zlib

from trading_intents.secret import Secret
from trading_intents.trading import Environment

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
RANDOM_LENGTH = 32
CHECKSUM_LENGTH = 6
HINT_LENGTH = 4
CLIENT_SECRET_PREFIX = "tis_"  # noqa: S105 - a prefix, so that leak scanners recognize one

_KEY = re.compile(rf"tip_(?:paper|live)_[0-9A-Za-z]{{{RANDOM_LENGTH + CHECKSUM_LENGTH}}}")


def make_key(environment: Environment) -> Secret:
    return _make(f"tip_{environment}_")


def make_client_secret() -> Secret:
    return _make(CLIENT_SECRET_PREFIX)


def is_key(text: str) -> bool:
    """Whether it is well-formed. Another text never was a key, and needs no look-up."""
    return bool(_KEY.fullmatch(text)) and text[-CHECKSUM_LENGTH:] == _checksum(
        text[:-CHECKSUM_LENGTH]
    )


def digest(text: str) -> bytes:
    """The digest that is stored instead of a key, a client secret or a code."""
    # Not a slow password hash: 128 random bits and more cannot be guessed at any speed, and this
    # runs on every request.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def hint(text: str) -> str:
    """The part of a key that may be shown, so that its owner recognizes it."""
    return text[-HINT_LENGTH:]


def same_digest(one: bytes, other: bytes) -> bool:
    return hmac.compare_digest(one, other)


def _make(prefix: str) -> Secret:
    body = prefix + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))
    return Secret(body + _checksum(body))


def _checksum(body: str) -> str:
    # CRC-32 finds every change of one character for certain, which a truncated hash does not.
    rest = zlib.crc32(body.encode("ascii"))
    characters = ""
    for _ in range(CHECKSUM_LENGTH):
        rest, digit = divmod(rest, len(ALPHABET))
        characters = ALPHABET[digit] + characters
    return characters
