"""An account at a real broker's paper environment never sees the simulator's prices; what is posted
counts in both."""

from typing import Any

from tests.intents.http_client import Tables, TradingClient, create, limit, pointers
from tests.prices.conftest import OpenClient
from tests.prices.market import new_symbol, post_quote, trade
from tests.tenants import Tenants


def price_for(client: TradingClient, symbol: str, **query: str) -> Any:
    params = {"account_id": client.account["id"]} | query
    return client.client.get(
        f"/v1/reference-prices/{symbol}", params=params, headers=client.headers
    )


def reasons(client: TradingClient, symbol: str, price: str) -> list[str]:
    """The reasons why a SELL at that price would be refused."""
    command = create(limit("1", price), symbol=symbol, order_side="SELL")["command"]
    body = {"account_id": client.account["id"], "command": command}
    answer = client.client.post("/v1/controls/evaluate", json=body, headers=client.headers)
    assert answer.status_code == 200, answer.text
    return [each["reason"] for each in answer.json()["triggered"]]


def test_a_collar_at_a_real_brokers_paper_account_knows_nothing_of_the_simulator(
    tenants: Tenants, open_client: OpenClient
) -> None:
    symbol = new_symbol()
    simulated = open_client()
    real = open_client(broker="remote")
    for client in (simulated, real):
        url = f"/v1/controls/accounts/{client.account['id']}/limits"
        answer = client.client.put(url, json={"price_collar_bps": 100}, headers=client.headers)
        assert answer.status_code == 200, answer.text
    post_quote(tenants, symbol, "424", "424.5")
    trade(simulated, symbol, "BUY", "1")
    assert reasons(simulated, symbol, "300") == ["price_collar_bps"]
    assert reasons(real, symbol, "300") == ["no_reference_price"]
    assert price_for(simulated, symbol).json()["price"] == "424.5"
    assert price_for(real, symbol).status_code == 404
    posted = tenants.client.put(
        f"/v1/reference-prices/{symbol}", json={"price": "300"}, headers=real.headers
    )
    assert posted.status_code == 200, posted.text
    assert [price_for(client, symbol).json()["price"] for client in (simulated, real)] == [
        "300",
        "300",
    ]
    assert reasons(real, symbol, "300") == []


def test_a_list_is_of_an_accounts_market(
    tenants: Tenants, open_client: OpenClient, tables: Tables
) -> None:
    simulated = open_client()
    real = open_client(broker="remote")
    only_quoted = new_symbol()
    only_real = new_symbol()
    post_quote(tenants, only_quoted, "10", "11")
    tables.execute(
        "INSERT INTO reference_prices VALUES ($1::text::uuid, 'paper', $2, 7, 'trade', now())",
        simulated.account["organization_id"],
        only_real,
    )

    def listed(**query: str) -> set[str]:
        found: set[str] = set()
        params = {"limit": "100"} | query
        while True:
            page = tenants.client.get(
                "/v1/reference-prices", params=params, headers=real.headers
            ).json()
            found |= {price["symbol"] for price in page["data"]} & {only_quoted, only_real}
            if page["next_cursor"] is None:
                return found
            params["next_cursor"] = page["next_cursor"]

    assert listed() == {only_quoted}
    assert listed(account_id=simulated.account["id"]) == {only_quoted}
    assert listed(account_id=real.account["id"]) == {only_real}


def test_a_market_is_named_by_an_account_that_the_caller_may_read(
    tenants: Tenants, open_client: OpenClient
) -> None:
    live = open_client(broker="remote", environment="live", caller="key_live")
    paper = open_client()
    assert price_for(live, "AAPL").status_code == 404
    assert pointers(price_for(paper, "AAPL", environment="live")) == ["?environment"]
    assert price_for(paper, "AAPL", environment="paper").status_code == 200
    for named, status in (
        (live.account["id"], 403),
        ("nonsense", 404),
        (str(tenants.organization("org_acme")["id"]), 404),
    ):
        assert price_for(paper, "AAPL", account_id=named).status_code == status
    user = {"account_id": paper.account["id"]}  # needs no environment beside it
    answer = tenants.client.get(
        "/v1/reference-prices/AAPL", params=user, headers=tenants.callers["member"]
    )
    assert answer.status_code == 200
