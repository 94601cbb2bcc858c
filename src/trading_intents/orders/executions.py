"""Trades from an order's facts: busts and corrections applied, missed fills stood in for. Blind to
the order of arrival; never stands in for more than the broker counts."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from trading_intents.orders.facts import LONG_AGO, Fact, FactKind
from trading_intents.trading import (
    ZERO,
    FrozenStruct,
    amount_text,
    exact,
    normalized,
    quotient,
    total,
)


class TradeFlag(StrEnum):
    GAP = "gap"  # stands for executions that the broker counted and we have not seen
    UNPRICED = "unpriced"  # the price of a gap is not known, and shown as zero
    CORRECTED = "corrected"
    # Of trades that no longer count: they stay, with quantity zero.
    BUSTED = "busted"
    REPLACED = "replaced"  # a gap whose executions have been seen


class _Fill(FrozenStruct, frozen=True, kw_only=True):
    """An execution's present numbers; a busted one has quantity zero."""

    exec_id: str
    client_order_id: str | None = None
    quantity: Decimal
    price: Decimal
    fee: Decimal | None = None
    venue_time: datetime | None = None
    flags: tuple[TradeFlag, ...] = ()


class TradeView(_Fill, frozen=True, kw_only=True):
    """`cumulative_quantity` is the sum up to this one, so the last one's is what is filled."""

    cumulative_quantity: Decimal
    leaves_quantity: Decimal


class _Execution(_Fill, frozen=True, kw_only=True):
    cum_quantity: Decimal | None  # as the broker counted, this one included
    largest: Decimal  # of all the quantities that it had
    amended: bool = False
    amended_at: datetime | None = None  # None where an amendment does not say when

    def counted_in(self, report: Fact) -> Decimal:
        """The most that a report may count of it: one from before a bust still counts what was
        busted."""
        later = self.amended_at and report.venue_time and report.venue_time > self.amended_at
        return self.quantity if later else self.largest


def trades(
    order_id: str, facts: Sequence[Fact], quantity: Decimal, fallback_price: Decimal | None
) -> tuple[TradeView, ...]:
    """`facts` are distinct, `quantity` is the order's, `fallback_price` is for a gap without a
    price."""
    executions = _executions(facts)
    missed = _gaps(facts, executions)
    booked = [*executions, *_synthetic_fills(order_id, missed, facts, executions, fallback_price)]
    rows = []
    cumulative = ZERO
    with exact():
        for each in sorted((each for each in booked if each.quantity), key=_sort_key):
            cumulative += each.quantity
            fill = {name: getattr(each, name) for name in _Fill.__struct_fields__}
            leaves = max(quantity - cumulative, ZERO)
            rows.append(TradeView(cumulative_quantity=cumulative, leaves_quantity=leaves, **fill))
    return tuple(rows)


def _sort_key(execution: _Execution) -> tuple[bool, Decimal, datetime, str]:
    cum = execution.cum_quantity
    return cum is None, cum or ZERO, execution.venue_time or LONG_AGO, execution.exec_id


def _executions(facts: Sequence[Fact]) -> list[_Execution]:
    fills = {fact.exec_id: fact for fact in facts if fact.kind is FactKind.FILL and fact.exec_id}
    amendments = [
        fact for fact in facts if fact.kind in (FactKind.FILL_BUST, FactKind.FILL_CORRECT)
    ]
    parents = {
        fact.exec_id: fact.replaces
        for fact in amendments
        if fact.kind is FactKind.FILL_CORRECT
        and fact.exec_id
        and fact.replaces
        and fact.exec_id != fact.replaces
    }
    of_root: dict[str, list[tuple[int, Fact]]] = {}
    for fact in amendments:
        assert fact.replaces
        root, depth = _root(fact.replaces, parents)
        of_root.setdefault(root, []).append((depth, fact))
    plain_fills = (
        exec_id for exec_id in fills if exec_id not in parents and exec_id not in of_root
    )
    executions = [_execution(exec_id, fills[exec_id], []) for exec_id in plain_fills]
    return executions + [
        _execution(root, fills.get(root), amended) for root, amended in of_root.items()
    ]


def _root(exec_id: str, parents: Mapping[str, str]) -> tuple[str, int]:
    """Finds the execution that a chain of corrections means, and how long the chain is."""
    path = [exec_id]
    while path[-1] in parents:
        parent = parents[path[-1]]
        if parent in path:  # corrections in a ring, by a broker's error, must not loop for ever
            return min(path[path.index(parent) :]), len(path)
        path.append(parent)
    return path[-1], len(path)


def _execution(
    exec_id: str, fill: Fact | None, amendments: Sequence[tuple[int, Fact]]
) -> _Execution:
    corrections = [
        (depth, fact) for depth, fact in amendments if fact.kind is FactKind.FILL_CORRECT
    ]
    busted = len(corrections) < len(amendments)
    last = max(corrections, key=lambda each: (each[0], each[1].moment))[1] if corrections else fill
    times = [fact.venue_time for _, fact in amendments if fact.venue_time]
    sizes = [
        fact.quantity
        for fact in (fill, *(fact for _, fact in corrections))
        if fact and fact.quantity
    ]
    sources = [fact for fact in (last, fill) if fact]
    return _Execution(
        exec_id=exec_id,
        client_order_id=next(
            (fact.client_order_id for fact in sources if fact.client_order_id), None
        ),
        quantity=ZERO if busted or last is None else last.quantity or ZERO,
        price=ZERO if last is None else last.price or ZERO,
        fee=next((fact.fee for fact in sources if fact.fee is not None), None),
        venue_time=next((fact.venue_time for fact in reversed(sources) if fact.venue_time), None),
        cum_quantity=next(
            (fact.cum_quantity for fact in reversed(sources) if fact.cum_quantity is not None), None
        ),
        largest=max(sizes, default=ZERO),
        amended=bool(amendments),
        amended_at=max(times) if times and len(times) == len(amendments) else None,
        flags=(TradeFlag.CORRECTED,) if corrections else (),
    )


