"""Halts over HTTP: parse, call one use case, render. Never judges."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import msgspec

from trading_intents.accounts.http import target_of
from trading_intents.controls.bodies import ReasonText
from trading_intents.controls.halts.model import (
    Halt,
    HaltPrincipal,
    HaltPrincipalType,
    HaltScope,
    HaltState,
    HaltTerms,
    HaltWaiting,
)
from trading_intents.controls.halts.service import Halts
from trading_intents.controls.model import ScopeAnswer
from trading_intents.errors import AccountClosed, Forbidden, NotFound, NotHalted, ValidationFailed
from trading_intents.identity.access import Gate, caller_of, organization_of
from trading_intents.identity.model import ApiKeyPrincipal, Permission, UserPrincipal
from trading_intents.web.limits import Bucket
from trading_intents.web.request import Answer, Request, answer_json, show_as
from trading_intents.web.routes import Operation, Route, Tag

HaltReason = Annotated[ReasonText, msgspec.Meta(min_length=1)]


class StartHalt(msgspec.Struct, forbid_unknown_fields=True):
    """`close_positions` needs `cancel_orders`: an order that stays open could open a position
    again."""

    reason: HaltReason
    cancel_orders: bool = True
    close_positions: bool = False


class HaltRecord(msgspec.Struct, kw_only=True):
    id: str
    scope: ScopeAnswer
    reason: str
    cancel_orders: bool
    close_positions: bool
    state: HaltState
    orders: int
    orders_done: int
    positions: int
    positions_done: int
    waiting: tuple[HaltWaiting, ...]
    principal_type: HaltPrincipalType
    principal_id: str
    created_at: str
    updated_at: str
    resumed_at: str | None


STARTED = Operation(
    tag=Tag.CONTROLS,
    body=StartHalt,
    answer=HaltRecord,
    status=202,
    repeated_status=200,
    bucket=Bucket.CANCELS,
    verifies_late=True,
)
RESUMED = Operation(tag=Tag.CONTROLS, answer=HaltRecord, bucket=Bucket.CANCELS, errors=(NotHalted,))


def halt_routes(gates: Mapping[str, Gate], halts: Halts) -> tuple[Route, ...]:
    read = gates["read_halts"]
    write = gates["halt_account"]
    write_organization = gates["halt_organization"]

    @replace(STARTED, errors=(AccountClosed,))
    async def halt_account(request: Request) -> Answer:
        """Halt an account: refuse new orders, cancel open ones and, if asked, close positions. 200:
        a halt stands."""
        target = target_of(request, write)
        started = await halts.start(target, lambda: _terms(request), _principal(request))
        return _answer_started(*started)

    @STARTED
    async def halt_organization(request: Request) -> Answer:
        """Halt the organization: refuse new orders, cancel open ones and, if asked, close
        positions. 200: a halt stands."""
        organization = HaltScope(organization_of(request))
        terms = _terms(request)
        started = await halts.start(organization, lambda: terms, _principal(request))
        return _answer_started(*started)

    @replace(RESUMED, errors=(AccountClosed, NotHalted))
    async def resume_account(request: Request) -> Answer:
        """End the halt of an account."""
        return _answer(await halts.resume(target_of(request, write), _principal(request)))

    @RESUMED
    async def resume_organization(request: Request) -> Answer:
        """End the halt of the organization."""
        organization = HaltScope(organization_of(request))
        return _answer(await halts.resume(organization, _principal(request)))

    @Operation(tag=Tag.CONTROLS, answer=HaltRecord, errors=(NotFound,))
    async def get_account_halt(request: Request) -> Answer:
        """Read the halt of an account that stands, else the last one."""
        return _answer(await halts.find_account(target_of(request, read)))

    @Operation(tag=Tag.CONTROLS, answer=HaltRecord, errors=(NotFound,))
    async def get_organization_halt(request: Request) -> Answer:
        """Read the halt of the organization that stands, else the last one."""
        caller = caller_of(request)
        principal = caller.principal
        environment = principal.environment if isinstance(principal, ApiKeyPrincipal) else None
        return _answer(await halts.find_organization(caller.organization_id, environment))

    account = "/v1/controls/accounts/{account_id}"
    organization = "/v1/controls/organization"
    return (
        Route("POST", f"{account}/halt", write, halt_account),
        Route("GET", f"{account}/halt", read, get_account_halt),
        Route("POST", f"{account}/resume", write, resume_account),
        Route("POST", f"{organization}/halt", write_organization, halt_organization),
        Route("GET", f"{organization}/halt", read, get_organization_halt),
        Route("POST", f"{organization}/resume", write_organization, resume_organization),
    )


def _terms(request: Request) -> HaltTerms:
    body = request.body(StartHalt)
    principal = caller_of(request).principal
    may_trade = True
    if isinstance(principal, ApiKeyPrincipal):
        may_trade = Permission.INTENT_EDIT in principal.permissions
    if body.close_positions and not may_trade:
        raise Forbidden(
            f"the API key lacks the permission {Permission.INTENT_EDIT}, which "
            "close_positions needs"
        )
    if body.close_positions and not body.cancel_orders:
        raise ValidationFailed.at("/close_positions", "needs cancel_orders")
    return HaltTerms(body.reason, body.cancel_orders, body.close_positions)


def _principal(request: Request) -> HaltPrincipal:
    match caller_of(request).principal:
        case ApiKeyPrincipal(key_id=key_id):
            return HaltPrincipal(HaltPrincipalType.API_KEY, str(key_id))
        case UserPrincipal(subject=subject):
            return HaltPrincipal(HaltPrincipalType.USER, subject)
    raise AssertionError("the policy takes keys and users only")


def _answer_started(halt: Halt, is_new: bool) -> Answer:
    return _answer(halt, status=202 if is_new else 200)


def _answer(halt: Halt, status: int = 200) -> Answer:
    scope = {"Organization": str(halt.scope.organization_id)}
    if halt.scope.account_id:
        scope = {"Account": str(halt.scope.account_id)}
    record = show_as(
        HaltRecord,
        halt,
        scope=scope,
        **msgspec.structs.asdict(halt.terms),
        principal_type=halt.principal.type,
        principal_id=halt.principal.id,
    )
    return answer_json(record, status)
