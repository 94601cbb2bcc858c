"""Makes of a claimed command's texts the values by which it is decided, sent and recorded. No I/O,
no clock."""

from datetime import datetime
from uuid import UUID

import msgspec

from trading_intents import trading
from trading_intents.brokers.port import LegTicket, OrderTicket
from trading_intents.controls.limits.store import LIMIT_LEVELS, applied_limits
from trading_intents.controls.store import parse_controls
from trading_intents.execution.claims import ACTION_TYPES, ClaimedCommand, MarkedCommand
from trading_intents.execution.model import COMMANDS, CREATE, SendContext
from trading_intents.ids import OrganizationId
from trading_intents.orders.facts import CommandKind, client_order_id
from trading_intents.outbox.model import ClaimedRow, Queue

TRUE = "t"  # PostgreSQL's text of a boolean


class _Record(trading.VersionTerms, frozen=True, kw_only=True):
    """The fields of an action's record that a ticket needs."""

    symbol: trading.Symbol
    order_side: trading.OrderSide
    order_type: str
    route_strategy: trading.RouteStrategy


class _ClaimedLeg(trading.FrozenStruct, frozen=True):
    order_id: str
    seq: int
    leg: trading.Leg
    action_id: UUID
    record: _Record

    @property
    def ticket(self) -> LegTicket:
        return LegTicket(
            leg=self.leg,
            client_order_id=client_order_id(self.action_id),
            symbol=self.record.symbol,
            side=self.record.order_side,
            kind=trading.ORDER_KINDS[self.record.order_type],
            **trading.terms_of(self.record),
        )


def _legs(command: ClaimedCommand) -> list[_ClaimedLeg]:
    return msgspec.json.decode(command.legs, type=list[_ClaimedLeg]) if command.legs else []


def marked_commands(command: ClaimedCommand, client_id: str) -> list[MarkedCommand]:
    """The command, and the CREATEs of the legs that are sent with it."""
    account_id = command.account_id
    organization_id = command.organization_id
    own = MarkedCommand(
        account_id=account_id,
        client_order_id=client_id,
        organization_id=organization_id,
        order_id=command.order_id,
        seq=command.seq,
        action_type=ACTION_TYPES[command.event_type],
    )
    return [own] + [
        own._replace(
            client_order_id=client_order_id(leg.action_id), order_id=leg.order_id, seq=str(leg.seq)
        )
        for leg in _legs(command)
    ]


def claimed_row(command: ClaimedCommand, token: UUID) -> ClaimedRow:
    return ClaimedRow(
        id=int(command.row_id),
        queue=Queue.INTENTS,
        event_type=command.event_type,
        organization_id=OrganizationId(UUID(command.organization_id)),
        order_key=UUID(command.order_id),
        payload={},
        attempts=int(command.attempts),
        token=token,
    )


def send_context(
    command: ClaimedCommand, client_id: str, max_age_seconds: float, kept_by: str | None
) -> SendContext:
    record = msgspec.json.decode(command.record, type=_Record)
    assert command.claim_millis is not None
    controls = command.controls[:-LIMIT_LEVELS]
    limits = command.controls[-LIMIT_LEVELS:]
    is_create = command.event_type == CREATE
    is_cancel = COMMANDS[command.event_type] is CommandKind.CANCEL
    ticket = OrderTicket(
        client_order_id=client_id,
        broker_order_id=None if is_create else command.external_order_id,
        orig_client_order_id=None
        if is_create
        else client_order_id(UUID(command.confirmed_action_id)),
        symbol=record.symbol,
        side=record.order_side,
        kind=trading.ORDER_KINDS[record.order_type],
        extended_hours=record.time_in_force is trading.TimeInForce.EXT,
        route=record.route_strategy,
        legs=tuple(leg.ticket for leg in _legs(command)),
        **trading.terms_of(record),
    )
    return SendContext(
        command=COMMANDS[command.event_type],
        order_id=UUID(command.order_id),
        ticket=ticket,
        now=datetime.fromisoformat(command.now),
        age_seconds=int(command.age_millis) / 1000,
        claim_seconds=int(command.claim_millis) / 1000,
        order_status=command.order_status,
        acknowledged=command.acknowledged == TRUE,
        is_leg=command.leg is not None,
        cancel_requested=command.cancel_requested == TRUE,
        is_sent=command.is_open == TRUE if is_cancel else int(command.sends) > 0,
        is_resend=command.is_resend == TRUE,
        lookups=int(command.lookups),
        account_disabled=command.account_disabled == TRUE,
        controls=parse_controls(*controls),
        limits=applied_limits(*limits),
        max_age_seconds=max_age_seconds,
        closes=command.closes == TRUE,
        is_halted_since=command.is_halted_since == TRUE,
        halt_stands=None if command.halt_stands is None else command.halt_stands == TRUE,
        kept_by=kept_by,
    )
