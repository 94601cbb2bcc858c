"""One account's session with Alpaca. Never repeats a command that may have arrived; what it cannot prove is UNKNOWN."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from trading_intents.brokers import port
from trading_intents.brokers.alpaca import wire
from trading_intents.brokers.alpaca.rest import MAX_VERSIONS, AlpacaRest
from trading_intents.brokers.port import AuthFailed, BrokerEvent, BrokerUnavailable, CommandResult, OrderTicket, Outcome
from trading_intents.brokers.rest_client import AnswerUnclear, NotSent, answered, rejected, remember
from trading_intents.brokers.streamed_session import Reported, StreamedSession
from trading_intents.brokers.websocket_client import WebSocketClient
from trading_intents.clock import rfc3339

SNAPSHOT_SECONDS = 9.0
FEE_ROUNDS = 20  # of the comparisons of REST and the stream: in one of them fees are read
MAX_READ = 20  # orders that ended, in one reading
# What a snapshot tells of orders that are over, beside their executions.
ENDS = frozenset(port.EventKind[name] for name in ("CANCELLED", "EXPIRED", "REJECTED", "REPLACED", "REPLACE_REJECTED"))


class AlpacaBroker(StreamedSession):
    name, capabilities = wire.CAPABILITIES.name, wire.CAPABILITIES

    def __init__(self, context: port.IntegrationContext, **seconds: float) -> None:
        self._rest = AlpacaRest(context)
        super().__init__(self._rest, "/stream", **seconds)
        self._watched: tuple[BrokerEvent | port.BrokerBalance, ...] = ()  # not told yet
        self._since: datetime | None = None  # from then on executions may have come too late for the last snapshot
        self._told: dict[str, str] = {}  # Alpaca's ids of orders, and keys of executions, that were told
        self._open: set[str] = set()  # Alpaca's ids of orders that may be, while there is no stream
        self._unread: dict[str, str] = {}  # Alpaca's ids of versions that replaced others
        self._commands: dict[str, str] = {}  # client order ids of commands, by the order and the update that refuses it

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
        return await self._place("POST", "/v2/orders", wire.order_body(ticket), ticket, deadline)

    @answered
    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        """Reads the order's versions first: what they filled must not be asked for again."""
        try:
            order_id, named = ticket.broker_order_id, ticket.orig_client_order_id or ""
            order = await (self._rest.get(order_id, deadline) if order_id else self._rest.find(named, deadline))
            if order is None:
                return rejected("unknown_order")
            while order.replaced_by:  # by Alpaca itself
                order = await self._rest.get(order.replaced_by, deadline)
            chain = await self._rest.list_versions(order, deadline)
        except AnswerUnclear as error:
            raise NotSent(str(error)) from None  # only the reading failed
        left = ticket.quantity - sum((version.filled_qty for version in chain), Decimal(0))
        if left <= 0 or len(chain) == MAX_VERSIONS:
            return rejected("replace_below_filled" if left <= 0 else "too_many_versions")
        remember(self._commands, f"order_replace_rejected {order.id}", ticket.client_order_id)
        body = wire.replace_body(ticket, order, left)
        return await self._place("PATCH", f"/v2/orders/{order.id}", body, ticket, deadline)

    async def _place(
        self, method: str, path: str, body: Mapping[str, object], ticket: OrderTicket, deadline: float
    ) -> CommandResult:
        if ticket.not_after is not None and self._rest.deadline(0) > ticket.not_after:
            raise NotSent("it is too old")
        answer = await self._rest.ask(method, path, deadline, json=body)
        refusal = answer.refusal
        if answer.status not in (400, 403, 404, 422):
            return self._acked(answer.read(wire.AlpacaOrder))
        if wire.DUPLICATE in refusal.message:
            return CommandResult(outcome=Outcome.UNKNOWN, code=port.DUPLICATE_ID, message=refusal.message)
        if refusal.code != wire.VALIDATION:
            # Orders are known to work that were refused: it is a refusal only if the order is not there.
            try:
                order = await self._rest.find(ticket.client_order_id, deadline)
            except (BrokerUnavailable, AuthFailed) as error:
                raise AnswerUnclear(f"refused: {refusal.message}; not looked up: {error}") from None
            if order is not None:
                return self._acked(order)
        return rejected(str(refusal.code or answer.status), refusal.message)

    def _acked(self, order: wire.AlpacaOrder) -> CommandResult:
        self._follow(order)
        return CommandResult(outcome=Outcome.ACKED, broker_order_id=order.id, updates=tuple(wire.order_events(order)))

    def _follow(self, *orders: wire.AlpacaOrder) -> None:
        if self._stream is None:
            self._open.update(order.id for order in orders)

    @answered
    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        """Cancels the version that is at the market, should the one that is named have been replaced."""
        order_id = ticket.broker_order_id
        if order_id is None:
            order = await self._rest.find(ticket.orig_client_order_id or "", deadline, is_cancel=True)
            if order is None:
                return rejected("unknown_order")
            order_id = order.id
        for _ in range(MAX_VERSIONS):
            remember(self._commands, f"order_cancel_rejected {order_id}", ticket.client_order_id)
            answer = await self._rest.ask("DELETE", f"/v2/orders/{order_id}", deadline, is_cancel=True)
            if answer.status == 204:
                return CommandResult(outcome=Outcome.ACKED, broker_order_id=order_id)
            if answer.refusal.code == wire.NOT_FOUND:
                return rejected("unknown_order")
            if answer.status != 422:
                raise AnswerUnclear(f"Alpaca answers {answer.status}")
            order = await self._rest.get(order_id, deadline, is_cancel=True)
            if order.status in wire.FINAL:
                return rejected("too_late", updates=() if wire.is_made(order) else tuple(wire.order_events(order)))
            if order.status == "pending_cancel":
                return CommandResult(outcome=Outcome.ACKED, broker_order_id=order_id)
            if order.replaced_by is None:  # as long again as it has waited
                age_seconds = (self._rest.now() - (order.updated_at or self._rest.now())) // timedelta(seconds=1)
                raise NotSent(f"an order that is {order.status} cannot be cancelled yet", min(60, max(1, age_seconds)))
            order_id = order.replaced_by
        raise AnswerUnclear("the order has too many versions")

    async def lookup(self, client_order_id: str, broker_order_id: str | None, deadline: float) -> port.Lookup:
        try:
            order = await self._rest.find(client_order_id, deadline)
            if order is None:
                return port.Absent()
            chain = [order]
            while chain[-1].replaced_by and len(chain) < MAX_VERSIONS:
                chain.append(await self._rest.get(chain[-1].replaced_by, deadline))
            filled, fills = {each.id for each in chain if each.filled_qty}, list[BrokerEvent]()
            with contextlib.suppress(AnswerUnclear):  # there may be too many since an old order
                if filled:
                    told = await self._rest.list_executions(order.submitted_at, self._rest.now(), deadline, chain)
                    fills = [each for each in told if each.broker_order_id in filled]
            if wire.lacks_fills(chain, fills):
                raise AnswerUnclear("Alpaca has not told all executions of the order's versions")
            return wire.chain_snapshot(chain, fills)
        except (BrokerUnavailable, AuthFailed) as error:
            return port.LookupUnknown(str(error))

    async def updates(self, stream: WebSocketClient) -> AsyncIterator[Reported]:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._watch_seconds):
                    text = await stream.receive()
                for event in await self._parse(text):
                    yield event
            async for read in self._read_versions():
                yield read
            watched, self._watched = self._watched, ()
            for each in watched:
                yield each

    async def read_changes(self, since: datetime) -> list[BrokerEvent]:
        rest, followed, ended = self._rest, set(self._open), list[wire.AlpacaOrder]()
        opened = await rest.list_orders(rest.deadline(), status="open")
        for order_id in list(followed.difference(order.id for order in opened))[:MAX_READ]:
            with contextlib.suppress(AnswerUnclear):  # one that cannot be read hides no other
                ended.append(await rest.get(order_id, rest.deadline()))
        executions = await rest.list_executions(since, rest.now(), rest.deadline(), opened + ended)
        self._follow(*opened)
        self._open.difference_update(order.id for order in ended)
        return [*(event for order in opened + ended for event in wire.order_events(order)), *executions]

    async def _parse(self, text: str | bytes) -> "list[BrokerEvent | port.StreamGap]":
        try:
            frame = wire.frame_of(text)
            if frame.stream != "trade_updates":
                return []
            update = msgspec.json.decode(frame.data, type=wire.TradeUpdate)
            version_id = update.order.replaced_by or ""  # an update of its own is not promised
            counted = wire.fill_key(update.order.id, update.order.filled_qty)
            for told in (update.order.id, f"alpaca:{update.execution_id}", counted, version_id):
                remember(self._told, told, update.event)
            if not update.order.symbol:
                return []
            if update.event in wire.COMMAND_REFUSALS:
                command = self._commands.get(f"{update.event} {update.order.id}")
                return [wire.refusal_event(update, command)] if command else []
            if update.event == "replaced" and version_id:
                remember(self._unread, version_id, update.event)
                return []
            before = None
            with contextlib.suppress(BrokerUnavailable, AuthFailed):  # then the next list of fills counts it
                if not self._rest.tells_ids:
                    before = await self._rest.count_before(update.order, self._rest.deadline())
            update = replace(update, order=await self._rest.adopt(update.order, self._rest.deadline()))
            return [*wire.update_events(update, before)]
        except (BrokerUnavailable, AuthFailed) as error:
            return [port.StreamGap(f"an order that Alpaca made cannot be read: {error}")]
        except (msgspec.MsgspecError, ValueError) as error:
            return [port.UnreadableEvent(f"an update: {error}")]

    async def _read_versions(self) -> AsyncIterator[BrokerEvent | port.StreamGap]:
        """What replaced other orders. It is kept while it may not be asked for: a gap would end the session then."""
        for order_id in list(self._unread):
            try:
                for event in wire.order_events(await self._rest.get(order_id, self._rest.deadline())):
                    yield event
            except NotSent:
                return
            except (BrokerUnavailable, AuthFailed) as error:
                yield port.StreamGap(f"a version cannot be read: {error}")
            del self._unread[order_id]

    async def snapshot(self, since: datetime) -> port.AccountSnapshot:
        """Tells what became of orders that were sent since, too, and no positions if they change meanwhile."""
        rest, deadline, taken_at = self._rest, self._rest.deadline(SNAPSHOT_SECONDS), self._rest.now()
        account = await rest.read_account(deadline)
        closed = await rest.list_orders(deadline, status="closed", after=rfc3339(since))
        opened = await rest.list_orders(deadline, status="open")
        before = await rest.list_positions(taken_at, deadline)
        executions = await rest.list_executions(min(since, self._since or since), rest.now(), deadline, closed + opened)
        executions += await rest.list_fees(since, deadline)
        self._since = max(since, taken_at - timedelta(minutes=1))
        positions = await rest.list_positions(taken_at, deadline)
        self._follow(*opened)
        for told in (*(order.id for order in opened), *(each.dedupe_key for each in executions)):
            remember(self._told, told, "snapshot")
        return port.AccountSnapshot(
            taken_at,
            tuple(wire.chain_snapshot([order], ()) for order in opened),
            (*executions, *(event for order in closed for event in wire.order_events(order) if event.kind in ENDS)),
            positions if positions == before else None,
            account.balance(taken_at),
            account.notices(rest.skew),
            rest.take_unreadable(),
            (rest.remark,),
        )

    async def is_mute(self, since: datetime, until: datetime, number: int) -> bool:
        """Reads the balance, and fees, which no stream tells, too."""
        rest = self._rest
        known = [each.dedupe_key for each in await rest.list_executions(since, until, rest.deadline())]
        orders = await rest.list_orders(rest.deadline(), status="open")
        balance = (await rest.read_account(rest.deadline())).balance(rest.now())
        fees = [] if number % FEE_ROUNDS else await rest.list_fees(rest.now(), rest.deadline())
        self._watched = (*fees, balance)
        known += [each.id for each in orders if since < each.submitted_at < until and each.status == "new"]
        return any(each not in self._told for each in known)


INTEGRATION = port.Integration(wire.CAPABILITIES.name, wire.CAPABILITIES, AlpacaBroker)
