"""One-time links into the demo's console. Only the digest of a link is stored, for as long as the
link is valid."""

import contextlib
import ipaddress
import json
import secrets
import time
from pathlib import Path

from trading_intents.identity.keys import digest
from trading_intents.secret import Secret

DEMO = "demo"  # the external id of the organization and of its user
DEMO_FILE = "demo.json"
LINKS_FOLDER = "console-links"
LINK_SECONDS = 60
CODE_BYTES = 16


def read_demo_key(data_dir: Path) -> Secret | None:
    path = data_dir / DEMO_FILE
    if not path.exists():
        return None
    return Secret(json.loads(path.read_bytes())["api_key"])


def make_code(data_dir: Path) -> Secret:
    """A code that `redeem_code` takes once; those that nobody used in time are removed."""
    folder = data_dir / LINKS_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    for stored in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # used, or removed by another, meanwhile
            if _age_seconds(stored) > LINK_SECONDS:
                stored.unlink()
    code = Secret(secrets.token_urlsafe(CODE_BYTES))
    (folder / digest(code.reveal()).hex()).touch(mode=0o600, exist_ok=False)
    return code


def redeem_code(data_dir: Path, code: str) -> bool:
    """Whether it was a code, young enough and never used. Of several callers at once, one gets
    True."""
    stored = data_dir / LINKS_FOLDER / digest(code).hex()
    try:
        age_seconds = _age_seconds(stored)
        stored.unlink()
    except FileNotFoundError:
        return False
    return age_seconds <= LINK_SECONDS


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _age_seconds(stored: Path) -> float:
    """By the file system, as another process made it. A link of the future is not young: the clock
    was set back."""
    return abs(time.time() - stored.stat().st_mtime)
