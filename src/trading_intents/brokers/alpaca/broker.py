"""One account's session with Alpaca. Never repeats a command that may have arrived; what it cannot
prove is UNKNOWN."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from trading_intents.brokers import port
from trading_intents.brokers.alpaca import wire
from trading_intents.brokers.alpaca.order import (
    FINAL,
    OVER,
    AlpacaOrder,
    end_pairs,
    is_made,
    order_body,
    parts_of,
    replace_body,
    total_filled,
)
from trading_intents.brokers.alpaca.rest import MAX_VERSIONS, AlpacaRest
from trading_intents.brokers.port import (
    AuthFailed,
    BrokerEvent,
    BrokerUnavailable,
    CommandResult,
    OrderTicket,
    Outcome,
)
from trading_intents.brokers.rest_client import (
    AnswerUnclear,
    NotSent,
    answered,
    rejected,
    remember,
    url_setting,
)
from trading_intents.brokers.streamed_session import Reported, StreamedSession
from trading_intents.brokers.websocket_client import WebSocketClient
from trading_intents.clock import rfc3339

SNAPSHOT_SECONDS = 9.0
FEE_ROUNDS = 20  # of the comparisons of REST and the stream: in one of them fees are read
MAX_READ = 20  # orders that ended, in one reading
# The events of orders that are over in a snapshot, beside their executions.
ENDS = frozenset(
    port.EventKind[name]
    for name in ("CANCELLED", "EXPIRED", "REJECTED", "REPLACED", "REPLACE_REJECTED")
)


class AlpacaBroker(StreamedSession):
    name = wire.CAPABILITIES.name
    capabilities = wire.CAPABILITIES

    def __init__(self, context: port.IntegrationContext, **seconds: float) -> None:
        self._rest = AlpacaRest(context)
        super().__init__(self._rest, "/stream", **seconds)
        # Read by `is_mute`, not yielded yet.
        self._watched: tuple[BrokerEvent | port.BrokerBalance, ...] = ()
        # From then on executions may have come too late for the last snapshot.
        self._since: datetime | None = None
        # Ids of orders and keys of executions that stream or snapshot had.
        self._reported: dict[str, str] = {}
        # Alpaca's ids of orders that may be open, while there is no stream.
        self._open: set[str] = set()
        # Alpaca's ids of orders to be read because of another, and that one: versions that replaced
        # it, and the first of a group that it was in. Those of groups in which one is over and
        # another is not, yet, are read again.
        self._unread: dict[str, AlpacaOrder] = {}
        self._unfinished: dict[str, AlpacaOrder] = {}
        # Client order ids of commands, by the order and the update that refuses it.
        self._commands: dict[str, str] = {}

    async def check(self) -> None:
        await self._rest.read_account(self._rest.deadline())

    async def subscribe(self, stream: WebSocketClient) -> None:
        keys = {"action": "auth", "key": self._rest.key, "secret": self._rest.secret}
        if (await stream.ask(keys, wire.answer_of("authorization"))).status != "authorized":
            raise BrokerUnavailable("the update stream does not take the credential")
        listen = {"action": "listen", "data": {"streams": ["trade_updates"]}}
        if "trade_updates" not in (await stream.ask(listen, wire.answer_of("listening"))).streams:
            raise BrokerUnavailable("the update stream does not offer trade_updates")

    @answered
    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        if any(leg.time_in_force is not ticket.time_in_force for leg in ticket.legs):
            return rejected(
                "one_time_in_force", "Alpaca has one time in force for an order and its exits"
            )
        return await self._send_order("POST", "/v2/orders", order_body(ticket), ticket, deadline)

    @answered
    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        """Reads the order's versions first: what they filled must not be asked for again."""
        try:
            order: AlpacaOrder | None
            if ticket.broker_order_id:
                order = await self._rest.get(ticket.broker_order_id, deadline)
            else:
                order = await self._rest.find(ticket.orig_client_order_id or "", deadline)
            if order is None:
                return rejected("unknown_order")
            # It may be replaced by Alpaca itself.
            order = (await self._rest.list_later(order, deadline))[-1]
            chain = await self._rest.list_versions(order, deadline)
        except AnswerUnclear as error:
            raise NotSent(str(error)) from None  # only the reading failed
        left = ticket.quantity - total_filled(chain)
        if left <= 0:
            return rejected("replace_below_filled")
        if len(chain) == MAX_VERSIONS:
            return rejected("too_many_versions")
        remember(self._commands, f"order_replace_rejected {order.id}", ticket.client_order_id)
        body = replace_body(ticket, order, left)
        return await self._send_order("PATCH", f"/v2/orders/{order.id}", body, ticket, deadline)

    async def _send_order(
        self,
        method: str,
        path: str,
        body: Mapping[str, object],
        ticket: OrderTicket,
        deadline: float,
    ) -> CommandResult:
        if ticket.not_after is not None and self._rest.deadline(0) > ticket.not_after:
            raise NotSent("it is too old")
        answer = await self._rest.ask(method, path, deadline, json=body)
        refusal = answer.refusal
        if answer.status not in (400, 403, 404, 422):
            return self._acked(await self._rest.adopt(answer.read(AlpacaOrder), deadline))
        if wire.DUPLICATE in refusal.message:
            return CommandResult(
                outcome=Outcome.UNKNOWN, code=port.DUPLICATE_ID, message=refusal.message
            )
        if refusal.code != wire.VALIDATION:
            # Orders are known to work that were refused: it is a refusal only if the order is not
            # there.
            try:
                order = await self._rest.find(ticket.client_order_id, deadline)
            except (BrokerUnavailable, AuthFailed) as error:
                raise AnswerUnclear(f"refused: {refusal.message}; not looked up: {error}") from None
            if order is not None:
                return self._acked(order)
        return rejected(str(refusal.code or answer.status), refusal.message)

    def _acked(self, order: AlpacaOrder) -> CommandResult:
        self._follow(order.parts)
        updates = tuple(wire.list_events(order.parts))
        return CommandResult(outcome=Outcome.ACKED, broker_order_id=order.id, updates=updates)

    def _follow(self, orders: Iterable[AlpacaOrder]) -> None:
        """Follows open orders while there is no stream. A held one ends or starts only after
        another of its group."""
        if self._stream is None:
            self._open |= {order.id for order in orders if order.status not in OVER | {"held"}}

    @answered
    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        """Cancels the version that is at the market, should the one that is named have been
        replaced."""
        order_id = ticket.broker_order_id
        if order_id is None:
            client_order_id = ticket.orig_client_order_id or ""
            order = await self._rest.find(client_order_id, deadline, is_cancel=True)
            if order is None:
                return rejected("unknown_order")
            order_id = order.id
        for _ in range(MAX_VERSIONS):
            remember(self._commands, f"order_cancel_rejected {order_id}", ticket.client_order_id)
            path = f"/v2/orders/{order_id}"
            answer = await self._rest.ask("DELETE", path, deadline, is_cancel=True)
            if answer.status == 204:
                return CommandResult(outcome=Outcome.ACKED, broker_order_id=order_id)
            if answer.refusal.code == wire.NOT_FOUND:
                return rejected("unknown_order")
            if answer.status != 422:
                raise AnswerUnclear(f"Alpaca answers {answer.status}")
            order = await self._rest.get(order_id, deadline, is_cancel=True)
            order = (await self._rest.list_later(order, deadline, is_cancel=True))[-1]
            if order.status in FINAL:
                updates = () if is_made(order) else tuple(wire.order_events(order))
                return rejected("too_late", updates=updates)
            if order.status == "pending_cancel":
                return CommandResult(outcome=Outcome.ACKED, broker_order_id=order.id)
            if order.id == order_id:  # as long again as it has waited
                now = self._rest.now()
                waited_seconds = (now - (order.updated_at or now)) // timedelta(seconds=1)
                why = f"an order that is {order.status} cannot be cancelled yet"
                raise NotSent(why, min(60, max(1, waited_seconds)))
            order_id = order.id
        raise AnswerUnclear("the order has too many versions")

    async def lookup(self, sent: port.SentOrder, deadline: float) -> port.Lookup:
        try:
            order = await self._rest.find(sent.client_order_id, deadline)
            if order is None and sent.broker_order_id:  # a leg's is Alpaca's making
                order = await self._rest.find_leg(sent.broker_order_id, deadline)
            if order is None:
                return port.Absent()
            earlier = await self._rest.list_versions(order, deadline)
            chain = [*earlier[:0:-1], *await self._rest.list_later(order, deadline)]
            fills = await self._list_fills(chain, deadline)
        except (BrokerUnavailable, AuthFailed) as error:
            return port.LookupUnknown(str(error))
        if wire.lacks_fills(chain, fills):
            return port.LookupUnknown(
                "Alpaca does not list all executions of the order's versions yet"
            )
        return wire.chain_snapshot(chain, fills)

    async def _list_fills(self, chain: Sequence[AlpacaOrder], deadline: float) -> list[BrokerEvent]:
        """Gives none where Alpaca has too many executions since an old order."""
        parts = parts_of(chain)
        filled = {each.id for each in parts if each.filled_qty}
        if not filled:
            return []
        since = chain[0].submitted_at
        with contextlib.suppress(AnswerUnclear):
            listed = await self._rest.list_executions(since, self._rest.now(), deadline, parts)
            return [each for each in listed if each.broker_order_id in filled]
        return []

    async def updates(self, stream: WebSocketClient) -> AsyncIterator[Reported]:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._watch_seconds):
                    text = await stream.receive()
                for event in await self._parse(text):
                    yield event
            async for read in self._read_versions():
                yield read
            watched = self._watched
            self._watched = ()
            for each in watched:
                yield each

    async def read_changes(self, since: datetime) -> list[BrokerEvent]:
        rest = self._rest
        followed = set(self._open)
        ended = list[AlpacaOrder]()
        opened = await rest.list_orders(rest.deadline(), status="open")
        followed -= {order.id for order in opened}
        for order_id in list(followed)[:MAX_READ]:
            with contextlib.suppress(AnswerUnclear):  # one that cannot be read hides no other
                ended.append(await rest.get(order_id, rest.deadline()))
                if (first_id := rest.first_of(ended[-1])) and first_id != order_id:
                    ended.append(await rest.get(first_id, rest.deadline()))
        read = end_pairs([*opened, *parts_of(ended)])
        executions = await rest.list_executions(since, rest.now(), rest.deadline(), read)
        self._open -= {order.id for order in ended}
        self._follow(read)
        return [*wire.list_events(read), *executions]

    async def _parse(self, text: str | bytes) -> Sequence[BrokerEvent | port.StreamGap]:
        try:
            frame = wire.frame_of(text)
            if frame.stream != "trade_updates":
                return ()
            return await self._read_update(msgspec.json.decode(frame.data, type=wire.TradeUpdate))
        except (BrokerUnavailable, AuthFailed) as error:
            return [port.StreamGap(f"an order that Alpaca made cannot be read: {error}")]
        except (msgspec.MsgspecError, ValueError) as error:
            return [port.UnreadableEvent(f"an update: {error}")]

    async def _read_update(self, update: wire.TradeUpdate) -> Sequence[BrokerEvent]:
        order = update.order
        version_id = order.replaced_by or ""  # an update of its own is not promised
        counted = wire.fill_key(order.id, order.filled_qty)
        for reported in (order.id, f"alpaca:{update.execution_id}", counted, version_id):
            remember(self._reported, reported, update.event)
        if not order.symbol:
            return ()
        if update.event in wire.COMMAND_REFUSALS:
            command = self._commands.get(f"{update.event} {order.id}")
            return [wire.refusal_event(update, command)] if command else ()
        rest = self._rest
        order = await rest.adopt(order, rest.deadline())
        first_id = rest.first_of(order)
        is_filled_entry = order.role == "entry" and order.status == "filled"
        if first_id and order.status in OVER and not is_filled_entry:
            remember(self._unread, first_id, order)
        if update.event == "replaced" and version_id:
            remember(self._unread, version_id, order)
            return ()
        before = None
        # Then the next list of fills counts it.
        with contextlib.suppress(BrokerUnavailable, AuthFailed):
            if not rest.has_execution_ids:
                before = await rest.count_before(order, rest.deadline())
        return wire.update_events(replace(update, order=order), before)

    async def _read_versions(self) -> AsyncIterator[BrokerEvent | port.StreamGap]:
        """Reads versions that replaced orders, and groups of orders that ended: Alpaca streams
        nothing of one that is held. They stay in `_unread` while no request can be sent: a gap
        would end the session."""
        for order_id, cause in list(self._unread.items()):
            try:
                parts = (await self._rest.get(order_id, self._rest.deadline())).parts
                changed = [order for order in end_pairs([cause, *parts]) if order != cause]
                for event in wire.list_events(changed):
                    yield event
                if cause.status in FINAL and any(part.status not in OVER for part in parts):
                    remember(self._unfinished, order_id, cause)
            except NotSent:
                return
            except (BrokerUnavailable, AuthFailed) as error:
                yield port.StreamGap(f"a version cannot be read: {error}")
            del self._unread[order_id]

    async def snapshot(
        self, since: datetime, open_orders: Sequence[port.SentOrder]
    ) -> port.AccountSnapshot:
        """Includes how orders that were sent since then ended; has no positions if they change
        meanwhile."""
        rest = self._rest
        deadline = rest.deadline(SNAPSHOT_SECONDS)
        taken_at = rest.now()
        account = await rest.read_account(deadline)
        recent = await rest.list_orders(deadline, status="all", nested="true", after=rfc3339(since))
        opened = await rest.list_orders(deadline, status="open")
        known = {order.id for order in opened}
        closed = list[AlpacaOrder]()
        for order in recent:
            if order.id not in known:
                listed = opened if order.status == "held" else closed
                listed.append(order)
        before = await rest.list_positions(taken_at, deadline)
        executions = await rest.list_executions(
            min(since, self._since or since), rest.now(), deadline, closed + opened
        )
        executions += await rest.list_fees(since, deadline)
        self._since = max(since, taken_at - timedelta(minutes=1))
        positions = await rest.list_positions(taken_at, deadline)
        self._follow(opened)
        for order in opened:
            remember(self._reported, order.id, "snapshot")
        for each in executions:
            remember(self._reported, each.dedupe_key, "snapshot")
        executions += [each for each in wire.list_events(closed) if each.kind in ENDS]
        return port.AccountSnapshot(
            taken_at=taken_at,
            open_orders=tuple([wire.chain_snapshot([order], ()) for order in opened]),
            executions=tuple(executions),
            positions=positions if positions == before else None,
            balance=account.balance(taken_at),
            notices=account.notices(rest.skew),
            unreadable=rest.take_unreadable(),
            remarks=(rest.remark,),
        )

    async def is_mute(self, since: datetime, until: datetime, number: int) -> bool:
        """Also reads the balance and the fees, which no stream reports."""
        rest = self._rest
        executions = await rest.list_executions(since, until, rest.deadline())
        orders = await rest.list_orders(rest.deadline(), status="open")
        balance = (await rest.read_account(rest.deadline())).balance(rest.now())
        fees = [] if number % FEE_ROUNDS else await rest.list_fees(rest.now(), rest.deadline())
        self._watched = (*fees, balance)
        self._unread = self._unread | self._unfinished
        self._unfinished = {}
        known = {each.dedupe_key for each in executions}
        for order in orders:
            is_ours = order.client_order_id and order.status == "new"
            if is_ours and since < order.submitted_at < until:
                known.add(order.id)
        return not known <= self._reported.keys()


INTEGRATION = port.Integration(
    wire.CAPABILITIES.name,
    wire.CAPABILITIES,
    AlpacaBroker,
    settings=(
        url_setting(
            "ALPACA_PAPER_URL",
            "Where Alpaca's paper accounts trade: https, or http on loopback.",
            "https://paper-api.alpaca.markets",
        ),
        url_setting(
            "ALPACA_LIVE_URL",
            "Where its live accounts do, likewise.",
            "https://api.alpaca.markets",
        ),
    ),
)
