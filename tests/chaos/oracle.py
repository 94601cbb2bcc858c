"""Judges a run by the callers' requests and answers alone: it knows no rule of the platform but those
of its documents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tests.brokers.paper.venue import ORDERS
from tests.intents.http_client import Body, Tables

# An exit shows UNKNOWN or PENDING_NEW until the venue has shown it.
WORKING = ("NEW", "PARTIALLY_FILLED", "PENDING_REPLACE", "PENDING_CANCEL")
EXITS = ("take_profit", "stop_loss")


@dataclass
class Asked:
    """An order, as its caller asked for it."""

    account: str
    symbol: str
    side: str
    specs: list[Body]  # of its CREATE and of each REPLACE that was accepted
    first_quote: int  # the symbol's last one when the CREATE was sent
    counted: Decimal = Decimal(0)  # of the budget, by all its versions
    is_cancelled: bool = False

    def prices(self, name: str) -> list[Decimal]:
        terms = [each for spec in self.specs for each in spec.values()]
        return [Decimal(each[name]) for each in terms if name in each]


@dataclass
class Oracle:
    max_daily_notional: Decimal
    quotes: dict[str, list[tuple[Decimal, Decimal]]] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    halted: set[str] = field(default_factory=set)
    used: Decimal = Decimal(0)
    groups: int = 0

    def post(self, symbol: str, bid: str, ask: str) -> None:
        self.quotes.setdefault(symbol, []).append((Decimal(bid), Decimal(ask)))

    def accept(
        self, made: Body, account: str, symbol: str, side: str, specs: Mapping[str, Body]
    ) -> None:
        """A CREATE was answered 202; `specs` are those of the entry ("") and of its legs."""
        ids = {"": made["intent_id"]} | {
            leg["leg"]: leg["intent_id"] for leg in made.get("legs", ())
        }
        assert ids.keys() == specs.keys(), made
        for name, intent in ids.items():
            closes = "SELL" if side == "BUY" else "BUY"
            own = closes if name in EXITS else side
            first = len(self.quotes[symbol]) - 1
            self.asked[intent] = Asked(account, symbol, own, [specs[name]], first)
        self.groups += len(specs) > 1

    def worth(self, symbol: str, specs: Sequence[Body]) -> Decimal:
        """Of an order, or a pair, in a symbol without fills: the dearest of its prices and the
        middle of the last quote."""
        bid, ask = self.quotes[symbol][-1]
        worths = []
        for (terms,) in (spec.values() for spec in specs):
            prices = [
                Decimal(terms[name]) for name in ("limit_price", "stop_price") if name in terms
            ]
            worths.append(Decimal(terms["quantity"]) * max((*prices, (bid + ask) / 2)))
        return max(worths)

    def may_spend(self, amount: Decimal) -> bool:
        return self.used + max(amount, Decimal(0)) <= self.max_daily_notional

    def spend(self, amount: Decimal) -> None:
        self.used += max(amount, Decimal(0))

    def check_refusal(self, account: str, answer: Any) -> None:
        """Commands of callers without a budget: a CREATE is refused while its account is halted,
        and only then."""
        if account in self.halted:
            assert answer.status_code == 409, answer.text
            assert "account_halted" in answer.text
        else:
            assert answer.status_code == 202, answer.text

    def check(self, tables: Tables, unprotected: set[str]) -> None:
        """Of all orders, once nothing is on its way."""
        orders = {str(row["order_id"]): row for row in tables.fetch("SELECT * FROM orders")}
        assert self.asked.keys() <= orders.keys()
        self._check_venue(tables, orders)
        self._check_fills(tables, orders)
        for intent, asked in self.asked.items():
            assert not (asked.is_cancelled and orders[intent]["finished_at"] is None), orders[
                intent
            ]
        self._check_groups(orders)
        self._check_unprotected(tables, orders, unprotected)

    def _check_venue(self, tables: Tables, orders: Mapping[str, Body]) -> None:
        """The venue works what is open here, with the same terms."""
        rows = tables.fetch(f"SELECT * FROM ({ORDERS}) AS o WHERE status = 'WORKING'")
        there = {(str(row["account_id"]), row["broker_order_id"]): row for row in rows}
        here = {
            (str(row["account_id"]), row["external_order_id"]): row
            for row in orders.values()
            if row["finished_at"] is None
        }
        assert there.keys() == here.keys()
        for name, row in there.items():
            own = here[name]
            assert row["filled"] == own["filled_quantity"], (row, own)
            prices = {each: row[each] for each in ("limit_price", "stop_price")}
            assert prices == {each: own[each] for each in prices}, (row, own)
            if asked := self.asked.get(str(own["order_id"])):
                for each, price in prices.items():
                    assert price is None or price in asked.prices(each), (row, asked)
        halted = [name for name in there if name[0] in self.halted]
        assert halted == [], "a halt that is done has cancelled all"

    def _check_fills(self, tables: Tables, orders: Mapping[str, Body]) -> None:
        """No order is filled, or triggered, by a quote from before it came."""
        for intent, asked in self.asked.items():
            if not orders[intent]["filled_quantity"]:
                continue
            later = self.quotes[asked.symbol][asked.first_quote :]
            is_buy = asked.side == "BUY"
            prices = [ask if is_buy else bid for bid, ask in later]
            limits = asked.prices("limit_price")
            stops = asked.prices("stop_price")
            if limits:
                worst = max(limits) if is_buy else min(limits)
                assert any((price <= worst) if is_buy else (price >= worst) for price in prices), (
                    asked,
                    later,
                )
            if stops:
                nearest = min(stops) if is_buy else max(stops)
                assert any(
                    (price >= nearest) if is_buy else (price <= nearest) for price in prices
                ), (asked, later)

    def _check_groups(self, orders: Mapping[str, Body]) -> None:
        """No pair fills more than one of it should have."""
        linked = [row for row in orders.values() if row["linked"]]
        entries = [row for row in linked if row["leg"] is None]
        assert len(entries) == self.groups
        for entry in entries:
            legs = legs_of(entry, orders)
            exits = [row for row in legs if row["leg"] in EXITS]
            closed = sum(row["filled_quantity"] for row in exits)
            assert closed <= entry["filled_quantity"], legs
            if not exits:
                both = entry["filled_quantity"] + legs[0]["filled_quantity"]
                assert both <= entry["quantity"] + legs[0]["quantity"]
            for row in exits:
                if row["finished_at"] is None:
                    assert row["active"] == (entry["filled_quantity"] > 0), legs
            for row in (entry, *legs):
                assert not {"overfill", "resurrected", "unprotected"} & set(row["flags"]), row

    def _check_unprotected(
        self, tables: Tables, orders: Mapping[str, Body], unprotected: set[str]
    ) -> None:
        """Of entries that are flagged, all are uncovered in an open position; and all are flagged
        whose position has been open ever since their last fill."""
        may_be = set()
        must_be = set()
        for intent, entry in orders.items():
            exits = [row for row in legs_of(entry, orders) if row["leg"] in EXITS]
            if not exits or entry["finished_at"] is None or not is_uncovered(entry, exits):
                continue
            symbol = entry["account_id"], entry["symbol"]
            held, was_open = position(tables, entry)
            own = [row for row in orders.values() if (row["account_id"], row["symbol"]) == symbol]
            if held > works_to_close(entry, own):
                may_be.add(intent)
                if was_open:
                    must_be.add(intent)
        assert must_be <= unprotected <= may_be


def legs_of(entry: Body, orders: Mapping[str, Body]) -> list[Body]:
    return [row for row in orders.values() if row["parent_order_id"] == entry["order_id"]]


def is_uncovered(entry: Body, exits: Sequence[Body]) -> bool:
    works = [unfilled(row) for row in exits if row["finished_at"] is None]
    closed = sum(row["filled_quantity"] for row in exits)
    return bool(entry["filled_quantity"] > closed + max(works, default=0))


def unfilled(row: Body) -> Decimal:
    return Decimal(row["quantity"] - row["filled_quantity"])


def works_to_close(entry: Body, own: Sequence[Body]) -> Decimal:
    """Of one group the larger counts, of exits without a fill of their entry nothing."""
    is_closing: Callable[[Body], bool] = lambda row: (  # noqa: E731  # a name for the condition
        row["finished_at"] is None
        and row["active"]
        and row["order_status"] in WORKING
        and (row["order_side"] == "BUY") != (entry["order_side"] == "BUY")
    )
    groups: dict[object, Decimal] = {}
    for row in filter(is_closing, own):
        group = row["parent_order_id"] or row["order_id"]
        groups[group] = max(groups.get(group, Decimal(0)), unfilled(row))
    return Decimal(sum(groups.values()))


def position(tables: Tables, entry: Body) -> tuple[Decimal, bool]:
    """The quantity held, in the entry's direction; whether it was never closed since its last fill."""
    trades = tables.fetch(
        "SELECT order_id, side, quantity FROM trades WHERE account_id = $1 AND symbol = $2"
        " ORDER BY booking",
        entry["account_id"],
        entry["symbol"],
    )
    held = [Decimal(0)]
    since = 0
    for number, trade in enumerate(trades, start=1):
        is_more = (trade["side"] == "BUY") == (entry["order_side"] == "BUY")
        held.append(held[-1] + (trade["quantity"] if is_more else -trade["quantity"]))
        if trade["order_id"] == entry["order_id"]:
            since = number
    return held[-1], all(quantity > 0 for quantity in held[since:])
