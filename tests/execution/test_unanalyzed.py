"""Tables that nobody has analyzed: the plans that were made while they were empty read no more when
they are large."""

import contextlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Databases
from tests.execution.explained_statements import ExplainedStatements, StatementCost
from tests.intents.http_client import (
    Body,
    Tables,
    TradingClient,
    cancel,
    create,
    limit,
    market,
    open_trading_client,
    replace,
)
from tests.tenants import Tenants, made_tenants
from tests.waiting import eventually

pytestmark = pytest.mark.slow

WAIT_SECONDS = 30.0
BASE = 1_000_000  # the seqs and numbers before it are free for rows that are older
TOGETHER = 8
MANY_STATEMENTS = 60
QUOTE = {"bid": "100", "ask": "100", "bid_size": "100000", "ask_size": "100000"}
LIMITS = {
    "max_order_quantity": "100000",
    "max_order_notional": "10000000",
    "max_open_orders": 10000,
    "max_position_quantity": "1000000",
    "max_orders_per_minute": 10000,
    "duplicate_window_millis": 500,
    "max_daily_loss": "10000000",
}
OLD = "now() - interval '1 day'"
# By table: which of its rows is multiplied, and the columns in which the copies differ.
GROWN: dict[str, tuple[str, dict[str, str]]] = {
    "actions": (
        "idempotency_key IS NOT NULL AND account_id = $1",
        {
            "seq": "n",
            "stream_seq": "n",
            "intent_id": "gen_random_uuid()",
            "action_id": "gen_random_uuid()",
            "idempotency_key": "'old' || n",
            "created_at": OLD,
        },
    ),
    "orders": (
        "finished_at IS NOT NULL AND account_id = $1",
        {
            "order_id": "gen_random_uuid()",
            "create_seq": "n",
            "command_seq": "n",
            "client_reference_id": "'old' || n",
            "created_at": OLD,
            "finished_at": OLD,
        },
    ),
    "outbox": ("finished_at IS NOT NULL AND lane = $1", {"order_key": "gen_random_uuid()"}),
    "commands": (
        "broker_order_id IS NOT NULL AND account_id = $1",
        {
            "client_order_id": "'old' || n",
            "order_id": "gen_random_uuid()",
            "broker_order_id": "'old' || n",
        },
    ),
    "trades": (
        "account_id = $1",
        {
            "trade_id": "gen_random_uuid()",
            "seq": "n",
            "order_id": "gen_random_uuid()",
            "exec_id": "'old' || n",
            "received_at": OLD,
        },
    ),
    "reports": (
        "facts IS NOT NULL AND account_id = $1",
        {
            "seq": "n",
            "order_id": "CASE WHEN n % 2 = 0 THEN gen_random_uuid() END",
            "facts": """json_build_array(json_build_object('key', 'old' || n, 'kind', 'FILL',
                'broker_order_id', 'old' || n, 'exec_id', 'old' || n))""",
        },
    ),
    "refusals": ("account_id = $1", {"id": "gen_random_uuid()", "created_at": OLD}),
    "halts": (
        "account_id = $1 AND resumed_at IS NOT NULL",
        {"id": "gen_random_uuid()", "created_at": OLD, "resumed_at": OLD},
    ),
    "stats_buckets": (
        "account_id = $1 AND width_seconds = 60",
        {"start": "now() - (5000 + n) * interval '1 min'"},
    ),
    "paper_journal": (
        "account_id = $1 AND NOT duplicate",
        {
            "seq": "n",
            "number": "greatest(n - n % 2, 1)",  # every second one is a later row of its order
            "client_order_id": "'old' || n",
            "at": OLD,
        },
    ),
    # Of other accounts and symbols: an account's own are read as a whole.
    "holdings": ("account_id = $1", {"account_id": "gen_random_uuid()"}),
    "paper_holdings": ("account_id = $1", {"account_id": "gen_random_uuid()"}),
    "paper_accounts": ("account_id = $1", {"account_id": "gen_random_uuid()"}),
    "balances": ("account_id = $1", {"account_id": "gen_random_uuid()"}),
    "daily_baselines": ("account_id = $1", {"account_id": "gen_random_uuid()"}),
    "trading_limits": (
        "owner_id = $1",
        {"owner_id": "gen_random_uuid()", "rules": """'{"max_open_orders": 9}'"""},
    ),
    "reference_prices": ("$1::uuid IS NOT NULL", {"symbol": "'OLD' || n"}),
    "paper_symbols": ("$1::uuid IS NOT NULL", {"symbol": "'OLD' || n"}),
    "paper_quotes": ("$1::uuid IS NOT NULL", {"symbol": "'OLD' || n"}),
}


