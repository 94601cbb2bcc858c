"""The broker, and the wire to it."""

from collections.abc import Iterator

from tests.execution.model.cases import Config, Design
from tests.execution.model.search import FAULT, MAY, MUST, Step
from tests.execution.model.states import (
    ACCEPTED,
    CANCELLED,
    CREATE,
    DONE,
    DOUBT,
    FILLED,
    OUT,
    PART,
    REJECTED,
    REPLACE,
    REPLACED,
    State,
    merge,
    name_command,
    named,
    op_news,
    put,
    spend,
    without,
)


class Venue:
    def __init__(self, design: Design, config: Config) -> None:
        self.design = design
        self.config = config

    def steps(self, state: State) -> Iterator[Step]:
        for index, real in enumerate(state.broker):
            if real & ACCEPTED and not real & (FILLED | CANCELLED):
                is_part = self.config.fills_in_parts and not real & PART
                event = PART if is_part else FILLED
                filled = state._replace(broker=put(state.broker, index, real | event))
                yield Step(MAY, f"broker: {named(event)}", filled)
        for rank, (number, token, index, command) in enumerate(state.wire):
            rest = state._replace(wire=without(state.wire, rank))
            if spent := spend(rest, "not arrived"):
                yield Step(FAULT, f"wire: {name_command(state, index, command)} is lost", spent)
            after, facts, op, label = self.execute(rest, index, command)
            worker = state.workers[number]
            is_own = worker.phase != OUT and token == worker.token
            if not (is_own and worker.calls[index] >> command & 1):
                yield Step(MUST, f"broker: {label}; nobody waits for its answer", after)
                continue
            calls = put(worker.calls, index, worker.calls[index] ^ 1 << command)
            news = merge(worker.news[index], op_news(command, op, facts))
            answered = worker._replace(calls=calls, news=put(worker.news, index, news))
            answer = after._replace(workers=put(after.workers, number, answered))
            yield Step(MUST, f"broker: {label}; W{number + 1} has its answer", answer)
            if spent := spend(after, "no answer"):
                yield Step(FAULT, f"broker: {label}; its answer is lost", spent)

    def execute(self, state: State, index: int, command: int) -> tuple[State, int, int, str]:
        real = state.broker[index]
        name = name_command(state, index, command)

        def at_broker(event: int) -> State:
            return state._replace(broker=put(state.broker, index, real | event))

        if command == CREATE and not real & ACCEPTED:
            return at_broker(ACCEPTED), ACCEPTED, DONE, f"executes {name}"
        if command == CREATE and self.config.is_unique:
            label = f"refuses {name}, as its id was used"
            if self.design.duplicate == "unclear":
                return state, 0, DOUBT, label
            return state, REJECTED, DONE, label
        if command == CREATE:
            twice = state._replace(wrong=f"(a) the broker executes {name} twice")
            return twice, 0, DONE, f"executes {name} a second time"
        if real & ACCEPTED and not real & (FILLED | CANCELLED):
            event = REPLACED if command == REPLACE else CANCELLED
            return at_broker(event), 0, DONE, f"executes {name}"
        return state, 0, DONE, f"refuses {name}: the order is unknown, or over"
