"""Signatures as the Standard Webhooks specification has them (v1: HMAC-SHA256). Never shows its
secret."""

import base64
import binascii
import hashlib
import hmac

from trading_intents_client.errors import NotConfigured

PREFIX = "whsec_"
MIN_SECRET_BYTES = 24
MAX_SECRET_BYTES = 64
HOW_TO_MAKE = f"make one: printf '{PREFIX}%s\\n' \"$(openssl rand -base64 32)\""


class WebhookSigner:
    """Makes the headers by which a receiver knows that an event is ours, and new."""

    def __init__(self, secret: str) -> None:
        self._key = _read_secret(secret.strip())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"

    def headers(self, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        signed = b"%s.%d.%s" % (event_id.encode("ascii"), timestamp, body)
        signature = base64.b64encode(hmac.digest(self._key, signed, hashlib.sha256)).decode()
        return {
            "webhook-id": event_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": f"v1,{signature}",
            "content-type": "application/json",
        }


def _read_secret(text: str) -> bytes:
    """The errors say nothing of the text: it is shown in logs."""
    if not text.startswith(PREFIX):
        raise NotConfigured(f"the webhook secret must begin with {PREFIX}; {HOW_TO_MAKE}")
    encoded = text.removeprefix(PREFIX).rstrip("=")
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise NotConfigured(
            f"the webhook secret is no base64 after {PREFIX}; {HOW_TO_MAKE}"
        ) from None
    if not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        sizes = f"{MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes"
        raise NotConfigured(f"the webhook secret must be {sizes} in base64; {HOW_TO_MAKE}")
    return key
