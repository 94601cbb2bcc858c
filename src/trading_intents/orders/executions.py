"""Trades from an order's facts: busts and corrections applied, missed fills stood in for. Blind to
the order of arrival; never stands in for more than the broker counts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from trading_intents.orders.facts import LONG_AGO, Fact, FactKind, latest
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


class Fill(FrozenStruct, kw_only=True):
    """An execution's present numbers; a busted one has quantity zero. `cum_quantity` is what the
    broker counted, this one included."""

    exec_id: str
    client_order_id: str | None = None
    quantity: Decimal
    price: Decimal
    fee: Decimal | None = None
    venue_time: datetime | None = None
    cum_quantity: Decimal | None = None
    flags: tuple[TradeFlag, ...] = ()


class TradeView(Fill, kw_only=True):
    """`cumulative_quantity` is the sum up to this one, so the last one's is what is filled."""

    cumulative_quantity: Decimal
    leaves_quantity: Decimal


class _Execution(Fill, kw_only=True):
    largest: Decimal  # of all the quantities that it had
    amended: bool = False
    amended_at: datetime | None = None  # None where an amendment does not say when

    def counted_in(self, report: Fact) -> Decimal:
        """The most that a report may count of it: one from before a bust still counts what was
        busted."""
        later = self.amended_at and report.venue_time and report.venue_time > self.amended_at
        return self.quantity if later else self.largest


def trades(
    order_id: str,
    facts: Sequence[Fact],
    worked: Callable[[Fill, Decimal], Decimal],
    fallback_price: Decimal | None,
) -> tuple[TradeView, ...]:
    """`facts` are distinct, `worked` gives the order's quantity at a fill, before which so much was
    filled, `fallback_price` is for a gap without a price."""
    executions = _executions(facts)
    missed = _gaps(facts, executions)
    executions += _synthetic_fills(order_id, missed, facts, executions, fallback_price)
    return with_sums(sorted(executions, key=rank), ZERO, worked)


def with_sums(
    fills: Iterable[Fill], filled: Decimal, worked: Callable[[Fill, Decimal], Decimal]
) -> tuple[TradeView, ...]:
    """`fills` follow what was `filled` before, in their order."""
    rows = []
    with exact():
        for each in fills:
            if not each.quantity:
                continue
            quantity = worked(each, filled)
            filled += each.quantity
            fill = {name: getattr(each, name) for name in Fill.__struct_fields__}
            leaves = max(quantity - filled, ZERO)
            rows.append(TradeView(cumulative_quantity=filled, leaves_quantity=leaves, **fill))
    return tuple(rows)


def rank(fill: Fill) -> tuple[bool, Decimal, datetime, str]:
    """By which the executions of an order follow each other, in whatever order they came."""
    cum = fill.cum_quantity
    return cum is None, cum or ZERO, fill.venue_time or LONG_AGO, fill.exec_id


def _executions(facts: Sequence[Fact]) -> list[_Execution]:
    fills: dict[str, Fact] = {}
    amendments = []
    parents: dict[str, str] = {}
    for fact in facts:
        if fact.kind is FactKind.FILL and fact.exec_id:
            fills[fact.exec_id] = fact
        elif fact.kind in (FactKind.FILL_BUST, FactKind.FILL_CORRECT):
            assert fact.replaces
            amendments.append((fact.replaces, fact))
            is_correction = fact.kind is FactKind.FILL_CORRECT
            if is_correction and fact.exec_id and fact.exec_id != fact.replaces:
                parents[fact.exec_id] = fact.replaces
    of_root: dict[str, list[tuple[int, Fact]]] = {}
    for amended, fact in amendments:
        root, depth = _root(amended, parents)
        of_root.setdefault(root, []).append((depth, fact))
    executions = []
    for exec_id, fill in fills.items():
        if exec_id not in parents and exec_id not in of_root:
            executions.append(_execution(exec_id, fill, ()))
    for root, amended_by in of_root.items():
        executions.append(_execution(root, fills.get(root), amended_by))
    return executions


def _root(exec_id: str, parents: Mapping[str, str]) -> tuple[str, int]:
    """Finds the execution that a chain of corrections means, and how long the chain is."""
    path = [exec_id]
    while path[-1] in parents:
        parent = parents[path[-1]]
        if parent in path:  # corrections in a ring, by a broker's error, must not loop for ever
            return min(path[path.index(parent) :]), len(path)
        path.append(parent)
    return path[-1], len(path)


_NEVER_SEEN = Fact(key="", kind=FactKind.FILL)


def _execution(
    exec_id: str, fill: Fact | None, amendments: Sequence[tuple[int, Fact]]
) -> _Execution:
    corrections = [each for each in amendments if each[1].kind is FactKind.FILL_CORRECT]
    newest = _newest(fill, corrections)
    first = fill or newest
    largest = first.quantity or ZERO
    for _, fact in corrections:
        largest = max(largest, fact.quantity or ZERO)
    is_busted = len(corrections) < len(amendments)
    return _Execution(
        exec_id=exec_id,
        client_order_id=newest.client_order_id or first.client_order_id,
        quantity=ZERO if is_busted else newest.quantity or ZERO,
        price=newest.price or ZERO,
        fee=first.fee if newest.fee is None else newest.fee,
        venue_time=first.venue_time or newest.venue_time,
        cum_quantity=newest.cum_quantity if first.cum_quantity is None else first.cum_quantity,
        largest=largest,
        amended=bool(amendments),
        amended_at=_amended_at(amendments),
        flags=(TradeFlag.CORRECTED,) if corrections else (),
    )


