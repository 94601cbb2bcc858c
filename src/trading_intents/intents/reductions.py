"""Calls over HTTP that only lower risk: cancel all open orders, close a position. Each becomes
ordinary commands."""

import asyncio
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from trading_intents import errors
from trading_intents.accounts.http import find_account
from trading_intents.accounts.model import Account
from trading_intents.accounts.service import Accounts, check_open
from trading_intents.identity.access import Gate, caller_of, require_entitlement
from trading_intents.identity.model import Entitlement
from trading_intents.intents.body import digest_of
from trading_intents.intents.http import (
    IDEMPOTENCY_KEY,
    Submitted,
    Submitter,
    accepted,
    submitter_of,
)
from trading_intents.intents.model import Cancel, Close
from trading_intents.intents.service import Intents
from trading_intents.intents.writing.batch import Receipt
from trading_intents.intents.writing.writer import Writer
from trading_intents.trading import Environment, Symbol
from trading_intents.web.body import read_symbol
from trading_intents.web.limits import Bucket, Limits
from trading_intents.web.request import Answer, Headers, Request, answer_json
from trading_intents.web.routes import Operation, Route, Tag

MAX_CANCELS = 500
MAX_QUEUED = 256  # of an organization's, in this process


class CancelAll(msgspec.Struct, forbid_unknown_fields=True):
    """Without a symbol, the orders of all."""

    symbol: str | None = None


class ClosePosition(msgspec.Struct, forbid_unknown_fields=True):
    """Nothing is to be said: the platform knows the quantity."""


class CancelledAll(msgspec.Struct):
    """`pending`: orders whose CANCEL was on its way before. `more`: repeat the call, there are
    further open orders."""

    intents: list[Submitted]
    pending: int
    more: bool


class CancelAlls:
    """Makes the CANCELs of the calls of this process. One that is on its way is not made again, and
    each costs a token of its caller and a slot of its organization, as if it were sent alone."""

    def __init__(self, intents: Intents, writer: Writer, limits: Limits) -> None:
        self._intents = intents
        self._writer = writer
        self._limits = limits
        self._under_way: set[str] = set()  # orders
        self._slots: WeakValueDictionary[UUID, asyncio.Semaphore] = WeakValueDictionary()

    async def cancel(
        self, account: Account, symbol: Symbol | None, submitter: Submitter
    ) -> tuple[CancelledAll, Headers]:
        """The call's own token is that of its first CANCEL."""
        known = list(self._under_way)
        found = await self._intents.cancellable(account, symbol, known, MAX_CANCELS + 1)
        first = found.order_ids[:MAX_CANCELS]
        # Of calls that read at once, the first one cancels.
        left = [order_id for order_id in first if order_id not in self._under_way]
        keys = submitter.limit_keys
        tokens = int(self._limits.left(Bucket.CANCELS, *keys))
        further = max(0, min(tokens, len(left) - 1))
        headers = self._limits.take(Bucket.CANCELS, *keys, tokens=further)
        chosen = left[: 1 + further]
        self._under_way.update(chosen)
        slots = self._slots.setdefault(account.organization_id, asyncio.Semaphore(MAX_QUEUED))
        try:
            submitted = [self._submit(account, submitter, slots, each) for each in chosen]
            outcomes = await asyncio.gather(*submitted)
        finally:
            self._under_way.difference_update(chosen)
        made: list[Submitted] = []
        failed: list[errors.PlatformError] = []
        for outcome in outcomes:
            if isinstance(outcome, Receipt):
                made.append(Submitted(outcome.intent_id, outcome.seq))
            elif outcome:
                failed.append(outcome)
        if failed and not made:
            raise failed[0]
        pending = found.cancelling + len(first) - len(left)
        is_cut = len(first) < len(found.order_ids)
        more = is_cut or len(chosen) < len(left) or bool(failed)
        return CancelledAll(made, pending, more), headers

    async def _submit(
        self, account: Account, submitter: Submitter, slots: asyncio.Semaphore, order_id: str
    ) -> Receipt | errors.PlatformError | None:
        """None: the order finished meanwhile, or another call cancels it."""
        cancel = Cancel(order_id, once=True)
        submission = submitter.submission(str(account.id), cancel, None, None, None)
        try:
            async with slots:
                return await self._writer.submit(submission)
        except (errors.IntentClosed, errors.CancelPending):
            return None
        except errors.PlatformError as error:
            return error


def reduction_routes(
    gate: Gate, accounts: Accounts, intents: Intents, writer: Writer, limits: Limits
) -> tuple[Route, ...]:
    return (
        _cancel_all_route(gate, accounts, CancelAlls(intents, writer, limits)),
        _close_position_route(gate, accounts, writer),
    )


def _cancel_all_route(gate: Gate, accounts: Accounts, cancel_alls: CancelAlls) -> Route:
    @Operation(
        tag=Tag.INTENTS,
        body=CancelAll,
        is_body_optional=True,
        answer=CancelledAll,
        status=202,
        bucket=Bucket.CANCELS,
        verifies_late=True,
        errors=(errors.AccountClosed, errors.OutcomeUnknown),
    )
    async def cancel_all_intents(request: Request) -> Answer:
        """Cancel up to 500 open orders of the account, or of one of its symbols."""
        account = await find_account(request, gate, accounts)
        text = request.body(CancelAll).symbol
        symbol = None if text is None else read_symbol("/symbol", text)
        check_open(account)
        cancelled, headers = await cancel_alls.cancel(
            account, symbol, submitter_of(caller_of(request))
        )
        request.headers_out[-len(headers) :] = headers  # in place of those of its first token
        return answer_json(cancelled, status=202)

    return Route("POST", "/v1/accounts/{account_id}/intents/cancel-all", gate, cancel_all_intents)


def _close_position_route(gate: Gate, accounts: Accounts, writer: Writer) -> Route:
    @Operation(
        tag=Tag.INTENTS,
        body=ClosePosition,
        is_body_optional=True,
        answer=Submitted,
        status=202,
        bucket=Bucket.SUBMITS,
        parameters=(IDEMPOTENCY_KEY,),
        errors=(
            errors.AccountClosed,
            errors.AccountDisabled,
            errors.ControlRejected,
            errors.CredentialMissing,
            errors.EntitlementRequired,
            errors.IdempotencyConflict,
            errors.NoPosition,
            errors.OutcomeUnknown,
        ),
    )
    async def close_position(request: Request) -> Answer:
        """Close a position: a market order for what open orders do not close already. It passes a
        halt."""
        caller = caller_of(request)
        account = await find_account(request, gate, accounts)
        if account.environment is Environment.LIVE:
            require_entitlement(caller, Entitlement.TRADING_LIVE)
        symbol = read_symbol("", request.params["symbol"])
        request.body(ClosePosition)
        key = request.header(b"idempotency-key")
        digest = None
        if key:
            digest = digest_of(["POST", f"/v1/accounts/{account.id}/positions/{symbol}/close"])
        submission = submitter_of(caller).submission(
            str(account.id), Close(symbol), None, key, digest
        )
        return accepted(await writer.submit(submission))

    path = "/v1/accounts/{account_id}/positions/{symbol}/close"
    return Route("POST", path, gate, close_position)
