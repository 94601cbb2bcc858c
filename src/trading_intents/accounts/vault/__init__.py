"""The vault that keeps brokers' secrets, as the settings choose it."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from trading_intents.accounts.model import SecretRef
from trading_intents.accounts.vault.envelope import EmbeddedVault
from trading_intents.accounts.vault.master_keys import EnvironmentKeys, KeyFile
from trading_intents.accounts.vault.openbao import OpenBaoVault
from trading_intents.accounts.vault.port import Vault
from trading_intents.clock import Clock
from trading_intents.config import PREFIX, Settings
from trading_intents.errors import DatabaseMissing, StartupRefused
from trading_intents.telemetry import Log

__all__ = ["EmbeddedVault", "OpenBaoVault", "SecretRef", "Vault", "embedded_vault", "open_vault"]

KEY_FILE = "vault-keys.json"


@contextlib.asynccontextmanager
async def open_vault(settings: Settings, clock: Clock, log: Log) -> AsyncIterator[Vault]:
    if not settings.vault_url:
        yield embedded_vault(settings, clock, log, may_create=True)
        return
    # No proxy from the environment: it would be shown the token.
    async with httpx.AsyncClient(verify=_authorities(settings), trust_env=False) as client:
        yield OpenBaoVault(settings, client, log)


def embedded_vault(
    settings: Settings, clock: Clock, log: Log, may_create: bool = False
) -> EmbeddedVault:
    """The one whose master keys can be rotated."""
    if settings.vault_url:
        raise StartupRefused(f"{PREFIX}VAULT_URL: is set, and that vault rotates its own keys")
    if settings.vault_master_keys:
        return EmbeddedVault(EnvironmentKeys(settings.vault_master_keys))
    path = (
        Path(settings.vault_key_file) if settings.vault_key_file else settings.data_dir / KEY_FILE
    )
    if not may_create and not path.exists():
        raise DatabaseMissing(
            f"no {path.absolute()}: set {PREFIX}DATA_DIR or {PREFIX}VAULT_KEY_FILE as for the "
            "process that serves"
        )
    return EmbeddedVault(KeyFile(path, clock, log))


def _authorities(settings: Settings) -> ssl.SSLContext | bool:
    if settings.vault_url.startswith("http:"):
        # Trusts nobody, and reads no certificates that nobody needs.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    file = settings.vault_ca_file
    try:
        return ssl.create_default_context(cafile=file) if file else True
    except OSError as error:
        raise StartupRefused(
            f"{PREFIX}VAULT_CA_FILE: {error.strerror or 'not PEM certificates'}"
        ) from None
