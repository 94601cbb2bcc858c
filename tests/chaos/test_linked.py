"""Entries with exits and pairs at the paper venue, while prices jump, callers cancel, replace and
halt, and workers and PostgreSQL are killed: no pair closes more than was opened, and what nothing
protects is flagged."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

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
from tests.waiting import eventually

pytestmark = pytest.mark.slow

__all__ = ["api_settings", "server"]  # a fixture
SYMBOLS = ("AAPL", "MSFT", "NVDA")
SHORT_LIFE_SECONDS = (0.6, 1.5)
SETTLED_SECONDS = 120.0
PAUSE_SECONDS = 0.05


@dataclass
class Trader:
    """Calls chosen by chance; each is repeated while the database is away."""

    processes: WorkerProcesses
    chance: random.Random
    # Account, intent, a REPLACE's spec.
    intents: list[tuple[str, str, Body | None]] = field(default_factory=list)
    groups: int = 0

    def call(self, method: str, path: str, body: Body | None = None) -> Any:
        headers = self.processes.headers | (
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

    def jump(self, symbol: str | None = None) -> None:
        """Often over both legs of whatever works, and with sizes that fill a part."""
        bid = self.chance.randint(90, 110)
        size = self.chance.choice((2, 5, 100))
        quote = {"bid": str(bid), "ask": str(bid + 1), "bid_size": str(size), "ask_size": str(size)}
        self.call("PUT", f"/v1/paper/quotes/{symbol or self.chance.choice(SYMBOLS)}", quote)

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
            entry = limit(quantity, low)
            side = "BUY"
            more: Body = {"one_cancels_other": {"stop_price": high}}
            specs = {"one_cancels_other": stop(quantity, high)}
        else:
            entry = self.chance.choice((market(quantity), limit(quantity, middle)))
            exits = {"take_profit": {"limit_price": profit}, "stop_loss": {"stop_price": loss}}
            left_out = self.chance.choice((None, None, *exits))
            more = {"exits": {name: each for name, each in exits.items() if name != left_out}}
        body = create(entry, self.chance.choice(SYMBOLS), side, **more)
        answer = self.call("POST", f"/v1/accounts/{account}/intents", body)
        if answer.status_code in (403, 409):
            return  # halted
        assert answer.status_code == 202, answer.text
        made = answer.json()
        self.groups += 1
        self.intents.append((account, made["intent_id"], entry))
        self.intents += [(account, leg["intent_id"], specs[leg["leg"]]) for leg in made["legs"]]

    def change(self, is_cancel: bool) -> None:
        """An order that is over, or a price on the wrong side, is refused."""
        if not self.intents:
            return
        account, intent, spec = self.chance.choice(self.intents)
        body = cancel(intent)
        if not is_cancel and spec and "Market" not in spec:
            ((kind, terms),) = spec.items()
            order = self.call("GET", f"/v1/accounts/{account}/orders/{intent}").json()
            prices = {name: int(price) for name, price in terms.items() if "price" in name}
            moved = {
                name: str(price + self.chance.choice((-1, 1))) for name, price in prices.items()
            }
            body = replace(intent, {kind: terms | moved | {"quantity": order["quantity"]}})
        answer = self.call("POST", f"/v1/accounts/{account}/intents", body)
        assert answer.status_code in (202, 403, 409, 422), answer.text

    def halt(self) -> None:
        path = f"/v1/controls/accounts/{self.chance.choice(self.processes.accounts)}"
        self.call("POST", f"{path}/halt", {"reason": "by chance"})
        for _ in range(5):
            self.jump()
        self.call("POST", f"{path}/resume")

    def trade(self, steps: int) -> None:
        for step in range(steps):
            what = self.chance.choices(("open", "jump", "cancel", "replace"), (4, 8, 1, 2))[0]
            if step == steps // 2:
                self.halt()
            elif what == "open":
                self.open()
            elif what == "jump":
                self.jump()
            else:
                self.change(what == "cancel")
            time.sleep(PAUSE_SECONDS)


def until_calm(processes: WorkerProcesses) -> None:
    """Nothing is on its way, the venue and the platform agree on what works, and what is uncovered
    is flagged."""

    def is_calm() -> bool:
        processes.hurry_proofs()
        waiting = processes.tables.value(
            """
                SELECT count(*) FROM orders
                WHERE finished_at IS NULL AND order_status IN
            """
            " ('PENDING_NEW', 'UNKNOWN', 'PENDING_REPLACE', 'PENDING_CANCEL')"
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
        """
        SELECT o.order_id, o.leg, o.order_status, o.reason, o.filled_quantity, v.status, v.filled,
            v.quantity, v.is_held
        FROM paper_orders v
        FULL JOIN orders o ON o.account_id = v.account_id
            AND o.external_order_id = v.broker_order_id
        WHERE coalesce(v.filled, 0) <> coalesce(o.filled_quantity, -1)
           OR (v.status IS NOT DISTINCT FROM 'WORKING') <> (o.finished_at IS NULL)
        """
    )


def check(processes: WorkerProcesses, groups: int) -> None:
    tables = processes.tables
    linked = tables.fetch("SELECT * FROM orders WHERE linked ORDER BY create_seq")
    entries = {row["order_id"]: row for row in linked if row["leg"] is None}
    assert len(entries) == groups
    for entry in entries.values():
        legs = [row for row in linked if row["parent_order_id"] == entry["order_id"]]
        exits = [row for row in legs if row["leg"] != "one_cancels_other"]
        closed = sum(row["filled_quantity"] for row in exits)
        assert closed <= entry["filled_quantity"], legs
        assert (
            exits
            or entry["filled_quantity"] + legs[0]["filled_quantity"]
            <= entry["quantity"] + legs[0]["quantity"]
        )
        assert all(
            row["active"] == (entry["filled_quantity"] > 0)
            for row in exits
            if not row["finished_at"]
        ), legs
        works = max(
            (row["quantity"] - row["filled_quantity"] for row in exits if not row["finished_at"]),
            default=0,
        )
        is_covered = entry["finished_at"] is None or closed + works >= entry["filled_quantity"]
        assert not exits or is_covered or "unprotected" in entry["flags"], (entry, legs)
        assert not {"overfill", "resurrected"} & {
            flag for row in (entry, *legs) for flag in row["flags"]
        }, legs
    held = (
        "SELECT account_id, symbol, position FROM paper_holdings WHERE position <> 0 ORDER BY 1, 2"
    )
    ours = """
        SELECT account_id, symbol, quantity AS position FROM positions WHERE quantity <> 0
        ORDER BY 1, 2
    """
    assert tables.fetch(held) == tables.fetch(ours)
    journal = processes.journal()
    assert [intent for intent, commands in journal.items() if commands.count("SUBMIT") > 1] == []
    processes.assert_true()


# Takes more than five seconds: processes and PostgreSQL are killed and started again until four
# workers have died, and an entry is flagged five seconds after its exits are gone.
@pytest.mark.parametrize(
    ("steps", "database_kills", "seed"),
    [(90, 1, 0), *(pytest.param(800, 3, seed, marks=pytest.mark.chaos) for seed in (1, 2, 3))],
    ids=["short", "long", "long again", "long once more"],
)
def test_groups_end_true_though_everything_dies(
    server: tuple[Path, Urls],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    database_kills: int,
    seed: int,
) -> None:
    folder, urls = server
    if steps < 100:
        monkeypatch.setattr(lives, "LIFE_SECONDS", SHORT_LIFE_SECONDS)
    settings = {"EXECUTION_MAX_AGE_MILLIS": "120000"}
    with open_worker_processes(urls, tmp_path / "processes", accounts=2, **settings) as processes:
        trader = Trader(processes, seeded(f"linked {seed}"))
        for symbol in SYMBOLS:
            trader.jump(symbol)
        with processes.worker():
            until_connected(processes)
        processes.script("drop_answer", "0.05")
        processes.tables.close()  # its server is about to die
        with Restarted(processes, 2).working() as workers, ThreadPoolExecutor(1) as threads:
            killing = threads.submit(kill_postgres, folder, database_kills)
            trader.trade(steps)
            killing.result()
            eventually(lambda: workers.kills >= 4, SETTLED_SECONDS)
            until_answered(processes, "GET", f"/v1/accounts/{processes.accounts[0]}/orders")
            processes.tables = Tables(urls.owner)
            processes.heal()
            workers.over.set()
            for _ in range(10 * len(SYMBOLS)):
                trader.jump()
            until_calm(processes)
        print(
            f"\n{workers.kills} workers killed, {trader.groups} groups: "
            f"{processes.statuses(with_reason=True)}"
        )
        check(processes, trader.groups)
