"""A credential that this process verified within 15 minutes passes the limit of failed credentials;
one that has failed since does not."""

import asyncio
from uuid import uuid4

import asyncpg
import pytest

from tests.fakes import ManualClock
from tests.identity.issuer import Issuer
from trading_intents.errors import Unauthorized
from trading_intents.identity import service
from trading_intents.identity.model import ApiKeyChange
from trading_intents.identity.service import ApiKeys, Callers
from trading_intents.identity.tokens import LEEWAY_SECONDS, TokenVerifier
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.storage.database import Database
from trading_intents.trading import Environment

QUARTER_HOUR = 15 * 60


@pytest.fixture
def callers(database: Database, verifier: TokenVerifier, clock: ManualClock) -> Callers:
    return Callers(database.service, verifier, "provider", False, clock)


@pytest.fixture
async def organization_id(owner_url: Secret) -> OrganizationId:
    connection = await asyncpg.connect(owner_url.reveal())
    made = OrganizationId(uuid4())
    await connection.execute(
        """
            INSERT INTO organizations (id, provider, external_id, name)
            VALUES ($1, 'provider', 'o', 'o')
        """,
        made,
    )
    await connection.close()
    return made


async def test_a_key_is_verified_for_15_minutes_after_each_look_up(
    callers: Callers, database: Database, organization_id: OrganizationId, clock: ManualClock
) -> None:
    keys = ApiKeys(database.service, uuid4, callers)
    made, secret = await keys.create(organization_id, "bot", Environment.PAPER, [])
    key = secret.reveal()
    assert not callers.is_verified(key)
    await callers.by_key(key)
    clock.advance(QUARTER_HOUR)
    assert callers.is_verified(key)
    clock.advance(0.001)
    assert not callers.is_verified(key)
    await callers.by_key(key)
    clock.advance(0.5)
    before = asyncio.all_tasks()
    assert callers.known(key), "a look-up in the background counts too"
    await asyncio.gather(*asyncio.all_tasks() - before)
    clock.advance(QUARTER_HOUR)
    assert callers.is_verified(key)
    await keys.change(organization_id, made.id, lambda: ApiKeyChange(disabled=True), None)
    with pytest.raises(Unauthorized):
        await callers.by_key(key)
    assert not callers.is_verified(key)


async def test_a_token_is_verified_until_it_fails(
    callers: Callers, issuer: Issuer, clock: ManualClock
) -> None:
    token = issuer.token(issuer.claims(exp=int(clock.now().timestamp()) + 2 * QUARTER_HOUR))
    await callers.by_token(token)
    clock.advance(QUARTER_HOUR)
    assert callers.is_verified(token)
    assert not callers.is_verified(token[:-1])
    clock.advance(1)
    assert not callers.is_verified(token)
    await callers.by_token(token)
    clock.advance(QUARTER_HOUR - 60)
    await callers.by_token(token)
    clock.advance(60 + LEEWAY_SECONDS)
    assert callers.is_verified(token)
    with pytest.raises(Unauthorized):
        await callers.by_token(token)
    assert not callers.is_verified(token)


async def test_the_memory_of_verified_credentials_is_bounded(
    callers: Callers, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_RECENT", 2)
    tokens = [issuer.token(issuer.claims(sub=f"user {number}")) for number in range(3)]
    for token in tokens:
        await callers.by_token(token)
    assert [callers.is_verified(token) for token in tokens] == [False, True, True]
