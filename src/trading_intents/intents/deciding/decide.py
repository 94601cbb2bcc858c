"""decide(): gives an action, an earlier answer or a refusal, of a command and the state that it
meets. What comes of an action, the controls say last: see `judge`."""

from datetime import datetime
from typing import assert_never

from trading_intents import errors
from trading_intents.brokers.port import Capabilities
from trading_intents.controls.model import Controls
from trading_intents.controls.rules import AccountState, KeyState, Rules
from trading_intents.identity.model import Entitlement, Permission
from trading_intents.intents.deciding.compose import compose, compose_close
from trading_intents.intents.deciding.linked import check_offered
from trading_intents.intents.model import (
    Cancel,
    Close,
    Command,
    Create,
    Decision,
    KnownOrder,
    Replace,
    Replayed,
    Spec,
    Submission,
    SubmissionState,
)
from trading_intents.orders.model import FINAL_STATUSES
from trading_intents.trading import Environment, OrderKind, TimeInForce


def decide(submission: Submission, state: SubmissionState, now: datetime) -> Decision:
    """The checks run in the order that the API documents; after them only the controls may
    refuse."""
    try:
        account = _check_caller(submission, state.rules, now)
        if state.earlier and state.earlier.body_digest == submission.body_digest:
            return Replayed(state.earlier.intent_id, state.earlier.seq, state.earlier.legs)
        _check_broker(submission.command, state.broker)
        composed = None
        if not isinstance(submission.command, Close):
            composed = compose(
                submission.account_id,
                submission.command,
                state.order,
                submission.client_reference_id,
            )
        if state.earlier:
            raise errors.IdempotencyConflict(
                "the Idempotency-Key was used with a different body; use a new key for a new "
                "command"
            )
        _check_account(submission, account, state.broker)
        _check_order(submission, state.order)
        return composed or compose_close(submission, state)
    except errors.PlatformError as refusal:
        return refusal


def _check_caller(submission: Submission, rules: Rules, now: datetime) -> AccountState:
    account = rules.account
    if submission.key_id is None:
        assert account is not None
        _check_halt(submission.halt_id, rules.controls)
        return account
    key = _check_key(rules.key, now)
    if account is None or account.organization_id != key.organization_id:
        raise errors.NotFound("no such account")
    if key.environment != account.environment:
        raise errors.Forbidden(
            f"the API key is not of environment {account.environment}, which the account is"
        )
    # A CANCEL lowers risk, so it needs no entitlement.
    is_cancel = isinstance(submission.command, Cancel)
    needs_entitlement = account.environment is Environment.LIVE and not is_cancel
    if needs_entitlement and Entitlement.TRADING_LIVE not in key.entitlements:
        raise errors.EntitlementRequired(
            f"the organization needs the entitlement {Entitlement.TRADING_LIVE}"
        )
    return account


def _check_halt(halt_id: str | None, controls: Controls) -> None:
    """The platform's own command is refused if it is of a halt that does not stand any more."""
    for halt in (controls.organization_halt, controls.account_halt):
        if halt and halt.id == halt_id:
            return
    if halt_id:
        raise errors.NotHalted("the halt is over")


def _check_key(key: KeyState | None, now: datetime) -> KeyState:
    if key is None or key.disabled or (key.expires_at is not None and key.expires_at <= now):
        raise errors.Unauthorized("the API key does not verify")
    if Permission.INTENT_EDIT not in key.permissions:
        raise errors.Forbidden(f"the API key lacks the permission {Permission.INTENT_EDIT}")
    return key


def _check_broker(command: Command, broker: Capabilities | None) -> None:
    if isinstance(command, Cancel):
        return
    if broker is None:
        raise errors.Unavailable(
            "the account's broker cannot be used: its integration is not installed here"
        )
    match command:
        case Close():
            if not broker.times_in_force.get(OrderKind.MARKET):
                raise errors.ValidationFailed.at(
                    "", f"the broker {broker.name} has no market orders; close it with another"
                )
        case Replace():
            if not broker.native_replace:
                raise errors.ValidationFailed.at(
                    "/command/type",
                    f"the broker {broker.name} cannot replace an order; use CANCEL and CREATE",
                )
            _check_kind(command.spec, broker, command.spec.time_in_force)
        case Create():
            if command.route not in broker.routes:
                raise errors.ValidationFailed.at(
                    "/command/payload/route_strategy",
                    f"the broker {broker.name} cannot route there; use "
                    f"{errors.either(broker.routes)}",
                )
            _check_kind(command.spec, broker, command.spec.time_in_force or TimeInForce.DAY)
            if command.legs:
                check_offered(command, broker)


def _check_kind(spec: Spec, broker: Capabilities, time_in_force: TimeInForce | None) -> None:
    offered = broker.times_in_force.get(spec.kind)
    if offered is None:
        raise errors.ValidationFailed.at(
            f"/command/payload/spec/{spec.kind}",
            f"the broker {broker.name} has no such order kind; use "
            f"{errors.either(broker.times_in_force)}",
        )
    if time_in_force and time_in_force not in offered:
        raise errors.ValidationFailed.at(
            f"/command/payload/spec/{spec.kind}/time_in_force",
            f"the broker {broker.name} does not offer it; use {errors.either(offered)}",
        )


def _check_account(
    submission: Submission, account: AccountState, broker: Capabilities | None
) -> None:
    if account.closed:
        raise errors.AccountClosed("the account is closed for good: it can be read, not changed")
    if isinstance(submission.command, Cancel):
        return
    if account.disabled and not submission.halt_id:
        raise errors.AccountDisabled("the account is disabled; it takes CANCEL only")
    if broker and broker.credential_fields and not account.has_credential:
        raise errors.CredentialMissing("the account's broker needs a credential; store one first")


def _check_order(submission: Submission, order: KnownOrder | None) -> None:
    command = submission.command
    match command:
        case Create() | Close():
            return
        case Replace() | Cancel():
            assert order is not None
            if order.status in FINAL_STATUSES:
                raise errors.IntentClosed(
                    f"the order is {order.status}, which is final; use CREATE for a new one"
                )
            if isinstance(command, Cancel) and not command.once:
                return
            if order.cancel_requested:
                raise errors.CancelPending(
                    "a CANCEL of this intent is pending; wait until the broker has answered it"
                )
            if order.replace_pending and not isinstance(command, Cancel):
                raise errors.ReplacePending(
                    "a REPLACE of this intent is pending; wait until the broker has answered it"
                )
        case _:
            assert_never(command)
