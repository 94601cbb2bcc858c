"""Statements that only the venue's batches run: locks and writes. Rows are passed as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from uuid import UUID

from trading_intents.brokers.paper.faults import Fault
from trading_intents.brokers.paper.model import JournalRow
from trading_intents.storage.pipeline import Statement, array_text, json_text

RowFields = Mapping[str, object]


@dataclass(slots=True, kw_only=True)
class VenueWrites:
    faults: list[Fault] = field(default_factory=list)
    rows: list[JournalRow] = field(default_factory=list)
    working: list[RowFields] = field(default_factory=list)
    ended: dict[UUID, list[int]] = field(default_factory=dict)  # that rested before
    holdings: list[RowFields] = field(default_factory=list)
    accounts: list[RowFields] = field(default_factory=list)

    def statements(self) -> list[Statement]:
        needed = list[Statement]()
        if self.faults:
            needed.append(save_faults(self.faults))
        if self.rows:
            needed.append(add_rows(self.rows))
        if self.working:
            needed.append(save_working(self.working))
        for account_id, numbers in self.ended.items():
            needed.append(delete_working(account_id, numbers))
        if self.holdings:
            needed.append(save_holdings(self.holdings))
        if self.accounts:
            needed.append(save_accounts(self.accounts))
        return needed


def insert_account(account_id: UUID, organization_id: UUID, cash: Decimal) -> Statement:
    sql = """
        INSERT INTO paper_accounts (account_id, organization_id, cash)
        VALUES ($1::uuid, $2::uuid, $3::numeric)
        ON CONFLICT DO NOTHING
    """
    return Statement(sql, (str(account_id), str(organization_id), str(cash)))


def lock_accounts(account_ids: Iterable[UUID]) -> Statement:
    """Locks accounts by id. An account that another transaction holds is left out."""
    sql = """
        SELECT json_build_array(account_id, a) FROM (
            SELECT * FROM paper_accounts
            WHERE account_id = ANY ($1::uuid[]) ORDER BY account_id FOR UPDATE SKIP LOCKED
        ) AS a
    """
    return Statement(sql, (array_text(sorted(map(str, account_ids))),))


def read_faults(account_ids: Iterable[UUID]) -> Statement:
    sql = "SELECT to_json(f) FROM paper_faults f WHERE account_id = ANY ($1::uuid[])"
    return Statement(sql, (array_text(map(str, account_ids)),))


def find_commands(ids: Sequence[tuple[UUID, str]]) -> Statement:
    """Finds the ids that were used."""
    sql = """
        SELECT json_build_array(j.account_id, j.client_order_id)
        FROM json_populate_recordset(NULL::paper_journal, $1::text::json) AS asked
        CROSS JOIN LATERAL (
            SELECT account_id, client_order_id FROM paper_journal
            WHERE account_id = asked.account_id AND NOT duplicate
              AND client_order_id BETWEEN asked.client_order_id AND asked.client_order_id
            ORDER BY client_order_id LIMIT 1
        ) AS j
    """
    asked = [{"account_id": account_id, "client_order_id": each} for account_id, each in ids]
    return Statement(sql, (json_text(asked),))


def save_faults(faults: Sequence[Fault]) -> Statement:
    sql = """
        UPDATE paper_faults f SET remaining = n.remaining
        FROM json_populate_recordset(NULL::paper_faults, $1::text::json) AS n
        WHERE f.account_id = n.account_id AND f.kind = n.kind
    """
    return Statement(sql, (json_text(faults),))


def add_rows(rows: Sequence[JournalRow]) -> Statement:
    sql = """
        INSERT INTO paper_journal (account_id, seq, number, at, command, client_order_id,
            duplicate, ticket, events, ended)
        SELECT account_id, seq, number, at, command, client_order_id,
            duplicate, ticket, events, ended
        FROM json_populate_recordset(NULL::paper_journal, $1::text::json)
    """
    return Statement(sql, (json_text(rows),))


def save_accounts(accounts: Sequence[RowFields]) -> Statement:
    sql = """
        UPDATE paper_accounts a
        SET cash = n.cash, reserved = n.reserved, short_value = n.short_value, events = n.events
        FROM json_populate_recordset(NULL::paper_accounts, $1::text::json) AS n
        WHERE a.account_id = n.account_id AND a.account_id = ANY ($2::uuid[])
    """
    ids = array_text([str(each["account_id"]) for each in accounts])
    return Statement(sql, (json_text(accounts), ids))


def save_holdings(holdings: Sequence[RowFields]) -> Statement:
    sql = """
        INSERT INTO paper_holdings (account_id, symbol, position, short_value, source, number,
            bid_taken, ask_taken)
        SELECT account_id, symbol, position, short_value, source, number, bid_taken, ask_taken
        FROM json_populate_recordset(NULL::paper_holdings, $1::text::json)
        ON CONFLICT (account_id, symbol) DO UPDATE
        SET position = excluded.position, short_value = excluded.short_value,
            source = excluded.source, number = excluded.number,
            bid_taken = excluded.bid_taken, ask_taken = excluded.ask_taken
    """
    return Statement(sql, (json_text(holdings),))


def save_working(orders: Sequence[RowFields]) -> Statement:
    sql = """
        INSERT INTO paper_working (account_id, number, state)
        SELECT account_id, number, state
        FROM json_populate_recordset(NULL::paper_working, $1::text::json)
        ON CONFLICT (account_id, number) DO UPDATE SET state = excluded.state
    """
    return Statement(sql, (json_text(orders),))


def delete_working(account_id: UUID, numbers: Iterable[int]) -> Statement:
    sql = "DELETE FROM paper_working WHERE account_id = $1::uuid AND number = ANY ($2::bigint[])"
    return Statement(sql, (str(account_id), array_text(map(str, numbers))))
