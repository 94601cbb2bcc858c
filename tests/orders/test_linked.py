"""Linked orders are derived as the venue has them, whatever order its reports come in."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.brokers.paper.market import ANY, Market, legs, named, terms
from tests.orders.facts import fill, ours, reported
from tests.property_sizes import examples
from trading_intents.brokers.paper.model import PaperOrder, PaperOrderStatus, price_of
from trading_intents.brokers.port import EventKind, OrderTicket
from trading_intents.orders.facts import Fact, FactKind, event_fact
from trading_intents.orders.linked import OrderInputs, derive_group, uncovered
from trading_intents.orders.model import (
    OrderFlag,
    OrderTerms,
    OrderVersion,
    OrderView,
    PendingCommands,
)
from trading_intents.trading import EXITS, ZERO, Leg, terms_of

STEPS = 30
SHUFFLES = 5
ENDED = {
    PaperOrderStatus.FILLED,
    PaperOrderStatus.CANCELLED,
    PaperOrderStatus.EXPIRED,
    PaperOrderStatus.REJECTED,
}


@dataclass
class Play:
    """A book with one group of orders, beside which positions are traded."""

    chance: random.Random
    market: Market = field(default_factory=lambda: Market(position=20))
    # By the venue's number of the order.
    versions: dict[int, list[OrderVersion]] = field(default_factory=dict)
    legs: dict[int, Leg | None] = field(default_factory=dict)

    def start(self) -> None:
        low, middle, high = sorted(self.chance.sample(range(95, 106), 3))
        size = self.chance.randint(1, 40)
        profit = f"profit {high}"
        loss = f"loss {low}"
        text = self.chance.choice(
            [
                (
                    f"buy {size} {self.chance.choice(['market', f'limit {middle}'])} day with "
                    f"{profit},{loss}"
                ),
                f"buy {size} limit {middle} gtc with {self.chance.choice([profit, loss])}",
                f"short {size} limit {middle} gtc with profit {low},loss {high}",
                f"sell {min(size, 20)} limit {high} gtc with or {low} gtc",
            ]
        )
        entry, _, linked = text.partition(" with ")
        asked = terms(entry)
        with_legs = legs(linked, asked)
        self.market.quote(self.quote())
        self.market.run("SUBMIT", named(asked, "c1", legs=with_legs))
        orders = [
            ("c1", asked, None),
            *((leg.client_order_id, leg, leg.leg) for leg in with_legs),
        ]
        for number, (name, made, leg) in enumerate(orders, start=1):
            self.versions[number] = [
                OrderVersion(seq=number, client_order_id=name, **terms_of(made))
            ]
            self.legs[number] = leg

    def quote(self) -> str:
        bid = self.chance.randint(94, 106)
        sizes = [1, 1.5, 2, 3, 5, 7, 13, 20]
        return (
            f"{bid}x{self.chance.choice(sizes)} "
            f"{bid + self.chance.randint(0, 2)}x{self.chance.choice(sizes)}"
        )

    def step(self) -> None:
        book = self.market.book
        number = self.chance.choice(list(self.versions))
        order = self.market.find(number)
        match self.chance.choices(("quote", "later", "cancel", "replace"), (20, 6, 2, 4))[0]:
            case "quote":
                # A command may overtake it.
                at = self.market.now - timedelta(seconds=self.chance.choice((0, 0, 1)))
                book.feed(replace(self.market.next_quote(self.quote()), at=at))
            case "later":
                self.market.later(seconds=self.chance.choice((0, 1, 20)))
                book.keep_time(self.market.now)
            case "cancel":
                self.market.run("CANCEL", named(ANY, f"x{len(book.events)}"), order)
            case _ if order:
                self.replace(number, order)

    def replace(self, number: int, order: PaperOrder) -> None:
        """As the platform asks for it: with the quantity that it shows, if it shows one."""
        shown = self.views()[number - 1].quantity or self.versions[number][0].quantity
        priced = "stop_price" if order.limit_price is None else "limit_price"
        price = price_of(order)
        price = price and price + self.chance.choice((-1, 1))
        changes = {"quantity": shown, priced: price}
        name = f"r{len(self.market.book.events)}"
        asked = OrderTicket(
            client_order_id=name,
            symbol=order.symbol,
            side=order.side,
            kind=order.kind,
            **(terms_of(order) | changes),
        )
        self.versions[number].append(
            OrderVersion(
                seq=10 * len(self.versions[number]) + number,
                client_order_id=name,
                **terms_of(asked),
            )
        )
        self.market.run("REPLACE", asked, order)

    def facts(self, number: int) -> list[Fact]:
        return [
            event_fact(each.event)
            for each in self.market.book.events
            if self.market.number_of(each.order) == number
        ]

    def views(self, shuffled: bool = False) -> list[OrderView]:
        inputs = []
        for number, versions in self.versions.items():
            facts = self.facts(number)
            if shuffled:
                again = self.chance.sample(facts, len(facts) // 2)
                facts = self.chance.sample(facts, len(facts)) + again
            order = OrderTerms(
                order_id=f"o{number}", versions=tuple(versions), leg=self.legs[number]
            )
            inputs.append(OrderInputs(order, facts, PendingCommands()))
        return derive_group(inputs)


def check(play: Play) -> None:
    views = play.views()
    assert play.views(shuffled=True) == views
    for number, view in enumerate(views, start=1):
        order = play.market.find(number)
        if order is None:  # the venue refused the entry
            assert (view.status, view.reason) == ("REJECTED", "entry_rejected")
            continue
        assert view.filled_quantity == order.filled
        if order.status in ENDED:
            assert view.status.value == order.status.value
        else:
            assert view.state == "OPEN"
        if order.is_working and not order.is_held:
            assert view.leaves_quantity == order.leaves
        assert OrderFlag.OVERFILL not in view.flags
    entry, *linked = views
    assert all(
        view.active == (view.leg not in EXITS or entry.filled_quantity > 0) for view in linked
    )
    assert (
        entry.state == "OPEN"
        or entry.filled_quantity
        or all(view.state != "OPEN" for view in linked)
    )
    works = any(order.leg and order.leaves for order in play.market.book.orders.values())
    assert not (works and uncovered(views))


@settings(max_examples=examples(150))
@given(st.integers(0, 2**32))
def test_a_group_is_as_the_venue_has_it(seed: int) -> None:
    play = Play(random.Random(seed))
    play.start()
    for _ in range(STEPS):
        check(play)
        play.step()
    check(play)


C = "C"
T = "T"
S = "S"  # the entry, its take profit, its stop loss, or the stop beside it
E = EventKind
F = FactKind


def group(*facts: Fact, kinds: Sequence[Leg] = EXITS) -> list[OrderView]:
    """Entry and legs of 100 after these facts, each of which names its order."""
    orders = [(C, None), *zip((T, S), kinds, strict=False)]
    inputs = []
    for index, (name, leg) in enumerate(orders):
        version = OrderVersion(seq=index + 1, client_order_id=name, quantity=Decimal(100))
        own = [fact for fact in facts if fact.client_order_id == name]
        inputs.append(
            OrderInputs(
                OrderTerms(order_id=name, versions=(version,), leg=leg), own, PendingCommands()
            )
        )
    return derive_group(inputs)


def shown(views: Sequence[OrderView]) -> list[str]:
    return [f"{view.status} {view.reason or ''}".strip() for view in views]


ACCEPTED = [reported(E.ACCEPTED, coid=name, at=1) for name in (C, T, S)]
GROWN = [
    reported(
        E.REPLACED, coid=name, at=2, quantity="40", reason="replaced_by_broker", key=f"40/{name}"
    )
    for name in (T, S)
]
REFUSED = "REJECTED entry_rejected"
ENDS: dict[str, tuple[list[Fact], list[str]]] = {
    "nothing is known": ([], ["PENDING_NEW"] * 3),
    "the answer is lost": ([ours(F.UNCERTAIN)], ["UNKNOWN", "PENDING_NEW", "PENDING_NEW"]),
    "a leg is named before its entry": ([ACCEPTED[1]], ["PENDING_NEW", "NEW", "PENDING_NEW"]),
    "all are accepted": (ACCEPTED, ["NEW"] * 3),
    "the answer refuses": (
        [ours(F.REFUSED, reason="margin")],
        ["REJECTED margin", REFUSED, REFUSED],
    ),
    "the venue refuses": ([reported(E.REJECTED, at=2)], ["REJECTED", REFUSED, REFUSED]),
    "the venue refuses what it had": (
        [*ACCEPTED, reported(E.REJECTED, at=2)],
        ["REJECTED", REFUSED, REFUSED],
    ),
    "too old": ([ours(F.STALE)], ["EXPIRED stale", REFUSED, REFUSED]),
    "never arrived": ([ours(F.NOT_DELIVERED)], ["REJECTED not_delivered", REFUSED, REFUSED]),
    "cancelled before it was sent": (
        [ours(F.CANCELLED_BEFORE_SEND)],
        ["CANCELLED before_send", REFUSED, REFUSED],
    ),
    "halted": ([ours(F.HALTED)], ["CANCELLED halted", REFUSED, REFUSED]),
    "cancelled": (
        [*ACCEPTED, reported(E.CANCELLED, at=2)],
        ["CANCELLED", *["CANCELLED entry_ended"] * 2],
    ),
    "expired": (
        [*ACCEPTED, reported(E.EXPIRED, at=2)],
        ["EXPIRED", *["CANCELLED entry_ended"] * 2],
    ),
    "a leg was cancelled before": (
        [*ACCEPTED, reported(E.CANCELLED, coid=T, at=2), reported(E.CANCELLED, at=3)],
        ["CANCELLED", "CANCELLED", "CANCELLED entry_ended"],
    ),
    "cancelled with a fill": (
        [*ACCEPTED, fill("e1", "40", at=2), *GROWN, reported(E.CANCELLED, at=3, cum="40")],
        ["CANCELLED", "NEW", "NEW"],
    ),
    "an exit has sold all that was bought so far": (
        [*ACCEPTED, fill("e1", "40", at=2), *GROWN, fill("e2", "40", coid=T, at=3)],
        ["PARTIALLY_FILLED", "PARTIALLY_FILLED", "NEW"],
    ),
    "and its entry ends": (
        [
            *ACCEPTED,
            fill("e1", "40", at=2),
            *GROWN,
            fill("e2", "40", coid=T, at=3),
            reported(E.CANCELLED, at=4, cum="40"),
        ],
        ["CANCELLED", "FILLED", "NEW"],
    ),
    "a leg is filled whose entry's fill is not known": (
        [*ACCEPTED, fill("e2", "40", coid=T, at=3), reported(E.CANCELLED, at=4)],
        ["CANCELLED", "PARTIALLY_FILLED", "CANCELLED entry_ended"],
    ),
}


@pytest.mark.parametrize(("facts", "expected"), ENDS.values(), ids=ENDS.keys())
def test_the_end_of_an_entry_is_that_of_its_legs(facts: list[Fact], expected: list[str]) -> None:
    assert shown(group(*facts)) == expected


def test_a_leg_that_the_broker_shows_is_open_though_its_entry_never_arrived() -> None:
    entry, profit, loss = group(ours(F.NOT_DELIVERED), ACCEPTED[1])
    assert shown([entry, profit, loss]) == ["REJECTED not_delivered", "NEW", REFUSED]
    assert (profit.flags, profit.is_unwanted) == ((OrderFlag.RESURRECTED,), False)
    assert [view.is_unwanted for view in group(ours(F.NOT_DELIVERED), *ACCEPTED)] == [
        True,
        False,
        False,
    ]


def test_exits_are_active_from_the_first_fill_of_their_entry_on() -> None:
    assert [view.active for view in group(*ACCEPTED)] == [True, False, False]
    assert [view.active for view in group(*ACCEPTED, fill("e1", "1"))] == [True, True, True]
    assert [view.active for view in group(*ACCEPTED, kinds=[Leg.ONE_CANCELS_OTHER])] == [True, True]


def test_one_cancels_other_ends_as_the_broker_says() -> None:
    pair = [Leg.ONE_CANCELS_OTHER]
    assert shown(group(*ACCEPTED, reported(E.CANCELLED, at=2), kinds=pair)) == ["CANCELLED", "NEW"]
    assert shown(group(ours(F.STALE), kinds=pair)) == ["EXPIRED stale", REFUSED]
    both = group(*ACCEPTED, fill("e1", "60"), fill("e2", "60", coid=T), kinds=pair)
    assert [view.flags for view in both] == [(OrderFlag.OVERFILL,)] * 2


def test_exits_that_both_fill_are_flagged() -> None:
    bought = [*ACCEPTED, fill("e1", "100")]
    once = group(*bought, fill("e2", "60", coid=T), fill("e3", "40", coid=S))
    assert [view.flags for view in once] == [()] * 3
    both = group(*bought, fill("e2", "100", coid=T), fill("e3", "40", coid=S))
    assert [view.flags for view in both] == [(), (OrderFlag.OVERFILL,), (OrderFlag.OVERFILL,)]


def test_what_exits_do_not_cover() -> None:
    bought = [*ACCEPTED, fill("e1", "100", at=2)]
    ended = [reported(E.CANCELLED, coid=name, at=3) for name in (T, S)]
    # The entry is not final.
    assert uncovered(group(*ACCEPTED, fill("e1", "40", at=2), *ended)) == ZERO
    assert uncovered(group(*bought)) == ZERO
    assert uncovered(group(*bought, ended[0])) == ZERO
    assert uncovered(group(*bought, *ended)) == 100
    assert uncovered(group(*bought, fill("e2", "30", coid=T, at=2), *ended)) == 70
    assert uncovered(group(*bought, *GROWN)) == 60
    assert uncovered(group(fill("e1", "100", at=2))) == 100  # the broker has shown no leg