def _gaps(facts: Sequence[Fact], executions: Sequence[_Execution]) -> dict[Decimal, Decimal]:
    """Finds what the broker counts beyond the executions that were seen: its size, by the
    cumulative quantity at its end."""
    reports = [fact for fact in facts if fact.cum_quantity]
    amended = [each for each in executions if each.amended]
    with exact():
        missing = _missing(reports, executions, amended)
        if missing <= 0:
            return {}
        # Once an execution was amended, an earlier count no longer shows where one stands.
        placed = sorted(
            (each for each in executions if not amended and each.cum_quantity is not None),
            key=_sort_key,
        )
        covered = total(each.largest for each in executions if not each.amended) - total(
            e.largest for e in placed
        )
        sizes: dict[Decimal, Decimal] = {}
        passed = 0
        for end, report in _ends(reports):
            while passed < len(placed) and (placed[passed].cum_quantity or ZERO) <= end:
                covered += placed[passed].largest
                passed += 1
            size = min(end - covered - total(each.counted_in(report) for each in amended), missing)
            if size > 0:
                sizes[end] = sizes.get(end, ZERO) + size
                covered += size
                missing -= size
        return sizes


def _missing(
    reports: Sequence[Fact], executions: Sequence[_Execution], amended: Sequence[_Execution]
) -> Decimal:
    known = total(each.largest for each in executions if not each.amended)
    counts = (
        (fact.cum_quantity or ZERO) - total(each.counted_in(fact) for each in amended)
        for fact in reports
    )
    return max(counts, default=ZERO) - known


def _ends(reports: Sequence[Fact]) -> list[tuple[Decimal, Fact]]:
    """The quantities at which an execution must have ended: each count, and right before each fill
    that was counted."""
    ends = [(normalized(fact.cum_quantity), fact) for fact in reports if fact.cum_quantity]
    kinds = (FactKind.FILL, FactKind.STATUS)
    fills = [
        (end, fact.quantity, fact) for end, fact in ends if fact.kind in kinds and fact.quantity
    ]
    ends += [(normalized(end - quantity), fact) for end, quantity, fact in fills if end > quantity]
    return sorted(ends, key=lambda each: (each[0], each[1].moment))


def _synthetic_fills(
    order_id: str,
    sizes: Mapping[Decimal, Decimal],
    facts: Sequence[Fact],
    executions: Sequence[_Execution],
    fallback_price: Decimal | None,
) -> list[_Execution]:
    stand_ins = _priced_fills(order_id, sizes, facts)
    sizes = {
        end: size
        for end, size in sizes.items()
        if end not in {each.cum_quantity for each in stand_ins}
    }
    executions = [*executions, *stand_ins]
    averages = [fact for fact in facts if fact.cum_quantity and fact.average_price is not None]
    report = max(averages, key=lambda fact: (fact.cum_quantity or ZERO, fact.moment), default=None)
    paid = _paid_for_gaps(sizes, report, executions) if report else None
    for end, size in sizes.items():
        inside = report is not None and end <= (report.cum_quantity or ZERO)
        price = paid if paid is not None and inside else _price_near(end, executions)
        if price is None:
            price = (
                fallback_price
                if report is None or fallback_price is not None
                else report.average_price
            )
        stand_ins.append(_stand_in(order_id, end, size, price))
    return stand_ins


def _priced_fills(
    order_id: str, sizes: Mapping[Decimal, Decimal], facts: Sequence[Fact]
) -> list[_Execution]:
    """Stands in for gaps that are one execution, of which the broker reported all but its id."""
    statuses = (
        fact
        for fact in facts
        if fact.kind is FactKind.STATUS and fact.quantity and fact.price is not None
    )
    counted = {normalized(fact.cum_quantity): fact for fact in statuses if fact.cum_quantity}
    fills = [(end, size, counted[end]) for end, size in sizes.items() if end in counted]
    return [
        _stand_in(order_id, end, size, fact.price, fact.venue_time)
        for end, size, fact in fills
        if size <= (fact.quantity or ZERO)
    ]


def _stand_in(
    order_id: str,
    end: Decimal,
    size: Decimal,
    price: Decimal | None,
    venue_time: datetime | None = None,
) -> _Execution:
    return _Execution(
        exec_id=f"gap:{order_id}:{amount_text(end)}",
        quantity=size,
        price=ZERO if price is None else price,
        venue_time=venue_time,
        cum_quantity=end,
        largest=size,
        flags=(TradeFlag.GAP,) if price is not None else (TradeFlag.GAP, TradeFlag.UNPRICED),
    )


def _paid_for_gaps(
    sizes: Mapping[Decimal, Decimal], report: Fact, executions: Sequence[_Execution]
) -> Decimal | None:
    """The price that the broker's average leaves for the gaps in it; None where that is no
    price."""
    assert report.cum_quantity
    assert report.average_price is not None
    until = report.cum_quantity
    with exact():
        size = total(size for end, size in sizes.items() if end <= until)
        seen = [
            each for each in executions if each.cum_quantity is None or each.cum_quantity <= until
        ]
        paid = until * report.average_price - total(each.quantity * each.price for each in seen)
        return quotient(paid, size) if size and paid > 0 else None


def _price_near(end: Decimal, executions: Sequence[_Execution]) -> Decimal | None:
    near = sorted((each for each in executions if each.quantity), key=_sort_key)
    after = (each for each in near if each.cum_quantity is not None and each.cum_quantity > end)
    found = next(after, near[-1] if near else None)
    return found.price if found else None
