"""What a batch meets: heads, orders, accounts, keys and controls, read under the heads' locks. Decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time
from functools import lru_cache
from typing import Any

from trading_intents.brokers.registry import Registry
from trading_intents.controls.model import Controls, Switch, TimeRule
from trading_intents.errors import Unavailable
from trading_intents.identity.model import Entitlement, Permission
from trading_intents.intents.model import AccountState, Create, Earlier, KeyState, OrderState, Spec, State, Submission
from trading_intents.intents.writing import statements
from trading_intents.intents.writing.record import trimmed
from trading_intents.storage.pipeline import LinkLost, Pipeline, Reply, Rows
from trading_intents.trading import ORDER_KINDS, Environment, OrderSide, RouteStrategy, Symbol, TimeInForce


@dataclass(slots=True)
class Scene:
    """What the batch meets. Orders, heads and earlier answers move on with each decision."""

    brokers: Registry
    heads: dict[str, tuple[int, str]]
    order_rows: dict[str, statements.OrderRow]
    orders: dict[str, OrderState]
    earlier: dict[tuple[str, str], Earlier]
    now: datetime
    now_text: str
    transaction_id: str
    accounts: dict[str, AccountState]
    keys: dict[str, KeyState]
    switches: dict[tuple[str, str], Switch]  # by organization or account, and symbol or none
    windows: dict[tuple[str, str], TimeRule]

    def state(self, submission: Submission) -> State:
        account_id, command, key = submission.account_id, submission.command, submission.idempotency_key
        account = self.accounts.get(account_id)
        order = None if isinstance(command, Create) else self.orders.get(command.ref_intent_id)
        symbol = command.symbol if isinstance(command, Create) else order.symbol if order else ""
        organization_id, place = submission.organization_id, (account_id, symbol)
        return State(
            self.keys.get(submission.key_id) if submission.key_id else None,
            account,
            self.brokers.find(account.broker) if account else None,
            order,
            self.earlier.get((account_id, key)) if key else None,
            Controls(
                organization_id,
                account_id,
                self.switches.get((organization_id, "")),
                self.switches.get((account_id, "")),
                self.switches.get(place),
                self.windows.get(place),
            ),
        )


async def read_scene(link: Pipeline, submissions: Sequence[Submission], brokers: Registry, wait: bool) -> Scene:
    """In the order of the locks: heads, then the orders that are named, then what needs none."""
    organization_ids = {s.organization_id for s in submissions}
    account_ids = sorted({s.account_id for s in submissions})
    key_ids = {s.key_id for s in submissions if s.key_id}
    references = {s.command.ref_intent_id for s in submissions if not isinstance(s.command, Create)}
    symbols = {s.command.symbol for s in submissions if isinstance(s.command, Create)}
    keyed = [(s.account_id, s.idempotency_key) for s in submissions if s.idempotency_key]
    first = [
        *statements.begin(organization_ids),
        *statements.lock_heads(account_ids, wait),
        *([statements.lock_orders(sorted(references))] if references else ()),
    ]
    rows: list[statements.OrderRow] = []
    try:
        if references:  # only they know their symbols
            *_, heads, orders = await link.run(first)
            rows = [statements.OrderRow(*_texts(row)) for row in orders.rows]
            symbols |= {Symbol(row.symbol) for row in rows}
            first = []
        else:
            heads = None
        earlier = [statements.read_earlier(keyed)] if keyed else []
        replies = await link.run(
            [*first, *earlier, *statements.read_scene(organization_ids, account_ids, key_ids, symbols or [""])]
        )
    except LinkLost:
        raise Unavailable("the database went away") from None
    heads = heads or replies[len(first) - 1]
    earlier_rows = replies[len(first)].rows if keyed else []
    return _compose(brokers, heads, rows, earlier_rows, replies[-statements.SCENE_STATEMENTS :])


def symbol_of(submission: Submission, orders: dict[str, statements.OrderRow]) -> str:
    command = submission.command
    if isinstance(command, Create):
        return command.symbol
    row = orders.get(command.ref_intent_id)
    return row.symbol if row else ""


def _texts(row: tuple[bytes | None, ...]) -> list[Any]:
    return [None if value is None else value.decode() for value in row]


def _compose(
    brokers: Registry, heads: Reply, rows: list[statements.OrderRow], earlier: Rows, replies: Sequence[Reply]
) -> Scene:
    clock, accounts, keys, controls = ([_texts(row) for row in reply.rows] for reply in replies)
    now, transaction_id = clock[0]
    return Scene(
        brokers=brokers,
        heads={account_id: (int(seq), digest) for account_id, seq, digest in map(_texts, heads.rows)},
        order_rows={row.order_id: row for row in rows},
        orders={row.order_id: _order(row) for row in rows},
        earlier={
            (account_id, key): Earlier(digest, intent_id, int(seq))
            for account_id, key, digest, intent_id, seq in map(_texts, earlier)
        },
        now=datetime.fromisoformat(now),
        now_text=now,
        transaction_id=transaction_id,
        accounts={
            account_id: AccountState(
                organization_id, _ENVIRONMENTS[environment], broker, disabled == "t", closed == "t", stored == "t"
            )
            for account_id, organization_id, environment, broker, disabled, closed, stored in accounts
        },
        keys={
            key_id: KeyState(
                organization_id,
                _ENVIRONMENTS[environment],
                _permissions(permissions),
                _entitlements(entitlements),
                disabled == "t",
            )
            for key_id, organization_id, environment, permissions, entitlements, disabled in keys
        },
        switches={
            (whose, symbol): Switch(disabled == "t", reason)
            for whose, symbol, is_window, disabled, reason, *_ in controls
            if is_window == "f"
        },
        windows={
            (whose, symbol): TimeRule(_time(start), _time(end), stale and int(stale), zone)
            for whose, symbol, is_window, _, _, start, end, stale, zone in controls
            if is_window == "t"
        },
    )


_ENVIRONMENTS = {str(each): each for each in Environment}


def _time(text: str | None) -> time | None:
    return None if text is None else time.fromisoformat(text)


# Pure functions of an array as PostgreSQL writes it; there are few different ones.
@lru_cache(maxsize=1024)
def _permissions(text: str) -> frozenset[Permission]:
    return frozenset(map(Permission, _members(text)))


@lru_cache(maxsize=64)
def _entitlements(text: str) -> frozenset[Entitlement]:
    return frozenset(map(Entitlement, _members(text)))


def _members(text: str) -> list[str]:
    return text.strip("{}").split(",") if text != "{}" else []


def _order(row: statements.OrderRow) -> OrderState:
    spec = Spec(
        ORDER_KINDS[row.order_type],
        trimmed(row.quantity),
        row.limit_price and trimmed(row.limit_price),
        row.stop_price and trimmed(row.stop_price),
        TimeInForce(row.time_in_force),
    )
    return OrderState(
        account_id=row.account_id,
        symbol=Symbol(row.symbol),
        side=OrderSide(row.order_side),
        route=RouteStrategy(row.route_strategy),
        spec=spec,
        client_reference_id=row.client_reference_id,
        status=row.order_status,
        cancel_requested=row.cancel_requested == "t",
        replace_pending=row.pending_replace_seq is not None,
        version=int(row.version),
        command_seq=int(row.command_seq),
    )
