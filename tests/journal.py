"""The stream's messages as the journal has them, one by one: SQL alone cannot read them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trading_intents.intents.writing.record import render_create
from trading_intents.stream import trading_pb2
from trading_intents.stream.model import SILENT, split_payloads

JOURNAL = """
    SELECT * FROM (
        SELECT organization_id::text, seq, count, account_id::text, symbol, events, NULL AS record,
            NULL AS broker, at
        FROM reports
        UNION ALL
        SELECT a.organization_id::text, stream_seq, 2, a.account_id::text,
            record::json ->> 'symbol', events, record, c.broker, a.created_at
        FROM actions a JOIN accounts c ON c.id = a.account_id
    ) AS rows {where}
    ORDER BY organization_id, seq
"""
ALL_ROWS = JOURNAL.format(where="")
OF_ACCOUNT = JOURNAL.format(where="WHERE account_id = $1")
OF_ORGANIZATION = JOURNAL.format(where="WHERE organization_id = $1")
COUNT_MESSAGES = f"""
    SELECT (SELECT coalesce(sum(count), 0) FROM reports WHERE events <> '\\x{SILENT.hex()}')::bigint
        + (SELECT 2 * count(*) FROM actions)
"""
# As a table: what was reported, in the order in which it came.
FACTS = """(
    SELECT order_id, fact ->> 'key' AS key
    FROM reports CROSS JOIN json_array_elements(facts) WITH ORDINALITY AS seen (fact, number)
    ORDER BY organization_id, seq, number
) AS facts"""


class JournalMessage(NamedTuple):
    seq: int
    kind: int
    account_id: str
    symbol: str
    payload: bytes

    @property
    def event(self) -> Any:
        return trading_pb2.TradingEvent.FromString(self.payload)


def read_messages(rows: Iterable[Mapping[str, Any]]) -> Iterator[JournalMessage]:
    for row in rows:
        events = row["events"]
        if events is None:
            events = render_create(row["record"], row["broker"], row["at"])
        payloads = list(split_payloads(events))
        assert len(payloads) == row["count"]
        assert b"".join(payload for _, payload in payloads) == events
        for seq, (kind, payload) in enumerate(payloads, row["seq"] - row["count"] + 1):
            if payload == SILENT:
                continue  # nobody is sent it
            yield JournalMessage(seq, kind, row["account_id"], row["symbol"], payload)
