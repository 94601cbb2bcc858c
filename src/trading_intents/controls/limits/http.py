"""Limits over HTTP: parse, call one use case, render. Never judges."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from trading_intents.accounts.http import target_of
from trading_intents.controls.http import CHANGED, owner_of, symbol_of
from trading_intents.controls.limits import bodies
from trading_intents.controls.limits.model import StoredLimits, TradingLimits
from trading_intents.controls.limits.service import LimitsService
from trading_intents.controls.limits.state.budgets import KeyUse
from trading_intents.errors import AccountClosed, Forbidden, LimitReached, NotFound, ValidationFailed
from trading_intents.identity.access import Gate, caller_of, organization_of
from trading_intents.identity.model import ApiKeyPrincipal
from trading_intents.ids import OrganizationId, parse_id
from trading_intents.trading import Symbol
from trading_intents.web.request import Answer, Request, answer_json
from trading_intents.web.routes import IF_MATCH, Operation, Route, Tag

CHANGED_KEY = partial(Operation, Tag.API_KEYS, parameters=(IF_MATCH,), errors=(NotFound,))


@dataclass(frozen=True, slots=True)
class LimitHandlers:
    read: Gate
    write: Gate
    write_organization: Gate
    limits: LimitsService
    zones: AbstractSet[str]

    @Operation(Tag.CONTROLS, answer=bodies.OrganizationLimitsRecord, errors=(NotFound,))
    async def get_organization_limits(self, request: Request) -> Answer:
        """Read the organization's limits."""
        self.read.permit_object(request)
        return _show(
            request, bodies.OrganizationLimitsRecord, await self.limits.find_organization(organization_of(request))
        )

    @CHANGED(body=bodies.OrganizationLimits, answer=bodies.OrganizationLimitsRecord)
    async def set_organization_limits(self, request: Request) -> Answer:
        """Create or replace the organization's limits."""
        self.write_organization.permit_object(request)
        limits = self._read(request, bodies.OrganizationLimits)
        stored = await self.limits.put_organization(organization_of(request), limits, request.if_match())
        return _show(request, bodies.OrganizationLimitsRecord, stored)

    @CHANGED(status=204, errors=(NotFound,))
    async def delete_organization_limits(self, request: Request) -> Answer:
        """Remove the organization's limits."""
        self.write_organization.permit_object(request)
        await self.limits.remove_organization(organization_of(request), request.if_match())
        return Answer(status=204)

    @Operation(Tag.CONTROLS, answer=bodies.AccountLimitsRecord)
    async def get_account_limits(self, request: Request) -> Answer:
        """Read an account's limits."""
        stored = await self.limits.find(target_of(request, self.read), lambda: "")
        return _show(request, bodies.AccountLimitsRecord, stored)

    @CHANGED(body=bodies.AccountLimits, answer=bodies.AccountLimitsRecord, errors=(AccountClosed,))
    async def set_account_limits(self, request: Request) -> Answer:
        """Create or replace an account's limits."""
        stored = await self.limits.put(
            target_of(request, self.write), lambda: ("", self._read(request, bodies.AccountLimits)), request.if_match()
        )
        return _show(request, bodies.AccountLimitsRecord, stored)

    @CHANGED(status=204, errors=(AccountClosed,))
    async def delete_account_limits(self, request: Request) -> Answer:
        """Remove an account's limits."""
        await self.limits.remove(target_of(request, self.write), lambda: "", request.if_match())
        return Answer(status=204)

    @Operation(Tag.CONTROLS, answer=bodies.SymbolLimitsRecord, errors=(ValidationFailed,))
    async def get_symbol_limits(self, request: Request) -> Answer:
        """Read a symbol's limits."""
        stored = await self.limits.find(target_of(request, self.read), lambda: symbol_of(request))
        return _show(request, bodies.SymbolLimitsRecord, stored, symbol_of(request))

    @CHANGED(body=bodies.SymbolLimits, answer=bodies.SymbolLimitsRecord, errors=(AccountClosed, LimitReached))
    async def set_symbol_limits(self, request: Request) -> Answer:
        """Create or replace a symbol's limits."""

        def read() -> tuple[str, TradingLimits]:
            return symbol_of(request), self._read(request, bodies.SymbolLimits)

        stored = await self.limits.put(target_of(request, self.write), read, request.if_match())
        return _show(request, bodies.SymbolLimitsRecord, stored, symbol_of(request))

    @CHANGED(status=204, errors=(AccountClosed, ValidationFailed))
    async def delete_symbol_limits(self, request: Request) -> Answer:
        """Remove a symbol's limits."""
        await self.limits.remove(target_of(request, self.write), lambda: symbol_of(request), request.if_match())
        return Answer(status=204)

    @Operation(Tag.API_KEYS, answer=bodies.KeyLimitsRecord, errors=(NotFound,))
    async def get_api_key_limits(self, request: Request) -> Answer:
        """Read an API key's limits, and what is used of them."""
        organization_id, caller, key_id = organization_of(request), caller_of(request), parse_id(request.params["id"])
        if isinstance(caller.principal, ApiKeyPrincipal) and caller.principal.key_id != key_id:
            raise Forbidden("an API key may read its own limits only")
        return _show_key(organization_id, *await self.limits.find_key(organization_id, key_id))

    @CHANGED_KEY(body=bodies.KeyLimits, answer=bodies.KeyLimitsRecord)
    async def set_api_key_limits(self, request: Request) -> Answer:
        """Create or replace an API key's limits."""
        organization_id, key_id = organization_of(request), parse_id(request.params["id"])
        stored = await self.limits.put_key(
            organization_id,
            key_id,
            lambda: bodies.read_limits(request.body(bodies.KeyLimits, bodies.AMOUNTS)),
            request.if_match(),
        )
        return _show_key(organization_id, *stored)

    @CHANGED_KEY(status=204)
    async def delete_api_key_limits(self, request: Request) -> Answer:
        """Remove an API key's limits; what it has used today stays counted."""
        key_id = parse_id(request.params["id"])
        await self.limits.remove_key(organization_of(request), key_id, request.if_match())
        return Answer(status=204)

    def _read(self, request: Request, kind: type[bodies.OrganizationLimits]) -> TradingLimits:
        return bodies.read_limits(request.body(kind, bodies.AMOUNTS), self.zones)


