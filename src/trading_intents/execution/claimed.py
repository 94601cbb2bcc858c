"""Makes of a claimed command the values by which it is decided, sent and recorded. No I/O, no
clock."""

from uuid import UUID

from msgspec.structs import replace

from trading_intents.brokers.port import LegTicket, OrderTicket
from trading_intents.controls.case import Case, Purpose
from trading_intents.controls.limits.model import AskedOrder
from trading_intents.controls.rules import Rules
from trading_intents.execution.claims import (
    ClaimedCommand,
    ClaimedLeg,
    SentCommand,
)
from trading_intents.execution.model import COMMANDS, SendContext
from trading_intents.orders.facts import CommandKind, client_order_id
from trading_intents.trading import ORDER_KINDS, ActionType, TimeInForce, terms_of


def sent_command(command: ClaimedCommand, client_id: str) -> SentCommand:
    return SentCommand(
        account_id=command.account_id,
        client_order_id=client_id,
        organization_id=command.organization_id,
        order_id=command.order_id,
        seq=command.seq,
        action_type=command.action_type,
    )


def send_context(
    command: ClaimedCommand,
    rules: Rules,
    client_id: str,
    max_age_seconds: float,
    kept_by: str | None,
) -> SendContext:
    assert rules.account is not None
    kind = COMMANDS[command.action_type]
    ticket = _order_ticket(command, client_id)
    return SendContext(
        command=kind,
        order_id=UUID(command.order_id),
        ticket=ticket,
        case=_make_case(command, kind, ticket, rules),
        now=command.now,
        age_seconds=command.age_seconds,
        order_status=command.order_status,
        acknowledged=command.acknowledged,
        is_leg=command.is_leg,
        cancel_requested=command.cancel_requested,
        is_sent=command.is_marked or (kind is not CommandKind.CANCEL and command.sends > 0),
        is_resend=command.is_resend,
        lookups=command.lookups,
        account_disabled=rules.account.disabled,
        max_age_seconds=max_age_seconds,
        halt_stands=command.halt_stands,
        kept_by=kept_by,
    )


def _make_case(
    command: ClaimedCommand, kind: CommandKind, ticket: OrderTicket, rules: Rules
) -> Case:
    """The limits that need a state were judged when the command was accepted, and it is counted."""
    purpose = Purpose.TRADE
    if kind is CommandKind.CANCEL:
        purpose = Purpose.CANCEL
    elif command.closes:
        purpose = Purpose.CLOSE if command.halt_stands is None else Purpose.HALT
    return Case(
        purpose=purpose,
        controls=replace(rules.controls, halted_since=command.is_halted_since),
        now=command.now,
        symbol=ticket.symbol,
        asked=AskedOrder(
            is_create=kind is CommandKind.SUBMIT,
            closes=command.closes,
            symbol=ticket.symbol,
            side=ticket.side,
            kind=ticket.kind,
            **terms_of(ticket),
        ),
        levels=rules.limited.levels if rules.limited else (),
    )


def _order_ticket(command: ClaimedCommand, client_id: str) -> OrderTicket:
    record = command.record
    broker_order_id = None
    orig_client_order_id = None
    if command.action_type is not ActionType.CREATE:
        broker_order_id = command.external_order_id
        orig_client_order_id = client_order_id(command.confirmed_action_id)
    return OrderTicket(
        client_order_id=client_id,
        broker_order_id=broker_order_id,
        orig_client_order_id=orig_client_order_id,
        symbol=record.symbol,
        side=record.order_side,
        kind=ORDER_KINDS[record.order_type],
        extended_hours=record.time_in_force is TimeInForce.EXT,
        route=record.route_strategy,
        legs=tuple(map(_leg_ticket, command.legs)),
        **terms_of(record),
    )


def _leg_ticket(leg: ClaimedLeg) -> LegTicket:
    return LegTicket(
        leg=leg.leg,
        client_order_id=client_order_id(leg.action_id),
        symbol=leg.record.symbol,
        side=leg.record.order_side,
        kind=ORDER_KINDS[leg.record.order_type],
        **terms_of(leg.record),
    )
