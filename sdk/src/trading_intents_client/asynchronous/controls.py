"""Controls, limits and halts of an account and of its symbols."""

from collections.abc import Sequence
from decimal import Decimal

from trading_intents_client.asynchronous.pages import AsyncPages
from trading_intents_client.asynchronous.requests import (
    Command,
    given_fields,
    if_match,
    query,
    segment,
    text_of,
)
from trading_intents_client.transport.http import Transport
from trading_intents_client.types.controls import (
    Control,
    Evaluation,
    Halt,
    KeyLimits,
    Limits,
    LimitsRecord,
    SymbolControls,
    TimeControl,
)
from trading_intents_client.types.enums import (
    SortOrderName,
)


def switch_body(disabled: bool, reason: str | None) -> dict[str, object]:
    return {"manually_disabled": disabled} | given_fields(manual_reason=reason)


def halt_body(reason: str, cancel_orders: bool, close_positions: bool) -> dict[str, object]:
    return {"reason": reason, "cancel_orders": cancel_orders, "close_positions": close_positions}


def limits_body(limits: Limits | KeyLimits) -> dict[str, object]:
    """The limits alone, also of a record that was read: what is None is cleared."""
    kind = KeyLimits if isinstance(limits, KeyLimits) else Limits
    body = {}
    for name in kind.__struct_fields__:
        value = getattr(limits, name)
        if value is not None:
            body[name] = text_of(value) if isinstance(value, Decimal) else value
    return body


class AsyncAccountControls:
    """Controls, limits and halts of an account."""

    def __init__(self, transport: Transport, account_id: str) -> None:
        self._transport = transport
        self._account_id = account_id
        self._path = f"/v1/controls/accounts/{segment(account_id)}"

    async def get(self) -> Control:
        """The account's switch; NotFound when it was never set."""
        return await self._transport.call("GET", self._path, Control)

    async def set(
        self, *, disabled: bool, reason: str | None = None, version: int | None = None
    ) -> Control:
        """Switches trading off or on; a reason that is not given is cleared."""
        body = switch_body(disabled, reason)
        return await self._transport.call(
            "PUT", self._path, Control, body=body, headers=if_match(version)
        )

    async def evaluate(
        self, symbol: str | None = None, command: Command | None = None
    ) -> Evaluation:
        """The answer that controls, and with a command limits, would give now. It changes
        nothing."""
        body = {"account_id": self._account_id} | given_fields(symbol=symbol, command=command)
        return await self._transport.call("POST", "/v1/controls/evaluate", Evaluation, body=body)

    async def limits(self) -> LimitsRecord:
        """The account's limits; NotFound when there are none."""
        return await self._transport.call("GET", f"{self._path}/limits", LimitsRecord)

    async def set_limits(self, limits: Limits, *, version: int | None = None) -> LimitsRecord:
        """Replaces all of the account's limits."""
        path = f"{self._path}/limits"
        body = limits_body(limits)
        return await self._transport.call(
            "PUT", path, LimitsRecord, body=body, headers=if_match(version)
        )

    async def delete_limits(self, *, version: int | None = None) -> None:
        """Removes the account's limits."""
        await self._transport.send("DELETE", f"{self._path}/limits", headers=if_match(version))

    async def halt(
        self, reason: str, *, cancel_orders: bool = True, close_positions: bool = False
    ) -> Halt:
        """Stops trading in the account at once, cancels its orders and, if asked for, closes its
        positions."""
        body = halt_body(reason, cancel_orders, close_positions)
        return await self._transport.call("POST", f"{self._path}/halt", Halt, body=body)

    async def current_halt(self) -> Halt:
        """The halt that stands, else the last one; NotFound when there was none."""
        return await self._transport.call("GET", f"{self._path}/halt", Halt)

    async def resume(self) -> Halt:
        """Ends the account's halt; NotHalted when none stands."""
        return await self._transport.call("POST", f"{self._path}/resume", Halt)

    def symbols(self, *, order: SortOrderName | None = None) -> AsyncPages[SymbolControls]:
        """The symbols with controls."""
        return AsyncPages(
            self._transport, f"{self._path}/symbols", SymbolControls, query(order=order)
        )

    async def symbol(self, symbol: str) -> SymbolControls:
        """Both controls of a symbol; NotFound when there is neither."""
        return await self._transport.call("GET", self._symbol_path(symbol), SymbolControls)

    async def set_symbol(
        self, symbol: str, *, disabled: bool, reason: str | None = None, version: int | None = None
    ) -> Control:
        """Switches trading of a symbol off or on."""
        body = switch_body(disabled, reason)
        return await self._transport.call(
            "PUT", self._symbol_path(symbol), Control, body=body, headers=if_match(version)
        )

    async def update_symbol_time(
        self,
        symbol: str,
        *,
        trading_start: str | None = None,
        trading_end: str | None = None,
        timezone: str | None = None,
        stale_order_millis: int | None = None,
        clear: Sequence[str] = (),
        version: int | None = None,
    ) -> TimeControl:
        """Changes a symbol's trading window; what is not given stays, what `clear` names is
        removed."""
        body = given_fields(
            trading_start=trading_start,
            trading_end=trading_end,
            timezone=timezone,
            stale_order_millis=stale_order_millis,
            clear=list(clear) or None,
        )
        path = f"{self._symbol_path(symbol)}/time"
        return await self._transport.call(
            "PATCH", path, TimeControl, body=body, headers=if_match(version)
        )

    async def delete_symbol(self, symbol: str, *, version: int | None = None) -> None:
        """Removes both controls of a symbol. `version` is the sum of theirs."""
        await self._transport.send("DELETE", self._symbol_path(symbol), headers=if_match(version))

    async def symbol_limits(self, symbol: str) -> LimitsRecord:
        """A symbol's limits; NotFound when there are none."""
        return await self._transport.call(
            "GET", f"{self._symbol_path(symbol)}/limits", LimitsRecord
        )

    async def set_symbol_limits(
        self, symbol: str, limits: Limits, *, version: int | None = None
    ) -> LimitsRecord:
        """Replaces all of a symbol's limits."""
        path = f"{self._symbol_path(symbol)}/limits"
        body = limits_body(limits)
        return await self._transport.call(
            "PUT", path, LimitsRecord, body=body, headers=if_match(version)
        )

    async def delete_symbol_limits(self, symbol: str, *, version: int | None = None) -> None:
        """Removes a symbol's limits."""
        await self._transport.send(
            "DELETE", f"{self._symbol_path(symbol)}/limits", headers=if_match(version)
        )

    def _symbol_path(self, symbol: str) -> str:
        return f"{self._path}/symbols/{segment(symbol)}"
