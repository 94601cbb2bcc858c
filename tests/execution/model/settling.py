"""Settles an order's news, and judges its candidate, by what a turn has locked and read. Pure."""

from tests.execution.model.cases import Config, Design
from tests.execution.model.states import (
    ABSENT,
    AGAIN,
    ASKED,
    BEFORE_SEND,
    CANCEL,
    CREATE,
    DONE,
    DOUBT,
    EVENTS,
    GONE,
    HALTED,
    MARKED,
    NO_OP,
    NOT_DELIVERED,
    REPLACE,
    REPLACED,
    SETTLED,
    SHOWN,
    SYSTEM,
    UNCERTAIN,
    UNCLEAR,
    UNSENT,
    News,
    Turn,
    Write,
    is_final,
    put,
)

Rows = tuple[int, ...]


class Settling:
    def __init__(self, design: Design, config: Config) -> None:
        self.design = design
        self.config = config

    def decide(self, turn: Turn, index: int, known: News) -> Write | None:
        seen = turn.seen[index]
        assert seen
        head, rows = seen
        new, rows = self.settle(head, rows, known)
        candidate = turn.candidates[index]
        sent = 0
        if candidate is not None and rows[candidate] == UNSENT:
            fact, is_sent = self.judge(head | new, candidate, turn.halted)
            if is_sent:
                sent = 1 << candidate
                if self.design.mark == "before":
                    rows = put(rows, candidate, MARKED)
            else:
                new |= (SETTLED[candidate] | fact) & ~head
                rows = put(rows, candidate, GONE)
        if not (new or sent) and rows == seen[1]:
            return None
        return Write(new, head | new, rows, sent)

    def judge(self, head: int, command: int, is_halted: bool) -> tuple[int, bool]:
        """A fact that ends the command, and whether it is sent."""
        if is_final(head) or (command == CREATE and head & SHOWN):
            return 0, False
        if command in (CANCEL, SYSTEM):
            return 0, True
        if is_halted:
            return (HALTED if command == CREATE else 0), False
        if head & (ASKED[CANCEL] | ASKED[SYSTEM]):
            return (BEFORE_SEND if command == CREATE else 0), False
        return 0, True

    def settle(self, head: int, rows: Rows, news: News) -> tuple[int, Rows]:
        """Head and news make new facts and new rows."""
        facts, ops = news
        if head & SETTLED[CREATE]:
            facts &= EVENTS  # an outcome is recorded once
        new = facts & ~head
        for command, op in enumerate(ops):
            if op == NO_OP or head & SETTLED[command]:
                continue
            shown = EVENTS if command == CREATE else REPLACED
            if op == DONE:
                new |= SETTLED[command]
                rows = put(rows, command, GONE)
            elif op == AGAIN:
                rows = put(rows, command, UNSENT)
            elif op == DOUBT:
                rows = put(rows, command, UNCLEAR)
                new |= UNCERTAIN & ~head if command == CREATE else 0
            elif not (head | new) & shown and rows[command] in (UNCLEAR, ABSENT):
                # Once it is shown, or marked again, an absence proves nothing.
                found, rows = self.conclude(head, rows, command)
                new |= found
        for command, shown in ((CREATE, EVENTS), (REPLACE, REPLACED)):
            after = head | new
            is_over = after & shown or (command == REPLACE and is_final(after))
            if rows[command] in (UNCLEAR, ABSENT) and is_over:
                new = (new & ~UNCERTAIN) | SETTLED[command]
                rows = put(rows, command, GONE)
        return new & ~head, rows

    def conclude(self, head: int, rows: Rows, command: int) -> tuple[int, Rows]:
        """Draws the conclusion from an absence."""
        if rows[command] == UNCLEAR and self.design.proof == 2:
            return 0, put(rows, command, ABSENT)
        gone = put(rows, command, GONE)
        if command == REPLACE:
            return SETTLED[command], gone
        if head & (ASKED[CANCEL] | ASKED[SYSTEM]):
            return SETTLED[command] | BEFORE_SEND, gone
        if self.config.is_unique or self.design.resend == "always":
            return 0, put(rows, command, UNSENT)  # judged again, and sent under the same id
        return SETTLED[command] | NOT_DELIVERED, gone
