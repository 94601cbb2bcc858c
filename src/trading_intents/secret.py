"""A text that must not be seen: no repr, format, log line, exception or JSON can show it."""

import hmac


class Secret:
    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one call that needs it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(_bytes(self), _bytes(other))

    def __hash__(self) -> int:
        return hash((Secret, self._text))


def _bytes(secret: Secret) -> bytes:
    return secret.reveal().encode("utf-8", "surrogatepass")
