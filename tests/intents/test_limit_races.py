"""Many callers at once against one limit, on two processes and through a kill: never one too
many."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Urls
from tests.intents.http_client import Body, TradingClient, cancel, create, limit, replace
from tests.intents.limit_calls import exposures, hold, level_path
from tests.platform import Platform, serving
from tests.raw_http import QuickClient
from tests.tenants import PLENTY, Tenants
from tests.waiting import eventually

CALLERS = 64
ALLOWED = 10
# The limit, the side of the orders, and how many of them pass.
LIMITS: dict[str, tuple[Body, str, int]] = {
    "max_open_orders": ({"max_open_orders": ALLOWED}, "BUY", ALLOWED),
    "max_position_quantity": ({"max_position_quantity": "10"}, "BUY", ALLOWED),
    "max_position_quantity short": ({"max_position_quantity": "10"}, "SELL_SHORT", ALLOWED * 2),
    "max_orders_per_minute": ({"max_orders_per_minute": ALLOWED}, "BUY", ALLOWED),
    "allow_short": ({"allow_short": False}, "SELL", ALLOWED),
    "duplicate_window_millis": ({"duplicate_window_millis": 60_000}, "BUY", 1),
}


def put_limits(tenants: Tenants, trading_client: TradingClient, fields: Body) -> None:
    path = level_path("account", trading_client.account["id"])
    assert (
        tenants.client.put(path, json=fields, headers=tenants.callers["admin"]).status_code == 200
    )


@pytest.mark.parametrize("name", LIMITS)
async def test_callers_at_once_never_pass_one_too_many(
    tenants: Tenants, second: Platform, trading_client: TradingClient, name: str
) -> None:
    fields, side, allowed = LIMITS[name]
    await asyncio.to_thread(put_limits, tenants, trading_client, fields)
    if side != "BUY":
        await asyncio.to_thread(
            hold, trading_client.tables, trading_client.account["id"], str(ALLOWED)
        )
    body = create(limit("1"), order_side=side)
    async with httpx.AsyncClient(
        timeout=10, headers=trading_client.headers, verify=False
    ) as client:
        urls = [f"{url}{trading_client.url}" for url in (tenants.platform.url, second.url)]
        answers = await asyncio.gather(
            *(client.post(urls[n % 2], json=body) for n in range(CALLERS))
        )
    statuses = [answer.status_code for answer in answers]
    assert (statuses.count(202), statuses.count(409)) == (allowed, CALLERS - allowed)
    reasons = {
        answered["reason"]
        for answer in answers
        if answer.status_code == 409
        for answered in answer.json()["triggered"]
    }
    assert reasons == {name.partition(" ")[0]}
    # Which need no count of open orders.
    if name not in ("max_orders_per_minute", "duplicate_window_millis"):
        counted = await asyncio.to_thread(exposures, trading_client)
        assert counted["AAPL"][0] == allowed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["max_open_orders", "max_orders_per_minute"])
def test_a_killed_process_leaves_the_count_right(
    tenants: Tenants, tenants_database: Urls, trading_client: TradingClient, name: str
) -> None:
    allowed = 200
    put_limits(tenants, trading_client, {name: allowed})
    data_dir = Path(tenants.platform.environ["TRADING_INTENTS_DATA_DIR"])
    urls = {
        "DATABASE_URL": tenants_database.login.reveal(),
        "DATABASE_OWNER_URL": tenants_database.owner.reveal(),
    }

    def orders() -> int:
        query = "SELECT count(*) FROM orders WHERE account_id = $1::text::uuid"
        return int(trading_client.tables.value(query, trading_client.account["id"]))

    def unfilled() -> str:
        query = """
            SELECT sum(greatest(o.quantity, (a.record::json ->> 'quantity')::numeric))::text
            FROM orders o
            LEFT JOIN actions a ON a.account_id = o.account_id AND a.seq = o.pending_replace_seq
            WHERE o.account_id = $1::text::uuid
        """
        return str(trading_client.tables.value(query, trading_client.account["id"]))

    def has_at_least(count: int) -> Callable[[], bool]:
        return lambda: orders() >= count

    for kill in range(1, 4):
        with serving(data_dir, **urls, **PLENTY, ROLES="api") as platform:
            over = threading.Event()

            def trade(url: str, over: threading.Event) -> None:
                with QuickClient(url, headers=trading_client.headers, timeout=5) as client:
                    while not over.is_set():
                        try:
                            made = client.post(trading_client.url, json=create(limit("1"))).json()
                            if name == "max_open_orders" and "intent_id" in made:
                                client.post(
                                    trading_client.url, json=replace(made["intent_id"], limit("3"))
                                )
                                client.post(trading_client.url, json=cancel(made["intent_id"]))
                        except httpx.HTTPError:
                            return

            urls_of_both = (platform.url, tenants.platform.url)
            threads = [
                threading.Thread(target=trade, args=(urls_of_both[n % 2], over)) for n in range(8)
            ]
            for thread in threads:
                thread.start()
            eventually(has_at_least(kill * 30), 40)
            # Limits that come and go change nothing that is counted.
            put_limits(tenants, trading_client, {})
            eventually(has_at_least(kill * 35), 40)
            put_limits(tenants, trading_client, {name: allowed})
            eventually(has_at_least(kill * 40), 40)
            platform.process.kill()
            platform.process.wait()
            over.set()
            for thread in threads:
                thread.join()
        if name == "max_open_orders":
            assert exposures(trading_client)["AAPL"][:2] == (orders(), unfilled())
    while (answer := trading_client.submit(create(limit("1")))).status_code == 202:
        pass
    refused: dict[str, Any] = answer.json()["triggered"][0]
    assert (refused["reason"], refused["asked"], orders()) == (name, allowed + 1, allowed)
