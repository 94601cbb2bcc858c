"""Limits of an API key: each at its edge, what counts and what does not, and never one too many."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import httpx
import pytest

from tests.conftest import Urls
from tests.controls.calls import code, pointers
from tests.intents.budgets import SYMBOL, Budget, open_budget
from tests.intents.conftest import OpenClient
from tests.intents.http_client import Body, cancel, create, limit, market, replace
from tests.intents.in_process_writer import codes, open_in_process_writer
from tests.intents.limit_calls import hold
from tests.platform import Platform, serving
from tests.raw_http import QuickClient
from tests.tenants import PLENTY, Tenants
from tests.waiting import eventually
from trading_intents.controls.limits.state import statements
from trading_intents.intents.model import Create, LinkedSpec, Replace, Spec
from trading_intents.intents.writing.batch import Receipt
from trading_intents.trading import (
    Leg,
    OrderKind,
    OrderSide,
    RouteStrategy,
    Symbol,
    TimeInForce,
)

CALLERS = 64
ANOTHER_ACTION = """
    INSERT INTO actions
    SELECT (jsonb_populate_record(a, jsonb_build_object(
        'seq', a.seq + 1, 'intent_id', gen_random_uuid(), 'action_id', gen_random_uuid(),
        'stream_seq', a.stream_seq + 2
    ))).* FROM actions a WHERE account_id = $1::text::uuid
