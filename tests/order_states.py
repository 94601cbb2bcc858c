"""The life of an order, made of the code: `python -m tests.order_states` writes it into
docs/states.md."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.orders.facts import bust, fill, ours, reported, terms
from trading_intents.brokers.port import EventKind
from trading_intents.orders import model
from trading_intents.orders.facts import Fact, FactKind
from trading_intents.orders.model import OrderStatus, OrderView, PendingCommands, derive

ROOT = Path(__file__).parents[1]
STATES = ROOT / "docs" / "states.md"
MARK = "<!-- {} of `python -m tests.order_states` -->\n"
BEGIN = MARK.format("Begin")
END = MARK.format("End")
# As `derive` asks for them: the first that fits.
PRECEDENCE = (
    OrderStatus.FILLED,
    OrderStatus.CANCELLED,
    OrderStatus.EXPIRED,
    OrderStatus.REJECTED,
    OrderStatus.PENDING_CANCEL,
    OrderStatus.PENDING_REPLACE,
    OrderStatus.PARTIALLY_FILLED,
    OrderStatus.NEW,
    OrderStatus.UNKNOWN,
    OrderStatus.PENDING_NEW,
)
TERMS = terms("100", "120")  # a CREATE and a REPLACE
NOTHING = PendingCommands()
ACCEPTED = reported(EventKind.ACCEPTED, at=1)
PART = fill("e1", "40", at=2)
# A state, and facts and commands by which an order comes to it.
BEFORE: dict[str, tuple[tuple[Fact, ...], PendingCommands]] = {
    "PENDING_NEW": ((), NOTHING),
    "UNKNOWN": ((ours(FactKind.UNCERTAIN),), NOTHING),
    "NEW": ((ACCEPTED,), NOTHING),
    "PARTIALLY_FILLED": ((ACCEPTED, PART), NOTHING),
    "PENDING_REPLACE": ((ACCEPTED,), PendingCommands(replace="R")),
    "PENDING_CANCEL": ((ACCEPTED,), PendingCommands(cancels=("X",))),
    "FILLED": ((ACCEPTED, PART, fill("e2", "60", at=3)), NOTHING),
    "CANCELLED": ((ACCEPTED, reported(EventKind.CANCELLED, at=3, cum="0")), NOTHING),
    "EXPIRED": ((ACCEPTED, reported(EventKind.EXPIRED, at=3, cum="0")), NOTHING),
    "REJECTED": ((reported(EventKind.REJECTED, at=3),), NOTHING),
    "CANCELLED `before_send`": ((ours(FactKind.CANCELLED_BEFORE_SEND),), NOTHING),
}
COMES: dict[str, Fact | PendingCommands] = {
    "a CANCEL is committed": PendingCommands(cancels=("X",)),
    "a REPLACE is committed": PendingCommands(replace="R"),
    "the broker's ACCEPTED": reported(EventKind.ACCEPTED, at=9),
    "its FILL of a part": fill("e8", "10", at=9),
    "its FILL of the whole": fill("e9", "100", at=9),
    "its FILL_BUST of the first fill": bust("e1", at=9),
    "its REPLACED": reported(EventKind.REPLACED, coid="R", at=9),
    "its REPLACE_REJECTED": reported(EventKind.REPLACE_REJECTED, coid="R", at=9),
    "its CANCEL_REJECTED": reported(EventKind.CANCEL_REJECTED, coid="X", at=9),
    "its CANCELLED": reported(EventKind.CANCELLED, at=9),
    "its EXPIRED": reported(EventKind.EXPIRED, at=9),
    "its REJECTED": reported(EventKind.REJECTED, at=9),
    "UNCERTAIN: the answer is lost": ours(FactKind.UNCERTAIN),
    "NOT_DELIVERED: proved absent": ours(FactKind.NOT_DELIVERED),
    "CANCELLED_BEFORE_SEND": ours(FactKind.CANCELLED_BEFORE_SEND),
    "HALTED before the send": ours(FactKind.HALTED),
    "STALE before the send": ours(FactKind.STALE),
    "REFUSED before the send": ours(FactKind.REFUSED),
    "REPLACE_DROPPED": ours(FactKind.REPLACE_DROPPED, "R"),
    "CANCEL_DROPPED": ours(FactKind.CANCEL_DROPPED, "X"),
}


def derived(facts: tuple[Fact, ...], pending: PendingCommands) -> OrderView:
    return derive(TERMS, facts, pending)


def next_state(name: str, comes: Fact | PendingCommands) -> str:
    """The status, with the flag that says why a final order changed; empty: it stays as it is."""
    facts, pending = BEFORE[name]
    before = derived(facts, pending)
    if isinstance(comes, Fact):
        facts = (*facts, comes)
    else:
        pending = PendingCommands(
            cancels=(*pending.cancels, *comes.cancels), replace=pending.replace or comes.replace
        )
    after = model.carry_flags(before, derived(facts, pending))
    flags = [f"`{flag}`" for flag in after.flags if flag not in before.flags]
    status = "" if after.status == before.status else after.status.value
    return " ".join([status, *flags]).strip()


def sentences() -> Iterator[str]:
    """Of each status: the comment above it in its enum."""
    source = Path(model.__file__).read_text()
    body = source[source.index("class OrderStatus") : source.index("class OrderState(")]
    found = {}
    for comment, status in re.findall(r"((?:    # .*\n)+)    (\w+) =", body):
        found[status] = " ".join(re.findall(r"# (.*)", comment))
    for status in PRECEDENCE:
        yield f"| {status} | {model.state_of(status)} | {found[status]} |"


def transitions() -> Iterator[str]:
    yield f"| What comes | {' | '.join(BEFORE)} |"
    yield f"|---|{'---|' * len(BEFORE)}"
    for what, comes in COMES.items():
        cells = [next_state(name, comes) for name in BEFORE]
        yield f"| {what} | {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def tables() -> str:
    lines = [
        "| Status | State | When |",
        "|---|---|---|",
        *sentences(),
        "",
        "What comes to an order in a state, and its status then, with a flag that is new; an empty "
        "cell: it stays.",
        "",
        *transitions(),
    ]
    return "\n".join(lines) + "\n"


def written() -> str:
    text = STATES.read_text()
    head, rest = text.split(BEGIN)
    return head + BEGIN + tables() + END + rest.split(END)[1]


if __name__ == "__main__":
    STATES.write_text(written())
