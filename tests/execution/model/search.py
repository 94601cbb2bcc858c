"""Explicit-state search: every state that any interleaving reaches, breadth first, so that a trace is
a shortest one."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

# Steps are of three kinds: `must` are the system's own, one of which is made in the end; `may` are
# the environment's; a `fault` is bounded by the configuration.
MUST = "must"
MAY = "may"
FAULT = "fault"
MAX_STATES = 2_000_000


class Step(NamedTuple):
    kind: str
    label: str
    after: Any


class Searched(Protocol):
    def start(self) -> Any: ...

    def steps(self, state: Any) -> Iterator[Step]: ...

    def broken(self, state: Any) -> str:
        """The rule that does not hold in this state, though it must in every one."""

    def unclean(self, state: Any) -> str:
        """The rule that does not hold where nothing more must happen."""


@dataclass
class Result:
    states: int
    violation: str = ""
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([*self.trace, f"=> {self.violation}"])


@dataclass
class _Reached:
    """All states so far, each with the one from which it was reached first."""

    states: list[Any]
    parents: "array[int]" = field(default_factory=lambda: array("l", [-1]))
    # The `must` steps of each state: where they begin in `follows`.
    offsets: "array[int]" = field(default_factory=lambda: array("l", [0]))
    follows: "array[int]" = field(default_factory=lambda: array("l"))


def explore(model: Searched) -> Result:
    """Stops at the first violation. Safety: no state is broken. Liveness: by `must` steps alone no
    run is endless, and each ends in a clean state; from every state, so after any fault too."""
    first = model.start()
    reached = _Reached([first])
    index = {first: 0}
    shared: dict[Any, Any] = {}
    number = 0
    while number < len(reached.states):
        state = reached.states[number]
        if violation := model.broken(state):
            return _violated(model, reached, number, violation)
        for kind, _, after in model.steps(state):
            found = index.get(after)
            if found is None:
                after = after.sharing(shared)
                found = index[after] = len(reached.states)
                reached.states.append(after)
                reached.parents.append(number)
            if kind == MUST:
                reached.follows.append(found)
        reached.offsets.append(len(reached.follows))
        is_end = reached.offsets[-1] == reached.offsets[-2]
        if is_end and (violation := model.unclean(state)):
            return _violated(model, reached, number, violation)
        number += 1
        assert number < MAX_STATES, "the configuration is too large"
    endless = _find_cycle(reached)
    if endless is not None:
        return _violated(model, reached, endless, "(b) the system may go round for ever")
    return Result(len(reached.states))


def _find_cycle(reached: _Reached) -> int | None:
    """A state from which `must` steps alone need not end (Kahn's algorithm)."""
    offsets = reached.offsets
    waits = array("l", [0]) * (len(offsets) - 1)
    for each in reached.follows:
        waits[each] += 1
    free = [number for number, count in enumerate(waits) if not count]
    while free:
        number = free.pop()
        for each in reached.follows[offsets[number] : offsets[number + 1]]:
            waits[each] -= 1
            if not waits[each]:
                free.append(each)
    return next((number for number, count in enumerate(waits) if count), None)


def _violated(model: Searched, reached: _Reached, number: int, violation: str) -> Result:
    """With a line for each step; faults have a `!`."""
    trace = []
    at = number
    while reached.parents[at] >= 0:
        before = reached.parents[at]
        trace.append(_label(model, reached.states[before], reached.states[at]))
        at = before
    return Result(len(reached.states), violation, trace[::-1])


def _label(model: Searched, state: Any, reached: Any) -> str:
    for kind, label, after in model.steps(state):
        if after == reached:
            return f"{'!' if kind == FAULT else ' '} {label}"
    raise AssertionError("no step leads there")
