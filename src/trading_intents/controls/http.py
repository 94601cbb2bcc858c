"""Controls over HTTP: parse, call one use case, render. Never judges."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from trading_intents.accounts.http import target_of
from trading_intents.controls import bodies
from trading_intents.controls.model import ManualControl, Switch, TimeChange
from trading_intents.controls.service import ControlsService
from trading_intents.errors import AccountClosed, LimitReached, NotFound, ValidationFailed
from trading_intents.identity.access import Gate, organization_of
from trading_intents.trading import Symbol, parse_symbol
from trading_intents.web.body import read_symbol
from trading_intents.web.paging import PAGE_PARAMETERS, Listing, Page, read_page
from trading_intents.web.request import Answer, Request, answer_json
from trading_intents.web.routes import IF_MATCH, Operation, Route, Tag

SYMBOLS = "/v1/controls/accounts/{account_id}/symbols"
SYMBOL = SYMBOLS + "/{symbol}"
CHANGED = partial(Operation, tag=Tag.CONTROLS, parameters=(IF_MATCH,))


def switch_routes(gates: Mapping[str, Gate], controls: ControlsService) -> tuple[Route, ...]:
    """The routes of the switches of the organization and of accounts."""
    read = gates["read_controls"]
    write = gates["write_controls"]
    write_organization = gates["write_organization_control"]

    @Operation(tag=Tag.CONTROLS, answer=bodies.OrganizationControl, errors=(NotFound,))
    async def get_organization_control(request: Request) -> Answer:
        """Read the organization's switch."""
        read.permit_object(request)
        control = await controls.find_organization(organization_of(request))
        return _show(request, bodies.OrganizationControl, control)

    @CHANGED(body=bodies.ManualSwitch, answer=bodies.OrganizationControl)
    async def set_organization_control(request: Request) -> Answer:
        """Set the organization's switch."""
        write_organization.permit_object(request)
        control = await controls.put_organization(
            organization_of(request), switch_of(request), request.if_match()
        )
        return _show(request, bodies.OrganizationControl, control)

    @Operation(tag=Tag.CONTROLS, answer=bodies.AccountControl)
    async def get_account_control(request: Request) -> Answer:
        """Read an account's switch."""
        control = await controls.find_account(target_of(request, read))
        return _show(request, bodies.AccountControl, control)

    @CHANGED(body=bodies.ManualSwitch, answer=bodies.AccountControl, errors=(AccountClosed,))
    async def set_account_control(request: Request) -> Answer:
        """Set an account's switch."""
        target = target_of(request, write)
        control = await controls.put(target, lambda: (None, switch_of(request)), request.if_match())
        return _show(request, bodies.AccountControl, control)

    organization = "/v1/controls/organization"
    account = "/v1/controls/accounts/{account_id}"
    return (
        Route("GET", organization, read, get_organization_control),
        Route("PUT", organization, write_organization, set_organization_control),
        Route("GET", account, read, get_account_control),
        Route("PUT", account, write, set_account_control),
    )


def symbol_routes(
    gates: Mapping[str, Gate], controls: ControlsService, zones: AbstractSet[str]
) -> tuple[Route, ...]:
    """The routes of the switches and time controls of symbols."""
    read = gates["read_controls"]
    write = gates["write_controls"]
    return (
        *_symbol_read_routes(read, controls),
        *_symbol_write_routes(write, controls),
        _symbol_time_route(write, controls, zones),
    )


def _symbol_read_routes(read: Gate, controls: ControlsService) -> tuple[Route, ...]:
    @Operation(tag=Tag.CONTROLS, answer=Listing[bodies.ListedSymbol], parameters=PAGE_PARAMETERS)
    async def list_symbol_controls(request: Request) -> Answer:
        """List the account's symbols that have a control."""
        owner = owner_of(request)

        def read_symbols_page() -> Page:
            name = f"symbol_controls:{owner.organization_id}:{owner.account_id}"
            return read_page(request, name, parse_symbol)

        rows = await controls.list_symbols(target_of(request, read), read_symbols_page)
        show = partial(bodies.show_symbol, bodies.ListedSymbol, owner)
        return answer_json(read_symbols_page().answer(rows, lambda control: control.symbol, show))

    @Operation(tag=Tag.CONTROLS, answer=bodies.SymbolControls, errors=(ValidationFailed,))
    async def get_symbol_controls(request: Request) -> Answer:
        """Read a symbol's controls."""
        control = await controls.find_symbol(target_of(request, read), lambda: symbol_of(request))
        shown = bodies.show_symbol(bodies.SymbolControls, owner_of(request), control)
        return answer_json(shown, version=control.version)

    return (
        Route("GET", SYMBOLS, read, list_symbol_controls),
        Route("GET", SYMBOL, read, get_symbol_controls),
    )


def _symbol_write_routes(write: Gate, controls: ControlsService) -> tuple[Route, ...]:
    @CHANGED(
        body=bodies.ManualSwitch,
        answer=bodies.SymbolManualControl,
        errors=(AccountClosed, LimitReached),
    )
    async def set_symbol_control(request: Request) -> Answer:
        """Create or replace a symbol's manual control."""
        target = target_of(request, write)
        control = await controls.put(
            target, lambda: (symbol_of(request), switch_of(request)), request.if_match()
        )
        return _show(request, bodies.SymbolManualControl, control, symbol_of(request))

    @CHANGED(status=204, errors=(AccountClosed, ValidationFailed))
    async def delete_symbol_controls(request: Request) -> Answer:
        """Remove both controls of a symbol."""
        target = target_of(request, write)
        await controls.remove_symbol(target, lambda: symbol_of(request), request.if_match())
        return Answer(status=204)

    return (
        Route("PUT", SYMBOL, write, set_symbol_control),
        Route("DELETE", SYMBOL, write, delete_symbol_controls),
    )


def _symbol_time_route(write: Gate, controls: ControlsService, zones: AbstractSet[str]) -> Route:
    @CHANGED(
        body=bodies.ChangedTime,
        answer=bodies.SymbolTimeControl,
        errors=(AccountClosed, LimitReached),
    )
    async def update_symbol_time_control(request: Request) -> Answer:
        """Create or change a symbol's time control."""

        def read_body() -> tuple[Symbol, TimeChange]:
            symbol = symbol_of(request)
            return symbol, bodies.read_time_change(request.body(bodies.ChangedTime), zones)

        target = target_of(request, write)
        control = await controls.change_time(target, read_body, request.if_match())
        shown = bodies.show_time(owner_of(request), symbol_of(request), control)
        return answer_json(shown, version=control.version)

    return Route("PATCH", SYMBOL + "/time", write, update_symbol_time_control)


def _show(
    request: Request,
    kind: type[bodies.Manual],
    control: ManualControl,
    symbol: Symbol | None = None,
) -> Answer:
    shown = bodies.show_switch(kind, owner_of(request), control, symbol)
    return answer_json(shown, version=control.version)


def switch_of(request: Request) -> Switch:
    body = request.body(bodies.ManualSwitch)
    return Switch(body.manually_disabled, body.manual_reason or None)


def owner_of(request: Request) -> bodies.Owner:
    return bodies.Owner(organization_of(request), request.params.get("account_id", ""))


def symbol_of(request: Request) -> Symbol:
    """A symbol is not an id, so an invalid one breaks a rule (422) instead of being unknown
    (404)."""
    return read_symbol("", request.params["symbol"])
