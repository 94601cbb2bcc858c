"""Checks that the log of actions is as it was written, by its hashes and heads and by its orders
and events. It only reads."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from uuid import UUID

import msgspec
from google.protobuf.message import DecodeError

from trading_intents.errors import InvalidRequest, NotFound
from trading_intents.ids import OrganizationId
from trading_intents.intents import store
from trading_intents.intents.writing.record import (
    FIRST_HASH,
    HASH_VERSIONS,
    LinkedRecord,
    action_payload,
    chain,
)
from trading_intents.storage.database import Pool
from trading_intents.storage.pages import NO_END
from trading_intents.stream import trading_pb2
from trading_intents.stream.log import read_head
from trading_intents.stream.model import split_payloads
from trading_intents.trading import ActionType, FrozenStruct

PAGE_ROWS = 2_000
PROVED = (
    "Proved: every action is as it was hashed, none is missing up to its account's head, every "
    "account has a head, and every\n"
    "order has the action that it came from. The messages of each organization's stream follow "
    "each other without a gap."
)
NOT_PROVED = (
    "Not proved: that nobody with all rights over the database rewrote or cut actions, heads, "
    "orders and events together.\n"
    "Heads kept outside prove that: `audit anchor` prints them, `audit verify --against FILE` "
    "compares."
)
PROVED_AGAINST = (
    "The actions up to each head in the file are the ones that were there when it was written. Not "
    "proved: what was appended\n"
    "since, against somebody with all rights over the database."
)
GAP = "no row stands for it, or more than one"
COLUMNS = ("account_id", "seq", "intent_id", "organization_id", "action_type", "created_at")
LOWEST_ID = UUID(int=0)

# Hashes that were saved outside the database, by account and seq.
KeptHeads = Mapping[UUID, Mapping[int, str]]
ShowCount = Callable[[int], None]  # called with how many more actions were read


class Verified(FrozenStruct):
    """`wrong` says what is wrong with the action `bad_seq`, the first that is not as it was
    written."""

    account_id: UUID
    actions: int
    bad_seq: int | None = None
    wrong: str = ""


class Gap(FrozenStruct):
    """The first message of an organization's stream that no row stands for, or more than one."""

    organization_id: UUID
    seq: int


class _RecordFields(msgspec.Struct, kw_only=True):
    """A record's own columns. Ids are texts, because they are compared a million times."""

    account_id: str
    seq: int
    intent_id: str
    organization_id: str
    action_type: str
    created_at: datetime
    hash_version: int
    symbol: str
    order_side: str


_DECODER = msgspec.json.Decoder(_RecordFields)
_read_columns = attrgetter(*COLUMNS)


def read_heads(path: Path) -> KeptHeads:
    hashes: dict[UUID, dict[int, str]] = {}
    decode = msgspec.json.Decoder(store.ChainHead).decode
    try:
        for line in path.read_bytes().splitlines():
            kept = decode(line)
            if kept.seq:  # there is nothing to compare before the first action
                hashes.setdefault(kept.account_id, {})[kept.seq] = kept.hash
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidRequest(f"{path} is not what `audit anchor` prints") from None
    return hashes


async def list_heads(pool: Pool) -> AsyncIterator[store.ChainHead]:
    last_id = LOWEST_ID
    while True:
        async with pool.transaction(read_only=True) as tx:
            heads = await store.list_heads(tx, last_id, PAGE_ROWS)
        if not heads:
            return
        for head in heads:
            yield head
        last_id = heads[-1].account_id


async def count_actions(pool: Pool, account_id: UUID | None) -> int:
    async with pool.transaction(read_only=True) as tx:
        return await store.sum_heads(tx, account_id)


async def verify(
    pool: Pool, account_id: UUID | None, kept: KeptHeads, show_count: ShowCount
) -> AsyncIterator[Verified]:
    """Checks each account, or the given one. An account is read in one snapshot, so that an append
    meanwhile is no damage."""
    if account_id:
        next_id = await _next_account(pool, UUID(int=account_id.int - 1))
        if account_id not in kept and next_id != account_id:
            raise NotFound("no such account")
        yield await _verify_account(pool, account_id, kept, show_count)
        return
    unseen = set(kept)
    last_id = LOWEST_ID
    while next_id := await _next_account(pool, last_id):
        yield await _verify_account(pool, next_id, kept, show_count)
        unseen.discard(next_id)
        last_id = next_id
    for lost_id in sorted(unseen):
        yield await _verify_account(pool, lost_id, kept, show_count)


async def find_gaps(pool: Pool, account_id: UUID | None) -> AsyncIterator[Gap]:
    """Walks the stream of each organization, or of the account's: each row of the journal begins
    where the last one ended."""
    last_id = LOWEST_ID
    while next_id := await _next_organization(pool, last_id, account_id):
        last_id = next_id
        if seq := await _find_gap(pool, next_id):
            yield Gap(next_id, seq)


async def _find_gap(pool: Pool, organization_id: UUID) -> int | None:
    last_seq = 0
    while True:
        async with pool.transaction(read_only=True, isolation="repeatable read") as tx:
            _, head = await read_head(tx, OrganizationId(organization_id))
            rows = await store.list_journal(tx, organization_id, last_seq, PAGE_ROWS)
        for row in rows:
            if row.seq - row.count != last_seq:
                return last_seq + 1
            last_seq = row.seq
        if not rows:
            return None if last_seq == head else last_seq + 1


async def _next_account(pool: Pool, after: UUID) -> UUID | None:
    async with pool.transaction(read_only=True) as tx:
        return await store.next_account(tx, after)


