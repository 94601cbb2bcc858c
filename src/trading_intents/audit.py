"""Proves that the log of actions is as it was written, from its first action to its head. Reads only."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from uuid import UUID

import msgspec

from trading_intents.errors import InvalidRequest, NotFound
from trading_intents.intents.writing.record import FIRST_HASH, HASH_VERSION, chain
from trading_intents.storage.database import Pool, Row, Tx

PAGE_ACTIONS = 2_000
COLUMNS = ("account_id", "seq", "intent_id", "organization_id", "action_type", "created_at")
LOWEST_ID = UUID(int=0)

Progress = Callable[[int], None]  # told how many more actions were read


@dataclass(frozen=True, slots=True)
class Head:
    account_id: UUID
    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Verified:
    """`wrong` is what is the matter with the action `bad_seq`, the first that is not as it was written."""

    head: Head
    actions: int
    bad_seq: int | None = None
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class KeptHeads:
    """Heads that were written down outside the database, by account and seq."""

    hashes: Mapping[UUID, Mapping[int, str]] = field(default_factory=dict)

    def of(self, account_id: UUID) -> Mapping[int, str]:
        return self.hashes.get(account_id, {})


class _Told(msgspec.Struct):
    """What a record says of its own columns. The ids as texts: they are compared a million times."""

    account_id: str
    seq: int
    intent_id: str
    organization_id: str
    action_type: str
    created_at: datetime
    hash_version: int


@contextlib.contextmanager
def open_heads(path: Path | None) -> Iterator[Callable[[Head], None]]:
    """Gives what writes a head down, one a line."""
    if path is None:
        yield lambda head: None
        return
    try:
        with path.open("w") as out:
            yield lambda head: print(head.account_id, head.seq, head.hash, file=out)
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None


def read_heads(path: Path) -> KeptHeads:
    hashes: dict[UUID, dict[int, str]] = {}
    try:
        for line in path.read_text().splitlines():
            account_id, seq, digest = line.split()
            hashes.setdefault(UUID(account_id), {})[int(seq)] = digest
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None
    except ValueError:
        raise InvalidRequest(f"{path} is not what --heads writes") from None
    return KeptHeads(hashes)


async def count_actions(pool: Pool, account_id: UUID | None) -> int:
    """As the heads tell, for the progress shown."""
    async with pool.transaction(read_only=True) as tx:
        total: int = await tx.fetchval(
            "SELECT coalesce(sum(seq), 0)::bigint FROM account_heads WHERE $1::uuid IS NULL OR account_id = $1",
            account_id,
        )
    return total


async def verify(pool: Pool, account_id: UUID | None, kept: KeptHeads, progress: Progress) -> AsyncIterator[Verified]:
    """Each account, or this one. An account is read in one snapshot: what is appended meanwhile is no damage."""
    if account_id:
        verified = await _verify_account(pool, account_id, kept, progress)
        if not verified.actions and not verified.bad_seq and not await _is_account(pool, account_id):
            raise NotFound("no such account")
        yield verified
        return
    unseen, last_id = set(kept.hashes), LOWEST_ID
    while next_id := await _next_account(pool, last_id):
        yield await _verify_account(pool, next_id, kept, progress)
        unseen.discard(next_id)
        last_id = next_id
    for lost_id in sorted(unseen):
        yield await _verify_account(pool, lost_id, kept, progress)


async def _is_account(pool: Pool, account_id: UUID) -> bool:
    async with pool.transaction(read_only=True) as tx:
        return bool(await tx.fetchval("SELECT true FROM accounts WHERE id = $1", account_id))


async def _next_account(pool: Pool, after: UUID) -> UUID | None:
    """From the log as well as from the heads: either may be what was tampered with."""
    async with pool.transaction(read_only=True) as tx:
        found: UUID | None = await tx.fetchval(
            """
            SELECT least(
                (SELECT account_id FROM account_heads WHERE account_id > $1 ORDER BY account_id LIMIT 1),
                (SELECT account_id FROM actions WHERE account_id > $1 ORDER BY account_id, seq LIMIT 1)
            )
            """,
            after,
        )
    return found


async def _verify_account(pool: Pool, account_id: UUID, kept: KeptHeads, progress: Progress) -> Verified:
    async with pool.transaction(read_only=True, isolation="repeatable read") as tx:
        row = await tx.fetchrow("SELECT seq, hash FROM account_heads WHERE account_id = $1", account_id)
        head = Head(account_id, row["seq"], row["hash"]) if row else None
        log = _Log(account_id, kept.of(account_id))
        while log.bad_seq is None and (rows := await _read_page(tx, account_id, log.seq)):
            log.follow(rows)
            progress(len(rows))
    log.end(head)
    return Verified(head or Head(account_id, log.seq, log.hash), log.seq, log.bad_seq, log.wrong)


async def _read_page(tx: Tx, account_id: UUID, after: int) -> list[Row]:
    return await tx.fetch(
        """
        SELECT account_id::text, seq, intent_id::text, organization_id::text, action_type, created_at, record, hash
        FROM actions WHERE account_id = $1 AND seq > $2 ORDER BY seq LIMIT $3
        """,
        account_id,
        after,
        PAGE_ACTIONS,
    )


class _Log:
    """An account's log as far as it was followed; stops at the first action that is not as it was written."""

    def __init__(self, account_id: UUID, kept: Mapping[int, str]) -> None:
        self._account_id, self._kept = account_id, kept
        self.seq, self.hash = 0, FIRST_HASH
        self.bad_seq: int | None = None
        self.wrong = ""

    def follow(self, rows: list[Row]) -> None:
        decode = msgspec.json.Decoder(_Told).decode
        for row in rows:
            *columns, record, digest = row.values()
            seq = columns[1]
            if seq != self.seq + 1:
                return self._fail(self.seq + 1, f"it is missing: the next one is {seq}")
            try:
                told = decode(record)
            except msgspec.MsgspecError:
                return self._fail(seq, "its record cannot be read")
            if told.hash_version != HASH_VERSION:
                return self._fail(seq, f"its hash_version {told.hash_version} is not known here")
            if chain(self.hash, record.encode()) != digest:
                return self._fail(seq, _explain(seq, told))
            said = [told.account_id, told.seq, told.intent_id, told.organization_id, told.action_type, told.created_at]
            if columns != said:
                names = [name for name, a, b in zip(COLUMNS, columns, said, strict=True) if a != b]
                return self._fail(seq, f"its record says another {', '.join(names)}")
            if self._kept and self._kept.get(seq, digest) != digest:
                return self._fail(seq, "its hash is not the one that was kept: it or one before it was rewritten")
            self.seq, self.hash = seq, digest
        return None

    def end(self, head: Head | None) -> None:
        if self.bad_seq is not None:
            return
        longest = max(self._kept, default=0)
        if head and head.seq > self.seq:
            self._fail(self.seq + 1, f"it is missing: the log is cut off, its head is at {head.seq}")
        elif longest > self.seq:
            self._fail(self.seq + 1, f"it is missing: the log is cut off, the kept head was at {longest}")
        elif head is None and self.seq:
            self._fail(self.seq, "the account has lost its head")
        elif head and head.seq < self.seq:
            self._fail(head.seq + 1, f"it is beyond the head, which is at {head.seq}")
        elif head and head.hash != self.hash:
            self._fail(self.seq, "its hash is not the head's")

    def _fail(self, seq: int, wrong: str) -> None:
        self.bad_seq, self.wrong = seq, wrong


def _explain(seq: int, told: _Told) -> str:
    if told.seq != seq:
        return f"it holds the record of {told.seq}: they were reordered"
    return "its record or its hash was changed"
