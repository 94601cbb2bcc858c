"""Halts over HTTP: parse, call one use case, render. Never judges."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import msgspec

from trading_intents.accounts.http import target_of
from trading_intents.controls.bodies import MAX_REASON_CHARACTERS
from trading_intents.controls.halts.model import (
    Halt,
    HaltPrincipal,
    HaltPrincipalType,
    HaltScope,
    HaltState,
    HaltTerms,
)
from trading_intents.controls.halts.service import Halts
from trading_intents.controls.model import ScopeAnswer
from trading_intents.errors import AccountClosed, Forbidden, NotFound, NotHalted, ValidationFailed
from trading_intents.identity.access import Gate, caller_of, organization_of
from trading_intents.identity.model import ApiKeyPrincipal, Permission, UserPrincipal
from trading_intents.web.body import INVISIBLE
from trading_intents.web.limits import Bucket
from trading_intents.web.request import Answer, Request, answer_json, render
from trading_intents.web.routes import Operation, Route, Tag

HaltReason = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=MAX_REASON_CHARACTERS, pattern=rf"^[^\x00{INVISIBLE}]*$"),
]


class StartHalt(msgspec.Struct, forbid_unknown_fields=True):
    """`close_positions` needs `cancel_orders`: an order that stays open could open a position
    again."""

    reason: HaltReason
    cancel_orders: bool = True
    close_positions: bool = False


class HaltWaiting(msgspec.Struct, omit_defaults=True):
    """An order or a symbol that the halt cannot finish yet, and why."""

    account_id: str
    reason: str
    symbol: str | None = None
    order_id: str | None = None


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
    waiting: list[HaltWaiting]
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
    read, write, write_organization = (
        gates[name] for name in ("read_halts", "halt_account", "halt_organization")
    )

    @replace(STARTED, errors=(AccountClosed,))
    async def halt_account(request: Request) -> Answer:
        """Halt an account: refuse new orders, cancel open ones and, if asked, close positions. 200:
        a halt stands."""
        target = target_of(request, write)
        return _answer_started(
            *await halts.start(target, lambda: _terms(request), _principal(request))
        )

    @STARTED
    async def halt_organization(request: Request) -> Answer:
        """Halt the organization: refuse new orders, cancel open ones and, if asked, close
        positions. 200: a halt stands."""
        organization = HaltScope(organization_of(request))
        terms = _terms(request)
        return _answer_started(*await halts.start(organization, lambda: terms, _principal(request)))

    @replace(RESUMED, errors=(AccountClosed, NotHalted))
    async def resume_account(request: Request) -> Answer:
        """End the halt of an account."""
        return answer_json(
            _show(await halts.resume(target_of(request, write), _principal(request)))
        )

    @RESUMED
    async def resume_organization(request: Request) -> Answer:
        """End the halt of the organization."""
        return answer_json(
            _show(await halts.resume(HaltScope(organization_of(request)), _principal(request)))
        )

    @Operation(tag=Tag.CONTROLS, answer=HaltRecord, errors=(NotFound,))
    async def get_account_halt(request: Request) -> Answer:
        """Read the halt of an account that stands, else the last one."""
        return answer_json(_show(await halts.find_account(target_of(request, read))))

    @Operation(tag=Tag.CONTROLS, answer=HaltRecord, errors=(NotFound,))
    async def get_organization_halt(request: Request) -> Answer:
        """Read the halt of the organization that stands, else the last one."""
        caller = caller_of(request)
        environment = (
            caller.principal.environment if isinstance(caller.principal, ApiKeyPrincipal) else None
        )
        return answer_json(
            _show(await halts.find_organization(caller.organization_id, environment))
        )

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
    may_trade = (
        not isinstance(principal, ApiKeyPrincipal)
        or Permission.INTENT_EDIT in principal.permissions
    )
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
    return answer_json(_show(halt), status=202 if is_new else 200)


def _show(halt: Halt) -> HaltRecord:
    organization_id = halt.scope.organization_id
    account_id = halt.scope.account_id
    return render(
        HaltRecord,
        halt,
        scope={"Account": str(account_id)}
        if account_id
        else {"Organization": str(organization_id)},
        **msgspec.structs.asdict(halt.terms),
        waiting=[HaltWaiting(**each) for each in halt.waiting],
        principal_type=halt.principal.type,
        principal_id=halt.principal.id,
    )