async def _next_organization(pool: Pool, after: UUID, account_id: UUID | None) -> UUID | None:
    async with pool.transaction(read_only=True) as tx:
        return await store.next_organization(tx, after, account_id)


def _compare_events(action: store.WholeAction, events: bytes) -> str:
    """Of a REPLACE or CANCEL, which is shown as its row says."""
    payloads = [payload for _, payload in split_payloads(events)]
    if len(payloads) != 2 or b"".join(payloads) != events:
        return "its event cannot be read"
    try:
        shown = trading_pb2.TradingEvent.FromString(payloads[0]).intent_action
        record = msgspec.json.decode(action.record, type=LinkedRecord)
    except (DecodeError, msgspec.MsgspecError):
        return "its event cannot be read"
    expected = trading_pb2.TradingEvent.FromString(action_payload(record, action.created_at))
    names = []
    for field in expected.intent_action.DESCRIPTOR.fields:
        if getattr(expected.intent_action, field.name) != getattr(shown, field.name):
            names.append(field.name)
    return f"its event has another {', '.join(names)}" if names else ""


async def _verify_account(
    pool: Pool, account_id: UUID, kept: KeptHeads, show_count: ShowCount
) -> Verified:
    async with pool.transaction(read_only=True, isolation="repeatable read") as tx:
        head = await store.find_head(tx, account_id)
        log = _Log(kept.get(account_id, {}))
        while log.bad_seq is None:
            actions = await store.list_whole_actions(tx, account_id, log.seq, PAGE_ROWS)
            if not actions:
                break
            orders = await store.read_orders(tx, account_id, log.seq, actions[-1].seq, PAGE_ROWS)
            log.follow(actions, orders)
            show_count(len(actions))
        later = await store.read_orders(tx, account_id, log.seq, NO_END, PAGE_ROWS)
    log.end(head, later)
    return Verified(account_id, log.seq, log.bad_seq, log.wrong)


class _Log:
    """An account's log as far as it was checked. It stops at the first action that is not as it was
    written."""

    def __init__(self, kept: Mapping[int, str]) -> None:
        self._kept = kept
        self.seq = 0
        self.hash = FIRST_HASH
        self._latest = 0  # the highest seq that an order names
        self.bad_seq: int | None = None
        self.wrong = ""

    def follow(
        self,
        actions: Sequence[store.WholeAction],
        orders: Mapping[int, store.CreatedOrder],
    ) -> None:
        for action in actions:
            seq = self.seq + 1
            if action.seq != seq:
                return self._fail(seq, f"it is missing: the next one is {action.seq}")
            order = orders.get(seq)
            if wrong := self._find_wrong(action, order):
                return self._fail(seq, wrong)
            if order:
                self._latest = max(self._latest, order.latest)
            self.seq = seq
            self.hash = action.hash
        return None

    def _find_wrong(self, action: store.WholeAction, order: store.CreatedOrder | None) -> str:
        """Empty: it is as it was written."""
        try:
            fields = _DECODER.decode(action.record)
        except msgspec.MsgspecError:
            return "its record cannot be read"
        if fields.hash_version not in HASH_VERSIONS:
            return f"its hash_version {fields.hash_version} is not known here"
        if chain(self.hash, action.record.encode()) != action.hash:
            if fields.seq == action.seq:
                return "its record or its hash was changed"
            return f"it holds the record of {fields.seq}: they were reordered"
        if _read_columns(action) != _read_columns(fields):
            names = [name for name in COLUMNS if getattr(action, name) != getattr(fields, name)]
            return f"its record says another {', '.join(names)}"
        if self._kept and self._kept.get(action.seq, action.hash) != action.hash:
            return "its hash is not the one that was kept: it or one before it was rewritten"
        if (action.events is None) != (fields.action_type == ActionType.CREATE):
            return "it is shown otherwise than its record says"
        wrong = _compare_events(action, action.events) if action.events is not None else ""
        return wrong or _compare_order(order, fields)

    def end(self, head: store.ChainHead | None, later: Mapping[int, store.CreatedOrder]) -> None:
        """Checks the end of the log; `later` are orders whose CREATE is beyond the last action."""
        if self.bad_seq is not None:
            return
        cut = ""
        longest = max(self._kept, default=0)
        named = max(self._latest, *later, 0)
        if head and head.seq > self.seq:
            cut = f"its head is at {head.seq}"
        elif longest > self.seq:
            cut = f"the kept head was at {longest}"
        elif named > self.seq:
            cut = f"an order names action {named}"
        if cut:
            self._fail(self.seq + 1, f"it is missing: the log is cut off, {cut}")
        elif head is None:
            self._fail(max(self.seq, 1), "the account has lost its head")
        elif head.seq < self.seq:
            self._fail(head.seq + 1, f"it is beyond the head, which is at {head.seq}")
        elif head.hash != self.hash:
            self._fail(self.seq, "its hash is not the head's")

    def _fail(self, seq: int, wrong: str) -> None:
        self.bad_seq = seq
        self.wrong = wrong


def _compare_order(order: store.CreatedOrder | None, fields: _RecordFields) -> str:
    is_create = fields.action_type == ActionType.CREATE
    if order is None:
        return "its order is missing" if is_create else ""
    if not is_create:
        return "an order says that this was its CREATE"
    is_same = (
        order.order_id == fields.intent_id
        and order.symbol == fields.symbol
        and order.order_side == fields.order_side
    )
    return "" if is_same else "its order says another intent_id, symbol or order_side"
