"""Row-level security on every tenant table, found by asking the catalog which tables those are."""

from uuid import UUID, uuid4

import asyncpg
import pytest

from trading_intents.secret import Secret
from trading_intents.storage.database import Database

# Looked up before the organization is known; every query names it.
IDENTITY_TABLES = {"api_keys", "memberships"}
TENANT_TABLES = """
    SELECT c.oid::regclass::text AS name, c.relrowsecurity AND c.relforcerowsecurity AS forced,
           has_table_privilege('ti_service', c.oid, 'SELECT')
               OR has_any_column_privilege('ti_service', c.oid, 'SELECT') AS readable
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'organization_id'
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
    ORDER BY 1
"""


async def tenant_tables(owner_url: Secret) -> dict[str, bool]:
    """Each tenant table that is not of identity, and whether the service may read any of it."""
    connection = await asyncpg.connect(owner_url.reveal())
    try:
        rows = [
            row
            for row in await connection.fetch(TENANT_TABLES)
            if row["name"] not in IDENTITY_TABLES
        ]
    finally:
        await connection.close()
    assert [row["name"] for row in rows if not row["forced"]] == [], (
        "row-level security must be on and forced"
    )
    return {row["name"]: row["readable"] for row in rows}


async def fill(owner_url: Secret, organizations: list[UUID]) -> None:
    """Two rows in every table for each organization, where it can have two."""
    connection = await asyncpg.connect(owner_url.reveal())
    for organization in organizations:
        await connection.execute(
            """
                INSERT INTO organizations (id, provider, external_id, name)
                VALUES ($1, 'local', $2, 'x')
            """,
            organization,
            str(organization),
        )
        await connection.execute(
            """
                INSERT INTO organization_controls (organization_id, manually_disabled)
                VALUES ($1, true)
            """,
            organization,
        )
        await connection.execute(
            "INSERT INTO stream_heads (organization_id, seq) VALUES ($1, 2)", organization
        )
        for _ in range(2):
            account = uuid4()
            credential = uuid4()
            await connection.execute(
                "INSERT INTO accounts (id, organization_id, name, broker, environment)"
                " VALUES ($1, $2, 'a', 'paper', 'paper')",
                account,
                organization,
            )
            await connection.execute(
                """
                    INSERT INTO credentials (id, organization_id, account_id, broker, fields,
                        fingerprint)
                """
                " VALUES ($1, $2, $3, 'remote', '{}', 'f')",
                credential,
                organization,
                account,
            )
            await connection.execute(
                """
                    INSERT INTO sealed_secrets (id, organization_id, account_id, credential_id,
                        sealed)
                """
                " VALUES ($1, $2, $3, $4, 'x')",
                uuid4(),
                organization,
                account,
                credential,
            )
            await connection.execute(
                "INSERT INTO outbox (queue, event_type, organization_id, order_key, payload)"
                " VALUES ('accounts', 'account.created', $1, $2, '{}')",
                organization,
                account,
            )
            await fill_controls(connection, organization, account)
            await fill_intents(connection, organization, account)
    await connection.close()


async def fill_controls(connection: asyncpg.Connection, organization: UUID, account: UUID) -> None:
    for statement in (
        """
            INSERT INTO account_controls (organization_id, account_id, manually_disabled)
            VALUES ($1, $2, true)
        """,
        "INSERT INTO symbol_controls (organization_id, account_id, symbol, manually_disabled)"
        " VALUES ($1, $2, 'A', true)",
        "INSERT INTO symbol_times (organization_id, account_id, symbol) VALUES ($1, $2, 'A')",
    ):
        await connection.execute(statement, organization, account)


