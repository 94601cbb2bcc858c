"""All that the terminal prints passes here: no text of a broker, a client or a server moves its
cursor, writes its clipboard or turns the direction of its lines."""

import json
import re
from typing import Any

import typer
from rich.style import Style
from rich.text import Text

# As the platform refuses them in a client's text: control characters, invisible ones, and those
# that change the direction of text.
UNPLAIN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb]"
)


def plain(text: str) -> str:
    """The text on one line, with question marks in place of such characters."""
    return UNPLAIN.sub("?", text)


def plain_json(text: str) -> str:
    """The same value, as JSON that writes such characters as escapes."""
    return UNPLAIN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def echo(*lines: str, err: bool = False) -> None:
    for line in lines:
        typer.echo(plain(line), err=err)


class PlainText(Text):
    """A text for rich that is plain, whatever is appended."""

    def __init__(self, text: str = "", style: str | Style = "", **given: Any) -> None:
        super().__init__(plain(text), style, **given)

    def append(self, text: Text | str, style: str | Style | None = None) -> Text:
        return super().append(plain(text) if isinstance(text, str) else text, style)
