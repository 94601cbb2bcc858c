"""Controls over HTTP: parse, call one use case, render. Never judges."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from trading_intents.controls.bodies import (
    AccountControl,
    ChangedTime,
    ListedSymbol,
    ManualSwitch,
    OrganizationControl,
    Owner,
    SymbolControls,
    SymbolManualControl,
    SymbolTimeControl,
    read_switch,
    read_time_change,
    show_account,
    show_manual,
    show_organization,
    show_symbol,
    show_time,
)
from trading_intents.controls.model import Switch, SymbolControl, TimeChange
from trading_intents.controls.service import ControlsService, ControlTarget
from trading_intents.errors import AccountClosed, LimitReached, NotFound, ValidationFailed
from trading_intents.identity.access import Gate, caller_of
from trading_intents.ids import parse_id
from trading_intents.trading import SYMBOL_RULE, Symbol, parse_symbol
from trading_intents.web.paging import PAGE_PARAMETERS, Listing, Page, read_page
from trading_intents.web.request import Answer, Request, answer_json
from trading_intents.web.routing import IF_MATCH, Operation, Route, Tag


@dataclass(frozen=True, slots=True)
class SwitchHandlers:
    read: Gate
    write: Gate
    write_organization: Gate
    controls: ControlsService

    async def read_organization(self, request: Request) -> Answer:
        self.read.permit_object(request)
        organization_id = caller_of(request).organization_id
        control = await self.controls.find_organization(organization_id)
        return answer_json(show_organization(str(organization_id), control), version=control.version)

    async def put_organization(self, request: Request) -> Answer:
        self.write_organization.permit_object(request)
        organization_id, switch = caller_of(request).organization_id, read_switch(request.body(ManualSwitch))
        control = await self.controls.put_organization(organization_id, switch, request.if_match())
        return answer_json(show_organization(str(organization_id), control), version=control.version)

    async def read_account(self, request: Request) -> Answer:
        control = await self.controls.find_account(target_of(request, self.read))
        return answer_json(show_account(owner_of(request), control), version=control.version)

    async def put_account(self, request: Request) -> Answer:
        def read_body() -> Switch:
            return read_switch(request.body(ManualSwitch))

        control = await self.controls.put_account(target_of(request, self.write), read_body, request.if_match())
        return answer_json(show_account(owner_of(request), control), version=control.version)


def switch_routes(read: Gate, write: Gate, write_organization: Gate, controls: ControlsService) -> tuple[Route, ...]:
    handlers = SwitchHandlers(read, write, write_organization, controls)
    organization, account = "/v1/controls/organization", "/v1/controls/accounts/{account_id}"
    return (
        Route(
            "GET",
            organization,
            read,
            handlers.read_organization,
            "Read the organization's switch.",
            operation=Operation("get_organization_control", Tag.CONTROLS),
            answer=OrganizationControl,
            errors=(NotFound,),
        ),
        Route(
            "PUT",
            organization,
            write_organization,
            handlers.put_organization,
            "Set the organization's switch.",
            operation=Operation("set_organization_control", Tag.CONTROLS),
            body=ManualSwitch,
            answer=OrganizationControl,
            parameters=(IF_MATCH,),
        ),
        Route(
            "GET",
            account,
            read,
            handlers.read_account,
            "Read an account's switch.",
            operation=Operation("get_account_control", Tag.CONTROLS),
            answer=AccountControl,
        ),
        Route(
            "PUT",
            account,
            write,
            handlers.put_account,
            "Set an account's switch.",
            operation=Operation("set_account_control", Tag.CONTROLS),
            body=ManualSwitch,
            answer=AccountControl,
            parameters=(IF_MATCH,),
            errors=(AccountClosed,),
        ),
    )


@dataclass(frozen=True, slots=True)
class SymbolHandlers:
    read: Gate
    write: Gate
    controls: ControlsService
    zones: AbstractSet[str]

    async def listing(self, request: Request) -> Answer:
        owner = owner_of(request)

        def read_symbols_page() -> Page:
            return read_page(request, f"symbol_controls:{owner.organization_id}:{owner.account_id}", parse_symbol)

        def show(control: SymbolControl) -> ListedSymbol:
            both = show_symbol(owner, control)
            return ListedSymbol(control.symbol, both.manual, both.time)

        rows = await self.controls.list_symbols(target_of(request, self.read), read_symbols_page)
        return answer_json(read_symbols_page().answer(rows, lambda control: control.symbol, show))

    async def inspect(self, request: Request) -> Answer:
        control = await self.controls.find_symbol(target_of(request, self.read), lambda: symbol_of(request))
        return answer_json(show_symbol(owner_of(request), control), version=control.version)

    async def put(self, request: Request) -> Answer:
        def read_body() -> tuple[Symbol, Switch]:
            return symbol_of(request), read_switch(request.body(ManualSwitch))

        control = await self.controls.put_symbol(target_of(request, self.write), read_body, request.if_match())
        return answer_json(show_manual(owner_of(request), symbol_of(request), control), version=control.version)

    async def change_time(self, request: Request) -> Answer:
        def read_body() -> tuple[Symbol, TimeChange]:
            return symbol_of(request), read_time_change(request.body(ChangedTime), self.zones)

        control = await self.controls.change_time(target_of(request, self.write), read_body, request.if_match())
        return answer_json(show_time(owner_of(request), symbol_of(request), control), version=control.version)

    async def remove(self, request: Request) -> Answer:
        await self.controls.remove_symbol(
            target_of(request, self.write), lambda: symbol_of(request), request.if_match()
        )
        return Answer(status=204)


def symbol_routes(read: Gate, write: Gate, controls: ControlsService, zones: AbstractSet[str]) -> tuple[Route, ...]:
    handlers = SymbolHandlers(read, write, controls, zones)
    many = "/v1/controls/accounts/{account_id}/symbols"
    one = many + "/{symbol}"
    return (
        Route(
            "GET",
            many,
            read,
            handlers.listing,
            "List the account's symbols that have a control.",
            operation=Operation("list_symbol_controls", Tag.CONTROLS),
            answer=Listing[ListedSymbol],
            parameters=PAGE_PARAMETERS,
        ),
        Route(
            "GET",
            one,
            read,
            handlers.inspect,
            "Read a symbol's controls.",
            operation=Operation("get_symbol_controls", Tag.CONTROLS),
            answer=SymbolControls,
            errors=(ValidationFailed,),
        ),
        Route(
            "PUT",
            one,
            write,
            handlers.put,
            "Create or replace a symbol's manual control.",
            operation=Operation("set_symbol_control", Tag.CONTROLS),
            body=ManualSwitch,
            answer=SymbolManualControl,
            parameters=(IF_MATCH,),
            errors=(AccountClosed, LimitReached),
        ),
        Route(
            "DELETE",
            one,
            write,
            handlers.remove,
            "Remove both controls of a symbol.",
            operation=Operation("delete_symbol_controls", Tag.CONTROLS),
            status=204,
            parameters=(IF_MATCH,),
            errors=(AccountClosed, ValidationFailed),
        ),
        Route(
            "PATCH",
            one + "/time",
            write,
            handlers.change_time,
            "Create or change a symbol's time control.",
            operation=Operation("update_symbol_time_control", Tag.CONTROLS),
            body=ChangedTime,
            answer=SymbolTimeControl,
            parameters=(IF_MATCH,),
            errors=(AccountClosed, LimitReached),
        ),
    )


def target_of(request: Request, gate: Gate, account_id: str | None = None) -> ControlTarget:
    return ControlTarget(
        caller_of(request).organization_id,
        parse_id(request.params["account_id"] if account_id is None else account_id),
        lambda account: gate.permit_object(request, account.environment),
    )


def owner_of(request: Request) -> Owner:
    return Owner(str(caller_of(request).organization_id), request.params["account_id"])


def symbol_of(request: Request) -> Symbol:
    """A symbol is not an id, so an invalid one breaks a rule (422) instead of being unknown (404)."""
    symbol = parse_symbol(request.params["symbol"])
    if symbol is None:
        raise ValidationFailed.at("", SYMBOL_RULE)
    return symbol
