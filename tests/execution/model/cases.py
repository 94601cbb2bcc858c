"""The cases that are explored: the design with all that it might say otherwise, and configurations of faults."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# freeze: of W1; slow: a live holder's lease expires; unknown: the connection is lost in a turn;
# refused: the server answers a turn with an error; no answer: it is lost, or later than the
# time-out; not arrived: the command is lost; give: the holder gives the lease back.
FAULTS = ("crash", "freeze", "slow", "unknown", "refused", "no answer", "not arrived", "give")


@dataclass(frozen=True, kw_only=True)
class Design:
    """The defaults are the design; beside each stands what else it might say."""

    # The worker's row is locked from the first statement to the commit, and the token compared |
    # unlocked: compared, not locked | by name: the worker is compared, not the token | none
    fence: str = "locked"
    # A commit without an answer is asked about before anything else | at once: the next turn begins
    # | as applied: as if it had committed
    unknown: str = "asked"
    heads: str = "locked"  # to the commit | read
    # News of an order that another turn holds wait | dropped | its row is deleted all the same
    held: str = "news wait"
    # Before the call | after it | uncommitted: called once the writes are sent
    mark: str = "before"
    # Marked rows that the worker neither has in flight nor waits to record are looked up | sent
    # again | left | all: those in flight too
    marked: str = "looked up"
    # Halt locks are shared in the statement before the one that reads | late: in it | not
    halt: str = "before"
    is_clock_asked: bool = True  # before each call, whether the lease holds
    proof: int = 2  # look-ups that find nothing, the second when all has arrived that ever will
    lookup: str = "one at a time"  # after the turn that recorded the one before | any time
    resend: str = "unique"  # only where a used id is refused for ever | always
    duplicate: str = "unclear"  # a used id that is refused | rejected
    unwanted: str = "cancelled"  # an order that works though we ended it | left
    api: str = "locked"  # | unlocked: reads, then writes
    give: str = "idle"  # a lease is given back when nothing waits | any time


@dataclass(frozen=True, kw_only=True)
class Config:
    orders: tuple[str, ...]  # the commands of each: of C, R and X
    faults: Mapping[str, int] = field(default_factory=dict)
    has_halt: bool = False
    fills_in_parts: bool = False
    is_unique: bool = True  # the broker refuses a used client order id for ever
    # What a process sent while its lease held has arrived, or never will, by the second look-up. If
    # not, it may arrive at any time later, as if the process froze between its clock and its socket.
    is_bounded: bool = True


ANSWERS = {"no answer": 1, "not arrived": 1}

# Small ones, by which a wrong design shows within seconds. Of a right one these are searched whole:
# LARGE ones take more.
LARGE = {"slow", "late", "late, ids used again"}
QUICK = {
    "plain": Config(orders=("CX",), has_halt=True),
    "two": Config(orders=("C", "CX")),
    "crash": Config(orders=("C",), faults={"crash": 1}),
    "unknown": Config(orders=("C",), faults={"unknown": 1}),
    "two, give": Config(orders=("C", "C"), faults={"give": 1}),
    "slow": Config(orders=("C",), faults={"slow": 1}),
    "give": Config(orders=("C",), faults={"give": 1}),
    "freeze": Config(orders=("C",), faults={"freeze": 1}, is_unique=False),
    "late": Config(orders=("C",), faults={"crash": 1}, is_bounded=False),
    "late, ids used again": Config(
        orders=("C",), faults={"crash": 1, "no answer": 1}, is_bounded=False, is_unique=False
    ),
    "unknown, ids used again": Config(orders=("C",), faults={"unknown": 1}, is_unique=False),
    "two, unknown": Config(orders=("C", "C"), faults={"unknown": 1}),
    "crash, cancel": Config(orders=("CX",), faults={"crash": 1}),
    "late, cancel": Config(orders=("CX",), faults={"crash": 1}, is_bounded=False),
}

WHOLE = {
    "replace, halt": Config(orders=("CRX",), has_halt=True, fills_in_parts=True),
    "crash, halt": Config(orders=("CX",), faults={"crash": 1}, has_halt=True),
    "crash twice": Config(orders=("C",), faults={"crash": 2}),
    "freeze, halt": Config(orders=("CX",), faults={"freeze": 1}, has_halt=True),
    "freeze, crash": Config(orders=("C",), faults={"freeze": 1, "crash": 1}),
    "freeze, unknown": Config(orders=("C",), faults={"freeze": 1, "unknown": 1}),
    "freeze, answers": Config(orders=("C",), faults={"freeze": 1, **ANSWERS}),
    "slow": Config(orders=("CX",), faults={"slow": 1}, has_halt=True),
    "slow, unknown": Config(orders=("C",), faults={"slow": 1, "unknown": 1}),
    "give, unknown": Config(orders=("CX",), faults={"give": 1, "unknown": 1}),
    "unknown twice": Config(orders=("CX",), faults={"unknown": 2}),
    "unknown, crash": Config(orders=("CX",), faults={"unknown": 1, "crash": 1}),
    "unknown, refused, answers": Config(
        orders=("CX",), faults={"unknown": 1, "refused": 1, **ANSWERS}
    ),
    "answers, crash": Config(orders=("CX",), faults={**ANSWERS, "crash": 1}),
    "replace, crash": Config(orders=("CRX",), faults={"crash": 1}),
    "replace, unknown, no answer": Config(orders=("CRX",), faults={"unknown": 1, "no answer": 1}),
    "replace, slow": Config(orders=("CRX",), faults={"slow": 1}),
    "two orders": Config(orders=("C", "CX"), faults={"unknown": 1, "refused": 1}),
    "two orders, crash": Config(orders=("C", "C"), faults={"crash": 1}),
    "two orders, slow": Config(orders=("C", "C"), faults={"slow": 1}),
    "two orders, freeze": Config(orders=("C", "C"), faults={"freeze": 1}),
    "late": Config(orders=("CX",), faults={"freeze": 1}, is_bounded=False),
    "late, answers": Config(orders=("CX",), faults={"crash": 1, "no answer": 1}, is_bounded=False),
    "late, ids used again": Config(
        orders=("CX",), faults={"crash": 1, "no answer": 1}, is_bounded=False, is_unique=False
    ),
    "late, replace": Config(orders=("CRX",), faults={"crash": 1}, is_bounded=False),
}

# Each alone in the design, and the configuration that shows it.
MISTAKES = {
    "no fence": (Design(fence="none"), "freeze"),
    "fence without a lock": (Design(fence="unlocked"), "freeze"),
    "the next turn begins at once after an unknown commit": (
        Design(unknown="at once"),
        "two, unknown",
    ),
    "an unknown commit is taken for committed": (Design(unknown="as applied"), "two, unknown"),
    "heads are read without a lock": (Design(heads="read"), "plain"),
    "the row of an order that is held is deleted": (Design(held="deleted"), "two, unknown"),
    "mark after the call": (Design(mark="after"), "two"),
    "the call does not wait for the commit": (Design(mark="uncommitted"), "freeze"),
    "marked rows are sent again": (Design(marked="sent again"), "crash, cancel"),
    "marked rows are left": (Design(marked="left"), "crash"),
    "rows in flight are in doubt": (Design(marked="all"), "two"),
    "no lock of halts": (Design(halt="not"), "plain"),
    "lock of halts in the reading statement": (Design(halt="late"), "plain"),
    "no clock before the call": (Design(is_clock_asked=False), "freeze"),
    "one look-up is a proof": (Design(proof=1), "crash, cancel"),
    "look-ups of an order side by side": (Design(lookup="any time"), "freeze"),
    "sent again where ids are used again": (Design(resend="always"), "late, ids used again"),
    "a refused duplicate is a refusal": (Design(duplicate="rejected"), "late"),
    "orders that work though we ended them are left": (
        Design(unwanted="left"),
        "late, ids used again",
    ),
    "the API reads without a lock": (Design(api="unlocked"), "plain"),
    "a lease is given back with calls under way": (Design(give="any time"), "two, give"),
}

# These hold too: a turn cut before its second trip writes nothing, and a broker reports
# again.
ALTERNATIVES = {
    "fence compares the name": Design(fence="by name"),
    "news of an order that is held are dropped": Design(held="dropped"),
}
