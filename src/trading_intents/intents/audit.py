"""Checks that the log of actions is as it was written, by its hashes and heads and by its orders
and events. It only reads."""

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from uuid import UUID

import msgspec
from google.protobuf.message import DecodeError

from trading_intents.errors import InvalidRequest, NotFound
from trading_intents.intents import store
from trading_intents.intents.writing.record import FIRST_HASH, HASH_VERSIONS, Record, chain
from trading_intents.storage.database import Pool, Row
from trading_intents.storage.pages import NO_END
from trading_intents.stream import trading_pb2
from trading_intents.trading import ActionType, FrozenStruct

PAGE_ROWS = 2_000
PROVED = """\
Proved: every action is as it was hashed, none is missing up to its account's head, every account has a head, and every
order, and every event that is still kept, has the action that it came from."""
NOT_PROVED = """\
Not proved: that nobody with all rights over the database rewrote or cut actions, heads, orders and events together.
Heads kept outside prove that: `audit anchor` prints them, `audit verify --against FILE` compares."""
PROVED_AGAINST = """\
The actions up to each head in the file are the ones that were there when it was written. Not proved: what was appended
since, against somebody with all rights over the database."""
COLUMNS = ("account_id", "seq", "intent_id", "organization_id", "action_type", "created_at")
LOWEST_ID = UUID(int=0)

# Hashes that were saved outside the database, by account and seq.
KeptHeads = Mapping[UUID, Mapping[int, str]]
Contradicted = Mapping[UUID, tuple[int, str]]  # an action's seq, and what is wrong with it
ShowCount = Callable[[int], None]  # called with how many more actions were read


class ChainHead(FrozenStruct, frozen=True):
    account_id: UUID
    seq: int
    hash: str


class Verified(FrozenStruct, frozen=True):
    """`wrong` says what is wrong with the action `bad_seq`, the first that is not as it was
    written."""

    account_id: UUID
    actions: int
    bad_seq: int | None = None
    wrong: str = ""


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


def read_heads(path: Path) -> KeptHeads:
    hashes: dict[UUID, dict[int, str]] = {}
    decode = msgspec.json.Decoder(ChainHead).decode
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


async def list_heads(pool: Pool) -> AsyncIterator[ChainHead]:
    last_id = LOWEST_ID
    while True:
        async with pool.transaction(read_only=True) as tx:
            rows = await store.list_heads(tx, last_id, PAGE_ROWS)
        if not rows:
            return
        for row in rows:
            yield ChainHead(row["account_id"], row["seq"], row["hash"])
        last_id = rows[-1]["account_id"]


async def count_actions(pool: Pool, account_id: UUID | None) -> int:
    async with pool.transaction(read_only=True) as tx:
        return await store.sum_heads(tx, account_id)


async def verify(
    pool: Pool, account_id: UUID | None, kept: KeptHeads, show_count: ShowCount
) -> AsyncIterator[Verified]:
    """Checks each account, or the given one. An account is read in one snapshot, so that an append
    meanwhile is no damage."""
    if account_id:
        if (
            account_id not in kept
            and await _next_account(pool, UUID(int=account_id.int - 1)) != account_id
        ):
            raise NotFound("no such account")
        contradicted = await _compare_events(pool, account_id)
        yield await _verify_account(pool, account_id, kept, contradicted, show_count)
        return
    contradicted = await _compare_events(pool, None)
    unseen = set(kept) | set(contradicted)
    last_id = LOWEST_ID
    while next_id := await _next_account(pool, last_id):
        yield await _verify_account(pool, next_id, kept, contradicted, show_count)
        unseen.discard(next_id)
        last_id = next_id
    for lost_id in sorted(unseen):
        yield await _verify_account(pool, lost_id, kept, contradicted, show_count)


async def _next_account(pool: Pool, after: UUID) -> UUID | None:
    async with pool.transaction(read_only=True) as tx:
        return await store.next_account(tx, after)


async def _compare_events(pool: Pool, account_id: UUID | None) -> Contradicted:
    """Finds the first action of each account that differs from its event, as long as the event is
    kept."""
    contradicted: dict[UUID, tuple[int, str]] = {}
    last_of: dict[UUID, int] = {}  # the seq of an account's last action that has an event
    organization_id = LOWEST_ID
    while next_id := await _next_organization(pool, organization_id, account_id):
        organization_id = next_id
        last_seq = 0
        while True:
            async with pool.transaction(read_only=True) as tx:
                rows = await store.list_action_events(
                    tx, organization_id, last_seq, account_id, PAGE_ROWS
                )
                events = [(row, _read_action(row)) for row in rows if row["payload"] is not None]
                named = [(action.account_id, action.seq) for _, action in events if action]
                records = await store.read_records(tx, named)
            for row, action in events:
                seq = action.seq if action else last_of.get(row["account_id"], 0) + 1
                wrong = (
                    f"event {row['seq']} of the stream, which is about it or a later one, cannot "
                    "be read"
                )
                if action:
                    wrong = _compare(action, records.get((action.account_id, seq)))
                    last_of[row["account_id"]] = seq
                if wrong:
                    known = contradicted.get(row["account_id"], (seq, wrong))
                    contradicted[row["account_id"]] = min(known, (seq, wrong))
            if not rows:
                break
            last_seq = rows[-1]["seq"]
    return contradicted


def _read_action(event: Row) -> trading_pb2.IntentAction | None:
    """None: the event cannot be read, or is about another account than its row says."""
    try:
        action = trading_pb2.TradingEvent.FromString(event["payload"]).intent_action
    except DecodeError:
        return None
    return action if action.account_id == str(event["account_id"]) else None


async def _next_organization(pool: Pool, after: UUID, account_id: UUID | None) -> UUID | None:
    async with pool.transaction(read_only=True) as tx:
        return await store.next_organization(tx, after, account_id)


