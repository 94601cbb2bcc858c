"""Re-wraps every sealed secret under the newest master key, page by page, while the service
runs."""

from collections.abc import Callable
from uuid import UUID

from trading_intents.accounts import store
from trading_intents.accounts.vault import EmbeddedVault
from trading_intents.errors import SecretUnreadable
from trading_intents.storage.database import Pool
from trading_intents.trading import FrozenStruct

PAGE = 100


class Rotation(FrozenStruct):
    newest: int
    rewrapped: int
    # Credentials whose secret cannot be opened; their keys are never retired.
    unreadable: tuple[UUID, ...]
    retired: tuple[int, ...]
    unused: tuple[int, ...]  # keys that no secret needs and that were not dropped


async def rotate(
    worker: Pool, vault: EmbeddedVault, add: bool, retire: bool, on_progress: Callable[[int], None]
) -> Rotation:
    """`add` makes a new master key first; `retire` drops those that no row needs any more."""
    newest = await vault.add_master_key() if add else max(vault.key_versions())
    rewrapped = 0
    unreadable = list[UUID]()
    used = {newest}
    after: UUID | None = None
    while True:
        async with worker.transaction() as tx:
            secrets = await store.lock_sealed(tx, after, PAGE)
            for secret in secrets:
                sealed = secret.sealed
                try:
                    sealed = await vault.rewrap(secret, sealed)
                except SecretUnreadable:
                    unreadable.append(secret.credential_id)
                try:
                    used.add(vault.key_version(sealed))
                # Of another kind of vault, or damaged: then any key may be its own.
                except SecretUnreadable:
                    used.update(vault.key_versions())
                if sealed != secret.sealed:
                    await store.rewrap_sealed(tx, secret.id, sealed)
                    rewrapped += 1
        on_progress(rewrapped)
        if len(secrets) < PAGE:
            break
        after = secrets[-1].id
    retired = list[int]()
    kept = list[int]()
    for version in sorted(set(vault.key_versions()) - used) if retire else ():
        if await vault.retire(version):
            retired.append(version)
        else:
            kept.append(version)
    return Rotation(newest, rewrapped, tuple(unreadable), tuple(retired), tuple(kept))