def _show(
    request: Request, kind: type[bodies.OrganizationLimitsRecord], stored: StoredLimits, symbol: Symbol | None = None
) -> Answer:
    return answer_json(bodies.show_limits(kind, owner_of(request), stored, symbol), version=stored.version)


def _show_key(organization_id: OrganizationId, stored: StoredLimits, use: KeyUse) -> Answer:
    return answer_json(bodies.show_key_limits(organization_id, stored, use), version=stored.version)


def limit_routes(gates: Mapping[str, Gate], limits: LimitsService, zones: AbstractSet[str]) -> tuple[Route, ...]:
    names = ("read_controls", "write_controls", "write_organization_control", "read_key_limits", "api_keys")
    read, write, write_organization, read_key, write_key = (gates[name] for name in names)
    handlers = LimitHandlers(read, write, write_organization, limits, zones)
    key = "/v1/api-keys/{id}/limits"
    organization = "/v1/controls/organization/limits"
    account = "/v1/controls/accounts/{account_id}/limits"
    symbol = "/v1/controls/accounts/{account_id}/symbols/{symbol}/limits"
    return (
        Route("GET", organization, read, handlers.get_organization_limits),
        Route("PUT", organization, write_organization, handlers.set_organization_limits),
        Route("DELETE", organization, write_organization, handlers.delete_organization_limits),
        Route("GET", account, read, handlers.get_account_limits),
        Route("PUT", account, write, handlers.set_account_limits),
        Route("DELETE", account, write, handlers.delete_account_limits),
        Route("GET", symbol, read, handlers.get_symbol_limits),
        Route("PUT", symbol, write, handlers.set_symbol_limits),
        Route("DELETE", symbol, write, handlers.delete_symbol_limits),
        Route("GET", key, read_key, handlers.get_api_key_limits),
        Route("PUT", key, write_key, handlers.set_api_key_limits),
        Route("DELETE", key, write_key, handlers.delete_api_key_limits),
    )