@dataclass(kw_only=True)
class ExplainedTrading:
    """Accounts on a platform whose statements are explained: one without limits, one with, and one
    whose orders are looked up."""

    tenants: Tenants
    tables: Tables
    explained: ExplainedStatements
    plain: TradingClient
    limited: TradingClient
    unsure: TradingClient
    cursor: str = ""

    def prepare(self) -> None:
        connected = "SELECT count(*) = 3 FROM accounts WHERE connection = 'connected'"
        eventually(lambda: self.tables.value(connected), WAIT_SECONDS)
        self.tables.execute(
            f"""
            UPDATE account_heads SET seq = seq + {BASE};
            UPDATE stream_heads SET seq = seq + {BASE};
            UPDATE paper_accounts SET events = {BASE};
            INSERT INTO stats_heads SELECT organization_id, seq FROM stream_heads
            ON CONFLICT (organization_id) DO UPDATE SET rolled_seq = excluded.rolled_seq;
            INSERT INTO stats_buckets (account_id, organization_id, width_seconds, start, measure,
                key, amount)
            SELECT account_id, organization_id, 60, now(), 'action', 'CREATE', 1 FROM account_heads
            """
        )
        self.call("PUT", controls(self.limited, "limits"), LIMITS, caller="admin")
        ours = """
            SELECT oid::regclass::text FROM pg_class
            WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
        """
        for row in self.tables.fetch(ours):
            self.tables.execute(f"ALTER TABLE {row['oid']} SET (autovacuum_enabled = false)")

    def call(self, method: str, path: str, body: Any = None, caller: str = "key_all") -> Any:
        answer = self.tenants.client.request(
            method, path, json=body, headers=self.tenants.callers[caller]
        )
        assert answer.status_code < 300, (path, answer.status_code, answer.text)
        return answer.json()

    def trade(self) -> None:
        """Everything that a command of an account may lead to."""
        self.call("PUT", "/v1/paper/quotes/AAPL", QUOTE)
        with ThreadPoolExecutor() as threads:
            trading = [
                threads.submit(self.execute, client) for client in (self.plain, self.limited)
            ]
            for each in (*trading, threads.submit(self.look_up, self.unsure)):
                each.result()
        self.follow(self.plain)
        unfinished = "SELECT count(*) FROM outbox WHERE finished_at IS NULL"
        eventually(lambda: self.tables.value(unfinished) == 0, WAIT_SECONDS)

    def execute(self, client: TradingClient) -> None:
        with ThreadPoolExecutor() as threads:
            filled = list(
                threads.map(lambda n: post(client, create(market(str(n)))), range(1, TOGETHER + 1))
            )
        key = uuid.uuid4().hex
        working = post(client, create(limit("1", "1")), key)
        assert post(client, create(limit("1", "1")), key) == working
        until(client, filled, "FILLED")
        until(client, [working], "NEW")
        post(client, replace(working, limit("2", "3")))
        until(client, [working], "NEW")
        post(client, cancel(working))
        until(client, [working], "CANCELLED")
        many = [post(client, create(limit("1", price))) for price in ("5", "6")]
        until(client, many, "NEW")
        self.call("POST", f"{client.url}/cancel-all")
        until(client, many, "CANCELLED")
        self.read(client, working)
        self.halt(client)

    def halt(self, client: TradingClient) -> None:
        until(client, [post(client, create(limit("3", "9")))], "NEW")
        path = controls(client, "halt")
        self.call("POST", path, {"reason": "x", "close_positions": True}, caller="admin")
        assert client.submit(create()).status_code == 409
        eventually(lambda: self.call("GET", path)["state"] == "done", WAIT_SECONDS)
        self.call("POST", controls(client, "resume"), caller="admin")
        self.call("GET", path)

    def look_up(self, client: TradingClient) -> None:
        """As after an answer that was lost."""
        intent_id = post(client, create(limit("7", "7")))
        until(client, [intent_id], "NEW")
        client.tables.execute(
            "UPDATE orders SET lookup_due_at = clock_timestamp() WHERE order_id = $1::text::uuid",
            intent_id,
        )
        done = "SELECT lookup_due_at IS NULL FROM orders WHERE order_id = $1::text::uuid"
        eventually(lambda: client.tables.value(done, intent_id), WAIT_SECONDS)
        post(client, cancel(intent_id))
        until(client, [intent_id], "CANCELLED")

    def read(self, client: TradingClient, intent_id: str) -> None:
        account = f"/v1/accounts/{client.account['id']}"
        for path in (
            *("intents", "intents/stats", f"intents/{intent_id}", f"intents/{intent_id}/actions"),
            *("orders", "orders?state=OPEN", "orders?state=CLOSED", f"orders/{intent_id}"),
            *("trades", "positions", "balances"),
        ):
            self.call("GET", f"{account}/{path}")

    def follow(self, client: TradingClient) -> None:
        """Primes a stream, and resumes it after the last event that was followed before."""
        path = f"/v1/accounts/{client.account['id']}/events"
        for headers in ({}, {"last-event-id": self.cursor} if self.cursor else {}):
            with self.tenants.client.stream(
                "GET", path, headers=client.headers | headers
            ) as events:
                ids = (
                    line.removeprefix("id: ")
                    for line in events.iter_lines()
                    if line.startswith("id: ")
                )
                self.cursor = next(ids)

    def grow(self, rows: int) -> None:
        for table, (chosen, changes) in GROWN.items():
            names = self.tables.fetch(
                """
                    SELECT attname FROM pg_attribute
                    WHERE attrelid = $1::text::regclass AND attnum > 0
                """
                " AND NOT attisdropped AND attidentity = '' AND attgenerated = ''",
                table,
            )
            columns = [row["attname"] for row in names]
            values = ", ".join(changes.get(name, f"r.{name}") for name in columns)
            for client in (self.plain, self.limited):
                self.tables.execute(
                    f"""
                        INSERT INTO {table} ({", ".join(columns)}) SELECT {values}
                        FROM generate_series(1, {rows}) AS n,
                    """
                    f" LATERAL (SELECT * FROM {table} WHERE {chosen} LIMIT 1) AS r ON CONFLICT DO NOTHING",
                    uuid.UUID(client.account["id"]),
                )
            assert self.tables.value(f"SELECT count(*) FROM {table}") > rows, table
        # Fewer: workers count the accounts, and look at each.
        self.tables.execute(
            f"""
            INSERT INTO accounts (id, organization_id, name, broker, environment, closed_at)
            SELECT gen_random_uuid(), organization_id, name, broker, environment, now()
            FROM generate_series(1, {rows // 4}) CROSS JOIN (SELECT * FROM accounts LIMIT 1) AS r;
            INSERT INTO account_heads (account_id, organization_id) SELECT id, organization_id
            FROM accounts
            ON CONFLICT DO NOTHING
            """
        )


