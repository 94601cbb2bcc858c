"""A document with an account, and the settings of a platform on a test's database."""

from typing import Any

from tests.conftest import Urls

KEY = {
    "name": "bot",
    "environment": "paper",
    "permissions": ["account:read", "account:edit", "credential:edit"],
}
ACCOUNT = {"name": "sim", "broker": "remote", "environment": "paper"}
DOCUMENT: dict[str, Any] = {
    "organizations": [{"external_id": "o1", "accounts": [ACCOUNT], "api_keys": [KEY]}]
}


def settings_of(urls: Urls) -> dict[str, str]:
    return {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
