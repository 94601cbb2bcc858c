"""The one judgement: whether controls, halts and limits let an order pass, at its accept, before
its send and for a question. No I/O, no clock; it refuses when in doubt, and never raises."""

from datetime import datetime
from enum import StrEnum
from typing import assert_never

from trading_intents.controls.limits.model import AskedOrder, Levels, LimitState, judge_limits
from trading_intents.controls.model import Controls, Reason, Triggered, evaluate
from trading_intents.trading import FrozenStruct, Symbol

HALTS = (Reason.ORGANIZATION_HALTED, Reason.ACCOUNT_HALTED)


class Purpose(StrEnum):
    """The reason why a command is made, by which it passes some controls."""

    TRADE = "trade"  # passes none
    CLOSE = "close"  # a caller's order that closes a position: passes halts, and the key's budget
    HALT = "halt"  # a halt's own order: passes all but the trading window
    CANCEL = "cancel"  # lowers risk: passes everything


class Case(FrozenStruct, kw_only=True):
    """A command with all that it is judged by, resolved once: nothing is looked up or parsed again
    behind it. Accepting, sending and evaluating differ in what they know, never in the rule."""

    purpose: Purpose
    controls: Controls
    now: datetime
    symbol: Symbol | None  # None: asked for the account alone
    asked: AskedOrder | None = None  # None: a CANCEL, or asked for no command
    levels: Levels = ()  # of limits
    met: LimitState | None = None  # None: an order that was counted before is sent


def judge(case: Case) -> tuple[Triggered, ...]:
    """Gives every control and limit that refuses the command, the widest control first."""
    match case.purpose:
        case Purpose.CANCEL:
            return ()
        case Purpose.HALT:
            return evaluate(case.controls.window_only(), case.symbol, case.now)
        case Purpose.CLOSE:
            return _judge_by(case, case.controls.without_halts())
        case Purpose.TRADE:
            return _judge_by(case, case.controls)
        case _:
            assert_never(case.purpose)


def _judge_by(case: Case, controls: Controls) -> tuple[Triggered, ...]:
    found = evaluate(controls, case.symbol, case.now)
    if case.asked is None or not case.levels:
        return found
    return found + judge_limits(case.levels, case.asked, case.met, case.now)