def controls(client: TradingClient, tail: str) -> str:
    return f"/v1/controls/accounts/{client.account['id']}/{tail}"


def post(client: TradingClient, body: Body, key: str | None = None) -> str:
    answer = client.submit(body, idempotency_key=key or uuid.uuid4().hex)
    assert answer.status_code in (200, 202), answer.text
    return str(answer.json()["intent_id"])


def until(client: TradingClient, intents: list[str], status: str) -> None:
    done = """
        SELECT count(*) FROM orders WHERE order_id = ANY ($1::text[]::uuid[]) AND order_status = $2
    """
    eventually(lambda: client.tables.value(done, intents, status) == len(intents), WAIT_SECONDS)


@pytest.fixture
def trading(databases: Databases, tmp_path: Path) -> Iterator[ExplainedTrading]:
    with databases() as urls, contextlib.ExitStack() as stack:
        tables = [stack.enter_context(contextlib.closing(Tables(urls.owner))) for _ in range(4)]
        explained = ExplainedStatements(tables[0])
        explained.explain()
        tenants = stack.enter_context(made_tenants(urls, tmp_path))
        plain, limited, unsure = (open_trading_client(tenants, each) for each in tables[1:])
        trading = ExplainedTrading(
            tenants=tenants,
            tables=tables[0],
            explained=explained,
            plain=plain,
            limited=limited,
            unsure=unsure,
        )
        trading.prepare()
        yield trading


def compare(
    small: dict[str, StatementCost], large: dict[str, StatementCost], most: float
) -> Iterator[str]:
    """The statements that read that many rows or blocks more."""
    for statement, cost in large.items():
        before = small.get(statement)
        if before and max(cost.rows - before.rows, cost.blocks - before.blocks) > most:
            read = f"{before.rows} -> {cost.rows} rows, {before.blocks} -> {cost.blocks} blocks"
            yield f"{statement}\n{read}\n{cost.plan}"


# Takes more than five seconds: the server explains each statement of everything that an account can
# do, three times.
@pytest.mark.parametrize(
    "statistics", ["none", pytest.param("of small tables", marks=pytest.mark.chaos)]
)
@pytest.mark.parametrize("rows", [4_000, pytest.param(50_000, marks=pytest.mark.chaos)])
def test_a_statement_that_was_planned_on_small_tables_reads_no_more_of_large_ones(
    trading: ExplainedTrading, rows: int, statistics: str
) -> None:
    trading.trade()
    if statistics != "none":
        trading.tables.execute("ANALYZE")  # each plan is made again
        trading.trade()
    trading.explained.begin()
    trading.trade()
    small = trading.explained.end()
    trading.grow(rows)
    trading.explained.begin()
    trading.trade()
    large = trading.explained.end()
    assert len(large) > MANY_STATEMENTS
    assert not (more := list(compare(small, large, rows / 2))), "\n\n".join(more)
