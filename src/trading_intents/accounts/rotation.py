"""Re-wraps every sealed secret under the newest master key, page by page, while the service runs."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from trading_intents.accounts import store
from trading_intents.accounts.vault import EmbeddedVault, SecretRef
from trading_intents.storage.database import Pool

PAGE = 100


@dataclass(frozen=True, slots=True)
class Rotation:
    newest: int
    rewrapped: int
    retired: tuple[int, ...]


async def rotate(
    worker: Pool, vault: EmbeddedVault, add: bool, retire: bool, on_progress: Callable[[int], None]
) -> Rotation:
    """`add` makes a new master key first; `retire` drops those that no row needs any more."""
    newest = await vault.add_master_key() if add else max(vault.key_versions())
    rewrapped, after, used = 0, None, {newest}
    while True:
        page, after, versions = await _rewrap_page(worker, vault, after)
        rewrapped += page
        used |= versions
        on_progress(rewrapped)
        if after is None:
            break
    unused = sorted(set(vault.key_versions()) - used) if retire else []
    retired = tuple([version for version in unused if await vault.retire(version)])
    return Rotation(newest, rewrapped, retired)


async def _rewrap_page(worker: Pool, vault: EmbeddedVault, after: UUID | None) -> tuple[int, UUID | None, set[int]]:
    """How many changed, where to go on, and which key versions the page's rows have now."""
    changed, versions = 0, set[int]()
    async with worker.transaction() as tx:
        rows = await store.lock_sealed(tx, after, PAGE)
        for row in rows:
            ref = SecretRef(row["organization_id"], row["account_id"], row["credential_id"])
            sealed = await vault.rewrap(ref, row["sealed"])
            versions.add(vault.key_version(sealed))
            if sealed != row["sealed"]:
                await store.rewrap_sealed(tx, row["id"], sealed)
                changed += 1
    return changed, rows[-1]["id"] if len(rows) == PAGE else None, versions
