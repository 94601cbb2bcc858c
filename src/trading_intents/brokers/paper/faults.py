"""Scripted faults, for accounts of tests: which of them strike a command. The seed decides: a run can be repeated."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from uuid import UUID

from trading_intents.brokers.paper.model import exact, made_id
from trading_intents.storage.database import Tx


class Fault(StrEnum):
    REJECT = "reject"  # refused without a reason
    LOSE = "lose"  # never arrives, and the caller is not told
    DROP_ANSWER = "drop_answer"  # taken, and the caller is not told
    DUPLICATE = "duplicate"  # its events come twice
    DELAY = "delay"  # its answer and its events come late
    REORDER = "reorder"  # its events come last first
    OVERFILL = "overfill"  # its first fill is twice what it should be
    DISCONNECT = "disconnect"  # taken, then the link breaks


@dataclass(frozen=True, slots=True)
class Struck:
    kinds: frozenset[Fault] = frozenset()
    delay_millis: int = 0

    def __contains__(self, fault: Fault) -> bool:
        return fault in self.kinds


async def strike(tx: Tx, account_id: UUID, seed: int, command: str, arrival: int) -> Struck:
    """Those that strike the account's `arrival`th command, each used up by one."""
    rows = await tx.fetch(
        """
        SELECT kind, chance, millis FROM paper_faults
        WHERE account_id = $1 AND coalesce(command, $2) = $2 AND coalesce(remaining, 1) > 0
        """,
        account_id,
        command,
    )
    struck = [row for row in rows if _happens(row["chance"], seed, account_id, arrival, row["kind"])]
    if not struck:
        return Struck()
    await _spend(tx, account_id, [row["kind"] for row in struck])
    return Struck(frozenset(Fault(row["kind"]) for row in struck), max(row["millis"] for row in struck))


def _happens(chance: Decimal, *parts: object) -> bool:
    with exact():
        return int(made_id(*parts)[:16], 16) < chance * (1 << 64)


async def _spend(tx: Tx, account_id: UUID, kinds: Iterable[str]) -> None:
    await tx.execute(
        "UPDATE paper_faults SET remaining = remaining - 1 WHERE account_id = $1 AND kind = ANY ($2)",
        account_id,
        list(kinds),
    )
