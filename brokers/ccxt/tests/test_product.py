"""The whole product at each venue: a trial, a venue that is not offered, and orders while workers are
killed and the venue fails."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from simulator import Answer, SaidFault, Simulator
from stage import SYMBOL
from tests.conftest import Urls
from tests.doctor_lines import lines_of
from tests.execution.worker_processes import Mortals, until_certain, until_connected
from tests.intents.http_client import cancel, create, limit, market
from tests.platform import run_command, serving
from tests.seeds import seeded
from tests.waiting import eventually

from processes import VenueProcesses, open_venue_processes
from trading_intents.config import PREFIX
from trading_intents.testing.broker_suite import StageFault
from trading_intents_ccxt.venues import VENUES

GTC = {"time_in_force": "GOOD_TILL_CANCEL"}
IOC = {"time_in_force": "IMMEDIATE_OR_CANCEL"}
FAULT_SECONDS = 0.4
CANCEL_SECONDS = 0.5
SETTLED_SECONDS = 120.0


@pytest.mark.parametrize("venue", sorted(VENUES))
def test_a_trial_proves_the_venue(urls: Urls, tmp_path: Path, venue: str) -> None:
    with open_venue_processes(urls, tmp_path, [venue], ROLES="api,stream,worker") as processes:
        (simulator,) = processes.simulators
        simulator.book.quote(Decimal(99), Decimal(100), Decimal(1_000))
        until_connected(processes)
        environ = processes.api.environ | {
            f"{PREFIX}URL": processes.api.url,
            f"{PREFIX}API_KEY": processes.headers["x-api-key"],
        }
        (account,) = processes.accounts
        done = run_command(environ, "doctor", "--account", account, "--try", "--symbol", SYMBOL)
        lines = lines_of(done.stdout)
        assert lines["credential"] == "ok: the broker takes it\n"
        assert f"BUY 1 {SYMBOL} at 1 GOOD_TILL_CANCEL: NEW" in lines["create"], done
        assert lines["look-up"].startswith("ok: by client order id: ACCEPTED (")
        assert "the broker cannot, and nothing was sent" in lines["replace"]
        assert lines["cancel"].startswith("ok: CANCEL: CANCELLED (")
        assert simulator.credentials["api_secret"] not in done.stdout
    assert [order.state for order in simulator.book.orders] == ["cancelled"]


def test_a_venue_that_nobody_proved_is_refused_by_name(urls: Urls, tmp_path: Path) -> None:
    settings = {
        "DATABASE_URL": urls.login.reveal(),
        "DATABASE_OWNER_URL": urls.owner.reveal(),
        "CCXT_VENUES": "binance,gate",
    }
    with serving(tmp_path, **settings) as platform:
        left_out = [line for line in platform.logs if "broker left out" in line]
        assert any("gate: no simulator proves" in line for line in left_out), platform.logs
        account = {"name": "a", "broker": "ccxt_gate", "environment": "paper"}
        wanted = {"organizations": [{"external_id": "o", "accounts": [account]}]}
        done = platform.run("admin", "apply", "-", stdin=json.dumps(wanted))
        assert done.returncode != 0
        assert "ccxt_gate" in done.stderr, done


def send(processes: VenueProcesses, orders: int, seconds: float) -> list[str]:
    """BUYs and SELLs, evenly in the time; some are cancelled a moment later."""
    chance = seeded("orders")
    pause_seconds = seconds / orders
    bodies = list[dict[str, Any]]()
    for _ in range(orders):
        price = str(100 + chance.randrange(-200, 200) / 100)
        spec = chance.choice(
            (limit("2", price, **GTC), limit("2", price, **IOC), market("1", **IOC))
        )
        bodies.append(create(spec, SYMBOL, chance.choice(("BUY", "BUY", "SELL"))))
    fates = [chance.random() < 0.3 for _ in range(orders)]
    began = time.monotonic()

    def one(number: int) -> str:
        time.sleep(max(0.0, began + number * pause_seconds - time.monotonic()))
        account = processes.accounts[number % len(processes.accounts)]
        intent = processes.submit(bodies[number], account)
        if fates[number]:
            time.sleep(CANCEL_SECONDS)
            processes.try_to_submit(cancel(intent), account)
        return intent

    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(one, range(orders)))


def doubt_of(simulator: Simulator) -> Answer:
    """The venue's own "I do not know what became of it", which it may or may not have done."""
    if simulator.venue == "bybit":
        return Answer(200, {"retCode": 170007, "retMsg": "Timeout waiting for response."})
    if simulator.venue == "binance":
        text = "Timeout waiting for response from backend server. Send status unknown; execution status unknown."
        return Answer(400, {"code": -1007, "msg": text})
    text = "API endpoint request timeout (does not mean that the request was successful or failed)."
    return Answer(200, {"code": "50004", "data": [], "msg": text})


def harm(simulator: Simulator, chance: Any) -> None:
    busy = Answer(429, "{}", {"retry-after": "1"})
    simulator.faults.append(
        chance.choice(
            (
                StageFault.DROP_ANSWER,
                StageFault.LOSE_COMMAND,
                StageFault.LOSE_LOOKUP,
                StageFault.REFUSE_LOOKUP,
                SaidFault(doubt_of(simulator), is_done=True),
                SaidFault(doubt_of(simulator), is_done=False),
                SaidFault(Answer(502, "<html>502</html>"), is_done=True),
                SaidFault(busy, is_done=False),
            )
        )
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("orders", "seconds"),
    [(40, 6.0), pytest.param(1_000, 150.0, marks=pytest.mark.chaos)],
    ids=["short", "long"],
)
def test_nothing_is_lost_or_doubled_though_workers_die(
    urls: Urls, tmp_path: Path, orders: int, seconds: float
) -> None:
    with open_venue_processes(urls, tmp_path, sorted(VENUES)) as processes:
        chance = seeded("harm")
        with (
            processes.market(),
            Mortals(processes, 2).working() as workers,
            ThreadPoolExecutor(1) as threads,
        ):
            until_connected(processes)
            sending = threads.submit(send, processes, orders, seconds)
            while not sending.done():
                for simulator in processes.simulators:
                    if not simulator.faults:
                        harm(simulator, chance)
                time.sleep(FAULT_SECONDS)
            made = sending.result()
            eventually(lambda: workers.kills >= 2, SETTLED_SECONDS)
            for simulator in processes.simulators:
                simulator.faults.clear()
            workers.over.set()
            until_certain(processes, SETTLED_SECONDS, hurry=True)
            open_orders = "SELECT count(*) FROM orders WHERE finished_at IS NULL"

            def is_settled() -> bool:
                processes.hurry_proofs()
                processes.fill_all()
                return bool(processes.tables.value(open_orders) == 0)

            eventually(is_settled, SETTLED_SECONDS)
        ended = processes.statuses(with_reason=True)
        print(f"\n{workers.kills} kills: {ended}")
        assert len(made) == sum(ended.values()) == orders
        eventually(lambda: is_true(processes), SETTLED_SECONDS)
        processes.check_books()


def is_true(processes: VenueProcesses) -> bool:
    """An execution may be booked a moment after the count that ended its order."""
    try:
        processes.check_books()
    except AssertionError:
        return False
    return True
