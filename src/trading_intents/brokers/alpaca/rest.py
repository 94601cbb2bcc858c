"""What is asked of Alpaca's REST interface beside the commands: orders, executions, positions, the account."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from string import punctuation
from urllib.parse import quote

import msgspec

from trading_intents.brokers.alpaca import wire
from trading_intents.brokers.port import AuthFailed, BrokerEvent, BrokerUnavailable, IntegrationContext
from trading_intents.brokers.rest_client import AnswerUnclear, RestAnswer, RestClient
from trading_intents.clock import rfc3339

PAGE_ORDERS = 500
MAX_ORDERS = 10_000
TOLD_WITHIN = timedelta(milliseconds=100)  # an execution is told so long after its order shows it


class AlpacaRest(RestClient):
    def __init__(self, context: IntegrationContext) -> None:
        secrets = (context.secrets[name].reveal() for name in wire.CAPABILITIES.credential_fields)
        self.key, self.secret = (quote(each, punctuation) for each in secrets)  # no key has what this changes
        url = context.settings[f"ALPACA_{context.account.environment.upper()}_URL"]
        headers = {"APCA-API-KEY-ID": self.key, "APCA-API-SECRET-KEY": self.secret}
        super().__init__(context, url, headers, wire.CAPABILITIES.requests_per_minute or 0)
        self._external_id = context.account.external_account_id

    async def read_account(self, deadline: float) -> wire.AlpacaAccount:
        answer = await self.ask("GET", "/v2/account", deadline)
        if answer.status == 403 and wire.refusal_of(answer.body).message:  # else it is no answer of Alpaca's
            raise AuthFailed("Alpaca forbids the credential: it may be of the other environment")
        account = answer.read(wire.AlpacaAccount)
        if self._external_id and self._external_id not in (account.id, account.account_number):
            raise AuthFailed("the credential is of another account than external_account_id")
        return account

    async def find(self, client_order_id: str, deadline: float, is_cancel: bool = False) -> wire.AlpacaOrder | None:
        query = {"client_order_id": client_order_id}
        answer = await self.ask("GET", "/v2/orders:by_client_order_id", deadline, is_cancel, params=query)
        return None if wire.refusal_of(answer.body).code == wire.NOT_FOUND else answer.read(wire.AlpacaOrder)

    async def get(self, order_id: str, deadline: float, is_cancel: bool = False) -> wire.AlpacaOrder:
        return (await self.ask("GET", f"/v2/orders/{order_id}", deadline, is_cancel)).read(wire.AlpacaOrder)

    async def list_orders(self, deadline: float, **query: str) -> list[wire.AlpacaOrder]:
        """Without those of several legs, which have no symbol of their own and are never ours."""
        orders: list[wire.AlpacaOrder] = []
        while len(orders) < MAX_ORDERS:
            asked = {"limit": PAGE_ORDERS, "direction": "asc", **query}
            page = (await self.ask("GET", "/v2/orders", deadline, params=asked)).read(list[wire.AlpacaOrder])
            orders += page
            if len(page) < PAGE_ORDERS:
                return [order for order in orders if order.symbol]
            query = {"status": query["status"], "after_order_id": page[-1].id}
        raise BrokerUnavailable(f"{MAX_ORDERS} orders, and more")

    async def list_positions(self, taken_at: datetime, deadline: float) -> tuple[BrokerEvent, ...]:
        positions = (await self.ask("GET", "/v2/positions", deadline)).read(list[wire.AlpacaPosition])
        return tuple(wire.position_event(position, taken_at) for position in positions)

    async def list_executions(
        self, since: datetime, until: datetime, deadline: float, orders: Sequence[wire.AlpacaOrder] = ()
    ) -> list[BrokerEvent]:
        """From the activities, which alone tell busts and corrections, and every execution by its id. `orders`: until
        they changed, where that is later than `until` by a clock that is slow."""
        until = max([until, *(order.updated_at + TOLD_WITHIN for order in orders if order.updated_at)])
        path, query = "/v2beta1/events/activities", {"since": rfc3339(since), "until": rfc3339(until)}
        answer = await self.ask("GET", path, deadline, params=query) if since < until else RestAnswer(200, b"")
        if answer.status != 200:
            raise AnswerUnclear(f"Alpaca tells no executions: {path} answers {answer.status}")
        try:
            return wire.activity_events(answer.body)
        except (ValueError, msgspec.MsgspecError) as error:
            raise AnswerUnclear(f"executions cannot be read: {error}") from None
