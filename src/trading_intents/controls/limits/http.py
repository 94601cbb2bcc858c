"""Limits over HTTP: parse, call one use case, render. Never judges."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from trading_intents.controls.http import owner_of, symbol_of, target_of
from trading_intents.controls.limits.bodies import (
    AMOUNTS,
    AccountLimits,
    AccountLimitsRecord,
    OrganizationLimits,
    OrganizationLimitsRecord,
    SymbolLimits,
    SymbolLimitsRecord,
    read_limits,
    show_account_limits,
    show_organization_limits,
    show_symbol_limits,
)
from trading_intents.controls.limits.model import StoredLimits, TradingLimits
from trading_intents.controls.limits.service import LimitsService
from trading_intents.errors import AccountClosed, LimitReached, NotFound, ValidationFailed
from trading_intents.identity.access import Gate, caller_of
from trading_intents.web.amount_fields import read_body
from trading_intents.web.request import Answer, Request, answer_json
from trading_intents.web.routing import IF_MATCH, Handler, Operation, Route, Tag


@dataclass(frozen=True, slots=True)
class LimitHandlers:
    read: Gate
    write: Gate
    write_organization: Gate
    limits: LimitsService
    zones: AbstractSet[str]

    async def read_organization(self, request: Request) -> Answer:
        self.read.permit_object(request)
        return _show_organization(request, await self.limits.find_organization(caller_of(request).organization_id))

    async def put_organization(self, request: Request) -> Answer:
        self.write_organization.permit_object(request)
        limits = self._read(request, OrganizationLimits)
        organization_id = caller_of(request).organization_id
        return _show_organization(
            request, await self.limits.put_organization(organization_id, limits, request.if_match())
        )

    async def remove_organization(self, request: Request) -> Answer:
        self.write_organization.permit_object(request)
        await self.limits.remove_organization(caller_of(request).organization_id, request.if_match())
        return Answer(status=204)

    async def read_account(self, request: Request) -> Answer:
        return _show_account(request, await self.limits.find(target_of(request, self.read), lambda: ""))

    async def put_account(self, request: Request) -> Answer:
        def read() -> tuple[str, TradingLimits]:
            return "", self._read(request, AccountLimits)

        stored = await self.limits.put(target_of(request, self.write), read, request.if_match())
        return _show_account(request, stored)

    async def remove_account(self, request: Request) -> Answer:
        await self.limits.remove(target_of(request, self.write), lambda: "", request.if_match())
        return Answer(status=204)

    async def read_symbol(self, request: Request) -> Answer:
        stored = await self.limits.find(target_of(request, self.read), lambda: symbol_of(request))
        return _show_symbol(request, stored)

    async def put_symbol(self, request: Request) -> Answer:
        def read() -> tuple[str, TradingLimits]:
            return symbol_of(request), self._read(request, SymbolLimits)

        stored = await self.limits.put(target_of(request, self.write), read, request.if_match())
        return _show_symbol(request, stored)

    async def remove_symbol(self, request: Request) -> Answer:
        await self.limits.remove(target_of(request, self.write), lambda: symbol_of(request), request.if_match())
        return Answer(status=204)

    def _read(self, request: Request, kind: type[OrganizationLimits]) -> TradingLimits:
        return read_limits(read_body(request, kind, AMOUNTS), self.zones)


def _show_organization(request: Request, stored: StoredLimits) -> Answer:
    organization_id = str(caller_of(request).organization_id)
    return answer_json(show_organization_limits(organization_id, stored), version=stored.version)


def _show_account(request: Request, stored: StoredLimits) -> Answer:
    return answer_json(show_account_limits(*owner_of(request), stored), version=stored.version)


def _show_symbol(request: Request, stored: StoredLimits) -> Answer:
    shown = show_symbol_limits(*owner_of(request), symbol_of(request), stored)
    return answer_json(shown, version=stored.version)


def limit_routes(
    read: Gate, write: Gate, write_organization: Gate, limits: LimitsService, zones: AbstractSet[str]
) -> tuple[Route, ...]:
    handlers = LimitHandlers(read, write, write_organization, limits, zones)
    account = "/v1/controls/accounts/{account_id}/limits"
    symbol = "/v1/controls/accounts/{account_id}/symbols/{symbol}/limits"
    return (
        *_level_routes(
            "/v1/controls/organization/limits",
            ("organization", "the organization's"),
            (read, write_organization),
            (handlers.read_organization, handlers.put_organization, handlers.remove_organization),
            (OrganizationLimits, OrganizationLimitsRecord),
            (),
        ),
        *_level_routes(
            account,
            ("account", "an account's"),
            (read, write),
            (handlers.read_account, handlers.put_account, handlers.remove_account),
            (AccountLimits, AccountLimitsRecord),
            (AccountClosed,),
        ),
        *_level_routes(
            symbol,
            ("symbol", "a symbol's"),
            (read, write),
            (handlers.read_symbol, handlers.put_symbol, handlers.remove_symbol),
            (SymbolLimits, SymbolLimitsRecord),
            (AccountClosed, ValidationFailed, LimitReached),
        ),
    )


def _level_routes(
    path: str,
    names: tuple[str, str],
    gates: tuple[Gate, Gate],
    handles: tuple[Handler, Handler, Handler],
    bodies: tuple[type, type],
    errors: tuple[type, ...],
) -> tuple[Route, ...]:
    (level, whose), (read, write), (find, put, remove), (body, answer) = names, gates, handles, bodies
    missing = () if "{account_id}" in path else (NotFound,)
    invalid = tuple(error for error in errors if error is ValidationFailed)
    closed = tuple(error for error in errors if error is AccountClosed)
    return (
        Route(
            "GET",
            path,
            read,
            find,
            f"Read {whose} limits.",
            operation=Operation(f"get_{level}_limits", Tag.CONTROLS),
            answer=answer,
            errors=(*missing, *invalid),
        ),
        Route(
            "PUT",
            path,
            write,
            put,
            f"Create or replace {whose} limits.",
            operation=Operation(f"set_{level}_limits", Tag.CONTROLS),
            body=body,
            answer=answer,
            parameters=(IF_MATCH,),
            errors=tuple(error for error in errors if error is not ValidationFailed),
        ),
        Route(
            "DELETE",
            path,
            write,
            remove,
            f"Remove {whose} limits.",
            operation=Operation(f"delete_{level}_limits", Tag.CONTROLS),
            status=204,
            parameters=(IF_MATCH,),
            errors=(*missing, *closed, *invalid),
        ),
    )
