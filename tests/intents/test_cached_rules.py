"""Accounts with limits that need state: their rules are cached, and each change of them is met by
the next order."""

import contextlib
import functools
from collections.abc import AsyncIterator, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from tests.conftest import Urls
from tests.intents.http_client import Tables
from tests.intents.in_process_writer import InProcessWriter, codes, open_in_process_writer
from tests.intents.writer_checks import CHANGES, creates_of, whole
from trading_intents.controls import rules, store
from trading_intents.controls.limits.state.losses import DailyBaseline, baseline_rows
from trading_intents.controls.limits.state.tracking import LimitedSubject, LimitTracking
from trading_intents.errors import ControlRejected
from trading_intents.storage.pipeline import Statement

LIMITS = {
    "max_open_orders": 1_000,
    "max_orders_per_minute": 1_000,
    "max_daily_loss": "50",
    "max_order_quantity": "5",
}


@pytest.fixture
async def local(urls: Urls) -> AsyncIterator[InProcessWriter]:
    """Its three accounts have limits, and an order each."""
    async with open_in_process_writer(urls.login, urls.owner) as local:
        for account in local.accounts:
            await local.owner.execute(
                "INSERT INTO trading_limits (owner_id, organization_id, rules) VALUES ($1, $2, $3)",
                account,
                local.organization,
                msgspec.json.encode(LIMITS).decode(),
            )
        for _ in range(2):  # the first begins to count
            assert (
                codes(await local.submit_all([local.create(each) for each in local.accounts]))
                == ["recorded"] * 3
            )
        yield local


async def reasons(local: InProcessWriter, account: int = 0) -> list[str]:
    """The reasons why the account's next order is refused."""
    outcome = await local.submit(local.create(local.accounts[account]))
    return list(map(str, outcome.reasons)) if isinstance(outcome, ControlRejected) else []


async def set_limits(local: InProcessWriter, **changed: Any) -> None:
    await local.owner.execute(
        "UPDATE trading_limits SET rules = $1 WHERE owner_id = $2",
        msgspec.json.encode(
            {name: value for name, value in (LIMITS | changed).items() if value is not None}
        ).decode(),
        local.accounts[0],
    )


