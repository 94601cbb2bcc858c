"""The states of the database, the broker, the wire and two worker processes. Facts of an order are
bits: its head is the set of its facts, and all else of it a pure function of that set."""

from typing import Any, NamedTuple

from tests.execution.model.cases import FAULTS

# The broker's events, and our own facts.
ACCEPTED = 1
PART = 2
FILLED = 4
CANCELLED = 8
REPLACED = 16
HALTED = 32
BEFORE_SEND = 64
NOT_DELIVERED = 128
REJECTED = 256
UNCERTAIN = 512
# Commands. SYSTEM: the platform's own CANCEL of an order that we had ended.
CREATE = 0
REPLACE = 1
CANCEL = 2
SYSTEM = 3
COMMANDS = (CREATE, REPLACE, CANCEL, SYSTEM)
# Accepted by the API, as a CREATE is from the start; and its outcome is recorded.
ASKED = (0, 1 << 10, 1 << 11, 1 << 12)
SETTLED = (1 << 13, 1 << 14, 1 << 15, 1 << 16)
SHOWN = ACCEPTED | PART | REPLACED
EVENTS = SHOWN | FILLED | CANCELLED
OUR_ENDS = HALTED | BEFORE_SEND | NOT_DELIVERED | REJECTED
VERBS = ("CREATE", "REPLACE", "CANCEL", "SYSTEM CANCEL")
NAMES = {
    ACCEPTED: "ACCEPTED",
    PART: "part filled",
    FILLED: "FILLED",
    CANCELLED: "CANCELLED",
    REPLACED: "REPLACED",
    HALTED: "halted",
    BEFORE_SEND: "before_send",
    NOT_DELIVERED: "not_delivered",
    REJECTED: "rejected",
    UNCERTAIN: "UNKNOWN",
    **{ASKED[k]: f"{VERBS[k]} asked" for k in (REPLACE, CANCEL, SYSTEM)},
    **{SETTLED[k]: f"{VERBS[k]} settled" for k in COMMANDS},
}

# A command's row. UNCLEAR: marked, and a look-up is due; ABSENT: looked up once, and not found.
GONE, UNSENT, MARKED, UNCLEAR, ABSENT = range(5)
# News of a command: its outcome; its answer was lost; to be sent again; a look-up found nothing.
NO_OP, DONE, DOUBT, AGAIN, MISSING = range(5)
# A worker. OUT: without the lease; ASKING: how a turn's commit ended.
OUT = "out"
ASKING = "asking"
IDLE = "idle"
TURN = "turn"
# A turn's transaction: its first trip is in a buffer; the fence is passed; heads are locked;
# candidates are locked and read, and the worker has the answer; its second trip is in a buffer.
BEGUN, FENCED, HEADS, READ, WRITTEN, COMMITTED, REFUSED, UNFENCED = range(8)

Ops = tuple[int, ...]
News = tuple[int, Ops]  # of an order: facts, and what is known of each command
NO_OPS: Ops = (NO_OP,) * 4
NO_NEWS: News = (0, NO_OPS)


class Order(NamedTuple):
    """In the database. `journal` is the union of its reports."""

    head: int
    journal: int
    rows: tuple[int, ...]


class Write(NamedTuple):
    """A turn writes this of an order: new facts, the head, new rows, and those it marks."""

    new: int
    head: int
    rows: tuple[int, ...]
    sent: int


class Turn(NamedTuple):
    """A transaction; with a part for each order. `seen` are head and rows as read."""

    worker: int
    token: int
    batch: tuple[News | None, ...]
    is_awaited: bool = True  # its worker has the connection, and waits
    phase: int = BEGUN
    halted: bool = False
    locked: tuple[bool, ...] = ()
    seen: tuple[tuple[int, tuple[int, ...]] | None, ...] = ()
    candidates: tuple[int | None, ...] = ()
    position: int = 0
    writes: tuple[Write | None, ...] = ()


class Worker(NamedTuple):
    """`todo` and `calls` are the commands (bits) of each order that are to be sent, and that wait
    for an answer: what is in flight."""

    phase: str
    is_frozen: bool
    token: int
    news: tuple[News, ...]
    todo: tuple[int, ...]
    calls: tuple[int, ...]


class State(NamedTuple):
    owner: int
    token: int
    is_expired: bool
    is_halted: bool
    position: int
    orders: tuple[Order, ...]
    broker: tuple[int, ...]  # of each order what happened there
    wire: tuple[tuple[int, int, int, int], ...]  # worker, token, order, command
    workers: tuple[Worker, ...]
    turns: tuple[Turn, ...]
    read: tuple[int, ...]  # by an API without locks, and not written yet: order, command, head
    budget: tuple[int, ...]
    wrong: str

    def sharing(self, shared: dict[Any, Any]) -> "State":
        """Equal, of parts that are kept once."""

        def share(values: tuple[Any, ...]) -> tuple[Any, ...]:
            parts = tuple(shared.setdefault(each, each) for each in values)
            kept: tuple[Any, ...] = shared.setdefault(parts, parts)
            return kept

        return self._replace(
            orders=share(self.orders), workers=share(self.workers), turns=share(self.turns)
        )


def put(values: tuple[Any, ...], index: int, value: object) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def without(values: tuple[Any, ...], index: int) -> tuple[Any, ...]:
    return (*values[:index], *values[index + 1 :])


def spend(state: State, fault: str) -> State | None:
    """None: no more of these faults."""
    index = FAULTS.index(fault)
    left = state.budget[index]
    return state._replace(budget=put(state.budget, index, left - 1)) if left else None


def name_command(state: State, index: int, command: int) -> str:
    return f"{VERBS[command]} {'ab'[index]}" if len(state.orders) > 1 else VERBS[command]


def is_final(head: int) -> bool:
    """An end of ours holds only until the broker shows the order."""
    return bool(head & (FILLED | CANCELLED)) or (bool(head & OUR_ENDS) and not head & SHOWN)


def is_unwanted(head: int) -> bool:
    return bool(head & OUR_ENDS) and not is_final(head)


def fills(bits: int) -> int:
    return bool(bits & PART) + bool(bits & FILLED)


def named(bits: int) -> str:
    return ", ".join(name for bit, name in NAMES.items() if bits & bit) or "nothing"


def merge(old: News, new: News) -> News:
    return old[0] | new[0], tuple(b or a for a, b in zip(old[1], new[1], strict=True))


def op_news(command: int, op: int, facts: int = 0) -> News:
    return facts, put(NO_OPS, command, op)
