"""Embedded vaults, and secrets to seal in them."""

import base64
import traceback
from pathlib import Path
from uuid import UUID

import pytest

from tests.fakes import ManualClock
from trading_intents.accounts.vault import EmbeddedVault, SecretRef, embedded_vault
from trading_intents.accounts.vault.master_keys import EnvironmentKeys
from trading_intents.config import Settings
from trading_intents.errors import PlatformError, SecretUnreadable
from trading_intents.secret import Secret
from trading_intents.telemetry import make_log

MARKER = "s3cret-marker"
ROW = SecretRef(UUID(int=1), UUID(int=2), UUID(int=3))
SECRETS = {"api_key": Secret("AK" + MARKER), "api_secret": Secret(MARKER + "ß\x00\n")}
ONE, TWO = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))


def make_vault(folder: Path, clock: ManualClock | None = None) -> EmbeddedVault:
    return embedded_vault(
        Settings(data_dir=folder), clock or ManualClock(), make_log("error"), may_create=True
    )


def environment_vault(text: str) -> EmbeddedVault:
    return EmbeddedVault(EnvironmentKeys(Secret(text)))


async def unreadable(vault: EmbeddedVault, ref: SecretRef, sealed: bytes) -> str:
    """Fails to open, shows the caller nothing, and returns the logged reason."""
    with pytest.raises(SecretUnreadable) as caught:
        await vault.open(ref, sealed)
    assert caught.value.detail == caught.value.title
    assert caught.value.__cause__ is None
    return caught.value.reason


def answered(error: PlatformError) -> str:
    """All that a log line, an answer or a traceback could show of it."""
    return f"{error!r} {error} {vars(error)} {''.join(traceback.format_exception(error))}"