async def test_rules_that_have_not_changed_are_not_read_again(
    local: InProcessWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Mock(side_effect=store.read_rules)
    monkeypatch.setattr(rules, "read_rules", reads)
    for _ in range(3):
        assert (
            codes(await local.submit_all([local.create(each) for each in local.accounts]))
            == ["recorded"] * 3
        )
    assert reads.call_count == 0
    await local.owner.execute("UPDATE api_keys SET permissions = '{intent:edit,intent:read}'")
    for _ in range(2):
        assert codes([await local.submit(local.create(local.accounts[0]))]) == ["recorded"]
    assert reads.call_count == 1


@pytest.mark.parametrize("is_limited", [False, True], ids=["without limits", "with limits"])
async def test_a_tenants_change_costs_its_neighbour_no_read(
    local: InProcessWriter, monkeypatch: pytest.MonkeyPatch, is_limited: bool
) -> None:
    neighbour, changing = await creates_of(local, 2)
    if is_limited:
        await local.owner.execute(
            "INSERT INTO trading_limits (owner_id, organization_id, rules)"
            " VALUES ($1::text::uuid, $2::text::uuid, $3)",
            neighbour.account_id,
            neighbour.organization_id,
            msgspec.json.encode(LIMITS).decode(),
        )
    for _ in range(3):
        assert codes(await local.submit_all([neighbour, changing])) == ["recorded"] * 2
    reads = Mock(side_effect=store.read_rules)
    monkeypatch.setattr(rules, "read_rules", reads)
    for _ in range(3):
        change = "UPDATE organizations SET disabled = NOT disabled WHERE id = $1::text::uuid"
        await local.owner.execute(change, changing.organization_id)
        assert codes([await local.submit(changing), await local.submit(neighbour)])[1] == "recorded"
    read = [{each.organization_id for each in call.args[0]} for call in reads.call_args_list]
    assert read == [{changing.organization_id}] * 3


@pytest.mark.parametrize("change", CHANGES, ids=[change.split(" (")[0][:60] for change in CHANGES])
async def test_what_has_changed_meanwhile_is_met(local: InProcessWriter, change: str) -> None:
    first = local.accounts[0]
    assert codes([await local.submit(local.create(first))]) == ["recorded"]
    await local.owner.execute(change, local.organization, first)
    for _ in range(2):
        assert codes([await local.submit(local.create(first))]) == [CHANGES[change]]
    assert await whole(local) == [3, 2, 2]


async def test_a_changed_limit_holds_for_the_next_order(local: InProcessWriter) -> None:
    assert await reasons(local) == []
    await set_limits(local, max_order_quantity="0.5")
    assert await reasons(local) == ["max_order_quantity"]
    await set_limits(local, max_open_orders=3)
    assert await reasons(local) == ["max_open_orders"]
    await set_limits(local, max_open_orders=4, allowed_symbols=["MSFT"])
    assert await reasons(local) == ["allowed_symbols"]
    await set_limits(local, max_open_orders=4)
    assert await reasons(local) == []
    assert await reasons(local) == ["max_open_orders"]
    await local.owner.execute("DELETE FROM trading_limits WHERE owner_id = $1", local.accounts[0])
    assert await reasons(local) == []
    assert await reasons(local, 1) == []


@pytest.mark.parametrize("scope", ["organization", "symbol"])
async def test_a_limit_of_another_level_holds_for_the_next_order(
    local: InProcessWriter, scope: str
) -> None:
    owner, symbol = (
        (local.organization, "") if scope == "organization" else (local.accounts[0], "AAPL")
    )
    assert await reasons(local) == []
    await local.owner.execute(
        "INSERT INTO trading_limits (owner_id, symbol, organization_id, rules)"
        """ VALUES ($1, $2, $3, '{"max_order_quantity": "0.5"}')""",
        owner,
        symbol,
        local.organization,
    )
    assert await reasons(local) == ["max_order_quantity"]


async def test_a_changed_baseline_holds_for_the_next_order(local: InProcessWriter) -> None:
    """Nobody holds a position, so that a day's result is what its baseline is below zero."""
    change = "UPDATE daily_baselines SET result = $1 WHERE account_id = $2"
    assert await reasons(local) == []
    for result, refused in ((49, []), (50, ["max_daily_loss"]), (0, []), (51, ["max_daily_loss"])):
        await local.owner.execute(change, result, local.accounts[0])
        assert await reasons(local) == refused
        assert await reasons(local, 1) == []
    await local.owner.execute("UPDATE daily_baselines SET day = day - 1")
    assert await reasons(local) == [], "the day is new, and begins with this order"
    assert await reasons(local) == []
    assert await local.owner.fetchval("SELECT min(result) FROM daily_baselines") == 0
    await local.owner.execute(change, 50, local.accounts[0])
    assert await reasons(local) == ["max_daily_loss"]
    await local.owner.execute("DELETE FROM daily_baselines")
    assert await reasons(local) == []
    await local.owner.execute(
        """
        INSERT INTO daily_baselines (account_id, organization_id, day, timezone, result)
        VALUES ($1, $2, (now() AT TIME ZONE 'UTC')::date, 'UTC', 50)
        ON CONFLICT (account_id) DO UPDATE SET result = 50
        """,
        local.accounts[0],
        local.organization,
    )
    assert await reasons(local) == ["max_daily_loss"]


async def test_an_opening_that_commits_beside_a_batch_is_seen_with_its_baseline(
    local: InProcessWriter, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits after the batch has begun, and before it reads the positions."""
    read = LimitTracking.needs
    names = (str(local.accounts[0]), str(local.organization))
    opening = f"""
        INSERT INTO holdings (account_id, organization_id, symbol, received_at, quantity,
            open_cost, opening_quantity,
                               opening_price) VALUES ('{names[0]}', '{names[1]}', 'MSFT', now(), 10,
                                   1000, 10, 100);
        INSERT INTO reference_prices VALUES ('{names[1]}', 'paper', 'MSFT', 50, 'posted', now());
        UPDATE daily_baselines SET result = -500 WHERE account_id = '{names[0]}';
    """

    @functools.cache
    def commit_opening() -> None:
        with contextlib.closing(Tables(urls.owner)) as tables:
            tables.execute(opening)

    def open_and_read(
        limits: LimitTracking, subjects: Collection[LimitedSubject]
    ) -> list[Statement]:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(commit_opening).result()
        return read(limits, subjects)

    monkeypatch.setattr(LimitTracking, "needs", open_and_read)
    assert await reasons(local) == []


async def test_a_new_time_zone_begins_the_day_anew(local: InProcessWriter) -> None:
    await local.owner.execute("UPDATE daily_baselines SET result = 50")
    assert await reasons(local) == ["max_daily_loss"]
    await set_limits(local, timezone="Pacific/Kiritimati")
    assert await reasons(local) == []
    assert await reasons(local, 1) == ["max_daily_loss"]


async def test_a_days_baseline_is_no_change_of_the_rules(local: InProcessWriter) -> None:
    before = await local.owner.fetchval("SELECT version FROM rule_versions")
    await local.owner.execute(
        "UPDATE daily_baselines SET halted = true, result = 1, recorded_at = now()"
    )
    assert await local.owner.fetchval("SELECT version FROM rule_versions") == before


async def test_a_version_that_another_server_gives_again_is_not_believed(
    local: InProcessWriter,
) -> None:
    """A standby that had not got the last change takes over: its next change gets the same
    number."""
    assert await reasons(local) == []
    version = await local.owner.fetchval("SELECT version FROM rule_versions")
    await set_limits(local, max_order_quantity="0.5")
    await local.owner.execute("UPDATE rule_versions SET version = $1", version)
    local.writer._dependencies.pipeline.close()
    assert await reasons(local) == ["max_order_quantity"]


def test_baselines_are_locked_by_account() -> None:
    """In every process."""
    baseline: Any = msgspec.convert(
        {"day": "2026-03-01", "timezone": "UTC", "result": "0"}, DailyBaseline
    )
    rows = baseline_rows(dict.fromkeys([("c", "1"), ("a", "2"), ("b", "1"), ("d", "0")], baseline))
    assert [row[:2] for row in rows] == [("a", "2"), ("b", "1"), ("c", "1"), ("d", "0")]