INTENT_ROWS = {
    "account_heads": "(account_id, organization_id) VALUES ($2, $1)",
    "actions": "(account_id, seq, intent_id, action_id, organization_id, action_type, created_at, record, hash,"
    " stream_seq) VALUES ($2, 1, $2, gen_random_uuid(), $1, 'CREATE', now(), '{}', repeat('0', 64), 1)",
    "orders": "(order_id, account_id, organization_id, environment, broker, create_seq, command_seq, symbol,"
    " order_type, order_side, time_in_force, route_strategy, quantity, received_at, created_at, updated_at)"
    " VALUES ($2, $2, $1, 'paper', 'paper', 1, 1, 'A', 'MARKET', 'BUY', 'DAY', 'SMART', 1, now(), now(), now())",
    "refusals": "(id, organization_id, account_id, action_type, symbol, reasons, principal_id, created_at)"
    " VALUES (gen_random_uuid(), $1, $2, 'CREATE', 'A', '{x}', 'k', now())",
    "stats_buckets": "(account_id, width_seconds, start, measure, key, organization_id, amount)"
    " VALUES ($2, 60, now(), 'm', 'k', $1, 1)",
    "api_keys": "(id, organization_id, name, environment, permissions, digest, hint)"
    " VALUES ($2, $1, 'k', 'paper', '{}', sha256($2::uuid::text::bytea), 'h')",
    "key_budgets": "(key_id, organization_id, day) VALUES ($2, $1, now()::date)",
    "stats_entries": "(account_id, organization_id, at, measure, key, amount) VALUES ($2, $1, now(), 'm', 'k', 1)",
    "stats_heads": "(organization_id) SELECT $1::uuid WHERE $2::uuid IS NOT NULL ON CONFLICT DO NOTHING",
    "reports": "(organization_id, seq, count, day, account_id, at, symbol, environment, events)"
    " VALUES ($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 1, now()::date, $2, now(), 'A', 'paper',"
    " 'x')",
    "commands": "(account_id, client_order_id, organization_id, order_id, seq, action_type)"
    " VALUES ($2, 'c', $1, $2, 1, 'CREATE')",
    "trades": "(trade_id, account_id, organization_id, seq, order_id, exec_id, symbol, side, quantity, price,"
    " cumulative_quantity, leaves_quantity, command_seq, received_at)"
    " VALUES (gen_random_uuid(), $2, $1, 1, $2, 'e', 'A', 'BUY', 1, 1, 1, 0, 1, now())",
    "position_openings": "(account_id, organization_id, opened_at) VALUES ($2, $1, now())",
    "leases": "(account_id, organization_id) VALUES ($2, $1)",
    "trading_limits": "(owner_id, organization_id, rules) VALUES ($2, $1, '{}')",
    "daily_baselines": "(account_id, organization_id, day, timezone, result) VALUES ($2, $1, now(), 'UTC', 0)",
    "holdings": "(account_id, symbol, organization_id) VALUES ($2, 'A', $1)",
    "halts": "(id, organization_id, account_id, reason, cancel_orders, close_positions, state, principal_type,"
    " principal_id) VALUES (gen_random_uuid(), $1, $2, 'r', true, false, 'done', 'USER', 'u')",
    "halt_closings": "(halt_id, account_id, organization_id, symbols, positions_done, waiting)"
    " VALUES (gen_random_uuid(), $2, $1, '{}', 0, '[]')",
    "balances": "(account_id, organization_id, as_of) VALUES ($2, $1, now())",
    "reference_prices": "(organization_id, environment, symbol, price, source, as_of)"
    " VALUES ($1, 'live', upper(left($2::uuid::text, 8)), 1, 'trade', now())",
    "equity_points": "(account_id, organization_id, resolution, at, realized_pnl, unrealized_pnl)"
    " VALUES ($2, $1, '1d', now(), 0, 0)",
    "paper_accounts": "(account_id, organization_id, cash) VALUES ($2, $1, 1)",
    "paper_symbols": "(organization_id, symbol, number) VALUES ($1, upper(left($2::uuid::text, 8)), 1)",
    "paper_quotes": "(organization_id, symbol, number, bid, ask, bid_size, ask_size)"
    " VALUES ($1, upper(left($2::uuid::text, 8)), 1, 1, 1, 1, 1)",
}
SERVICE_APPENDS = (
    "actions",
    "orders",
    "refusals",
    "stats_buckets",
    "stats_entries",
    "reports",
)


async def fill_intents(connection: asyncpg.Connection, organization: UUID, account: UUID) -> None:
    for table, row in INTENT_ROWS.items():
        await connection.execute(f"INSERT INTO {table} {row}", organization, account)


