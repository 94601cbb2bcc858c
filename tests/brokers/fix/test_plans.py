"""Statements of the FIX tables find their rows by their keys, though planned while the tables were
empty."""

import re
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from tests.brokers.fix.conftest import connecting
from tests.conftest import Urls
from trading_intents.brokers.fix import store

ROWS = "json_to_recordset"
STATEMENTS = {
    "count": (store.COUNT, {"fix_sessions_pkey"}),
    "insert": (store.INSERT_SENT, set()),
    "receive": (store.INSERT_RECEIVED, {"fix_in_open", "fix_out_by_client_order_id"}),
    "refuse": (store.FIND_REFUSED, {"fix_out_pkey"}),
    "skip": (store.SKIP, {"fix_out_unanswered"}),
    "resend": (store.RESEND, {"fix_out_unanswered"}),
    "find": (store.WAS_SENT, {"fix_out_by_client_order_id"}),
    "open": (store.LIST_OPEN, {"fix_in_open", "fix_out_pkey"}),
    "repeat": (store.LIST_RECEIVED, {"fix_in_by_time", "fix_out_pkey"}),
    "skipped": (store.LIST_SKIPPED, {"fix_out_skipped"}),
}


FILL = """
    INSERT INTO fix_in (account_id, epoch, number, type, raw, order_id, is_open)
        SELECT $1, 1, n, '8', '', 'V' || n, n % 10 = 0 FROM generate_series(1, 300) AS n;
    INSERT INTO fix_out (account_id, epoch, number, type, raw, client_order_id, is_answered)
        SELECT $1, 1, n, 'D', '', 'c' || n, n % 10 <> 0 FROM generate_series(1, 300) AS n;
    INSERT INTO fix_sessions (account_id, organization_id, broker, begin_string, sender, target,
        token)
        SELECT gen_random_uuid(), $1, 'x', 'x', 's' || n, 'x', 1 FROM generate_series(1, 300) AS n
"""


@pytest.mark.parametrize("has_rows", [False, True], ids=["empty", "some rows"])
@pytest.mark.parametrize("is_analyzed", [False, True], ids=["new", "analyzed"])
async def test_statements_find_their_rows_by_key(
    urls: Urls, tmp_path: Path, has_rows: bool, is_analyzed: bool
) -> None:
    owner = await asyncpg.connect(urls.owner.reveal())
    try:
        await owner.execute("SET row_security = off")
        if has_rows:
            for each in FILL.split(";"):
                await owner.execute(each, uuid4())
        if is_analyzed:
            await owner.execute("ANALYZE fix_sessions, fix_in, fix_out")
    finally:
        await owner.close()
    async with connecting(urls, tmp_path, "US", 1) as connector, connector.pool.transaction() as tx:
        for name, (sql, wanted) in STATEMENTS.items():
            await tx.execute(f"PREPARE {name}_it AS {sql}")
            nothing = ", ".join(["NULL"] * len(set(re.findall(r"\$\d", sql))))
            lines = [
                row["QUERY PLAN"]
                for row in await tx.fetch(f"EXPLAIN EXECUTE {name}_it ({nothing})")
            ]
            plan = "\n".join(lines)
            assert set(re.findall(r"using (fix_\w+) on", plan)) == wanted, f"{name}: {plan}"
            # The list is read first: each of its rows is a probe of the index.
            scans = [line for line in lines if "Scan" in line and ("fix_" in line or ROWS in line)]
            assert ROWS not in plan or ROWS in scans[0], f"{name}: {plan}"
