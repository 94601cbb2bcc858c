"""The migration that parts the simulator's prices from those of other brokers, on data of the
version before."""

import shutil
from pathlib import Path
from uuid import uuid4

import asyncpg

from tests.conftest import Urls
from tests.storage.test_migrate import LOG, empty
from trading_intents.storage.migrate import FOLDER, migrate

__all__ = ["empty"]
NAME = "two_markets"


async def test_a_price_goes_to_the_markets_in_which_it_may_be_known(
    empty: Urls, tmp_path: Path
) -> None:
    for path in sorted(FOLDER.glob("*.sql")):
        if NAME in path.name:
            break
        shutil.copy(path, tmp_path)
    await migrate(empty.owner, empty.login, LOG, tmp_path)
    owner = await asyncpg.connect(empty.owner.reveal())
    organization = uuid4()
    accounts = {broker: uuid4() for broker in ("paper", "alpaca")}
    await owner.execute(
        """
            INSERT INTO organizations (id, provider, external_id, name)
            VALUES ($1, 'local', 'x', 'x')
        """,
        organization,
    )
    for broker, account in accounts.items():
        await owner.execute(
            """
                INSERT INTO accounts (id, organization_id, name, broker, environment)
                VALUES ($1, $2, 'a', $3, 'paper')
            """,
            *(account, organization, broker),
        )
    await owner.execute(
        """
            INSERT INTO positions (account_id, organization_id, symbol, received_at)
            VALUES ($1, $2, 'HELD', now())
        """,
        *(accounts["alpaca"], organization),
    )
    rows = [
        ("SIM", "paper", "trade"),
        ("HELD", "paper", "quote"),
        ("OTHER", "paper", "posted"),
        ("FAR", "live", "trade"),
    ]
    for symbol, environment, source in rows:
        await owner.execute(
            "INSERT INTO reference_prices VALUES ($1, $2, $3, 1, $4, now())",
            organization,
            environment,
            symbol,
            source,
        )
    assert await migrate(empty.owner, empty.login, LOG)
    found = await owner.fetch("SELECT environment, symbol FROM reference_prices ORDER BY 1, 2")
    assert [tuple(row) for row in found] == [
        ("live", "FAR"),
        ("paper", "HELD"),
        ("paper", "OTHER"),
        ("simulated", "HELD"),
        ("simulated", "OTHER"),
        ("simulated", "SIM"),
    ]
    await owner.close()