async def test_every_tenant_table_shows_the_set_organizations_rows_only(
    database: Database, owner_url: Secret
) -> None:
    mine = uuid4()
    other = uuid4()
    tables = await tenant_tables(owner_url)
    expected = {"accounts", "credentials", "sealed_secrets", "outbox", "stream_heads", *INTENT_ROWS}
    assert expected - {"api_keys"} <= set(tables)
    await fill(owner_url, [mine, other])
    for table, readable in tables.items():
        if not readable:
            continue
        async with database.service.transaction([mine]) as tx:
            found = await tx.fetch(f"SELECT organization_id FROM {table}")
        assert {row["organization_id"] for row in found} == {mine}, table
        each = (
            1
            if table in ("organization_controls", "rule_versions", "stats_heads", "stream_heads")
            else 2
        )
        assert len(found) == each, table
        async with database.service.transaction() as tx:
            assert await tx.fetch(f"SELECT organization_id FROM {table}") == [], table
        async with database.service.transaction([mine, other]) as tx:
            assert len(await tx.fetch(f"SELECT organization_id FROM {table}")) == 2 * each, table


async def test_holdings_at_the_paper_broker_are_those_of_accounts_that_are_shown(
    database: Database, owner_url: Secret
) -> None:
    mine = uuid4()
    other = uuid4()
    await fill(owner_url, [mine, other])
    owner = await asyncpg.connect(owner_url.reveal())
    await owner.execute(
        "INSERT INTO paper_holdings SELECT account_id, 'A', 1, 0, NULL, 0, 0, 0 FROM paper_accounts"
    )
    await owner.close()
    for shown, rows in (([mine], 2), ([mine, other], 4), ([], 0)):
        async with database.service.transaction(shown) as tx:
            assert len(await tx.fetch("SELECT FROM paper_holdings")) == rows


async def test_the_service_cannot_write_for_another_organization(
    database: Database, owner_url: Secret
) -> None:
    mine = uuid4()
    other = uuid4()
    await fill(owner_url, [mine, other])
    async with database.service.transaction([mine]) as tx:
        assert await tx.execute("UPDATE accounts SET name = 'stolen'") == "UPDATE 2"
        for table in ("credentials", "account_controls", "symbol_controls", "symbol_times"):
            assert await tx.execute(f"DELETE FROM {table}") == "DELETE 2"
    refused = False
    try:
        async with database.service.transaction([mine]) as tx:
            await tx.execute(
                "INSERT INTO accounts (id, organization_id, name, broker, environment)"
                " VALUES ($1, $2, 'a', 'paper', 'paper')",
                uuid4(),
                other,
            )
    except asyncpg.InsufficientPrivilegeError:
        refused = True
    assert refused


async def test_the_service_cannot_read_a_sealed_secret(
    database: Database, owner_url: Secret
) -> None:
    mine = uuid4()
    await fill(owner_url, [mine])
    refused = False
    try:
        async with database.service.transaction([mine]) as tx:
            await tx.fetch("SELECT sealed FROM sealed_secrets")
    except asyncpg.InsufficientPrivilegeError:
        refused = True
    assert refused


@pytest.mark.parametrize("table", SERVICE_APPENDS)
async def test_the_service_appends_for_the_set_organization_only(
    database: Database, owner_url: Secret, table: str
) -> None:
    mine = uuid4()
    other = uuid4()
    await fill(owner_url, [mine, other])
    async with database.service.transaction([mine]) as tx:
        await tx.execute(f"INSERT INTO {table} {INTENT_ROWS[table]}", mine, uuid4())
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with database.service.transaction([mine]) as tx:
            await tx.execute(f"INSERT INTO {table} {INTENT_ROWS[table]}", other, uuid4())


async def test_the_service_changes_orders_and_heads_of_the_set_organization_only(
    database: Database, owner_url: Secret
) -> None:
    mine = uuid4()
    other = uuid4()
    await fill(owner_url, [mine, other])
    async with database.service.transaction([mine]) as tx:
        assert await tx.execute("UPDATE orders SET version = version + 1") == "UPDATE 2"
        assert await tx.execute("UPDATE account_heads SET seq = seq + 1") == "UPDATE 2"
        assert await tx.execute("UPDATE stream_heads SET seq = seq + 1") == "UPDATE 1"
        assert await tx.execute("UPDATE outbox SET due_at = now()") == "UPDATE 2"


async def test_the_service_reads_events_of_the_set_organization_only(
    database: Database, owner_url: Secret
) -> None:
    mine = uuid4()
    other = uuid4()
    await fill(owner_url, [mine, other])
    async with database.service.transaction([mine]) as tx:
        seen = await tx.fetch("SELECT DISTINCT organization_id FROM reports")
        assert [row["organization_id"] for row in seen] == [mine]
    async with database.service.transaction() as tx:
        assert await tx.fetch("SELECT FROM reports") == []
