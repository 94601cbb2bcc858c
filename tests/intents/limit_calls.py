"""Limits that are set, and positions that they count."""

from typing import Any

from tests.intents.http_client import Body, Tables, TradingClient


def level_path(level: str, account_id: str, symbol: str = "AAPL") -> str:
    account = f"/v1/controls/accounts/{account_id}"
    paths = {
        "organization": "/v1/controls/organization",
        "account": account,
        "symbol": f"{account}/symbols/{symbol}",
    }
    return f"{paths[level]}/limits"


def triggered(trading_client: TradingClient, body: Body) -> list[tuple[str, Any, Any, str]]:
    """The limits that refuse it: reason, limit, what was asked, level. Nothing else is written."""
    before = trading_client.tables.counts()
    answer = trading_client.submit(body)
    assert (answer.status_code, answer.json()["code"]) == (409, "control_rejected"), answer.text
    after = trading_client.tables.counts()
    assert after.pop("refusals") - before.pop("refusals") == 1
    assert after == before
    answered = answer.json()["triggered"]
    assert all(entry["detail"] for entry in answered)
    return [
        (entry["reason"], entry["limit"], entry["asked"], next(iter(entry["scope"])))
        for entry in answered
    ]


def hold(tables: Tables, account_id: str, quantity: str, symbol: str = "AAPL") -> None:
    """A position, as if it had been traded."""
    tables.execute(
        """
        INSERT INTO holdings (account_id, symbol, organization_id, quantity, received_at)
        SELECT id, $2, organization_id, $3::text::numeric, clock_timestamp() FROM accounts
        WHERE id = $1::text::uuid
        ON CONFLICT (organization_id, account_id, symbol) DO UPDATE
        SET quantity = excluded.quantity, received_at = excluded.received_at
        """,
        account_id,
        symbol,
        quantity,
    )


def exposures(trading_client: TradingClient) -> dict[str, tuple[int, str, str]]:
    rows = trading_client.tables.fetch(
        """
            SELECT symbol, open_orders, open_buy::text, open_sell::text FROM holdings
            WHERE account_id = $1::text::uuid
        """,
        trading_client.account["id"],
    )
    return {row["symbol"]: (row["open_orders"], row["open_buy"], row["open_sell"]) for row in rows}
