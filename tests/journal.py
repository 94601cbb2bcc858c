"""The stream's messages as the journal has them, one by one: SQL alone cannot read them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trading_intents.stream import trading_pb2
from trading_intents.stream.model import split_payloads

REPORTS = """
    SELECT seq, count, account_id::text, symbol, events FROM reports {where}
    ORDER BY organization_id, seq
"""
ALL_REPORTS = REPORTS.format(where="")
OF_ACCOUNT = REPORTS.format(where="WHERE account_id = $1::text::uuid")
OF_ORGANIZATION = REPORTS.format(where="WHERE organization_id = $1::text::uuid")
COUNT_MESSAGES = "SELECT coalesce(sum(count), 0)::bigint FROM reports"


class JournalMessage(NamedTuple):
    seq: int
    kind: int
    account_id: str
    symbol: str
    payload: bytes

    @property
    def event(self) -> Any:
        return trading_pb2.TradingEvent.FromString(self.payload)


def read_messages(reports: Iterable[Mapping[str, Any]]) -> Iterator[JournalMessage]:
    for report in reports:
        payloads = list(split_payloads(report["events"]))
        assert len(payloads) == report["count"]
        assert b"".join(payload for _, payload in payloads) == report["events"]
        for seq, (kind, payload) in enumerate(payloads, report["seq"] - report["count"] + 1):
            yield JournalMessage(seq, kind, report["account_id"], report["symbol"], payload)
