"""The race table of the order machine, row by row."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.orders.facts import D, bust, fill, ours, reported, terms, view
from trading_intents.brokers.port import (
    DUPLICATE_ID,
    REPLACED_BY_BROKER,
    BrokerEvent,
    CommandResult,
    EventKind,
    Outcome,
)
from trading_intents.ids import IdText, id_text
from trading_intents.orders.facts import (
    LONG_AGO,
    OUR_ENDS,
    CommandKind,
    Fact,
    FactKind,
    admit,
    event_fact,
    outcome_kind,
    own_fact,
)
from trading_intents.orders.ledger.matching import LedgerIndex, find_owner
from trading_intents.orders.ledger.store import Ledger
from trading_intents.orders.model import (
    OrderFlag,
    OrderState,
    OrderStatus,
    PendingCommands,
    carry_flags,
    derive,
)
from trading_intents.orders.store import CommandRow
from trading_intents.trading import ActionType

E = EventKind
F = FactKind
S = OrderStatus


def test_a_cancel_that_crosses_a_full_fill_was_too_late() -> None:
    seen = view(reported(E.ACCEPTED), fill("e1", "100"), reported(E.CANCELLED))
    assert (seen.status, seen.filled_quantity, seen.reason) == (S.FILLED, D(100), None)


def test_a_cancel_that_crosses_a_partial_fill_keeps_the_fill() -> None:
    seen = view(reported(E.ACCEPTED), fill("e1", "40"), reported(E.CANCELLED, cum="40"))
    assert (seen.status, seen.filled_quantity, seen.leaves_quantity) == (S.CANCELLED, D(40), D(0))
    assert seen.flags == ()


def test_a_cancel_before_the_acknowledgement_sees_that_it_must_wait() -> None:
    waiting = view(ours(F.SENT), pending=PendingCommands(cancels=("X",)))
    assert (waiting.status, waiting.acknowledged) == (S.PENDING_CANCEL, False)
    assert view(
        ours(F.SENT), reported(E.ACCEPTED), pending=PendingCommands(cancels=("X",))
    ).acknowledged


def test_a_fill_while_a_replace_is_pending_counts_for_the_chain() -> None:
    both = terms("100", "80")
    pending = PendingCommands(replace="R")
    during = view(reported(E.ACCEPTED), fill("e1", "30", coid="C"), terms=both, pending=pending)
    assert (during.status, during.quantity, during.leaves_quantity) == (
        S.PENDING_REPLACE,
        D(100),
        D(70),
    )
    replaced = reported(E.REPLACED, coid="R", replaces="C", cum="30")
    after = view(
        reported(E.ACCEPTED), fill("e1", "30", coid="C"), replaced, terms=both, pending=pending
    )
    assert (after.status, after.quantity, after.leaves_quantity) == (
        S.PARTIALLY_FILLED,
        D(80),
        D(50),
    )
    assert after.pending == PendingCommands()


@pytest.mark.parametrize("asked", ["30", "20"])
@pytest.mark.parametrize("cum", ["30", None])
def test_a_replace_to_no_more_than_filled_ends_filled(asked: str, cum: str | None) -> None:
    replaced = reported(E.REPLACED, coid="R", replaces="C", cum=cum)
    seen = view(fill("e1", "30"), replaced, terms=terms("100", asked))
    assert (seen.status, seen.quantity, seen.filled_quantity) == (S.FILLED, D(30), D(30))
    assert seen.flags == ()


def test_a_fill_beyond_what_was_filled_at_the_replace_is_an_overfill() -> None:
    replaced = reported(E.REPLACED, coid="R", replaces="C", cum="30")
    seen = view(fill("e1", "30"), replaced, fill("e2", "30", coid="R"), terms=terms("100", "50"))
    assert (seen.status, seen.quantity, seen.flags) == (S.FILLED, D(50), (OrderFlag.OVERFILL,))


@pytest.mark.parametrize(
    "refusal",
    [
        reported(E.REPLACE_REJECTED, coid="R", reason="no"),
        reported(E.REJECTED, coid="R", reason="no"),
        ours(F.REPLACE_DROPPED, "R", "no"),
    ],
)
def test_after_a_refused_replace_the_last_confirmed_version_stands(refusal: Fact) -> None:
    seen = view(
        reported(E.ACCEPTED),
        refusal,
        terms=terms("100", "80"),
        pending=PendingCommands(replace="R"),
    )
    assert (seen.status, seen.quantity, seen.reason, seen.pending) == (
        S.NEW,
        D(100),
        "no",
        PendingCommands(),
    )


def test_a_replace_that_happened_after_all_beats_its_refusal() -> None:
    refused = reported(E.REPLACE_REJECTED, coid="R", reason="no")
    replaced = reported(E.REPLACED, coid="R", replaces="C")
    seen = view(refused, replaced, terms=terms("100", "80"))
    assert (seen.quantity, seen.confirmed.seq, seen.reason) == (D(80), 2, None)


def test_a_replace_of_unknown_outcome_stays_pending() -> None:
    seen = view(
        reported(E.ACCEPTED),
        ours(F.UNCERTAIN, "R"),
        terms=terms("100", "80"),
        pending=PendingCommands(replace="R"),
    )
    assert (seen.status, seen.quantity) == (S.PENDING_REPLACE, D(100))


def test_chains_of_replaces_end_at_the_last_one_confirmed() -> None:
    chain = terms("100", "80", "60")
    first = reported(E.REPLACED, coid="R", replaces="C")
    second = reported(E.REPLACED, coid="R2", replaces="R", broker="b3")
    seen = view(reported(E.ACCEPTED, broker="b1"), first, second, terms=chain)
    assert (seen.confirmed.client_order_id, seen.quantity, seen.broker_order_id) == (
        "R2",
        D(60),
        "b3",
    )
    assert view(second, terms=chain).quantity == D(60)
    assert view(
        reported(E.ACCEPTED), first, terms=chain, pending=PendingCommands(replace="R2")
    ).quantity == D(80)


def test_a_fill_under_the_new_id_says_that_the_replace_happened() -> None:
    seen = view(
        fill("e1", "10", coid="R"), terms=terms("100", "80"), pending=PendingCommands(replace="R")
    )
    assert (seen.status, seen.quantity, seen.leaves_quantity) == (S.PARTIALLY_FILLED, D(80), D(70))


def test_a_cancel_drops_an_unsent_replace_and_may_be_repeated() -> None:
    facts = (
        reported(E.ACCEPTED),
        ours(F.REPLACE_DROPPED, "R", "cancelled"),
        reported(E.CANCEL_REJECTED, coid="X", reason="no"),
    )
    both = terms("100", "80")
    again = view(*facts, terms=both, pending=PendingCommands(cancels=("X", "Y"), replace="R"))
    assert (again.status, again.pending, again.reason) == (
        S.PENDING_CANCEL,
        PendingCommands(cancels=("Y",)),
        None,
    )
    first = view(*facts, terms=both, pending=PendingCommands(cancels=("X",), replace="R"))
    assert (first.status, first.reason) == (S.NEW, "no")


def test_a_cancel_that_is_used_up_clears_its_pending_status() -> None:
    seen = view(
        reported(E.ACCEPTED), ours(F.CANCEL_DROPPED, "X"), pending=PendingCommands(cancels=("X",))
    )
    assert (seen.status, seen.reason) == (S.NEW, "cancel_not_delivered")


@pytest.mark.parametrize(
    "end",
    [*map(ours, sorted(OUR_ENDS)), reported(E.REJECTED, at=1)],
    ids=lambda fact: f"{fact.key}".split(":")[1],
)
def test_an_order_that_the_broker_has_after_its_end_is_open_until_the_venue_ends_it(
    end: Fact,
) -> None:
    assert (view(end).state is OrderState.OPEN, view(end).is_unwanted) == (False, False)
    back = view(end, reported(E.ACCEPTED, at=2))
    assert (back.status, back.flags, back.is_unwanted) == (S.NEW, (OrderFlag.RESURRECTED,), True)
    filled = view(end, reported(E.ACCEPTED, at=2), fill("e1", "40"))
    assert (filled.status, filled.filled_quantity, filled.is_unwanted) == (
        S.PARTIALLY_FILLED,
        D(40),
        True,
    )
    assert filled.flags == (OrderFlag.LATE_FILL, OrderFlag.RESURRECTED)
    ended = view(end, reported(E.ACCEPTED, at=2), fill("e1", "40"), reported(E.CANCELLED, at=3))
    assert (ended.status, ended.filled_quantity, ended.is_unwanted) == (S.CANCELLED, D(40), False)
    whole = view(end, fill("e1", "100"))
    assert (whole.status, whole.is_unwanted) == (S.FILLED, False)
    assert OrderFlag.RESURRECTED in whole.flags
    expired = view(end, reported(E.EXPIRED, at=2))
    assert (expired.status, expired.flags) == (S.EXPIRED, (OrderFlag.RESURRECTED,))


@pytest.mark.parametrize("accepted_at", [None, 1, 2])
@pytest.mark.parametrize("rejected_at", [None, 2])
def test_what_the_venue_accepts_and_then_rejects_stays_rejected(
    accepted_at: int | None, rejected_at: int | None
) -> None:
    facts = (
        ours(F.REFUSED),
        reported(E.ACCEPTED, at=accepted_at),
        reported(E.REJECTED, at=rejected_at),
    )
    seen = view(*facts)
    assert (seen.status, seen.flags, seen.is_unwanted) == (S.REJECTED, (), False)


def test_the_same_execution_again_is_ignored() -> None:
    seen = view(fill("e1", "40"), fill("e1", "40"))
    assert (seen.filled_quantity, seen.flags) == (D(40), ())


def test_the_same_execution_under_another_key_is_ignored_too() -> None:
    again = reported(E.STATUS, key="activity")
    listed = Fact(
        key=again.key,
        kind=F.FILL,
        exec_id="e1",
        client_order_id="C",
        quantity=D(40),
        price=D(10),
        fee=D(1),
    )
    seen = view(fill("e1", "40"), listed)
    assert (seen.filled_quantity, seen.flags, seen.trades[0].fee) == (D(40), (), D(1))


def test_of_two_conflicting_executions_the_first_seen_is_kept() -> None:
    one = fill("e1", "40")
    other = fill("e1", "50")
    for pair, kept in (([one, other], D(40)), ([other, one], D(50))):
        seen = derive(terms(), pair, PendingCommands())
        assert (seen.filled_quantity, seen.flags) == (kept, (OrderFlag.CONFLICTING_EXECUTION,))


def test_a_conflict_is_remembered_where_only_the_first_is_stored() -> None:
    one = fill("e1", "40")
    other = fill("e1", "50")
    assert admit({}, one) is one
    assert admit({one.key: one}, one) is None
    conflict = admit({one.key: one}, other)
    assert conflict
    assert admit({one.key: one, conflict.key: conflict}, other) is None
    seen = view(one, conflict)
    assert (seen.filled_quantity, seen.flags) == (D(40), (OrderFlag.CONFLICTING_EXECUTION,))


def test_a_fill_before_the_acknowledgement_implies_acceptance() -> None:
    assert view(ours(F.SENT), fill("e1", "40")).acknowledged
    busted = view(fill("e1", "40"), bust("e1"))
    assert (busted.status, busted.flags) == (S.NEW, (OrderFlag.CONFLICTING_EXECUTION,))


def test_a_bust_opens_a_filled_order_only_at_brokers_that_work_it_again() -> None:
    facts = (
        reported(E.ACCEPTED),
        fill("e1", "60", cum="60"),
        fill("e2", "40", cum="100"),
        bust("e1", cum="40"),
    )
    assert (view(*facts).status, view(*facts).filled_quantity) == (S.PARTIALLY_FILLED, D(40))
    final = replace(terms(), bust_reopens=False)
    kept = view(*facts, terms=final)
    assert (kept.status, kept.filled_quantity, kept.leaves_quantity) == (S.FILLED, D(40), D(0))
    assert kept.flags == (OrderFlag.CONFLICTING_EXECUTION,)
    again = fill("e1", "60", cum="60"), bust("e1", cum="0"), fill("e2", "60", cum="60")
    assert view(*again, terms=final).status is S.PARTIALLY_FILLED, "it was never filled"


def test_a_fill_after_a_final_state_is_booked_and_flagged() -> None:
    cancelled = reported(E.CANCELLED, cum="0", at=1)
    part = view(cancelled, fill("e1", "40", cum="40"))
    assert (part.status, part.filled_quantity, part.flags) == (
        S.CANCELLED,
        D(40),
        (OrderFlag.LATE_FILL,),
    )
    whole = view(cancelled, fill("e1", "100", cum="100"))
    assert (whole.status, whole.flags) == (S.FILLED, (OrderFlag.LATE_FILL,))
    by_time = view(reported(E.EXPIRED, at=1), fill("e1", "40", at=2))
    assert (by_time.status, by_time.flags) == (S.EXPIRED, (OrderFlag.LATE_FILL,))
    rejected = view(reported(E.REJECTED), fill("e1", "40"))
    assert (rejected.status, rejected.flags) == (
        S.PARTIALLY_FILLED,
        (OrderFlag.LATE_FILL, OrderFlag.RESURRECTED),
    )


def test_a_final_order_that_was_shown_changes_only_with_a_flag() -> None:
    before = view(reported(E.CANCELLED))
    after = view(reported(E.CANCELLED), fill("e1", "40"))
    assert after.flags == ()
    assert carry_flags(before, after).flags == (OrderFlag.LATE_FILL,)
    assert carry_flags(carry_flags(before, after), after).flags == (OrderFlag.LATE_FILL,)
    assert carry_flags(view(reported(E.ACCEPTED)), after).flags == ()
    over = view(fill("e1", "100"), fill("e2", "1"))
    assert carry_flags(view(fill("e1", "100")), over).flags == (OrderFlag.OVERFILL,)


def test_a_filled_order_that_a_late_replace_opens_again_says_so() -> None:
    both = terms("10", "20")
    pending = PendingCommands(replace="R")
    filled = view(reported(E.ACCEPTED), fill("e1", "10", coid="C"), terms=both, pending=pending)
    replaced = reported(E.REPLACED, coid="R", replaces="C")
    after = view(
        reported(E.ACCEPTED), fill("e1", "10", coid="C"), replaced, terms=both, pending=pending
    )
    assert (filled.status, after.status, after.flags) == (S.FILLED, S.PARTIALLY_FILLED, ())
    assert carry_flags(filled, after).flags == (OrderFlag.RESURRECTED,)


def test_a_late_replace_and_its_end_together_are_what_they_are_one_after_the_other() -> None:
    both = terms("10", "20")
    pending = PendingCommands(replace="R")
    facts = [
        reported(E.ACCEPTED),
        fill("e1", "10", coid="C"),
        reported(E.REPLACED, coid="R", replaces="C"),
    ]
    filled, opened = (view(*facts[:count], terms=both, pending=pending) for count in (2, 3))
    ended = view(*facts, reported(E.CANCELLED, coid="R"), terms=both, pending=pending)
    in_turn = carry_flags(carry_flags(filled, opened), ended)
    assert (in_turn.status, in_turn.flags) == (S.CANCELLED, (OrderFlag.RESURRECTED,))
    assert carry_flags(filled, ended) == in_turn


def test_a_second_end_changes_nothing_of_a_final_order() -> None:
    before = view(reported(E.EXPIRED))
    after = view(reported(E.EXPIRED), reported(E.CANCELLED))
    assert (after.status, carry_flags(before, after).status) == (S.CANCELLED, S.EXPIRED)


def test_an_overfill_is_booked_and_flagged() -> None:
    seen = view(fill("e1", "70"), fill("e2", "40"))
    assert (seen.status, seen.quantity, seen.filled_quantity) == (S.FILLED, D(100), D(110))
    assert (seen.leaves_quantity, seen.flags) == (D(0), (OrderFlag.OVERFILL,))


def test_a_refusal_for_a_duplicate_id_is_no_rejection() -> None:
    seen = view(reported(E.REJECTED, reason=DUPLICATE_ID))
    assert (seen.status, seen.state) == (S.UNKNOWN, OrderState.OPEN)
    refused = CommandResult(outcome=Outcome.REJECTED, code=DUPLICATE_ID)
    kind = outcome_kind(CommandKind.SUBMIT, refused)
    assert kind is FactKind.UNCERTAIN
    assert view(own_fact(kind, "C")).status is S.UNKNOWN
    assert view(own_fact(kind, "C"), reported(E.ACCEPTED)).status is S.NEW


def test_an_order_that_we_did_not_send_has_no_owner() -> None:
    account_id = id_text(UUID(int=1))
    order_id = id_text(UUID(int=2))
    sent = [
        CommandRow(
            account_id=account_id,
            client_order_id=name,
            order_id=order_id,
            seq=1,
            action_type=kind,
            broker_order_id=known,
        )
        for name, kind, known in (("C", ActionType.CREATE, "b1"), ("R", ActionType.REPLACE, None))
    ]
    index = LedgerIndex(Ledger(sent, [], {}, {}, LONG_AGO))

    def who(**ids: str) -> IdText | None:
        kind = E.FILL_BUST if ids.get("replaces", "").startswith("e") else E.STATUS
        event = BrokerEvent(kind=kind, dedupe_key="k", **ids)  # type: ignore[arg-type]  # the fields are texts
        return find_owner(event_fact(event), {}, account_id, index)

    assert who(client_order_id="Z", broker_order_id="b9") is None
    assert who() is None
    assert who(client_order_id="C") == order_id
    assert who(client_order_id="X", replaces="R") == order_id
    assert who(client_order_id="X", broker_order_id="b1") == order_id
    assert who(replaces="e1", client_order_id="Z") is None


def test_terms_that_the_broker_itself_changed_are_the_orders() -> None:
    """As at a split; the last change counts, and a REPLACE of ours after it has its own terms
    again."""
    first = reported(
        E.REPLACED,
        key="n2",
        at=1,
        broker="n2",
        reason=REPLACED_BY_BROKER,
        quantity="200",
        price="5",
    )
    second = reported(
        E.REPLACED,
        key="n3",
        at=2,
        broker="n3",
        reason=REPLACED_BY_BROKER,
        quantity="400",
        price="2.5",
    )
    seen = view(
        reported(E.ACCEPTED), first, second, fill("e1", "100"), terms=terms("100", limit="10")
    )
    assert (seen.status, seen.quantity, seen.leaves_quantity) == (
        OrderStatus.PARTIALLY_FILLED,
        D(400),
        D(300),
    )
    assert (seen.confirmed.limit_price, seen.broker_order_id, seen.reason) == (
        D("2.5"),
        "n3",
        REPLACED_BY_BROKER,
    )
    ours = reported(E.REPLACED, coid="R", at=3)
    seen = view(second, ours, fill("e1", "100"), terms=terms("100", "300", limit="10"))
    assert (seen.quantity, seen.confirmed.limit_price, seen.reason) == (D(300), D(10), None)


def test_a_broker_that_only_names_the_reason_changes_nothing() -> None:
    for kind in (E.STATUS, E.REPLACED):
        seen = view(
            reported(E.ACCEPTED),
            reported(kind, reason=REPLACED_BY_BROKER),
            terms=terms("100", limit="10"),
        )
        assert (seen.quantity, seen.confirmed.limit_price, seen.reason) == (D(100), D(10), None)
