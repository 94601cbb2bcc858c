"""JSON lines for programs, failures as a line on standard error, and an exit code for scripts."""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from trading_intents_client import (
    AnswerLost,
    ControlRejected,
    Interrupted,
    NotConfigured,
    TradingError,
    UnexpectedAnswer,
    Unreachable,
    WaitTimeout,
)
from trading_intents_client.cli.plain import echo, plain, plain_json

REFUSED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130
SERVER_FAULT = 500
PROGRAM = "trading-intents"
T = TypeVar("T")


@contextmanager
def exit_codes(typed: Sequence[str] = ()) -> Iterator[None]:
    """An expected failure is one line on standard error, and the exit code says of which kind it
    is.

    `typed` is a command that takes --key: after a lost answer it is shown again, with the key that
    makes it safe.
    """
    try:
        yield
    except TradingError as error:
        code = _report(error)
        if error.may_be_recorded:
            _show_again(typed, error.idempotency_key)
        raise typer.Exit(code) from None
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted) and error.idempotency_key:
            echo(
                "interrupted; the order may have been placed. Idempotency-Key "
                f"{error.idempotency_key}",
                err=True,
            )
            _show_again(typed, error.idempotency_key)
        raise typer.Exit(INTERRUPTED) from None


def _show_again(typed: Sequence[str], key: str | None) -> None:
    if typed and key:
        program = sys.argv[0] if sys.argv[0].endswith(PROGRAM) else PROGRAM
        again = shlex.join([program, *typed, "--key", key])
        echo("Type it again like this: it is carried out once.", again, err=True)


def for_each(items: Iterable[T], act: Callable[[T], None], name: Callable[[T], str] = str) -> None:
    """Acts on all of them, also after one has failed; the exit code is that of the gravest
    failure."""
    codes = [0]
    for item in items:
        try:
            act(item)
        except TradingError as error:
            codes.append(_report(error, f"{name(item)}: "))
    if any(codes):
        raise typer.Exit(max(codes))


def _report(error: TradingError, about: str = "") -> int:
    out = Console(stderr=True, highlight=False, emoji=False)
    text = str(error)
    if isinstance(error, ControlRejected) and error.triggered:
        text = (
            f"{'; '.join(f'{each.detail} ({each.reason})' for each in error.triggered)}; request "
            f"{error.request_id}"
        )
    out.print(
        f"[bold red]{escape(_title(error))}:[/] {escape(plain(about + text))}", soft_wrap=True
    )
    return _code(error)


def _title(error: TradingError) -> str:
    if isinstance(error, NotConfigured):
        return "Not configured"
    if isinstance(error, WaitTimeout):
        return "Not finished"
    if error.may_be_recorded:
        return "Outcome unknown"
    return "Unreachable" if _code(error) == UNREACHABLE else "Refused"


def _code(error: TradingError) -> int:
    if isinstance(error, NotConfigured):
        return USAGE
    is_away = (
        isinstance(error, Unreachable | AnswerLost | UnexpectedAnswer)
        or (error.status or 0) >= SERVER_FAULT
    )
    # What may have been recorded was not refused: a script must not place it again.
    return UNREACHABLE if is_away or error.may_be_recorded else REFUSED


def print_json(answer: Any) -> None:
    """One line, which is one JSON value."""
    typer.echo(plain_json(msgspec.json.encode(answer).decode()))
