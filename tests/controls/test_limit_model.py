"""Random limits and orders on the paper broker, judged a second time by a model that is written
from the contract's table alone: `evaluate` and the submit must both say what the model says, field
by field. Limits come and go at any moment, and what is counted as open is what the model has open,
with limits and without."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from tests.conftest import Urls
from tests.controls.calls import URL
from tests.controls.traders import WAIT_SECONDS, LimitedTrader
from tests.intents.http_client import Tables
from tests.tenants import Tenants
from tests.waiting import eventually
from trading_intents.trading import amount_text

STEPS = 50
REFERENCE = Decimal(100)
Refusal = tuple[str, str, Any, Any]  # reason, level, limit, asked


@dataclass
class Model:
    position: Decimal
    accepted: int = 0
    limits: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Side and quantity, by intent.
    open: dict[str, tuple[str, Decimal]] = field(default_factory=dict)

    def counted(self) -> list[Decimal]:
        sums = [
            sum(
                (size for side, size in self.open.values() if (side == "BUY") == is_buy), Decimal(0)
            )
            for is_buy in (True, False)
        ]
        return [Decimal(len(self.open)), *sums]

    def refusals(
        self, side: str, quantity: Decimal, price: Decimal, replaced: str | None
    ) -> list[Refusal]:
        is_buy = side == "BUY"
        others = sum(
            (
                size
                for intent, (each, size) in self.open.items()
                if intent != replaced and (each == "BUY") == is_buy
            ),
            Decimal(0),
        )
        size = max(quantity, self.open[replaced][1]) if replaced else quantity
        reached = self.position + (others + size if is_buy else -others - size)
        reduces = (
            self.position < 0 and reached <= 0 if is_buy else self.position > 0 and reached >= 0
        )
        worth = quantity * max(price, REFERENCE)
        beyond = (price - REFERENCE if is_buy else REFERENCE - price) / REFERENCE * 10_000
        sold = side if side == "SELL_SHORT" else amount_text(size)
        is_short = side == "SELL_SHORT" or (
            side == "SELL" and size > max(self.position, Decimal(0)) - others
        )
        found: list[Refusal] = []
        for level, fields in self.limits.items():
            refused: dict[str, tuple[Decimal, Any]] = {
                "max_order_quantity": (quantity, amount_text(quantity)),
                "max_order_notional": (worth, amount_text(worth)),
                "price_collar_bps": (beyond, amount_text(beyond) if beyond > 0 else ""),
                "max_open_orders": (
                    Decimal(0 if replaced else len(self.open) + 1),
                    len(self.open) + 1,
                ),
                "max_position_quantity": (
                    Decimal(0) if reduces else abs(reached),
                    amount_text(abs(reached)),
                ),
            }
            for name, limit in fields.items():
                if name == "allow_short":
                    found += [(name, level, False, sold)] if is_short and not limit else []
                elif refused[name][0] > Decimal(limit):
                    found.append((name, level, limit, refused[name][1]))
        return sorted(found, key=str)


def answered(triggered: list[dict[str, Any]]) -> list[Refusal]:
    entries = [
        (each["reason"], next(iter(each["scope"])), each["limit"], each["asked"])
        for each in triggered
    ]
    return sorted(entries, key=str)


def random_limits(chance: random.Random, level: str) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "max_order_quantity": str(chance.randint(12, 24)),
        "max_order_notional": str(chance.randint(1_200, 3_500)),
        "price_collar_bps": chance.choice([1_000, 2_500, 4_900]),
        "allow_short": chance.random() < 0.6,
    }
    if level != "Organization":
        fields |= {
            "max_open_orders": chance.randint(3, 12),
            "max_position_quantity": str(chance.randint(15, 120)),
        }
    return {name: value for name, value in fields.items() if chance.random() < 0.35}


class Course:
    """A random course of one account, whose limits change on the way."""

    def __init__(self, tenants: Tenants, tables: Tables, chance: random.Random) -> None:
        self.trader = LimitedTrader(tenants)
        self.tables = tables
        self.chance = chance
        self.is_changed = False  # whether limits were the last that changed
        held = chance.choice([0, 5, 10, -5, -12])
        self.trader.book("100", "100")
        if held:
            self.trader.hold(str(abs(held)), "BUY" if held > 0 else "SELL_SHORT")
        self.trader.book("50", "150")  # what is asked for between these rests
        self.model = Model(Decimal(held))

    def put_limits(self) -> None:
        is_none = self.chance.random() < 0.3
        self.is_changed = True
        for level in ("Organization", "Account", "Symbol"):
            fields = self.model.limits[level] = {} if is_none else random_limits(self.chance, level)
            if level == "Organization":
                client = self.trader.tenants.client
                admin = self.trader.client.headers
                answer = client.put(f"{URL}/organization/limits", json=fields, headers=admin)
                assert answer.status_code == 200, answer.text
            else:
                self.trader.limit(level.lower(), **fields)

    def step(self) -> None:
        intents = list(self.model.open)
        chance = self.chance.random()
        if self.is_changed and intents:  # the first command after that is seldom a CREATE
            chance = 0.1 + chance / 2
            self.is_changed = False
        if chance < 0.08:
            self.put_limits()
        elif intents and chance < 0.2:
            self.cancel(self.chance.choice(intents))
        else:
            self.order(self.chance.choice(intents) if intents and chance < 0.4 else None)
        assert self.counted() == self.model.counted()

    def counted(self) -> list[Decimal]:
        rows = self.tables.fetch(
            """
                SELECT open_orders::numeric, open_buy, open_sell FROM holdings
                WHERE account_id = $1::text::uuid
            """,
            self.trader.account,
        )
        return [*rows[0].values()] if rows else [Decimal(0)] * 3

    def cancel(self, intent: str) -> None:
        command = {"type": "CANCEL", "payload": {"ref_intent_id": intent}}
        assert self.trader.post("intents", {"command": command}).status_code == 202
        self.trader.until(intent, "CANCELLED")
        del self.model.open[intent]

    def order(self, replaced: str | None) -> None:
        side = (
            self.model.open[replaced][0]
            if replaced
            else self.chance.choice(["BUY", "SELL", "SELL_SHORT"])
        )
        quantity = Decimal(self.chance.randint(4, 96)) / 4
        price = self.chance.randint(60, 149) if side == "BUY" else self.chance.randint(51, 140)
        spec = {"Limit": {"quantity": amount_text(quantity), "limit_price": str(price)}}
        target = (
            {"ref_intent_id": replaced}
            if replaced
            else {"symbol": self.trader.symbol, "order_side": side}
        )
        command = {"type": "REPLACE" if replaced else "CREATE", "payload": target | {"spec": spec}}
        expected = self.model.refusals(side, quantity, Decimal(price), replaced)
        question = {"account_id": self.trader.account, "command": command}
        evaluated = self.trader.tenants.client.post(
            f"{URL}/evaluate", json=question, headers=self.trader.client.headers
        ).json()
        answer = self.trader.post("intents", {"command": command})
        assert answered(evaluated["triggered"]) == expected, (command, self.model)
        assert evaluated["allowed"] is (not expected)
        assert answered(answer.json().get("triggered", [])) == expected, (command, self.model)
        assert answer.status_code == (409 if expected else 202)
        if not expected:
            self.note(str(answer.json()["intent_id"]), side)

    def note(self, intent: str, side: str) -> None:
        """Notes what the broker made of the order: it has rules of its own."""
        self.model.accepted += 1
        pending = {"PENDING_NEW", "PENDING_REPLACE"}
        eventually(lambda: self.trader.order(intent)["order_status"] not in pending, WAIT_SECONDS)
        order = self.trader.order(intent)
        if order["order_state"] == "OPEN":
            self.model.open[intent] = side, Decimal(order["quantity"])


@pytest.fixture
def tables(tenants_database: Urls) -> Iterator[Tables]:
    opened = Tables(tenants_database.owner)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(each, marks=pytest.mark.chaos) for each in range(3, 11))]
)
def test_what_is_refused_is_what_the_table_says(
    tenants: Tenants, tables: Tables, seed: int
) -> None:
    course = Course(tenants, tables, random.Random(seed))
    try:
        for _ in range(STEPS):
            course.step()
        assert course.model.accepted > 5
    finally:
        tenants.client.delete(f"{URL}/organization/limits", headers=tenants.callers["admin"])
