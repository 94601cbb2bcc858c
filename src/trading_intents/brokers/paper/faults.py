"""Scripted faults, for test accounts: which of them affect a command. The seed decides, so that a
run can be repeated."""

from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from uuid import UUID

import msgspec

from trading_intents.brokers.paper.model import made_id
from trading_intents.trading import FrozenStruct, exact


class FaultKind(StrEnum):
    REJECT = "reject"  # refused without a reason
    LOSE = "lose"  # never arrives, without an answer
    DROP_ANSWER = "drop_answer"  # taken, without an answer
    DUPLICATE = "duplicate"  # its events come twice
    DELAY = "delay"  # its answer and its events come late
    REORDER = "reorder"  # its events come last first
    OVERFILL = "overfill"  # its first fill is twice what it should be
    DISCONNECT = "disconnect"  # taken, then the connection breaks


class Fault(msgspec.Struct, kw_only=True):
    account_id: UUID
    kind: str
    command: str | None
    chance: Decimal
    remaining: int | None
    millis: int


class ActiveFaults(FrozenStruct):
    kinds: frozenset[FaultKind] = frozenset()
    delay_millis: int = 0

    def __contains__(self, fault: FaultKind) -> bool:
        return fault in self.kinds


def draw_faults(
    faults: Sequence[Fault], seed: int, account_id: UUID, command: str, arrival: int
) -> tuple[ActiveFaults, list[Fault]]:
    """Gives the faults that affect the account's `arrival`th command, each used up by one; and
    those of them that are to be saved."""
    kinds = set[FaultKind]()
    spent = list[Fault]()
    delay_millis = 0
    for fault in faults:
        if fault.command not in (None, command) or fault.remaining == 0:
            continue
        if not _happens(fault.chance, seed, account_id, arrival, fault.kind):
            continue
        kinds.add(FaultKind(fault.kind))
        delay_millis = max(delay_millis, fault.millis)
        if fault.remaining is not None:
            fault.remaining -= 1
            spent.append(fault)
    return ActiveFaults(frozenset(kinds), delay_millis), spent


def _happens(chance: Decimal, *parts: object) -> bool:
    with exact():
        return int(made_id(*parts)[:16], 16) < chance * (1 << 64)
