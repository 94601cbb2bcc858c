"""Limits over HTTP: parse, call one use case, render. Never judges."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from trading_intents.accounts.http import target_of
from trading_intents.controls.http import CHANGED, owner_of, symbol_of
from trading_intents.controls.limits import bodies
from trading_intents.controls.limits.model import StoredLimits, TradingLimits
from trading_intents.controls.limits.service import LimitsService
from trading_intents.controls.limits.state.budgets import KeyUse
from trading_intents.errors import (
    AccountClosed,
    Forbidden,
    LimitReached,
    NotFound,
    ValidationFailed,
)
from trading_intents.identity.access import Gate, caller_of, organization_of
from trading_intents.identity.model import ApiKeyPrincipal
from trading_intents.ids import OrganizationId, parse_id
from trading_intents.trading import Symbol
from trading_intents.web.request import Answer, Request, answer_json
from trading_intents.web.routes import IF_MATCH, Operation, Route, Tag

CHANGED_KEY = partial(Operation, tag=Tag.API_KEYS, parameters=(IF_MATCH,), errors=(NotFound,))


def limit_routes(
    gates: Mapping[str, Gate], limits: LimitsService, zones: AbstractSet[str]
) -> tuple[Route, ...]:
    read = gates["read_controls"]
    return (
        *_organization_routes(read, gates["write_organization_control"], limits, zones),
        *_account_routes(read, gates["write_controls"], limits, zones),
        *_symbol_routes(read, gates["write_controls"], limits, zones),
        *_key_routes(gates["read_key_limits"], gates["api_keys"], limits),
    )


def _organization_routes(
    read: Gate, write: Gate, limits: LimitsService, zones: AbstractSet[str]
) -> tuple[Route, ...]:
    @Operation(tag=Tag.CONTROLS, answer=bodies.OrganizationLimitsRecord, errors=(NotFound,))
    async def get_organization_limits(request: Request) -> Answer:
        """Read the organization's limits."""
        read.permit_object(request)
        stored = await limits.find_organization(organization_of(request))
        return _show(request, bodies.OrganizationLimitsRecord, stored)

    @CHANGED(body=bodies.OrganizationLimits, answer=bodies.OrganizationLimitsRecord)
    async def set_organization_limits(request: Request) -> Answer:
        """Create or replace the organization's limits."""
        write.permit_object(request)
        wanted = bodies.read_limits(request.body(bodies.OrganizationLimits, bodies.AMOUNTS), zones)
        stored = await limits.put_organization(organization_of(request), wanted, request.if_match())
        return _show(request, bodies.OrganizationLimitsRecord, stored)

    @CHANGED(status=204, errors=(NotFound,))
    async def delete_organization_limits(request: Request) -> Answer:
        """Remove the organization's limits."""
        write.permit_object(request)
        await limits.remove_organization(organization_of(request), request.if_match())
        return Answer(status=204)

    path = "/v1/controls/organization/limits"
    return (
        Route("GET", path, read, get_organization_limits),
        Route("PUT", path, write, set_organization_limits),
        Route("DELETE", path, write, delete_organization_limits),
    )


def _account_routes(
    read: Gate, write: Gate, limits: LimitsService, zones: AbstractSet[str]
) -> tuple[Route, ...]:
    @Operation(tag=Tag.CONTROLS, answer=bodies.AccountLimitsRecord)
    async def get_account_limits(request: Request) -> Answer:
        """Read an account's limits."""
        stored = await limits.find(target_of(request, read), lambda: "")
        return _show(request, bodies.AccountLimitsRecord, stored)

    @CHANGED(body=bodies.AccountLimits, answer=bodies.AccountLimitsRecord, errors=(AccountClosed,))
    async def set_account_limits(request: Request) -> Answer:
        """Create or replace an account's limits."""

        def read_limits() -> tuple[str, TradingLimits]:
            return "", bodies.read_limits(request.body(bodies.AccountLimits, bodies.AMOUNTS), zones)

        stored = await limits.put(target_of(request, write), read_limits, request.if_match())
        return _show(request, bodies.AccountLimitsRecord, stored)

    @CHANGED(status=204, errors=(AccountClosed,))
    async def delete_account_limits(request: Request) -> Answer:
        """Remove an account's limits."""
        await limits.remove(target_of(request, write), lambda: "", request.if_match())
        return Answer(status=204)

    path = "/v1/controls/accounts/{account_id}/limits"
    return (
        Route("GET", path, read, get_account_limits),
        Route("PUT", path, write, set_account_limits),
        Route("DELETE", path, write, delete_account_limits),
    )


