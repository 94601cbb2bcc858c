"""Controls in the database: one statement for many, by primary keys alone; what the tables refuse
by themselves."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import time
from functools import partial
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.kept_connections import open_owner
from trading_intents.accounts.model import AccountId
from trading_intents.controls import store
from trading_intents.controls.model import Controls, ControlScope, Subject, Switch, TimeRule
from trading_intents.controls.rules import find_rules
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.storage.database import Database, Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.trading import Symbol

ACCOUNTS = 60
SYMBOLS_EACH = 200


@dataclass
class Tenant:
    connection: asyncpg.Connection
    organization: OrganizationId
    accounts: list[AccountId]


@pytest.fixture
async def tenant(owner_url: Secret) -> AsyncIterator[Tenant]:
    """An organization with three accounts."""
    async with open_owner(owner_url) as connection:
        tenant = Tenant(connection, OrganizationId(uuid4()), [])
        await connection.execute(
            """
                INSERT INTO organizations (id, provider, external_id, name)
                VALUES ($1, 'local', 'x', 'x')
            """,
            tenant.organization,
        )
        await add_accounts(tenant, 3)
        yield tenant


async def add_accounts(tenant: Tenant, count: int) -> None:
    made = [AccountId(uuid4()) for _ in range(count)]
    await tenant.connection.execute(
        "INSERT INTO accounts (id, organization_id, name, broker, environment)"
        " SELECT id, $2, 'a', 'paper', 'paper' FROM unnest($1::uuid[]) AS id",
        made,
        tenant.organization,
    )
    tenant.accounts += made


async def test_many_are_read_in_the_order_asked(database: Database, tenant: Tenant) -> None:
    organization = tenant.organization
    one, two, three = tenant.accounts
    off = Switch(True, "why")
    rule = TimeRule(time(9, 30), None, 500, "Europe/Berlin")
    async with database.service.transaction([organization]) as tx:
        await store.put_switch(tx, ControlScope(organization, two), off)
        await store.put_switch(tx, ControlScope(organization, one, Symbol("AAPL")), Switch(False))
        await store.put_time(tx, ControlScope(organization, one, Symbol("AAPL")), rule)
        await store.put_time(tx, ControlScope(organization, two, Symbol("MSFT")), TimeRule())
    asked = [
        (two, "MSFT"),
        (one, "AAPL"),
        (three, "AAPL"),
        (one, "MSFT"),
        (two, "AAPL"),
        (two, ""),
    ]
    of = partial(Controls, organization_id=str(organization))
    expected = [
        of(account_id=str(two), account=off, time=TimeRule()),
        of(account_id=str(one), symbol=Switch(False), time=rule),
        of(account_id=str(three)),
        of(account_id=str(one)),
        of(account_id=str(two), account=off),
        of(account_id=str(two), account=off),
    ]

    def subjects(pairs: Sequence[tuple[UUID, str]]) -> list[Subject]:
        return [Subject(str(organization), str(each), None, symbol) for each, symbol in pairs]

    async def read(tx: Tx, *pairs: tuple[UUID, str]) -> list[Controls]:
        found = await find_rules(PoolTransaction(tx), subjects(pairs))
        assert [*found] == subjects(pairs)
        return [each.controls for each in found.values()]

    async with database.service.transaction([organization]) as tx:
        assert await read(tx, *asked) == expected
        await store.put_switch(tx, ControlScope(organization), off)
        assert {each.organization for each in await read(tx, (one, "A"), (two, "B"))} == {off}
    async with database.worker.transaction() as tx:
        assert (await read(tx, (one, "AAPL")))[0].time == rule


async def test_another_organizations_account_is_not_read(
    database: Database, tenant: Tenant
) -> None:
    other = OrganizationId(uuid4())
    subject = Subject(str(other), str(tenant.accounts[0]), None, "AAPL")
    for pool, seen in (
        (database.service, [other]),
        (database.service, [other, tenant.organization]),
        (database.worker, []),
    ):
        async with pool.transaction(seen) as tx:
            (found,) = (await find_rules(PoolTransaction(tx), [subject])).values()
            assert (found.account, found.limited) == (None, None)


async def test_reading_many_looks_up_primary_keys_only(database: Database, tenant: Tenant) -> None:
    await add_accounts(tenant, ACCOUNTS)
    # Without triggers: five times as fast.
    await tenant.connection.execute("SET session_replication_role = replica")
    await tenant.connection.execute(
        """
        INSERT INTO organizations (id, provider, external_id, name)
            SELECT gen_random_uuid(), 'local', 'o' || n, 'x' FROM generate_series(1, 5000) n;
        INSERT INTO organization_controls (organization_id, manually_disabled) SELECT id, false
        FROM organizations;
        INSERT INTO accounts (id, organization_id, name, broker, environment)
            SELECT gen_random_uuid(), id, 'a', 'paper', 'paper' FROM organizations;
        INSERT INTO account_controls (organization_id, account_id, manually_disabled)
            SELECT organization_id, id, false FROM accounts;
        INSERT INTO halts (id, organization_id, account_id, reason, cancel_orders, close_positions,
            state,
                           principal_type, principal_id, resumed_at)
            SELECT gen_random_uuid(), organization_id, account_id, 'x', true, false,
                CASE n WHEN 1 THEN 'done' ELSE 'resumed' END, 'USER', 'u', CASE WHEN n > 1
                    THEN now() END
            FROM (
                SELECT organization_id, id AS account_id FROM accounts UNION ALL SELECT id, NULL
                FROM organizations
            ) AS scopes, generate_series(1, 5) n;
        """
    )
    for table, column, value in (
        ("symbol_controls", "manually_disabled", "false"),
        ("symbol_times", "timezone", "null"),
    ):
        await tenant.connection.execute(
            f"INSERT INTO {table} (organization_id, account_id, symbol, {column})"
            f" SELECT $1, a, 'S' || n, {value} FROM unnest($2::uuid[]) a, generate_series(1, $3) n",
            tenant.organization,
            tenant.accounts,
            SYMBOLS_EACH,
        )
    await tenant.connection.execute("ANALYZE")
    for mode in ("force_custom_plan", "force_generic_plan"):
        async with database.service.transaction([tenant.organization]) as tx:
            await tx.execute(f"SET LOCAL plan_cache_mode = {mode}")
            key_id = str(uuid4())
            asked = [tenant.accounts[n % ACCOUNTS] for n in range(64)]
            request = store.read_rules(
                [Subject(str(tenant.organization), str(each), key_id, "S7") for each in asked]
            )
            explained = await tx.fetch(f"EXPLAIN {request.sql}", *request.arguments)
            plan = "\n".join(row["QUERY PLAN"] for row in explained)
        for table in (
            "organizations",
            "accounts",
            "organization_controls",
            "account_controls",
            "symbol_controls",
            "symbol_times",
        ):
            assert f"{table}_pkey" in plan, (mode, plan)
        assert plan.count("halts_standing") == 2, (mode, plan)
        # These have no rows here.
        for table in ("rule_versions", "api_keys", "trading_limits", "key_budgets"):
            assert f"on {table}" in plan, (mode, plan)
        assert "Seq Scan" not in plan, (mode, plan)
        assert "Hash" not in plan, mode


SYMBOL_ROW = "INSERT INTO {} (organization_id, account_id, symbol, {}) VALUES ($1, $2, {})"


BROKEN_RULES = [
    ("symbol_controls", "manually_disabled", "'aapl', true"),
    ("symbol_controls", "manually_disabled", "'', true"),
    ("symbol_controls", "manually_disabled", "'.A', true"),
    ("symbol_controls", "manually_disabled", "E'A\\n', true"),
    ("symbol_controls", "manually_disabled", "repeat('A', 33), true"),
    ("symbol_controls", "manually_disabled, manual_reason", "'A', true, repeat('x', 501)"),
    ("symbol_controls", "manually_disabled, version", "'A', true, 0"),
    ("symbol_times", "trading_start", "'a', '09:30'"),
    ("symbol_times", "trading_start", "'A', '24:00:00'"),
    ("symbol_times", "trading_end", "'A', '24:00:00'"),
    ("symbol_times", "trading_start, trading_end", "'A', '09:30', '09:30'"),
    ("symbol_times", "stale_order_millis", "'A', 0"),
    ("symbol_times", "stale_order_millis", "'A', 604800001"),
    ("symbol_times", "timezone", "'A', ''"),
]


async def test_the_tables_refuse_what_breaks_a_rule(tenant: Tenant) -> None:
    for table, column, values in BROKEN_RULES:
        statement = SYMBOL_ROW.format(table, column, values)
        try:
            with pytest.raises(asyncpg.CheckViolationError):
                await tenant.connection.execute(statement, tenant.organization, tenant.accounts[0])
        except BaseException as error:
            error.add_note(statement)
            raise


async def test_the_worker_reads_controls_and_never_writes_them(
    database: Database, tenant: Tenant
) -> None:
    for table in ("organization_controls", "account_controls", "symbol_controls", "symbol_times"):
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET version = 9"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with database.worker.transaction() as tx:
                    await tx.execute(statement)