def _newest(fill: Fact | None, corrections: Sequence[tuple[int, Fact]]) -> Fact:
    if not corrections:
        return fill or _NEVER_SEEN
    _, last = max(corrections, key=lambda each: (each[0], each[1].moment))
    return last


def _amended_at(amendments: Sequence[tuple[int, Fact]]) -> datetime | None:
    times = [fact.venue_time for _, fact in amendments]
    return None if None in times else latest(times)


def _gaps(facts: Sequence[Fact], executions: Sequence[_Execution]) -> dict[Decimal, Decimal]:
    """Finds what the broker counts beyond the executions that were seen: its size, by the
    cumulative quantity at its end."""
    amended = [each for each in executions if each.amended]
    with exact():
        missing = _missing(facts, executions, amended)
        if missing <= 0:
            return {}
        covered = ZERO
        counted = []
        for each in executions:
            # Once an execution was amended, an earlier count no longer shows where one stands.
            if not amended and each.cum_quantity is not None:
                counted.append(each)
            elif not each.amended:
                covered += each.largest
        counted.sort(key=rank, reverse=True)
        sizes: dict[Decimal, Decimal] = {}
        for end, report in _ends(facts):
            while counted and (counted[-1].cum_quantity or ZERO) <= end:
                covered += counted.pop().largest
            size = min(end - covered - _counted_in(report, amended), missing)
            if size > 0:
                sizes[end] = sizes.get(end, ZERO) + size
                covered += size
                missing -= size
        return sizes


def _missing(
    facts: Sequence[Fact], executions: Sequence[_Execution], amended: Sequence[_Execution]
) -> Decimal:
    most = ZERO
    for fact in facts:
        if fact.cum_quantity:
            most = max(most, fact.cum_quantity - _counted_in(fact, amended))
    return most - total(each.largest for each in executions if not each.amended)


def _counted_in(report: Fact, amended: Sequence[_Execution]) -> Decimal:
    return total(each.counted_in(report) for each in amended)


def _ends(facts: Sequence[Fact]) -> list[tuple[Decimal, Fact]]:
    """The quantities at which an execution must have ended: each count, and right before each fill
    that was counted."""
    ends = []
    for fact in facts:
        if not fact.cum_quantity:
            continue
        ends.append((normalized(fact.cum_quantity), fact))
        is_fill = fact.kind in (FactKind.FILL, FactKind.STATUS)
        if is_fill and fact.quantity and fact.cum_quantity > fact.quantity:
            ends.append((normalized(fact.cum_quantity - fact.quantity), fact))
    return sorted(ends, key=lambda each: (each[0], each[1].moment))


def _synthetic_fills(
    order_id: str,
    sizes: Mapping[Decimal, Decimal],
    facts: Sequence[Fact],
    executions: Sequence[_Execution],
    fallback_price: Decimal | None,
) -> list[_Execution]:
    stand_ins = _priced_fills(order_id, sizes, facts)
    priced = {each.cum_quantity for each in stand_ins}
    sizes = {end: size for end, size in sizes.items() if end not in priced}
    executions = [*executions, *stand_ins]
    report = _last_average(facts)
    paid = _paid_for_gaps(sizes, report, executions) if report else None
    for end, size in sizes.items():
        price = None
        if report and end <= (report.cum_quantity or ZERO):
            price = paid
        if price is None:
            price = _price_near(end, executions)
        if price is None:
            price = fallback_price
        if price is None and report:
            price = report.average_price
        stand_ins.append(_stand_in(order_id, end, size, price))
    return stand_ins


def _last_average(facts: Sequence[Fact]) -> Fact | None:
    averages = [fact for fact in facts if fact.cum_quantity and fact.average_price is not None]
    return max(averages, key=lambda fact: (fact.cum_quantity or ZERO, fact.moment), default=None)


def _priced_fills(
    order_id: str, sizes: Mapping[Decimal, Decimal], facts: Sequence[Fact]
) -> list[_Execution]:
    """Stands in for gaps that are one execution, of which the broker reported all but its id."""
    counted: dict[Decimal, Fact] = {}
    for fact in facts:
        is_execution = fact.kind is FactKind.STATUS and fact.quantity and fact.price is not None
        if is_execution and fact.cum_quantity:
            counted[normalized(fact.cum_quantity)] = fact
    fills = []
    for end, size in sizes.items():
        status = counted.get(end)
        if status and size <= (status.quantity or ZERO):
            fills.append(_stand_in(order_id, end, size, status.price, status.venue_time))
    return fills


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
        paid = until * report.average_price
        for each in executions:
            if each.cum_quantity is None or each.cum_quantity <= until:
                paid -= each.quantity * each.price
        return quotient(paid, size) if size and paid > 0 else None


def _price_near(end: Decimal, executions: Sequence[_Execution]) -> Decimal | None:
    """The price of the next execution, else of the last."""
    price = None
    for each in sorted(executions, key=rank):
        if each.quantity:
            price = each.price
            if each.cum_quantity is not None and each.cum_quantity > end:
                break
    return price
