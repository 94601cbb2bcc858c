"""The platform's URL and the caller's key: from the environment, else from `login`, else from the
demo of a `make run`."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trading_intents_client import AsyncTradingClient, NotConfigured, TradingClient
from trading_intents_client.transport.credentials import KEY_VARIABLE, URL_VARIABLE

FOLDER = "trading-intents"
FILE = "login.json"
ACCOUNT_VARIABLE = "TRADING_INTENTS_ACCOUNT"
DEMO_ACCOUNT = "sim"


class Login(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The login in the user's configuration folder. It holds a key, so it is never shown."""

    url: str
    api_key: str
    account: str = ""

    def __repr__(self) -> str:
        return f"Login(url={self.url!r})"


def login_file(environ: Mapping[str, str]) -> Path:
    configured = environ.get("XDG_CONFIG_HOME", "")
    return Path(
        configured or Path(environ.get("HOME") or "~", ".config").expanduser(), FOLDER, FILE
    )


def read_login(environ: Mapping[str, str]) -> Login | None:
    file = login_file(environ)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Login)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise NotConfigured(
            f"{file} cannot be read ({error}): `trading-intents login` makes it anew"
        ) from None


def write_login(environ: Mapping[str, str], login: Login) -> Path:
    """For the user's eyes only, from its first byte on."""
    file = login_file(environ)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=file.parent)  # of mode 0600
    with os.fdopen(handle, "wb") as out:
        out.write(msgspec.json.encode(login))
    Path(draft).replace(file)
    return file


def find_login(environ: Mapping[str, str]) -> Login | None:
    """A key in the environment goes with the URL there, a stored one with the stored URL: never
    crosswise."""
    return None if environ.get(KEY_VARIABLE) or environ.get(URL_VARIABLE) else read_login(environ)


def open_client(environ: Mapping[str, str]) -> TradingClient:
    login = find_login(environ)
    return TradingClient(login.url, api_key=login.api_key) if login else TradingClient()


def open_async_client(environ: Mapping[str, str]) -> AsyncTradingClient:
    login = find_login(environ)
    return AsyncTradingClient(login.url, api_key=login.api_key) if login else AsyncTradingClient()


def account_name(chosen: str, environ: Mapping[str, str]) -> str | None:
    """The account that is named, else the one of the environment, the login or the demo."""
    named = chosen or environ.get(ACCOUNT_VARIABLE, "")
    if named or environ.get(KEY_VARIABLE):
        return named or None
    login = None if environ.get(URL_VARIABLE) else read_login(environ)
    return (login.account or None) if login else DEMO_ACCOUNT
