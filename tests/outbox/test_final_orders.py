"""`outbox retry` sends nothing more for an order that is finished."""

from uuid import UUID, uuid4

import asyncpg
import pytest

from trading_intents.errors import IntentClosed
from trading_intents.outbox import operators
from trading_intents.secret import Secret
from trading_intents.storage.database import Database


async def failed_row(owner: asyncpg.Connection, order_id: UUID, status: str) -> int:
    account_id = uuid4()
    organization_id = uuid4()
    await owner.execute(
        """
        INSERT INTO orders (order_id, account_id, organization_id, environment, broker, create_seq,
            command_seq, symbol,
                            order_status, order_type, order_side, time_in_force, route_strategy,
                                quantity,
                            received_at, created_at, updated_at, client_order_id, finished_at)
        VALUES ($1, $2, $3, 'paper', 'paper', 1, 1, 'AAPL', $4::text, 'MARKET', 'BUY', 'DAY',
            'SMART', 1,
                now(), now(), now(), $1::uuid, CASE WHEN $4::text <> 'NEW' THEN now() END)
        """,
        order_id,
        account_id,
        organization_id,
        status,
    )
    row_id: int = await owner.fetchval(
        """
        INSERT INTO commands (organization_id, order_id, account_id, seq, action_type, attempts,
            failed_at, last_error)
        VALUES ($1, $2, $3, 1, 'CREATE', 10, now(), 'x') RETURNING id
        """,
        organization_id,
        order_id,
        account_id,
    )
    return row_id


@pytest.mark.parametrize("status", ["FILLED", "CANCELLED", "EXPIRED", "REJECTED"])
async def test_a_row_of_a_finished_order_is_not_retried(
    database: Database, owner_url: Secret, status: str
) -> None:
    owner = await asyncpg.connect(owner_url.reveal())
    finished = await failed_row(owner, uuid4(), status)
    working = await failed_row(owner, uuid4(), "NEW")
    with pytest.raises(IntentClosed, match=f"row {finished} .*{status}"):
        await operators.retry(database.worker, [working, finished], "ada", "try again")
    assert await owner.fetchval("SELECT count(*) FROM commands WHERE failed_at IS NOT NULL") == 2, (
        "all or none"
    )
    assert set(await operators.retry(database.worker, [working], "ada", "try again")) == {working}
    await operators.drop(database.worker, [finished], "ada", "it is over")
    assert await owner.fetchval("SELECT count(*) FROM commands WHERE failed_at IS NOT NULL") == 0
    await owner.close()
