"""The list of statuses, first match wins, and how a CREATE that was never sent is shown."""

import pytest

from tests.orders.facts import D, fill, ours, reported, terms, view
from trading_intents.brokers.port import CommandResult, EventKind, Outcome
from trading_intents.orders.facts import CommandKind, Fact, FactKind, outcome_kind, own_fact
from trading_intents.orders.model import OrderState, OrderStatus, PendingCommands

E = EventKind
F = FactKind
S = OrderStatus
SENT = ours(F.SENT)
UNCERTAIN = ours(F.UNCERTAIN, reason="answer lost")
ACCEPTED = reported(E.ACCEPTED)
CANCELLED = reported(E.CANCELLED)
EXPIRED = reported(E.EXPIRED)
REJECTED = reported(E.REJECTED, reason="no such symbol")
PART = fill("e1", "40")
WHOLE = fill("e2", "100")


@pytest.mark.parametrize(
    ("facts", "status", "state"),
    [
        ([], S.PENDING_NEW, OrderState.OPEN),
        ([SENT], S.PENDING_NEW, OrderState.OPEN),
        ([SENT, UNCERTAIN], S.UNKNOWN, OrderState.OPEN),
        ([SENT, UNCERTAIN, ACCEPTED], S.NEW, OrderState.OPEN),
        ([UNCERTAIN, reported(E.STATUS)], S.UNKNOWN, OrderState.OPEN),
        ([ACCEPTED], S.NEW, OrderState.OPEN),
        ([reported(E.TRIGGERED)], S.NEW, OrderState.OPEN),
        ([reported(E.PENDING_CANCEL, coid="X")], S.NEW, OrderState.OPEN),
        ([reported(E.CANCEL_REJECTED, coid="X")], S.PENDING_NEW, OrderState.OPEN),
        ([UNCERTAIN, PART], S.PARTIALLY_FILLED, OrderState.OPEN),
        ([ACCEPTED, PART], S.PARTIALLY_FILLED, OrderState.OPEN),
        ([ACCEPTED, REJECTED], S.REJECTED, OrderState.REJECTED),
        ([REJECTED, PART], S.PARTIALLY_FILLED, OrderState.OPEN),
        ([REJECTED, EXPIRED], S.EXPIRED, OrderState.CLOSED),
        ([EXPIRED, PART], S.EXPIRED, OrderState.CLOSED),
        ([EXPIRED, CANCELLED], S.CANCELLED, OrderState.CLOSED),
        ([CANCELLED, PART], S.CANCELLED, OrderState.CLOSED),
        ([CANCELLED, WHOLE], S.FILLED, OrderState.CLOSED),
        ([EXPIRED, REJECTED, WHOLE], S.FILLED, OrderState.CLOSED),
    ],
)
def test_the_first_status_that_matches_wins(
    facts: list[Fact], status: OrderStatus, state: OrderState
) -> None:
    seen = view(*facts)
    assert (seen.status, seen.state) == (status, state)


@pytest.mark.parametrize(
    ("fact", "status", "reason"),
    [
        (ours(F.STALE), S.EXPIRED, "stale"),
        (
            ours(F.REFUSED, reason="symbol_manually_disabled"),
            S.REJECTED,
            "symbol_manually_disabled",
        ),
        (ours(F.CANCELLED_BEFORE_SEND), S.CANCELLED, "before_send"),
        (ours(F.NOT_DELIVERED), S.REJECTED, "not_delivered"),
        (REJECTED, S.REJECTED, "no such symbol"),
        (UNCERTAIN, S.UNKNOWN, "answer lost"),
    ],
)
def test_an_order_says_why_it_ended(fact: Fact, status: OrderStatus, reason: str) -> None:
    seen = view(fact)
    assert (seen.status, seen.reason, seen.flags, seen.leaves_quantity) == (
        status,
        reason,
        (),
        D(100) if status is S.UNKNOWN else D(0),
    )


@pytest.mark.parametrize("open_facts", [[], [UNCERTAIN], [ACCEPTED], [ACCEPTED, PART]])
def test_a_pending_command_shows_while_the_order_is_open(open_facts: list[Fact]) -> None:
    both = terms("100", "80")
    assert (
        view(*open_facts, terms=both, pending=PendingCommands(replace="R")).status
        is S.PENDING_REPLACE
    )
    assert (
        view(*open_facts, terms=both, pending=PendingCommands(("X",), "R")).status
        is S.PENDING_CANCEL
    )


@pytest.mark.parametrize("final", [WHOLE, CANCELLED, EXPIRED, REJECTED])
def test_no_command_is_pending_on_a_final_order(final: Fact) -> None:
    seen = view(final, terms=terms("100", "80"), pending=PendingCommands(("X",), "R"))
    assert seen.pending == PendingCommands()
    assert seen.state is not OrderState.OPEN


def test_a_refused_cancel_never_rejects_the_order() -> None:
    seen = view(
        ACCEPTED,
        reported(E.REJECTED, coid="X", reason="malformed"),
        pending=PendingCommands(("X",)),
    )
    assert (seen.status, seen.reason) == (S.NEW, "malformed")


@pytest.mark.parametrize(
    ("command", "outcome", "kind"),
    [
        (CommandKind.SUBMIT, Outcome.ACKED, F.ACCEPTED),
        (CommandKind.SUBMIT, Outcome.REJECTED, F.REFUSED),
        (CommandKind.SUBMIT, Outcome.UNKNOWN, F.UNCERTAIN),
        (CommandKind.SUBMIT, Outcome.NOT_SENT, None),
        (CommandKind.REPLACE, Outcome.ACKED, None),
        (CommandKind.REPLACE, Outcome.REJECTED, F.REPLACE_REJECTED),
        (CommandKind.REPLACE, Outcome.UNKNOWN, F.UNCERTAIN),
        (CommandKind.REPLACE, Outcome.NOT_SENT, None),
        (CommandKind.CANCEL, Outcome.ACKED, None),
        (CommandKind.CANCEL, Outcome.REJECTED, F.CANCEL_REJECTED),
        (CommandKind.CANCEL, Outcome.UNKNOWN, F.UNCERTAIN),
        (CommandKind.CANCEL, Outcome.NOT_SENT, None),
    ],
)
def test_an_outcome_means_one_thing_for_each_command(
    command: CommandKind, outcome: Outcome, kind: FactKind | None
) -> None:
    assert outcome_kind(command, CommandResult(outcome=outcome, broker_order_id="b1")) is kind


def test_an_answer_gives_the_brokers_own_id() -> None:
    seen = view(own_fact(F.ACCEPTED, "C", broker_order_id="b1"))
    assert (seen.status, seen.broker_order_id) == (S.NEW, "b1")
