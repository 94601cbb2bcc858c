"""A run with all that trades at once: groups, REPLACEs, halts, budgets and posted quotes, while
workers and PostgreSQL are killed. One oracle judges it after each round."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.brokers.paper.venue import ORDERS
from tests.chaos.oracle import Asked, Oracle
from tests.chaos.restarts import (
    RETURN_SECONDS,
    Restarted,
    api_settings,
    kill_postgres,
    server,
    until_answered,
)
from tests.conftest import Urls
from tests.execution import worker_processes as lives
from tests.execution.worker_processes import WorkerProcesses, open_worker_processes, until_connected
from tests.intents.http_client import Body, Tables, cancel, create, limit, market, replace, stop
from tests.seeds import seeded
from tests.tenants import EVERY_PERMISSION, Headers, key
from tests.waiting import eventually

pytestmark = pytest.mark.slow

__all__ = ["api_settings", "server"]  # a fixture
SYMBOLS = ("AAPL", "MSFT", "NVDA")
QUIET = "QUIET"
BUDGETED = "BUDGETED"
LONG = "GOOD_TILL_CANCEL"
SHORT_LIFE_SECONDS = (0.6, 1.5)
SETTLED_SECONDS = 120.0
PAUSE_SECONDS = 0.05
FLAGGED_SECONDS = 20.0


@dataclass
class Trader:
    """Calls chosen by chance; each is repeated while the database is away."""

    processes: WorkerProcesses
    chance: random.Random
    oracle: Oracle
    budgeted: Body  # a key with a budget
    quotes: int = 0

    @property
    def spender(self) -> Headers:
        return {"x-api-key": self.budgeted["api_key"]}

    def call(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        headers: Headers | None = None,
    ) -> Any:
        headers = (headers or self.processes.headers) | (
            {"idempotency-key": uuid4().hex} if method == "POST" else {}
        )
        answer: Any = None

        def is_answered() -> bool:
            nonlocal answer
            client = self.processes.api.client
            answer = client.request(method, path, json=body, headers=headers, timeout=20)
            return bool(answer.status_code != 503)

        eventually(is_answered, RETURN_SECONDS)
        assert answer.status_code < 500, answer.text
        return answer

    def quote(self, symbol: str, bid: int, size: int = 100) -> None:
        """Quotes differ by their cents."""
        self.quotes += 1
        cents = self.quotes % 100
        prices = f"{bid}.{cents:02}", f"{bid + 1}.{cents:02}"
        body = {"bid": prices[0], "ask": prices[1], "bid_size": str(size), "ask_size": str(size)}
        assert self.call("PUT", f"/v1/paper/quotes/{symbol}", body).status_code == 200
        self.oracle.post(symbol, *prices)

    def jump(self, symbol: str | None = None) -> None:
        """Often over both legs of whatever works, and with sizes that fill a part."""
        symbol = symbol or self.chance.choice(SYMBOLS)
        self.quote(symbol, self.chance.randint(90, 110), self.chance.choice((2, 5, 100)))

    def open(self) -> None:
        account = self.chance.choice(self.processes.accounts)
        side = self.chance.choice(("BUY", "SELL_SHORT", "PAIR"))
        low, middle, high = (str(price) for price in sorted(self.chance.sample(range(92, 109), 3)))
        quantity = str(self.chance.randint(1, 12))
        profit, loss = (high, low) if side == "BUY" else (low, high)
        specs: dict[str, Body] = {
            "take_profit": limit(quantity, profit),
            "stop_loss": stop(quantity, loss),
        }
        if side == "PAIR":
            side = "BUY"
            more: Body = {"one_cancels_other": {"stop_price": high}}
            specs = {"": limit(quantity, low), "one_cancels_other": stop(quantity, high)}
        else:
            exits = {"take_profit": {"limit_price": profit}, "stop_loss": {"stop_price": loss}}
            left_out = self.chance.choice((None, None, *exits))
            specs.pop(left_out or "", None)
            specs[""] = self.chance.choice((market(quantity), limit(quantity, middle)))
            more = {"exits": {name: each for name, each in exits.items() if name != left_out}}
        self.create(account, self.chance.choice(SYMBOLS), side, specs, more)

    def create(
        self, account: str, symbol: str, side: str, specs: dict[str, Body], more: Body
    ) -> None:
        body = create(specs[""], symbol, side, **more)
        answer = self.call("POST", f"/v1/accounts/{account}/intents", body)
        self.oracle.check_refusal(account, answer)
        if answer.status_code == 202:
            self.oracle.accept(answer.json(), account, symbol, side, specs)

    def rest(self) -> None:
        """At a price that the market had, but not since."""
        self.quote(QUIET, 100)
        account = self.chance.choice(self.processes.accounts)
        side, price = self.chance.choice((("BUY", "95"), ("SELL_SHORT", "106")))
        self.create(account, QUIET, side, {"": limit("3", price, time_in_force=LONG)}, {})

    def spend(self) -> None:
        """With a budget, far from a market that moves."""
        account = self.chance.choice(self.processes.accounts)
        quantity = str(self.chance.randint(1, 50))
        self.quote(BUDGETED, self.chance.randint(50, 150))
        own = [each for each in self.oracle.asked.items() if each[1].symbol == BUDGETED]
        singles = [each for each in own if each[1].counted]
        if singles and self.chance.random() < 0.5:
            self.spend_more(*self.chance.choice(singles), quantity)
            return
        specs = {"": limit(quantity, str(self.chance.randint(1, 20)), time_in_force=LONG)}
        more: Body = {}
        is_pair = self.chance.random() < 0.3
        if is_pair:
            specs["one_cancels_other"] = stop(quantity, "200", time_in_force=LONG)
            more = {"one_cancels_other": {"stop_price": "200"}}
        amount = self.oracle.worth(BUDGETED, list(specs.values()))
        body = create(specs[""], BUDGETED, "BUY", **more)
        path = f"/v1/accounts/{account}/intents"
        answer = self.call("POST", path, body, self.spender)
        if account in self.oracle.halted or not self.oracle.may_spend(amount):
            assert answer.status_code == 409, (answer.text, amount, self.oracle.used)
            return
        assert answer.status_code == 202, (answer.text, amount, self.oracle.used)
        self.oracle.spend(amount)
        made = answer.json()
        self.oracle.accept(made, account, BUDGETED, "BUY", specs)
        if not is_pair:
            self.oracle.asked[made["intent_id"]].counted = amount

    def spend_more(self, intent: str, asked: Asked, quantity: str) -> None:
        """Of a version that the venue works: one that was given up is none to count from."""
        order = self.call("GET", f"/v1/accounts/{asked.account}/orders/{intent}").json()
        (terms,) = asked.specs[-1].values()
        if order["order_status"] != "NEW" or any(order[name] != terms[name] for name in terms):
            return
        spec = limit(quantity, str(self.chance.randint(1, 20)), time_in_force=LONG)
        amount = self.oracle.worth(BUDGETED, [spec])
        path = f"/v1/accounts/{asked.account}/intents"
        answer = self.call("POST", path, replace(intent, spec), self.spender)
        added = amount - asked.counted
        if answer.status_code == 202:
            assert self.oracle.may_spend(added), (amount, asked, self.oracle.used)
            assert asked.account not in self.oracle.halted
            self.oracle.spend(added)
            asked.specs.append(spec)
            asked.counted = max(asked.counted, amount)
            return
        assert answer.status_code in (409, 422), answer.text
        if "max_daily_notional" in answer.text:
            assert not self.oracle.may_spend(added), (amount, asked, self.oracle.used)

    def change(self, is_cancel: bool) -> None:
        """An order that is over, or a price on the wrong side, is refused."""
        changed = [each for each in self.oracle.asked.items() if each[1].symbol in SYMBOLS]
        if not changed:
            return
        intent, asked = self.chance.choice(changed)
        spec = asked.specs[-1]
        body = cancel(intent)
        moved: Body = {}
        if not is_cancel and "Market" not in spec:
            ((kind, terms),) = spec.items()
            order = self.call("GET", f"/v1/accounts/{asked.account}/orders/{intent}").json()
            prices = {name: int(price) for name, price in terms.items() if "price" in name}
            for name, price in prices.items():
                moved[name] = str(price + self.chance.choice((-1, 1)))
            moved = {kind: terms | moved | {"quantity": order["quantity"]}}
            body = replace(intent, moved)
        answer = self.call("POST", f"/v1/accounts/{asked.account}/intents", body)
        assert answer.status_code in (202, 409, 422), answer.text
        if answer.status_code == 202 and moved:
            assert asked.account not in self.oracle.halted
            asked.specs.append(moved)
        elif answer.status_code == 202:
            asked.is_cancelled = True

    def halt(self, account: str, **how: bool) -> None:
        path = f"/v1/controls/accounts/{account}"
        answer = self.call("POST", f"{path}/halt", {"reason": "by chance", **how})
        assert answer.status_code in (200, 202), answer.text
        self.oracle.halted.add(account)

    def resume(self, account: str) -> None:
        answer = self.call("POST", f"/v1/controls/accounts/{account}/resume")
        # Not halted any more, where the database died with the answer.
        assert answer.status_code in (200, 409), answer.text
        self.oracle.halted.discard(account)

    def flatten(self, account: str) -> None:
        """Halts the account until nothing of it is open or held. A closing order fills only by a
        quote that is young."""
        self.halt(account, close_positions=True)

        def is_done() -> bool:
            for symbol in SYMBOLS:
                self.quote(symbol, 100)
            path = f"/v1/controls/accounts/{account}/halt"
            return bool(self.call("GET", path).json()["state"] == "done")

        eventually(is_done, SETTLED_SECONDS)
        held = "SELECT count(*) FROM paper_holdings WHERE position <> 0 AND account_id::text = $1"
        assert self.processes.tables.value(held, account) == 0
        until_calm(self.processes)
        judge(self)
        self.resume(account)

    def trade(self, steps: int) -> None:
        doing = ("open", "jump", "cancel", "replace", "rest", "spend")
        halted = self.chance.choice(self.processes.accounts)
        for step in range(steps):
            what = self.chance.choices(doing, (4, 8, 1, 2, 1, 2))[0]
            if step == steps // 2:
                self.halt(halted)
            if step == steps // 2 + 8:
                self.resume(halted)
            if what in ("cancel", "replace"):
                self.change(what == "cancel")
            else:
                getattr(self, what)()
            time.sleep(PAUSE_SECONDS)
        if halted in self.oracle.halted:
            self.resume(halted)


def until_calm(processes: WorkerProcesses) -> None:
    """Nothing is on its way, and the venue and the platform agree on what works."""

    def is_calm() -> bool:
        processes.hurry_proofs()
        waiting = processes.tables.value(
            """
                SELECT count(*) FROM orders
                WHERE finished_at IS NULL AND order_status IN
                    ('PENDING_NEW', 'UNKNOWN', 'PENDING_REPLACE', 'PENDING_CANCEL')
            """
        )
        return not waiting and not processes.unfinished() and not differences(processes)

    try:
        eventually(is_calm, SETTLED_SECONDS)
    except AssertionError:
        raise AssertionError(
            f"{processes.statuses(with_reason=True)} {differences(processes)}"
        ) from None


def differences(processes: WorkerProcesses) -> list[Body]:
    """Orders that are not here as they are at the venue."""
    return processes.tables.fetch(
        f"""
        SELECT o.order_id, o.leg, o.order_status, o.reason, o.filled_quantity, v.status, v.filled,
            v.quantity, v.is_held
        FROM ({ORDERS}) v
        FULL JOIN orders o ON o.account_id = v.account_id
            AND o.external_order_id = v.broker_order_id
        WHERE coalesce(v.filled, 0) <> coalesce(o.filled_quantity, -1)
           OR (v.status IS NOT DISTINCT FROM 'WORKING') <> (o.finished_at IS NULL)
        """
    )


def judge(trader: Trader) -> None:
    """At the end of a round, when all is calm."""
    processes = trader.processes
    tables = processes.tables

    def is_true() -> bool:
        unprotected = set()
        for account in processes.accounts:
            path = f"/v1/accounts/{account}/orders?flag=unprotected"
            unprotected |= {each["order_id"] for each in trader.call("GET", path).json()["data"]}
        trader.oracle.check(tables, unprotected)
        return True

    def holds() -> bool:
        try:
            return is_true()
        except AssertionError:
            return False

    try:
        eventually(holds, FLAGGED_SECONDS)
    except AssertionError:
        is_true()  # which says what does not hold
    path = f"/v1/api-keys/{trader.budgeted['id']}/limits"
    used = trader.call("GET", path, headers=trader.spender).json()["used"]["daily_notional"]
    assert Decimal(used) == trader.oracle.used
    held = (
        "SELECT account_id, symbol, position FROM paper_holdings WHERE position <> 0 ORDER BY 1, 2"
    )
    ours = """
        SELECT account_id, symbol, quantity AS position FROM holdings WHERE quantity <> 0
        ORDER BY 1, 2
    """
    assert tables.fetch(held) == tables.fetch(ours)
    journal = processes.journal()
    assert [intent for intent, commands in journal.items() if commands.count("SUBMIT") > 1] == []
    processes.assert_true()


# Takes more than five seconds: processes and PostgreSQL are killed and started again until four
# workers have died, and an entry is flagged five seconds after its exits are gone.
@pytest.mark.parametrize(
    ("steps", "rounds", "seed"),
    [(45, 2, 0), *(pytest.param(270, 3, seed, marks=pytest.mark.chaos) for seed in (1, 2, 3))],
    ids=["short", "long", "long again", "long once more"],
)
def test_all_that_trades_at_once_ends_true_though_everything_dies(
    server: tuple[Path, Urls],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    rounds: int,
    seed: int,
) -> None:
    folder, urls = server
    if steps < 100:
        monkeypatch.setattr(lives, "LIFE_SECONDS", SHORT_LIFE_SECONDS)
    settings = {"EXECUTION_MAX_AGE_MILLIS": "120000", "PAPER_CASH": "1000000000"}
    with open_worker_processes(urls, tmp_path / "processes", accounts=2, **settings) as processes:
        trader = make_trader(processes, steps * rounds, seeded(f"model {seed}"))
        with processes.worker():
            until_connected(processes)
        for number in range(rounds):
            processes.script("drop_answer", "0.05")
            processes.tables.close()  # its server is about to die
            with Restarted(processes, 2).working() as workers, ThreadPoolExecutor(1) as threads:
                killing = threads.submit(kill_postgres, folder, 1)
                trader.trade(steps)
                killing.result()
                eventually(lambda workers=workers: workers.kills >= 2, SETTLED_SECONDS)  # type: ignore[misc]  # bound now
                until_answered(processes, "GET", f"/v1/accounts/{processes.accounts[0]}/orders")
                processes.tables = Tables(urls.owner)
                processes.heal()
                workers.over.set()
                for _ in range(5 * len(SYMBOLS)):
                    trader.jump()
                until_calm(processes)
                judge(trader)
                trader.flatten(trader.chance.choice(processes.accounts))
            print(
                f"\nround {number}: {workers.kills} workers killed, {trader.oracle.groups} groups, "
                f"{trader.oracle.used} used: {processes.statuses(with_reason=True)}"
            )


def make_trader(processes: WorkerProcesses, steps: int, chance: random.Random) -> Trader:
    """With a budget that a run about uses up."""
    most = 150 * steps
    limits = {"max_daily_notional": str(most)}
    wanted = {
        "external_id": "o",
        "api_keys": [key("budgeted", "paper", EVERY_PERMISSION) | {"limits": limits}],
    }
    (made,) = processes.api.provision({"organizations": [wanted]})["organizations"]
    (budgeted,) = made["api_keys"]
    trader = Trader(processes, chance, Oracle(Decimal(most)), budgeted)
    for symbol in SYMBOLS:
        trader.jump(symbol)
    for bid in (110, 90, 100):
        trader.quote(QUIET, bid)
    return trader