"""
FULL = {
    "max_order_quantity": "10.5",
    "max_order_notional": "1000",
    "max_orders_per_minute": 60,
    "max_daily_notional": "5000",
    "allowed_symbols": [SYMBOL],
    "allow_short": False,
}


def order(
    quantity: str = "10", price: str = "100", symbol: str = SYMBOL, side: str = "BUY"
) -> Body:
    return create(limit(quantity, price), symbol=symbol, order_side=side)


@pytest.fixture
def budget(tenants: Tenants, open_client: OpenClient) -> Budget:
    return open_budget(tenants, open_client)


def test_a_key_without_limits_is_counted_from_the_first_order_of_the_day(
    tenants: Tenants, open_client: OpenClient
) -> None:
    budget = open_budget(tenants, open_client)
    other = open_budget(tenants, open_client)
    intent = budget.open(order("3", "100"))
    budget.trader.accepted(replace(intent, limit("4", "100")))
    budget.trader.accepted(create(market("2"), symbol=SYMBOL))
    budget.trader.accepted(cancel(intent))
    other.trader.accepted(order("7", "100"))
    budget.set(max_order_quantity="100")
    assert budget.used() == ("600", 0)
    budget.trader.accepted(order("1", "100"))
    budget.set(max_daily_notional="800")
    assert budget.used() == ("700", 1)
    assert budget.answered(order("2", "100")) == [("max_daily_notional", "800", "900")]
    other.set()
    assert other.used() == ("700", 0)


def test_orders_of_yesterday_are_not_of_the_day_that_a_budget_begins_in(
    tenants: Tenants, open_client: OpenClient
) -> None:
    budget = open_budget(tenants, open_client)
    for quantity in range(1, 12):
        budget.trader.accepted(order(str(quantity), "1"))
    tables = budget.trader.tables
    tables.execute("ALTER TABLE actions DISABLE TRIGGER append_only")
    try:
        tables.execute(
            """
                UPDATE actions SET created_at = created_at - interval '1 day'
                WHERE account_id = $1::text::uuid AND seq <= 7
            """,
            budget.trader.account["id"],
        )
    finally:
        tables.execute("ALTER TABLE actions ENABLE TRIGGER append_only")
    budget.set()
    assert budget.used() == ("3800", 0)  # 8 to 11, at the reference price


def test_the_first_limits_of_a_key_wait_for_what_is_being_accepted(
    tenants: Tenants, open_client: OpenClient
) -> None:
    budget = open_budget(tenants, open_client)
    budget.trader.accepted(order("1"))
    account = budget.trader.account["id"]
    tables = budget.trader.tables
    answers: list[Body] = []
    limits = threading.Thread(target=lambda: answers.append(budget.set()))
    tables.execute("BEGIN")
    try:
        # As a batch does that has judged by the rules before.
        tables.execute(
            "SELECT FROM account_heads WHERE account_id = $1::text::uuid FOR UPDATE", account
        )
        limits.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        eventually(lambda: tables.value(waiting) > 0 or bool(answers), 10)
        tables.execute(ANOTHER_ACTION, account)
    finally:
        tables.execute("COMMIT")
    limits.join(10)
    assert answers
    assert budget.used()[0] == "200"


def test_a_budget_is_put_read_and_removed_by_its_version(budget: Budget, tenants: Tenants) -> None:
    assert code(budget.call("GET")) == (404, "not_found")
    made = budget.call("PUT", FULL)
    shown = made.json()
    assert (made.status_code, made.headers["etag"], shown["version"]) == (200, '"1"', 1)
    assert shown["used"] == {"daily_notional": "0", "orders_last_minute": 0}
    assert (shown["organization_id"], shown["api_key_id"]) == (
        tenants.organization("org_acme")["id"],
        budget.key_id,
    )
    assert {name: shown[name] for name in FULL} == FULL
    assert budget.call("GET").json() == budget.call("PUT", FULL).json() == shown
    assert code(budget.call("PUT", {}, if_match='"7"')) == (412, "version_conflict")
    replaced = budget.call("PUT", {"allow_short": True}, if_match='"1"').json()
    assert (replaced["version"], replaced["allow_short"], "max_order_quantity" in replaced) == (
        2,
        True,
        False,
    )
    assert code(budget.call("DELETE", if_match='"1"')) == (412, "version_conflict")
    assert budget.call("DELETE", if_match='"2"').status_code == 204
    assert code(budget.call("DELETE")) == code(budget.call("GET")) == (404, "not_found")
    assert code(budget.call("PUT", FULL, if_match='"1"')) == (412, "version_conflict")


def test_a_key_reads_its_own_budget_and_admins_alone_set_it(
    budget: Budget, open_client: OpenClient, tenants: Tenants
) -> None:
    budget.set(**FULL)
    assert budget.call("GET", caller="").json() == budget.call("GET").json()
    for caller in ("key_all", "member"):
        assert code(budget.call("GET", caller=caller)) == (403, "forbidden")
    refused = {
        "": (401, "unauthorized"),
        "key_all": (401, "unauthorized"),
        "member": (403, "forbidden"),
    }
    for caller, answer in refused.items():
        assert code(budget.call("PUT", {}, caller=caller)) == answer
        assert code(budget.call("DELETE", caller=caller)) == answer
    assert code(budget.call("GET", caller="other_admin")) == (404, "not_found")
    assert code(budget.call("PUT", FULL, caller="other_admin")) == (404, "not_found")
    account = budget.trader.account["id"]
    limits = f"/v1/controls/accounts/{account}/limits"
    admin = tenants.callers["admin"]
    assert tenants.client.put(limits, json={"max_open_orders": 5}, headers=admin).status_code == 200
    for unknown in (account, str(uuid4()), "x"):
        path = f"/v1/api-keys/{unknown}/limits"
        answers = [
            tenants.client.request(each, path, json={}, headers=admin) for each in ("PUT", "DELETE")
        ]
        answers.append(tenants.client.get(path, headers=admin))
        assert [code(each) for each in answers] == [(404, "not_found")] * 3
    assert tenants.client.get(limits, headers=admin).json()["max_open_orders"] == 5


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"max_daily_notional": 5}, "/max_daily_notional"),
        ({"max_daily_notional": "0"}, "/max_daily_notional"),
        ({"max_orders_per_minute": 0}, "/max_orders_per_minute"),
        ({"allowed_symbols": ["A B"]}, "/allowed_symbols/0"),
        ({"max_open_orders": 5}, "/max_open_orders"),
    ],
)
def test_a_budget_takes_its_own_fields_only(budget: Budget, body: Body, pointer: str) -> None:
    assert pointers(budget.call("PUT", body)) == [pointer]


EDGES: dict[str, tuple[Body, list[Body], Body, tuple[Any, Any]]] = {
    "max_order_quantity": (
        {"max_order_quantity": "10"},
        [order("10")],
        order("10.1"),
        ("10", "10.1"),
    ),
    "max_order_notional": (
        {"max_order_notional": "1000"},
        [order("10", "90"), order("10", "100")],
        order("10", "100.1"),
        ("1000", "1001"),
    ),
    "max_orders_per_minute": ({"max_orders_per_minute": 2}, [order(), order()], order(), (2, 3)),
    "max_daily_notional": (
        {"max_daily_notional": "3000"},
        [order("10", "90"), order("10", "150"), order("5", "100")],
        order("0.1", "100"),
        ("3000", "3010"),
    ),
    "allowed_symbols": (
        {"allowed_symbols": [SYMBOL]},
        [order()],
        order(symbol="MSFT"),
        ([SYMBOL], "MSFT"),
    ),
    "allow_short": (
        {"allow_short": False},
        [order()],
        order(side="SELL_SHORT"),
        (False, "SELL_SHORT"),
    ),
}


@pytest.mark.parametrize("reason", EDGES)
def test_each_limit_of_a_key_at_its_edge(budget: Budget, reason: str) -> None:
    fields, passing, refused, answered = EDGES[reason]
    budget.set(**fields)
    assert [budget.answered(each) for each in passing] == [[]] * len(passing)
    assert budget.answered(refused) == [(reason, *answered)]
    other = budget.tenants.client.post(
        budget.trader.url, json=refused, headers=budget.tenants.callers["key_all"]
    )
    assert other.status_code == 202, "another key has its own budget"


def test_an_order_whose_worth_nobody_knows_is_refused_by_a_days_budget_only(
    budget: Budget, open_client: OpenClient, tenants: Tenants
) -> None:
    remote = open_client(broker="remote")
    remote.headers = budget.trader.headers
    remote_budget = Budget(tenants, remote, budget.key_id)
    unknown = create(market("1"), symbol="NOPRICE")
    budget.set(max_daily_notional="1000")
    assert remote_budget.answered(unknown) == [("no_reference_price", "1000", "NOPRICE")]
    budget.set(max_order_quantity="1")
    assert remote_budget.answered(unknown) == []
    assert budget.used() == ("0", 1)


def test_a_replace_counts_what_it_adds_and_nothing_is_given_back(
    budget: Budget, tenants: Tenants
) -> None:
    budget.set(max_daily_notional="3000")
    intent_id = budget.open(order("10"))
    assert budget.answered(replace(intent_id, limit("30.1", "100"))) == [
        ("max_daily_notional", "3000", "3010")
    ]
    assert budget.answered(replace(intent_id, limit("15", "100"))) == []
    assert budget.used() == ("1500", 2)
    budget.trader.set_order(intent_id, "NEW")  # refused by the broker: as it was
    assert budget.answered(replace(intent_id, limit("5", "100"))) == []
    budget.trader.set_order(intent_id, "NEW")
    assert budget.trader.submit(cancel(intent_id)).status_code == 202
    budget.trader.set_order(intent_id, "CANCELLED")
    assert budget.used() == ("1500", 3)
    another = budget.open(order("10"))
    other = tenants.callers["key_all"]
    answer = tenants.client.post(
        budget.trader.url, json=replace(another, limit("90", "100")), headers=other
    )
    assert answer.status_code == 202
    assert budget.used() == ("2500", 4), "a REPLACE counts for the key that sends it"
    budget.set(max_daily_notional="1")
    budget.trader.set_order(another, "NEW")
    assert budget.answered(replace(another, limit("9", "100"))) == [], "it adds nothing"


def test_a_replace_is_measured_by_what_its_order_counted_then(
    budget: Budget, second: Platform
) -> None:
    budget.set(max_daily_notional="1000")
    budget.price("0.055", "RISING")
    intent_id = budget.open(order("1000", "0.04", "RISING"))
    assert budget.used() == ("55", 1)
    budget.price("100", "RISING")
    assert budget.answered(order("1000", "100", "RISING")) == [
        ("max_daily_notional", "1000", "100055")
    ]
    dear = replace(intent_id, limit("1000", "100"))
    assert budget.answered(dear) == [("max_daily_notional", "1000", "100000")]
    answer = second.client.post(budget.trader.url, json=dear, headers=budget.trader.headers)
    assert answer.json()["code"] == "control_rejected", "it is the same in another process"
    assert budget.answered(replace(intent_id, limit("5", "100"))) == []
    assert budget.used() == ("500", 2)
    budget.price("200", "RISING")
    budget.trader.set_order(intent_id, "NEW")  # refused by the broker: it is counted all the same
    assert budget.answered(replace(intent_id, limit("2.5", "100"))) == []
    budget.trader.set_order(intent_id, "NEW")
    assert budget.answered(replace(intent_id, limit("5", "100"))) == []
    assert budget.used() == ("1000", 4)


def test_a_replace_by_another_key_is_measured_by_what_the_order_counted(
    budget: Budget, open_client: OpenClient, tenants: Tenants
) -> None:
    other = open_budget(tenants, open_client)
    other.trader.account = budget.trader.account
    budget.set(max_daily_notional="1000")
    other.set(max_daily_notional="1000")
    intent_id = budget.open(order("10", "100"))
    assert other.answered(replace(intent_id, limit("20.1", "100"))) == [
        ("max_daily_notional", "1000", "1010")
    ]
    again = replace(intent_id, limit("18", "100"))
    answers = [other.trader.submit(again, idempotency_key="again") for _ in range(2)]
    assert [each.status_code for each in answers] == [202] * 2
    assert (budget.used(), other.used()) == (("1000", 1), ("800", 1))
    budget.trader.set_order(intent_id, "NEW")
    assert budget.answered(replace(intent_id, limit("18", "100"))) == []
    assert budget.used() == ("1000", 2), "what the other key's REPLACE counted is not counted again"


def test_cancels_and_closes_pass_a_used_budget_and_count_nothing(budget: Budget) -> None:
    budget.set(
        max_orders_per_minute=1,
        max_daily_notional="1000",
        max_order_quantity="10",
        allowed_symbols=[SYMBOL],
    )
    intent_id = budget.open(order("10"))
    assert budget.answered(order("11")) != []
    assert budget.trader.submit(cancel(intent_id)).status_code == 202
    budget.trader.set_order(intent_id, "CANCELLED")
    hold(budget.trader.tables, budget.trader.account["id"], "50")
    close = f"/v1/accounts/{budget.trader.account['id']}/positions/AAPL/close"
    answer = budget.tenants.client.post(close, headers=budget.trader.headers)
    assert answer.status_code == 202, answer.text
    assert budget.used() == ("1000", 1)


def test_a_replayed_order_counts_once(budget: Budget) -> None:
    budget.set(max_orders_per_minute=1)
    answers = [budget.trader.submit(order(), idempotency_key="once") for _ in range(3)]
    assert [each.status_code for each in answers] == [202] * 3
    assert budget.used() == ("1000", 1)


def test_the_days_sum_runs_on_over_changes_and_ends_at_midnight_in_utc(budget: Budget) -> None:
    budget.set(max_daily_notional="1000")
    assert budget.answered(order("10")) == []
    assert budget.call("DELETE").status_code == 204
    assert budget.trader.submit(order("10")).status_code == 202
    budget.set(max_daily_notional="2500")
    assert budget.used() == ("2000", 2), "it ran on while there was no limit"
    assert budget.answered(order("5.1")) == [("max_daily_notional", "2500", "2510")]
    assert budget.answered(order("5")) == []
    query = (
        "UPDATE key_budgets SET day = day - 1, seconds = '{\"1\": 5}' WHERE key_id = $1::text::uuid"
    )
    budget.trader.tables.execute(query, budget.key_id)
    assert budget.used() == ("0", 0)
    assert budget.answered(order("15")) == []
    assert budget.used() == ("1500", 1)


def test_a_limit_that_is_put_at_noon_counts_what_was_sent_before(budget: Budget) -> None:
    budget.set(max_orders_per_minute=60)
    first = budget.open(order("10"))
    assert budget.trader.submit(order("2", "150")).status_code == 202
    assert budget.call("DELETE").status_code == 204
    assert budget.trader.submit(replace(first, limit("11", "100"))).status_code == 202
    budget.set(max_daily_notional="2000")
    assert budget.used() == ("1400", 3)
    assert budget.answered(order("6.1")) == [("max_daily_notional", "2000", "2010")]
    budget.trader.set_order(first, "NEW")
    assert budget.answered(replace(first, limit("17", "100"))) == []
    assert budget.used() == ("2000", 4)


def test_a_removed_key_leaves_nothing_behind(budget: Budget) -> None:
    budget.set(**FULL)
    path = f"/v1/api-keys/{budget.key_id}"
    answer = budget.tenants.client.delete(path, headers=budget.tenants.callers["admin"])
    assert answer.status_code == 204
    query = """
        SELECT (SELECT count(*) FROM trading_limits WHERE owner_id = $1::text::uuid)
             + (SELECT count(*) FROM key_budgets WHERE key_id = $1::text::uuid)
    """
    assert budget.trader.tables.value(query, budget.key_id) == 0
    assert budget.trader.submit(order()).status_code == 401


def test_an_operator_sets_a_keys_limits(tenants: Tenants, budget: Budget) -> None:
    def apply(**fields: Any) -> Any:
        key = {"name": "budgeted", "environment": "paper", "permission_set": "trader"} | fields
        applied = tenants.platform.provision(
            {"organizations": [{"external_id": "org_acme", "api_keys": [key]}]}
        )
        return Budget(tenants, budget.trader, applied["organizations"][0]["api_keys"][0]["id"])

    made = (
        apply(limits={"max_daily_notional": "5000.0", "allowed_symbols": ["aapl"]})
        .call("GET")
        .json()
    )
    assert (made["max_daily_notional"], made["allowed_symbols"], made["version"]) == (
        "5000",
        ["AAPL"],
        1,
    )
    assert apply().call("GET").json() == made, "what is left out stays"
    changed = apply(limits={"max_orders_per_minute": 5}).call("GET").json()
    assert (
        changed.get("max_daily_notional"),
        changed["max_orders_per_minute"],
        changed["version"],
    ) == (None, 5, 2)


RACES: dict[str, tuple[Body, int]] = {
    "max_orders_per_minute": ({"max_orders_per_minute": 10}, 10),
    "max_daily_notional": ({"max_daily_notional": "1000"}, 10),
}


@pytest.mark.parametrize("name", RACES)
async def test_callers_at_once_on_two_accounts_and_processes_never_pass_one_too_many(
    tenants: Tenants, second: Platform, open_client: OpenClient, name: str
) -> None:
    fields, allowed = RACES[name]
    budget = await asyncio.to_thread(open_budget, tenants, open_client)
    other = await asyncio.to_thread(open_client)
    await asyncio.to_thread(lambda: budget.set(**fields))
    paths = [
        f"{url}{each}"
        for url in (tenants.platform.url, second.url)
        for each in (budget.trader.url, other.url)
    ]
    async with httpx.AsyncClient(timeout=10, headers=budget.trader.headers, verify=False) as client:
        answers = await asyncio.gather(
            *(client.post(paths[n % 4], json=order("1")) for n in range(CALLERS))
        )
    statuses = [answer.status_code for answer in answers]
    assert (statuses.count(202), statuses.count(409)) == (allowed, CALLERS - allowed)
    reasons = {
        answered["reason"]
        for answer in answers
        if answer.status_code == 409
        for answered in answer.json()["triggered"]
    }
    assert reasons == {name}
    assert await asyncio.to_thread(budget.used) == ("1000", 10)


@pytest.mark.slow
def test_a_killed_process_leaves_the_budget_right(
    tenants: Tenants, tenants_database: Urls, budget: Budget
) -> None:
    allowed = 120
    budget.set(max_daily_notional=str(allowed * 100), max_orders_per_minute=100_000)
    data_dir = Path(tenants.platform.environ["TRADING_INTENTS_DATA_DIR"])
    urls = {
        "DATABASE_URL": tenants_database.login.reveal(),
        "DATABASE_OWNER_URL": tenants_database.owner.reveal(),
    }
    query = "SELECT count(*) FROM orders WHERE account_id = $1::text::uuid"

    def orders() -> int:
        return int(budget.trader.tables.value(query, budget.trader.account["id"]))

    def has_at_least(count: int) -> Callable[[], bool]:
        return lambda: orders() >= count

    for kill in (1, 2):
        with serving(data_dir, **urls, **PLENTY, ROLES="api") as platform:
            over = threading.Event()

            def trade(url: str, over: threading.Event) -> None:
                with QuickClient(url, headers=budget.trader.headers, timeout=5) as client:
                    while not over.is_set():
                        try:
                            client.post(budget.trader.url, json=order("1"))
                        except httpx.HTTPError:
                            return

            both = (platform.url, tenants.platform.url)
            threads = [threading.Thread(target=trade, args=(both[n % 2], over)) for n in range(8)]
            for thread in threads:
                thread.start()
            eventually(has_at_least(kill * 40), 40)
            platform.process.kill()
            platform.process.wait()
            over.set()
            for thread in threads:
                thread.join()
        assert budget.used()[0] == str(orders() * 100)
    while (answer := budget.trader.submit(order("1"))).status_code == 202:
        pass
    answered = [(each["reason"], each["asked"]) for each in answer.json()["triggered"]]
    assert (answered, orders()) == ([("max_daily_notional", str(allowed * 100 + 100))], allowed)


def test_a_budget_that_another_transaction_holds_delays_its_own_orders_only(
    budget: Budget, tenants: Tenants
) -> None:
    budget.set(max_orders_per_minute=100)
    intent_id = budget.open(order())
    tables = budget.trader.tables
    tables.execute("BEGIN")
    try:
        tables.execute(
            "SELECT FROM key_budgets WHERE key_id = $1::text::uuid FOR UPDATE", budget.key_id
        )
        waiting = threading.Thread(
            target=lambda: answers.append(budget.trader.submit(order()).status_code)
        )
        answers: list[int] = []
        waiting.start()
        for _ in range(5):
            path = budget.trader.url
            other = tenants.callers["key_all"]
            assert tenants.client.post(path, json=order(), headers=other).status_code == 202
        assert budget.trader.submit(cancel(intent_id)).status_code == 202, "a CANCEL gets through"
        assert answers == []
    finally:
        tables.execute("ROLLBACK")
    waiting.join(10)
    assert answers == [202]
    assert budget.used()[1] == 2


async def test_the_orders_of_a_key_without_limits_read_no_budget(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Mock(side_effect=statements.read_budgets)
    monkeypatch.setattr(statements, "read_budgets", reads)
    async with open_in_process_writer(urls.login, urls.owner, 1) as local:
        owners = (str(local.accounts[0]), str(local.key))
        await local.owner.execute(
            LIMIT, owners[0], local.organization, '{"max_order_quantity": "5"}'
        )
        for _ in range(2):
            assert codes([await local.submit(local.create(local.accounts[0]))]) == ["recorded"]
        assert reads.call_count == 0
        await local.owner.execute(
            LIMIT, owners[1], local.organization, '{"max_orders_per_minute": 1}'
        )
        await local.owner.execute(BUDGET, local.key, local.organization)
        answers = [await local.submit(local.create(local.accounts[0])) for _ in range(2)]
        assert codes(answers) == ["recorded", "control_rejected"]
        assert reads.call_count == 2


async def test_replaces_of_both_of_a_pair_in_one_batch_count_the_dearer_once(urls: Urls) -> None:
    def spec(kind: OrderKind, **price: Any) -> Spec:
        return Spec(kind=kind, quantity="10", time_in_force=TimeInForce.DAY, **price)

    def bought(price: str, stop_price: str) -> tuple[Spec, Spec]:
        return (
            spec(OrderKind.LIMIT, limit_price=price),
            spec(OrderKind.STOP, stop_price=stop_price),
        )

    async with open_in_process_writer(urls.login, urls.owner, 1) as local:
        account = local.accounts[0]
        await local.owner.execute(
            LIMIT, str(local.key), local.organization, '{"max_daily_notional": "1300000"}'
        )
        await local.owner.execute(BUDGET, local.key, local.organization)
        limited, stopped = bought("100000", "110000")
        legs = (LinkedSpec(Leg.ONE_CANCELS_OTHER, stopped),)
        create = Create(Symbol("DEAR"), OrderSide.BUY, RouteStrategy.SMART, limited, legs)
        made = await local.submit(local.command(account, create))
        assert isinstance(made, Receipt)
        limited, stopped = bought("105000", "120000")
        both = [Replace(made.legs[0].intent_id, stopped), Replace(made.intent_id, limited)]
        outcomes = await local.submit_all([local.command(account, each) for each in both])
        assert codes(outcomes) == ["recorded"] * 2
        used = "SELECT daily_notional FROM key_budgets WHERE key_id = $1"
        assert await local.owner.fetchval(used, local.key) == 1_200_000


BUDGET = """
    INSERT INTO key_budgets (key_id, organization_id, day) VALUES ($1, $2, '2026-01-01')
    ON CONFLICT DO NOTHING
"""
LIMIT = (
    "INSERT INTO trading_limits (owner_id, organization_id, rules) VALUES ($1::text::uuid, $2, $3)"
)
