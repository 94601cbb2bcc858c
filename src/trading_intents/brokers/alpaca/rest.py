"""Reads of Alpaca's REST interface beside the commands: orders, executions, positions, the
account."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from string import punctuation
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from trading_intents.brokers import rest_client, ulid
from trading_intents.brokers.alpaca import wire
from trading_intents.brokers.alpaca.order import (
    AlpacaOrder,
    Group,
    Name,
    end_pairs,
    is_made,
    is_pair,
    name_of,
    parts_of,
    total_filled,
)
from trading_intents.brokers.port import (
    AuthFailed,
    BrokerEvent,
    BrokerUnavailable,
    IntegrationContext,
)

PAGE_ORDERS = 500
MAX_ORDERS = 10_000
MAX_VERSIONS = 20  # of an order that are followed
ACTIVITIES = "/v2beta1/events/activities"
FILLS = "/v2/account/activities/FILL"
FEES = "/v2/account/activities/CFEE"
# By a host that has no such stream, or takes none of its ids.
NOT_SERVED = frozenset({400, 403, 404, 405, 422})
PAGE_FILLS = 100
SECONDS = "%Y-%m-%dT%H:%M:%SZ"
MAX_FILLS = 5_000
# An execution is listed so long after its order shows it.
LISTED_WITHIN = timedelta(milliseconds=100)
FEES_WITHIN = timedelta(days=1)  # fees are listed at the end of the day that they are dated at


class AlpacaRest(rest_client.RestClient):
    def __init__(self, context: IntegrationContext) -> None:
        # No key has what this changes.
        self.key = quote(context.secrets["api_key_id"].reveal(), punctuation)
        self.secret = quote(context.secrets["api_secret"].reveal(), punctuation)
        url = context.settings[f"ALPACA_{context.account.environment.upper()}_URL"]
        headers = {"APCA-API-KEY-ID": self.key, "APCA-API-SECRET-KEY": self.secret}
        super().__init__(context, url, headers, wire.CAPABILITIES.requests_per_minute or 0)
        self._external_id = context.account.external_account_id
        self._refused_activities = 0  # the status of a host that does not serve them
        self._refused_fees = ""
        self._before: dict[str, Decimal] = {}
        self._names: dict[str, Name] = {}  # under which orders are reported, by Alpaca's ids
        self._groups: dict[str, Group] = {}  # by their ids, and by Alpaca's ids of legs

    async def read_account(self, deadline: float) -> wire.AlpacaAccount:
        answer = await self.ask("GET", "/v2/account", deadline)
        if answer.status == 403 and answer.refusal.message:  # else it is no answer of Alpaca's
            raise AuthFailed("Alpaca forbids the credential: it may be of the other environment")
        account = answer.read(wire.AlpacaAccount)
        if self._external_id and self._external_id not in (account.id, account.account_number):
            raise AuthFailed("the credential is of another account than external_account_id")
        return account

    async def find(
        self, client_order_id: str, deadline: float, is_cancel: bool = False
    ) -> AlpacaOrder | None:
        query = {"client_order_id": client_order_id}
        answer = await self.ask(
            "GET", "/v2/orders:by_client_order_id", deadline, is_cancel, params=query
        )
        if answer.refusal.code == wire.NOT_FOUND:
            return None
        order = answer.read(AlpacaOrder)  # without its legs
        return await self.get(order.id, deadline) if order.is_linked and not is_cancel else order

    async def find_leg(self, order_id: str, deadline: float) -> AlpacaOrder | None:
        answer = await self._ask_order(order_id, deadline)
        if answer.refusal.code == wire.NOT_FOUND:
            return None
        found = answer.read(AlpacaOrder)
        is_leg = found.is_linked and not found.is_first
        return await self.adopt(found, deadline) if is_leg else None

    async def get(self, order_id: str, deadline: float, is_cancel: bool = False) -> AlpacaOrder:
        order = (await self._ask_order(order_id, deadline, is_cancel)).read(AlpacaOrder)
        return order if is_cancel and is_made(order) else await self.adopt(order, deadline)

    async def _ask_order(
        self, order_id: str, deadline: float, is_cancel: bool = False
    ) -> rest_client.RestAnswer:
        return await self.ask(
            "GET", f"/v2/orders/{order_id}", deadline, is_cancel, params={"nested": "true"}
        )

    async def adopt(self, order: AlpacaOrder, deadline: float) -> AlpacaOrder:
        """Names an order that Alpaca itself made to replace another, as at a split, after the
        other, and a leg after the order that it was sent with; its own legs likewise."""
        group = self._learn_group(order)
        name = name_of(order, group)
        legs = end_pairs([await self.adopt(leg, deadline) for leg in order.legs or ()])
        if is_made(order):
            before = await self._read_name(order.replaces or "", deadline)
            if is_pair(before.role, order.role):
                order = replace(order, replaces=None)
            else:
                filled = await self.count_before(order, deadline)
                name = before
                order = replace(order, total=filled + (order.qty or order.filled_qty))
        rest_client.remember(self._names, order.id, name)
        return replace(
            order,
            client_order_id=name.client_order_id,
            parent=name.parent,
            leg=name.leg,
            legs=tuple(legs),
        )

    async def _read_name(self, order_id: str, deadline: float) -> Name:
        if order_id not in self._names:
            await self.get(order_id, deadline)
        return self._names[order_id]

    def _learn_group(self, order: AlpacaOrder) -> Group | None:
        """Gives the order's group. If its first order is replaced, the new version has the legs."""
        keys = [each for each in (order.group_id, order.id, order.replaces) if each]
        group = next((self._groups[key] for key in keys if key in self._groups), None)
        if order.is_first and not (group and order.replaced_by):
            group = Group(order.id, group.parent if group else order.client_order_id)
            keys += [leg.id for leg in order.legs or ()]
        if group:
            for key in keys:
                rest_client.remember(self._groups, key, group)
        return group

    def first_of(self, order: AlpacaOrder) -> str | None:
        """Alpaca's id of the order that its group was sent as, if known."""
        group = self._groups.get(order.group_id or order.id)
        return group.first_id if group and order.is_linked else None

    async def _name(self, event: BrokerEvent, deadline: float) -> BrokerEvent:
        """Names the event after its order, where the activity's client order id is of Alpaca's
        making."""
        if (order_id := event.broker_order_id) and rest_client.is_uuid(event.client_order_id or ""):
            client_order_id, _, parent, leg = await self._read_name(order_id, deadline)
            event = replace(event, client_order_id=client_order_id or None, parent=parent, leg=leg)
        return event

    async def list_later(
        self, order: AlpacaOrder, deadline: float, is_cancel: bool = False
    ) -> list[AlpacaOrder]:
        """The order, then those that replaced it, the last one last."""
        chain = [order]
        while chain[-1].replaced_by and len(chain) < MAX_VERSIONS:
            last, later = end_pairs(
                [chain[-1], await self.get(chain[-1].replaced_by, deadline, is_cancel)]
            )
            chain[-1:] = [last, later] if last.replaced_by else [last]
        return chain

    async def list_versions(self, order: AlpacaOrder, deadline: float) -> list[AlpacaOrder]:
        """The order, then those that it replaced, the last one first."""
        chain = [order]
        while chain[-1].replaces and len(chain) < MAX_VERSIONS:
            chain.append(await self.get(chain[-1].replaces, deadline))
        return chain

    async def count_before(self, order: AlpacaOrder, deadline: float) -> Decimal:
        """The quantity that earlier versions filled. Read once: they are over."""
        if order.replaces and order.id not in self._before:
            chain = await self.list_versions(order, deadline)
            rest_client.remember(self._before, order.id, total_filled(chain[1:]))
        return self._before[order.id] if order.replaces else Decimal(0)

    async def list_orders(self, deadline: float, **query: str) -> list[AlpacaOrder]:
        """Leaves out orders of several option legs, which have no symbol of their own and are never
        ours."""
        orders: list[AlpacaOrder] = []
        while len(orders) < MAX_ORDERS:
            asked = {"limit": PAGE_ORDERS, "direction": "asc", **query}
            answer = await self.ask("GET", "/v2/orders", deadline, params=asked)
            page = answer.read(list[msgspec.Raw])
            orders += self.read_rows(page, AlpacaOrder)
            if len(page) < PAGE_ORDERS:
                adopted = [await self.adopt(order, deadline) for order in orders if order.symbol]
                return end_pairs(parts_of(adopted))
            query.pop("after", None)
            query["after_order_id"] = rest_client.id_of(page[-1])
        raise BrokerUnavailable(f"{MAX_ORDERS} orders, and more")

    async def list_positions(
        self, taken_at: datetime, deadline: float
    ) -> tuple[BrokerEvent, ...] | None:
        """Gives None if one of them cannot be read: it would count as 0."""
        rows = (await self.ask("GET", "/v2/positions", deadline)).read(list[msgspec.Raw])
        positions = self.read_rows(rows, wire.AlpacaPosition)
        events = tuple(wire.position_event(position, taken_at) for position in positions)
        return events if len(events) == len(rows) else None

    async def list_executions(
        self, since: datetime, until: datetime, deadline: float, orders: Sequence[AlpacaOrder] = ()
    ) -> list[BrokerEvent]:
        """Reads the activities, which alone have busts, corrections and the executions' ids; where
        they are not served, the older list of fills. Reads on until the last change of `orders`,
        should a slow clock have made `until` too early."""
        for order in orders:
            if order.updated_at:
                until = max(until, order.updated_at + LISTED_WITHIN)
        if since >= until:
            return []
        if not self.has_execution_ids:
            return await self._list_fills(since, until, deadline, orders)
        # By the ids, which are made when an activity is published: it may be dated long before.
        query = {"since_id": ulid.lowest(since), "until_id": ulid.highest(until)}
        answer = await self.ask("GET", ACTIVITIES, deadline, params=query)
        if answer.status in NOT_SERVED:
            self._refused_activities = answer.status
            return await self._list_fills(since, until, deadline, orders)
        if answer.status != 200:
            raise rest_client.AnswerUnclear(
                f"Alpaca lists no executions: {ACTIVITIES} answers {answer.status}"
            )
        rows = list[bytes]()
        for line in answer.body.splitlines():
            if line.startswith(b"data:"):
                rows.append(line[5:])
            elif line.startswith(b":") and (b"error" in line or b"dropped" in line):
                raise rest_client.AnswerUnclear("Alpaca left executions out")
        events = self.read_events(rows, wire.Activity, wire.activity_events)
        return [await self._name(event, deadline) for event in events]

    @property
    def has_execution_ids(self) -> bool:
        """Whether the list of executions has their ids."""
        return not self._refused_activities

    @property
    def remark(self) -> str:
        """Names the source of executions, for operators."""
        if self.has_execution_ids:
            return f"executions come from {ACTIVITIES}{self._refused_fees}"
        why = f"{ACTIVITIES} answers {self._refused_activities}"
        return (
            f"executions come from {FILLS}, busts and corrections by the stream alone: "
            f"{why}{self._refused_fees}"
        )

    async def list_fees(self, since: datetime, deadline: float) -> list[BrokerEvent]:
        """Reads fees in coins from the older list alone: the activities' event stream names no
        symbol for them."""
        query = {"after": f"{since - FEES_WITHIN:{SECONDS}}", "direction": "asc"}
        try:
            rows = await self.read_pages(FEES, deadline, query, PAGE_FILLS, MAX_FILLS)
            self._refused_fees = ""
        except rest_client.NotServed as error:
            rows = []
            self._refused_fees = f"; no fees in coins: {error}"
        return self.read_events(rows, wire.FeeActivity, wire.fee_events)

    async def _list_fills(
        self, since: datetime, until: datetime, deadline: float, orders: Sequence[AlpacaOrder]
    ) -> list[BrokerEvent]:
        known = {order.id: order for order in orders}
        events = list[BrokerEvent]()
        query = {"after": f"{since - timedelta(seconds=1):{SECONDS}}", "direction": "asc"}
        try:
            rows = await self.read_pages(FILLS, deadline, query, PAGE_FILLS, MAX_FILLS)
        except rest_client.NotServed as error:
            answers = f"{ACTIVITIES} answers {self._refused_activities}, {error}"
            raise rest_client.AnswerUnclear(f"Alpaca lists no executions: {answers}") from None
        for fill in self.read_rows(rows, wire.FillActivity):
            if since <= fill.transaction_time < until:
                order = known.get(fill.order_id) or await self.get(fill.order_id, deadline)
                known[order.id] = order
                before = await self.count_before(order, deadline)
                events.append(wire.fill_event(fill, order, before))
        return events
