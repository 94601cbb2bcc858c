"""Bodies of linked orders, and what is read of them."""

from typing import Any

from tests.intents.http_client import Body, TradingClient, create, limit

BOTH: dict[str, Any] = {"take_profit": {"limit_price": "200.0"}, "stop_loss": {"stop_price": "180"}}
SHORT: dict[str, Any] = {"take_profit": {"limit_price": "180"}, "stop_loss": {"stop_price": "200"}}


def bracket(spec: Any = None, side: Any = "BUY", symbol: Any = "AAPL", **exits: Any) -> Body:
    return create(spec or limit("10", "190"), symbol, side, exits=exits or BOTH)


def pair(spec: Any = None, side: str = "SELL", **stop_fields: Any) -> Body:
    return create(
        spec or limit("10", "190"),
        "AAPL",
        side,
        one_cancels_other=stop_fields or {"stop_price": "180"},
    )


def placed(
    trading_client: TradingClient, body: Body, **headers: str
) -> tuple[Body, dict[str, Body]]:
    """The records of a CREATE and of its legs, by their names."""
    answer = trading_client.submit(body, **headers)
    assert answer.status_code == 202, answer.text
    said = answer.json()
    assert list(said) == ["intent_id", "seq", "legs"]
    assert [list(each) for each in said["legs"]] == [["leg", "intent_id", "seq"]] * len(
        said["legs"]
    )
    records = {
        each["leg"]: trading_client.get(f"/{each['intent_id']}").json() for each in said["legs"]
    }
    assert [records[each["leg"]]["seq"] for each in said["legs"]] == [
        each["seq"] for each in said["legs"]
    ]
    return trading_client.get(f"/{said['intent_id']}").json(), records


def orders(trading_client: TradingClient, **query: Any) -> list[Body]:
    path = f"/v1/accounts/{trading_client.account['id']}/orders"
    found: list[Body] = trading_client.client.get(
        path, params=query, headers=trading_client.headers
    ).json()["data"]
    return found
