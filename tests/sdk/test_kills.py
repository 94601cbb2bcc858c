"""A consumer of the stream misses and doubles nothing, though it and the platform are killed again
and again."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.background import working
from tests.fork_server import Fork
from tests.sdk.consumer import describe
from tests.sdk.restarts import RestartedPlatform, hurried_proofs
from tests.seeds import seeded
from tests.waiting import eventually
from trading_intents_client import (
    Account,
    ActionEvent,
    Event,
    PositionEvent,
    TradingClient,
    TradingError,
)

pytest_plugins = ("tests.started_dirs",)
pytestmark = pytest.mark.slow

LIMIT_SECONDS = 120
ORDERS_PER_KILL = 6


class Consumer:
    """The consumer's process: after each kill there is a new one."""

    def __init__(self, url: str, account_id: str, api_key: str, file: Path) -> None:
        self._arguments = (url, account_id, str(file))
        self._environ = os.environ | {"TRADING_INTENTS_API_KEY": api_key}
        self.file = file
        self.start()

    def start(self) -> None:
        self._process = Fork("tests.sdk.consumer", *self._arguments, environ=self._environ)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def kept(self) -> list[tuple[str, str]]:
        lines = self.file.read_bytes().splitlines(keepends=True) if self.file.exists() else []
        return [tuple(json.loads(line)) for line in lines if line.endswith(b"\n")]

    def has_seen(self, symbol: str) -> bool:
        return any(
            received.startswith("PositionEvent") and symbol in received
            for _, received in self.kept()
        )


def await_orders(placed: list[str], more: int) -> None:
    due = len(placed) + more
    eventually(lambda: len(placed) >= due, LIMIT_SECONDS)


@contextlib.contextmanager
def trading(account: Account) -> Iterator[list[str]]:
    """Orders without pause, asked again under their keys while the platform is away."""
    placed = list[str]()

    def trade(over: threading.Event) -> None:
        while not over.is_set():
            key = f"k{len(placed)}"
            try:
                placed.append(account.buy("AAPL", 1, idempotency_key=key).intent_id)
            except TradingError:
                over.wait(0.05)

    with working(trade):
        yield placed


# What a killed platform had claimed and leased is the next one's after five seconds.
@pytest.mark.parametrize(
    "kills", [3, pytest.param(20, marks=[pytest.mark.chaos, pytest.mark.timeout(900)])]
)
def test_a_consumer_misses_and_doubles_nothing(warm: Path, tmp_path: Path, kills: int) -> None:
    chance = seeded("consumer")
    key = json.loads((warm / "demo.json").read_text())["api_key"]
    platform_kills = [True] * ((kills + 1) // 2)
    platform = RestartedPlatform(warm, platform_kills)
    url = f"http://127.0.0.1:{platform.port}"
    hurry = hurried_proofs(warm) if kills < 10 else contextlib.nullcontext()
    with platform.running(), hurry, TradingClient(url, api_key=key, max_retries=50) as client:
        account = client.find_account("sim")
        with account.events() as stream:
            began = next(stream).cursor
        consumer = Consumer(url, account.id, key, tmp_path / "kept")
        try:
            eventually(lambda: bool(consumer.kept()), LIMIT_SECONDS)
            with trading(account) as placed:
                for number in range(kills):
                    await_orders(placed, chance.randint(1, ORDERS_PER_KILL))
                    if number % 2:
                        consumer.kill()
                        consumer.start()
                    else:
                        platform.restart()
                await_orders(placed, ORDERS_PER_KILL)
            # A kill leaves some in doubt, which end after those behind them.
            for intent_id in placed:
                account.order(intent_id).wait(timeout=LIMIT_SECONDS)
            account.buy("LAST", 1).wait(timeout=LIMIT_SECONDS)
            eventually(lambda: consumer.has_seen("LAST"), LIMIT_SECONDS)
        finally:
            consumer.kill()
        whole = read_whole(account, began)
        actions = [event.action.seq for event in whole if isinstance(event, ActionEvent)]
        assert actions == list(range(1, len(actions) + 1))
        assert len(actions) >= len(placed) + 1
    kept = consumer.kept()
    assert len({cursor for cursor, _ in kept}) == len(kept), "nothing twice"
    expected = [(event.cursor, describe(event)) for event in whole]
    # The first cursor that the consumer kept is that of `primed`, from which it gets everything.
    assert kept[1:] == expected, "nothing missed, in the same order"


def read_whole(account: Account, began: str | None) -> list[Event]:
    """The log from the beginning to the last order's position, without a break."""
    whole: list[Event] = []
    with account.events(after=began) as stream:
        for event in stream:
            whole.append(event)
            if isinstance(event, PositionEvent) and event.position.symbol == "LAST":
                break
    return whole
