"""Batches of accounts with limits that need state: what they read, and what they must not do to other accounts."""

from collections.abc import AsyncIterator
from unittest.mock import Mock
from uuid import UUID, uuid4

import msgspec
import pytest

from tests.conftest import Urls
from tests.intents.in_process_writer import InProcessWriter, codes, open_in_process_writer
from tests.intents.test_held import creates_of
from tests.intents.test_optimistic import ways
from tests.intents.test_writer import whole
from trading_intents.intents.model import Replace, Spec, Submission
from trading_intents.trading import OrderKind

LIMITS = {"max_open_orders": 1_000, "max_order_notional": "1000000", "max_daily_loss": "50"}


@pytest.fixture
async def local(urls: Urls) -> AsyncIterator[InProcessWriter]:
    async with open_in_process_writer(urls.login, urls.owner) as local:
        yield local


async def set_limits(local: InProcessWriter, account: UUID, organization: UUID) -> None:
    await local.owner.execute(
        "INSERT INTO trading_limits (owner_id, organization_id, rules, needs_tracking) VALUES ($1, $2, $3, true)",
        account,
        organization,
        msgspec.json.encode(LIMITS).decode(),
    )


@pytest.mark.parametrize("is_limited", [False, True], ids=["without limits", "with limits"])
async def test_an_account_of_another_tenant_is_refused_and_not_waited_for(
    local: InProcessWriter, monkeypatch: pytest.MonkeyPatch, is_limited: bool
) -> None:
    """Also if both tenants were in one batch before, whose rules are cached."""
    (own,) = await creates_of(local, 1)
    first = local.accounts[0]
    if is_limited:
        await set_limits(local, first, local.organization)
    foreign = Submission(str(first), own.organization_id, own.key_id, own.command, None, None, None)
    for _ in range(3):
        outcomes = await local.submit_all([local.create(first), own, foreign])
        assert codes(outcomes) == ["recorded", "recorded", "not_found"]
    add = Mock(wraps=local.writer._lock_waits.add)
    monkeypatch.setattr(local.writer._lock_waits, "add", add)
    for _ in range(3):
        assert codes([await local.submit(foreign)]) == ["not_found"]
    assert add.call_count == 0
    assert ways(local)["mistaken"] == 0


async def test_a_replace_of_an_unknown_intent_makes_no_account_tracked(local: InProcessWriter) -> None:
    first = local.accounts[0]
    await set_limits(local, first, local.organization)
    replace = Replace(str(uuid4()), Spec(OrderKind.MARKET, "1", None, None, None))
    assert codes([await local.submit(local.command(first, replace))]) == ["not_found"]
    assert await local.owner.fetchval("SELECT count(*) FROM account_heads WHERE tracked") == 0
    assert await local.count("daily_baselines") == 0
    assert await whole(local) == []