def _symbol_routes(
    read: Gate, write: Gate, limits: LimitsService, zones: AbstractSet[str]
) -> tuple[Route, ...]:
    @Operation(tag=Tag.CONTROLS, answer=bodies.SymbolLimitsRecord, errors=(ValidationFailed,))
    async def get_symbol_limits(request: Request) -> Answer:
        """Read a symbol's limits."""
        stored = await limits.find(target_of(request, read), lambda: symbol_of(request))
        return _show(request, bodies.SymbolLimitsRecord, stored, symbol_of(request))

    @CHANGED(
        body=bodies.SymbolLimits,
        answer=bodies.SymbolLimitsRecord,
        errors=(AccountClosed, LimitReached),
    )
    async def set_symbol_limits(request: Request) -> Answer:
        """Create or replace a symbol's limits."""

        def read_limits() -> tuple[str, TradingLimits]:
            symbol = symbol_of(request)
            body = request.body(bodies.SymbolLimits, bodies.AMOUNTS)
            return symbol, bodies.read_limits(body, zones)

        stored = await limits.put(target_of(request, write), read_limits, request.if_match())
        return _show(request, bodies.SymbolLimitsRecord, stored, symbol_of(request))

    @CHANGED(status=204, errors=(AccountClosed, ValidationFailed))
    async def delete_symbol_limits(request: Request) -> Answer:
        """Remove a symbol's limits."""
        target = target_of(request, write)
        await limits.remove(target, lambda: symbol_of(request), request.if_match())
        return Answer(status=204)

    path = "/v1/controls/accounts/{account_id}/symbols/{symbol}/limits"
    return (
        Route("GET", path, read, get_symbol_limits),
        Route("PUT", path, write, set_symbol_limits),
        Route("DELETE", path, write, delete_symbol_limits),
    )


def _key_routes(read: Gate, write: Gate, limits: LimitsService) -> tuple[Route, ...]:
    @Operation(tag=Tag.API_KEYS, answer=bodies.KeyLimitsRecord, errors=(NotFound,))
    async def get_api_key_limits(request: Request) -> Answer:
        """Read an API key's limits, and what is used of them."""
        organization_id = organization_of(request)
        caller = caller_of(request)
        key_id = parse_id(request.params["id"])
        if isinstance(caller.principal, ApiKeyPrincipal) and caller.principal.key_id != key_id:
            raise Forbidden("an API key may read its own limits only")
        return _show_key(organization_id, *await limits.find_key(organization_id, key_id))

    @CHANGED_KEY(body=bodies.KeyLimits, answer=bodies.KeyLimitsRecord)
    async def set_api_key_limits(request: Request) -> Answer:
        """Create or replace an API key's limits."""
        organization_id = organization_of(request)
        key_id = parse_id(request.params["id"])
        stored = await limits.put_key(
            organization_id,
            key_id,
            lambda: bodies.read_limits(request.body(bodies.KeyLimits, bodies.AMOUNTS)),
            request.if_match(),
        )
        return _show_key(organization_id, *stored)

    @CHANGED_KEY(status=204)
    async def delete_api_key_limits(request: Request) -> Answer:
        """Remove an API key's limits; what it has used today stays counted."""
        key_id = parse_id(request.params["id"])
        await limits.remove_key(organization_of(request), key_id, request.if_match())
        return Answer(status=204)

    path = "/v1/api-keys/{id}/limits"
    return (
        Route("GET", path, read, get_api_key_limits),
        Route("PUT", path, write, set_api_key_limits),
        Route("DELETE", path, write, delete_api_key_limits),
    )


def _show(
    request: Request,
    kind: type[bodies.OrganizationLimitsRecord],
    stored: StoredLimits,
    symbol: Symbol | None = None,
) -> Answer:
    shown = bodies.show_limits(kind, owner_of(request), stored, symbol)
    return answer_json(shown, version=stored.version)


def _show_key(organization_id: OrganizationId, stored: StoredLimits, use: KeyUse) -> Answer:
    return answer_json(bodies.show_key_limits(organization_id, stored, use), version=stored.version)
