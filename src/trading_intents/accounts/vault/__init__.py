"""The vault that keeps brokers' secrets, as the settings choose it."""

from pathlib import Path

from trading_intents.accounts.vault.envelope import EmbeddedVault
from trading_intents.accounts.vault.master_keys import EnvironmentKeys, KeyFile
from trading_intents.accounts.vault.port import SecretRef, Vault
from trading_intents.clock import Clock
from trading_intents.config import Settings
from trading_intents.telemetry import Log

__all__ = ["EmbeddedVault", "SecretRef", "Vault", "embedded_vault"]

KEY_FILE = "vault-keys.json"


def embedded_vault(settings: Settings, clock: Clock, log: Log) -> EmbeddedVault:
    if settings.vault_master_keys:
        return EmbeddedVault(EnvironmentKeys(settings.vault_master_keys))
    path = Path(settings.vault_key_file) if settings.vault_key_file else settings.data_dir / KEY_FILE
    return EmbeddedVault(KeyFile(path, clock, log))
