"""An account: its orders, trades, positions, money, events, credentials and controls."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from trading_intents_client.asynchronous.controls import AsyncAccountControls
from trading_intents_client.asynchronous.orders import AsyncOrder, AsyncPlacedOrder, placed_order
from trading_intents_client.asynchronous.pages import AsyncPages
from trading_intents_client.asynchronous.requests import (
    Amount,
    Command,
    StopPrices,
    check_key,
    create_command,
    given_fields,
    if_match,
    make_key,
    query,
    segment,
)
from trading_intents_client.stream.events import GapEvent
from trading_intents_client.stream.following import AsyncEventStream
from trading_intents_client.stream.sources import event_source
from trading_intents_client.stream.waiting import OrderWaits
from trading_intents_client.transport.http import Transport
from trading_intents_client.types.accounts import Credential, TradingAccount
from trading_intents_client.types.enums import (
    EventTransport,
    OrderFlagName,
    OrderSide,
    OrderState,
    OrderStateName,
    OrderStatusName,
    RouteStrategyName,
    SortOrderName,
    TimeInForceName,
    TimeWindow,
    TimeWindowName,
)
from trading_intents_client.types.trading import (
    Action,
    Balances,
    CancelledAll,
    EquityHistory,
    Position,
    Stats,
    Submitted,
    Trade,
)


class AsyncAccount:
    """One trading account, by its id. Making it asks the platform nothing."""

    def __init__(self, transport: Transport, account_id: str) -> None:
        self._transport = transport
        self._id = account_id
        self._path = f"/v1/accounts/{segment(account_id)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._id!r})"

    @property
    def id(self) -> str:
        """The account's id."""
        return self._id

    @property
    def controls(self) -> AsyncAccountControls:
        """The account's switch, limits and halt, and the controls of its symbols."""
        return AsyncAccountControls(self._transport, self._id)

    async def get(self) -> TradingAccount:
        """Reads the account: its name, broker, connection and so on."""
        return await self._transport.call("GET", self._path, TradingAccount)

    async def update(
        self,
        *,
        name: str | None = None,
        external_account_id: str | None = None,
        disabled: bool | None = None,
        version: int | None = None,
    ) -> TradingAccount:
        """Changes the account; what is not given stays. With `version` only if it is still that
        one."""
        body = given_fields(name=name, external_account_id=external_account_id, disabled=disabled)
        return await self._transport.call(
            "PATCH", self._path, TradingAccount, body=body, headers=if_match(version)
        )

    async def close(self, *, version: int | None = None) -> None:
        """Closes the account for good. It stays readable."""
        await self._transport.send("DELETE", self._path, headers=if_match(version))

    async def buy(
        self,
        symbol: str,
        quantity: Amount,
        *,
        limit: Amount | None = None,
        stop: Amount | None = None,
        trail: Amount | None = None,
        trail_bps: int | None = None,
        take_profit: Amount | None = None,
        stop_loss: StopPrices | None = None,
        exits_time_in_force: TimeInForceName | None = None,
        one_cancels_other: StopPrices | None = None,
        time_in_force: TimeInForceName | None = None,
        route: RouteStrategyName | None = None,
        client_reference_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncPlacedOrder:
        """Buys: at the market, with `limit` and `stop` prices, or with a stop that trails. Placed
        once, however often it is asked for.

        The broker links it to what protects it: `take_profit` and `stop_loss` (a price, or stop and
        limit) close what it fills, and `one_cancels_other` is a stop beside a limit order. `legs`
        of what is placed are these orders.
        """
        command = create_command(
            symbol,
            OrderSide.BUY,
            quantity,
            limit=limit,
            stop=stop,
            trail=trail,
            trail_bps=trail_bps,
            take_profit=take_profit,
            stop_loss=stop_loss,
            exits_time_in_force=exits_time_in_force,
            one_cancels_other=one_cancels_other,
            time_in_force=time_in_force,
            route=route,
        )
        return await self.submit(
            command, client_reference_id=client_reference_id, idempotency_key=idempotency_key
        )

    async def sell(
        self,
        symbol: str,
        quantity: Amount,
        *,
        limit: Amount | None = None,
        stop: Amount | None = None,
        trail: Amount | None = None,
        trail_bps: int | None = None,
        one_cancels_other: StopPrices | None = None,
        time_in_force: TimeInForceName | None = None,
        route: RouteStrategyName | None = None,
        client_reference_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncPlacedOrder:
        """Sells what the account holds: at the market, with `limit` and `stop` prices, or with a
        stop that trails;
        `one_cancels_other` is a stop beside a limit."""
        command = create_command(
            symbol,
            OrderSide.SELL,
            quantity,
            limit=limit,
            stop=stop,
            trail=trail,
            trail_bps=trail_bps,
            one_cancels_other=one_cancels_other,
            time_in_force=time_in_force,
            route=route,
        )
        return await self.submit(
            command, client_reference_id=client_reference_id, idempotency_key=idempotency_key
        )

    async def short(
        self,
        symbol: str,
        quantity: Amount,
        *,
        limit: Amount | None = None,
        stop: Amount | None = None,
        trail: Amount | None = None,
        trail_bps: int | None = None,
        take_profit: Amount | None = None,
        stop_loss: StopPrices | None = None,
        exits_time_in_force: TimeInForceName | None = None,
        one_cancels_other: StopPrices | None = None,
        time_in_force: TimeInForceName | None = None,
        route: RouteStrategyName | None = None,
        client_reference_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncPlacedOrder:
        """Sells short: at the market, with `limit` and `stop` prices, or with a stop that trails;
        with exits as `buy` takes them."""
        command = create_command(
            symbol,
            OrderSide.SELL_SHORT,
            quantity,
            limit=limit,
            stop=stop,
            trail=trail,
            trail_bps=trail_bps,
            take_profit=take_profit,
            stop_loss=stop_loss,
            exits_time_in_force=exits_time_in_force,
            one_cancels_other=one_cancels_other,
            time_in_force=time_in_force,
            route=route,
        )
        return await self.submit(
            command, client_reference_id=client_reference_id, idempotency_key=idempotency_key
        )

    async def submit(
        self,
        command: Command,
        *,
        client_reference_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncPlacedOrder:
        """Submits a command that `create_command`, `replace_command` or `cancel_command` made.

        Without an `idempotency_key` one is made; it is kept over all retries, and errors carry it.
        """
        body = {"command": command} | given_fields(client_reference_id=client_reference_id)
        return await self._submit("/intents", body, idempotency_key)

    async def close_position(
        self, symbol: str, *, idempotency_key: str | None = None
    ) -> AsyncPlacedOrder:
        """Closes the position by a market order for what open orders do not close already."""
        return await self._submit(f"/positions/{segment(symbol)}/close", {}, idempotency_key)

    async def _submit(
        self, path: str, body: Mapping[str, object], key: str | None
    ) -> AsyncPlacedOrder:
        key = make_key() if key is None else check_key(key)
        made, is_replayed = await self._transport.submit(self._path + path, Submitted, body, key)
        return placed_order(made, key, is_replayed, self)

    async def cancel_all(self, symbol: str | None = None) -> CancelledAll:
        """Asks for up to 500 open orders to be cancelled, of one symbol or of all. Safe to
        repeat. Each costs a CANCEL of the rate limit."""
        body = given_fields(symbol=symbol)
        return await self._transport.call(
            "POST", f"{self._path}/intents/cancel-all", CancelledAll, body=body
        )

    async def order(self, order_id: str) -> AsyncOrder:
        """Reads an order, by its id or its intent's, which are the same."""
        found = await self._transport.call(
            "GET", f"{self._path}/orders/{segment(order_id)}", AsyncOrder
        )
        return found._bound(self)

    def orders(
        self,
        *,
        status: OrderStatusName | Iterable[OrderStatusName] | None = None,
        state: OrderStateName | None = None,
        symbol: str | None = None,
        intent_id: str | None = None,
        parent_intent_id: str | None = None,
        client_reference_id: str | None = None,
        flag: OrderFlagName | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        order: SortOrderName | None = None,
    ) -> AsyncPages[AsyncOrder]:
        """The account's orders, oldest first unless `order` is `desc`."""
        params = query(
            status=status,
            state=state,
            symbol=symbol,
            intent_id=intent_id,
            parent_intent_id=parent_intent_id,
            client_reference_id=client_reference_id,
            flag=flag,
            created_after=created_after,
            created_before=created_before,
            order=order,
        )
        bind = lambda found: found._bound(self)  # noqa: E731  # a name for what each order is given
        return AsyncPages(self._transport, f"{self._path}/orders", AsyncOrder, params, bind)

    def trades(
        self,
        *,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        order: SortOrderName | None = None,
    ) -> AsyncPages[Trade]:
        """The account's executions, in the order in which they were recorded."""
        params = query(created_after=created_after, created_before=created_before, order=order)
        return AsyncPages(self._transport, f"{self._path}/trades", Trade, params)

    def positions(self, *, order: SortOrderName | None = None) -> AsyncPages[Position]:
        """Everything that the account ever held or traded, by symbol."""
        return AsyncPages(self._transport, f"{self._path}/positions", Position, query(order=order))

    async def balances(self) -> Balances:
        """The account's money, as its broker last reported it."""
        return await self._transport.call("GET", f"{self._path}/balances", Balances)

    async def equity(
        self,
        *,
        resolution: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> EquityHistory:
        """The account's equity over time, in spans of `1m`, `1h` or `1d`, up to 1,500 of them."""
        params = query(resolution=resolution, **{"from": start, "to": end})
        return await self._transport.call(
            "GET", f"{self._path}/equity", EquityHistory, params=params
        )

    def intents(
        self,
        *,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        order: SortOrderName | None = None,
    ) -> AsyncPages[Action]:
        """The account's log: every command that was ever accepted."""
        params = query(created_after=created_after, created_before=created_before, order=order)
        return AsyncPages(self._transport, f"{self._path}/intents", Action, params)

    async def intent(self, intent_id: str) -> Action:
        """The latest action of an intent."""
        return await self._transport.call(
            "GET", f"{self._path}/intents/{segment(intent_id)}", Action
        )

    def actions(
        self,
        intent_id: str,
        *,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        order: SortOrderName | None = None,
    ) -> AsyncPages[Action]:
        """All actions of an intent."""
        path = f"{self._path}/intents/{segment(intent_id)}/actions"
        params = query(created_after=created_after, created_before=created_before, order=order)
        return AsyncPages(self._transport, path, Action, params)

    async def stats(self, time_window: TimeWindowName = TimeWindow.LAST_DAY) -> Stats:
        """Counts of what the account did in a window."""
        params = query(time_window=time_window)
        return await self._transport.call(
            "GET", f"{self._path}/intents/stats", Stats, params=params
        )

    def events(
        self,
        *,
        after: str | None = None,
        kinds: Iterable[str] | None = None,
        over: EventTransport = "http",
    ) -> AsyncEventStream:
        """The account's events, as they happen; after a lost connection it resumes after the last
        one.

        `after` is the cursor of the last event that was seen; `over="grpc"` needs the extra `grpc`.
        """
        source = event_source(self._transport, self._id, kinds, over)
        return AsyncEventStream(source, self._snapshot, after, self._transport.options.max_retries)

    async def _snapshot(self, cursor: str | None) -> GapEvent:
        """The state from which a stream goes on that missed events."""
        orders = [order async for order in self.orders(state=OrderState.OPEN)]
        positions = [position async for position in self.positions()]
        return GapEvent(orders=tuple(orders), positions=tuple(positions), cursor=cursor)

    def credentials(self, *, order: SortOrderName | None = None) -> AsyncPages[Credential]:
        """The account's stored credential: one or none, without its secrets."""
        return AsyncPages(
            self._transport, f"{self._path}/credentials", Credential, query(order=order)
        )

    async def create_credential(
        self, secrets: Mapping[str, str], *, label: str | None = None
    ) -> Credential:
        """Stores what the broker's `credential_fields` list."""
        body = {"secrets": dict(secrets)} | given_fields(label=label)
        return await self._transport.call(
            "POST", f"{self._path}/credentials", Credential, body=body
        )

    async def update_credential(
        self,
        credential_id: str,
        *,
        secrets: Mapping[str, str] | None = None,
        label: str | None = None,
        version: int | None = None,
    ) -> Credential:
        """Rotates the secrets (all of them) or changes the label."""
        path = f"{self._path}/credentials/{segment(credential_id)}"
        body = given_fields(secrets=dict(secrets) if secrets else None, label=label)
        return await self._transport.call(
            "PATCH", path, Credential, body=body, headers=if_match(version)
        )

    async def delete_credential(self, credential_id: str, *, version: int | None = None) -> None:
        """Removes the credential, and its secrets from the vault."""
        path = f"{self._path}/credentials/{segment(credential_id)}"
        await self._transport.send("DELETE", path, headers=if_match(version))

    async def _wait_for(
        self, intent_id: str, statuses: frozenset[str], seconds: float
    ) -> AsyncOrder:
        waits: dict[str, OrderWaits[AsyncOrder]] = self._transport.order_waits()
        if self._id not in waits:
            waits[self._id] = OrderWaits(self.events, self.order)
        return await waits[self._id].wait(intent_id, statuses, seconds)
