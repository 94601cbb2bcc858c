"""The interface of a vault: it seals a credential's secrets into bytes that the database keeps.
Never shows a secret in an error, and never opens one for another row than its own."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from trading_intents.accounts.model import SecretRef
from trading_intents.errors import ValidationFailed
from trading_intents.secret import Secret

MAX_FIELDS_BYTES = 128 * 1024  # encoded; more than a request's body can hold


class Vault(Protocol):
    """SecretUnreadable: these bytes will not open. Unavailable: try again."""

    async def seal(self, ref: SecretRef, secrets: Mapping[str, Secret]) -> bytes: ...

    async def open(self, ref: SecretRef, sealed: bytes) -> dict[str, Secret]: ...

    async def forget(self, ref: SecretRef, sealed: bytes) -> None:
        """Once no row holds `sealed` any more. May be repeated."""


def encode_fields(secrets: Mapping[str, Secret]) -> bytes:
    """Canonical JSON."""
    try:
        fields = msgspec.json.encode(
            {name: secret.reveal() for name, secret in secrets.items()}, order="sorted"
        )
    except UnicodeEncodeError:
        fields = None  # and not raised from here: that error holds the text
    if fields is None or len(fields) > MAX_FIELDS_BYTES:
        raise ValidationFailed.at(
            "/secrets", f"must be Unicode text of at most {MAX_FIELDS_BYTES} bytes in all"
        )
    return fields


def decode_fields(fields: bytes) -> dict[str, Secret]:
    """ValueError when they are none."""
    return {
        name: Secret(text)
        for name, text in msgspec.json.decode(fields, type=dict[str, str]).items()
    }
