"""The commands of docs/operating, and what they answer."""

import json
from collections.abc import Callable

from tests.deploy.programs import ROOT

TEXT = (ROOT / "docs" / "operating" / "install.md").read_text()
FILLED = "BUY 10 AAPL: FILLED 10 at "
ACME = {
    "organizations": [
        {
            "external_id": "org_acme",
            "accounts": [{"name": "sim", "broker": "paper", "environment": "paper"}],
            "api_keys": [{"name": "bot", "environment": "paper", "permission_set": "trader"}],
        }
    ]
}


def block(after: str, language: str) -> str:
    """The first block of the document behind these words."""
    return TEXT.split(after, 1)[1].split(f"```{language}\n", 1)[1].split("```", 1)[0]


def is_there(look: Callable[[], object]) -> Callable[[], bool]:
    def holds() -> bool:
        try:
            look()
        except AssertionError:
            return False
        return True

    return holds


def key_of(applied: str) -> str:
    return str(json.loads(applied)["organizations"][0]["api_keys"][0]["api_key"])