def _compare(action: trading_pb2.IntentAction, record: str | None) -> str:
    if record is None:
        return "it is missing: its event is still kept"
    try:
        parsed = msgspec.json.decode(record, type=Record)
    except msgspec.MsgspecError:
        return "its record cannot be read"
    event_values = {
        "intent_id": action.intent_id,
        "action_type": trading_pb2.IntentActionType.Name(action.action_type).removeprefix(
            "INTENT_ACTION_TYPE_"
        ),
        "symbol": action.symbol,
        "order_side": trading_pb2.OrderSide.Name(action.order_side).removeprefix("ORDER_SIDE_"),
        "quantity": action.quantity,
        "limit_price": action.limit_price if action.HasField("limit_price") else None,
        "stop_price": action.stop_price if action.HasField("stop_price") else None,
    }
    names = [name for name, value in event_values.items() if getattr(parsed, name) != value]
    return f"its event has another {', '.join(names)}" if names else ""


async def _verify_account(
    pool: Pool, account_id: UUID, kept: KeptHeads, contradicted: Contradicted, show_count: ShowCount
) -> Verified:
    async with pool.transaction(read_only=True, isolation="repeatable read") as tx:
        row = await store.find_head(tx, account_id)
        head = ChainHead(account_id, row["seq"], row["hash"]) if row else None
        log = _Log(account_id, kept.get(account_id, {}))
        while log.bad_seq is None and (
            rows := await store.list_whole_actions(tx, account_id, log.seq, PAGE_ROWS)
        ):
            orders = await store.read_orders(tx, account_id, log.seq, rows[-1]["seq"], PAGE_ROWS)
            log.follow(rows, orders)
            show_count(len(rows))
        later = await store.read_orders(tx, account_id, log.seq, NO_END, PAGE_ROWS)
    log.end(head, later)
    if contradiction := contradicted.get(account_id):
        log.contradict(*contradiction)
    return Verified(account_id, log.seq, log.bad_seq, log.wrong)


class _Log:
    """An account's log as far as it was checked. It stops at the first action that is not as it was
    written."""

    def __init__(self, account_id: UUID, kept: Mapping[int, str]) -> None:
        self._account_id = account_id
        self._kept = kept
        self.seq = 0
        self.hash = FIRST_HASH
        self._latest = 0  # the highest seq that an order names
        self.bad_seq: int | None = None
        self.wrong = ""

    def follow(self, rows: list[Row], orders: Mapping[int, Row]) -> None:
        decode = msgspec.json.Decoder(_RecordFields).decode
        read_columns = attrgetter(*COLUMNS)
        for row in rows:
            *columns, record, digest = row.values()
            seq = columns[1]
            if seq != self.seq + 1:
                return self._fail(self.seq + 1, f"it is missing: the next one is {seq}")
            try:
                fields = decode(record)
            except msgspec.MsgspecError:
                return self._fail(seq, "its record cannot be read")
            if fields.hash_version not in HASH_VERSIONS:
                return self._fail(seq, f"its hash_version {fields.hash_version} is not known here")
            if chain(self.hash, record.encode()) != digest:
                moved = f"it holds the record of {fields.seq}: they were reordered"
                return self._fail(
                    seq, "its record or its hash was changed" if fields.seq == seq else moved
                )
            recorded = read_columns(fields)
            if tuple(columns) != recorded:
                names = [
                    name for name, a, b in zip(COLUMNS, columns, recorded, strict=True) if a != b
                ]
                return self._fail(seq, f"its record says another {', '.join(names)}")
            if self._kept and self._kept.get(seq, digest) != digest:
                return self._fail(
                    seq, "its hash is not the one that was kept: it or one before it was rewritten"
                )
            order = orders.get(seq)
            if (wrong := _compare_order(order, fields)) is not None:
                return self._fail(seq, wrong)
            self._latest = max(self._latest, order["latest"] if order else 0)
            self.seq = seq
            self.hash = digest
        return None

    def end(self, head: ChainHead | None, later: Mapping[int, Row]) -> None:
        """Checks the end of the log; `later` are orders whose CREATE is beyond the last action."""
        if self.bad_seq is not None:
            return
        longest = max(self._kept, default=0)
        named = max(self._latest, *later, 0)
        if head and head.seq > self.seq:
            self._fail(
                self.seq + 1, f"it is missing: the log is cut off, its head is at {head.seq}"
            )
        elif longest > self.seq:
            self._fail(
                self.seq + 1, f"it is missing: the log is cut off, the kept head was at {longest}"
            )
        elif named > self.seq:
            self._fail(
                self.seq + 1, f"it is missing: the log is cut off, an order names action {named}"
            )
        elif head is None:
            self._fail(max(self.seq, 1), "the account has lost its head")
        elif head.seq < self.seq:
            self._fail(head.seq + 1, f"it is beyond the head, which is at {head.seq}")
        elif head.hash != self.hash:
            self._fail(self.seq, "its hash is not the head's")

    def contradict(self, seq: int, wrong: str) -> None:
        if self.bad_seq is None or seq < self.bad_seq:
            self._fail(seq, wrong)

    def _fail(self, seq: int, wrong: str) -> None:
        self.bad_seq = seq
        self.wrong = wrong


def _compare_order(order: Row | None, fields: _RecordFields) -> str | None:
    if (order is None) != (fields.action_type != ActionType.CREATE):
        return "its order is missing" if order is None else "an order says that this was its CREATE"
    if order and (order["order_id"], order["symbol"], order["order_side"]) != (
        fields.intent_id,
        fields.symbol,
        fields.order_side,
    ):
        return "its order says another intent_id, symbol or order_side"
    return None
