"""Rules that change at random, met by two processes: each order is judged by the rules that hold
when it is sent."""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.intents.in_process_writer import InProcessWriter, codes, open_in_process_writer
from trading_intents.errors import ControlRejected
from trading_intents.intents.model import Create, Spec, Submission
from trading_intents.trading import AccountSymbol, OrderKind, OrderSide, RouteStrategy, Symbol

STEPS = 150
SYMBOLS = ("AAPL", "MSFT")
PUT_LIMITS = """
    INSERT INTO trading_limits (owner_id, symbol, organization_id, rules)
    VALUES ($1, $2, $3, $4)
    ON CONFLICT (owner_id, symbol) DO UPDATE
    SET rules = excluded.rules
"""
PUT_BASELINE = """
    INSERT INTO daily_baselines (account_id, organization_id, day, timezone, result)
    VALUES ($1, $2, (now() AT TIME ZONE 'UTC')::date, 'UTC', $3)
    ON CONFLICT (account_id) DO UPDATE SET day = excluded.day, result = excluded.result
"""


@dataclass
class ExpectedRules:
    """Nobody holds a position: a day's loss is its baseline."""

    organization: UUID
    limits: dict[AccountSymbol[UUID], dict[str, int]] = field(default_factory=dict)
    losses: dict[UUID, int] = field(default_factory=dict)
    open: Counter[AccountSymbol[UUID]] = field(default_factory=Counter)

    def reasons(self, account: UUID, symbol: str, quantity: int) -> set[str]:
        found: set[str] = set()
        for level in ((self.organization, ""), (account, ""), (account, symbol)):
            limits = self.limits.get(level, {})
            counted = SYMBOLS if level == (account, "") else (symbol,)
            asked = {
                "max_order_quantity": quantity,
                "max_open_orders": sum(self.open[account, each] for each in counted) + 1,
                # Reached at the limit, not beyond it.
                "max_daily_loss": self.losses.get(account, 0) + 1,
            }
            found |= {name for name, most in limits.items() if asked[name] > most}
        return found


@pytest.fixture
async def pair(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[InProcessWriter, InProcessWriter]]:
    """Two processes, of which both write for the first one's accounts."""
    async with (
        open_in_process_writer(urls.login, urls.owner) as first,
        open_in_process_writer(urls.login, urls.owner) as second,
    ):
        yield first, second


async def change_rules(
    local: InProcessWriter, expected: ExpectedRules, chance: random.Random
) -> None:
    account = chance.choice(local.accounts)
    symbol = chance.choice(SYMBOLS)
    if chance.random() < 0.3:
        expected.losses[account] = chance.choice((0, 49, 50))
        await local.owner.execute(
            PUT_BASELINE, account, local.organization, expected.losses[account]
        )
        return
    level = chance.choice(((local.organization, ""), (account, ""), (account, symbol)))
    if chance.random() < 0.4:
        expected.limits.pop(level, None)
        await local.owner.execute(
            "DELETE FROM trading_limits WHERE owner_id = $1 AND symbol = $2", *level
        )
        return
    limits = {"max_order_quantity": chance.randint(2, 5)}
    if chance.random() < 0.5:
        limits["max_open_orders"] = chance.choice((5, 10, 50))
    if chance.random() < 0.5 and level == (account, ""):
        limits["max_daily_loss"] = 50
    expected.limits[level] = limits
    texts = {
        name: most if name == "max_open_orders" else str(most) for name, most in limits.items()
    }
    await local.owner.execute(PUT_LIMITS, *level, local.organization, json.dumps(texts))


def create(local: InProcessWriter, account: UUID, symbol: str, quantity: int) -> Submission:
    spec = Spec(
        kind=OrderKind.MARKET,
        quantity=str(quantity),
        limit_price=None,
        stop_price=None,
        trail_amount=None,
    )
    return local.command(account, Create(Symbol(symbol), OrderSide.BUY, RouteStrategy.SMART, spec))


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(2, 10))]
)
async def test_each_order_is_judged_by_the_rules_that_hold(
    pair: tuple[InProcessWriter, InProcessWriter], seed: int
) -> None:
    chance = random.Random(seed)
    local = pair[0]
    expected = ExpectedRules(local.organization)
    outcomes = Counter[bool]()
    for _ in range(STEPS):
        if chance.random() < 0.3:
            await change_rules(local, expected, chance)
        writer = chance.choice(pair)
        if chance.random() < 0.03:
            writer.writer._dependencies.pipeline.close()
        orders = list[Submission]()
        refused = list[set[str]]()
        for _ in range(chance.choice((1, 2, 8))):
            account = chance.choice(local.accounts)
            symbol = chance.choice(SYMBOLS)
            quantity = chance.randint(1, 4)
            orders.append(create(local, account, symbol, quantity))
            refused.append(expected.reasons(account, symbol, quantity))
            expected.open[account, symbol] += not refused[-1]
        answers = await writer.submit_all(orders)
        assert [
            set(each.reasons) if isinstance(each, ControlRejected) else set() for each in answers
        ] == refused
        assert set(codes(answers)) <= {"recorded", "control_rejected"}
        outcomes.update(map(bool, refused))
    assert min(outcomes.values()) > STEPS // 10, "both happen often"
