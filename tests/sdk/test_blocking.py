"""The blocking client: the asynchronous one in a thread of its own, in every situation that a
program can be in."""

import asyncio
import concurrent.futures
import gc
import importlib.util
import inspect
import os
import threading
from pathlib import Path

import pytest

from tests.fork_server import run
from tests.tenants import Tenants
from tests.waiting import eventually
from trading_intents_client import (
    Account,
    OrderEvent,
    TradingClient,
    asynchronous,
    blocking,
    errors,
)
from trading_intents_client.asynchronous.orders import AsyncOrderActions
from trading_intents_client.asynchronous.pages import AsyncPages
from trading_intents_client.blocking.iterators import EventStream, Pages
from trading_intents_client.blocking.orders import OrderActions
from trading_intents_client.stream.following import AsyncEventStream

SDK = Path(__file__).parents[2] / "sdk"
GENERATED = ("account", "client", "controls", "market", "organization", "platform")
LIMIT_SECONDS = 30


def test_the_generated_classes_are_those_of_the_asynchronous_client(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("generate_blocking", SDK / "generate_blocking.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.MODULES == GENERATED
    for module in GENERATED:
        path = Path(inspect.getfile(blocking)).parent / f"{module}.py"
        assert path.read_text() == generator.generate(module), "run `make sdk`"


@pytest.mark.parametrize(
    ("kind", "wrapped"),
    [(OrderActions, AsyncOrderActions), (Pages, AsyncPages), (EventStream, AsyncEventStream)],
)
def test_what_is_written_by_hand_has_the_same_methods(kind: type, wrapped: type) -> None:
    names = {name for name in vars(wrapped) if not name.startswith("_")} - {"aclose"}
    assert names == {name for name in vars(kind) if not name.startswith("_")} - {"close"}
    for name in names:
        own = getattr(kind, name)
        other = getattr(wrapped, name)
        assert inspect.getdoc(own) == inspect.getdoc(other)
        if inspect.isfunction(own):
            assert [*inspect.signature(own).parameters.values()] == [
                *inspect.signature(other).parameters.values()
            ]


def test_every_public_method_says_what_it_does() -> None:
    kinds = [OrderActions, Pages, EventStream, TradingClient, Account]
    for kind in kinds:
        for name, member in vars(kind).items():
            if not name.startswith("_"):
                assert inspect.getdoc(member), f"{kind.__name__}.{name}"
    assert asynchronous.__doc__


async def test_it_can_be_used_inside_a_running_loop(account: Account) -> None:
    assert asyncio.get_running_loop().is_running()
    assert account.buy("AAPL", 1).wait().filled_quantity == 1


def test_threads_share_a_client(account: Account) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        placed = list(pool.map(lambda _: account.buy("AAPL", 1), range(24)))
    assert sorted(order.seq for order in placed) == list(range(1, 25))
    assert (
        len(
            {
                thread.name
                for thread in threading.enumerate()
                if thread.name == "trading-intents-client"
            }
        )
        == 1
    )


def test_it_is_made_anew_in_a_forked_child_and_the_parents_goes_on(account: Account) -> None:
    first = account.buy("AAPL", 1)
    reading, writing = os.pipe()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.wait)  # a thread that uses the loop during the fork
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, account.buy("MSFT", 2).wait().symbol.encode())
            finally:
                os._exit(0)
        os.close(writing)
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(reading, 100) == b"MSFT"
        os.close(reading)
        assert waiting.result(LIMIT_SECONDS).symbol == "AAPL"
    assert account.buy("AAPL", 1).wait().is_final
    assert [order.symbol for order in account.orders()] == ["AAPL", "MSFT", "AAPL"]


def test_grpc_is_refused_in_a_forked_child_whose_process_it_would_abort(account: Account) -> None:
    with account.events(over="grpc") as stream:
        next(stream)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(account.events(over="grpc"))
        except errors.NotConfigured:
            os.write(writing, type(next(account.events())).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reading, 100) == b"PrimedEvent", "over HTTP it can be followed"
    os.close(reading)


class InterruptedLock:
    """As if the interrupt came while the thread waits for the lock."""

    def __enter__(self) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.filterwarnings("error")
def test_an_interrupt_before_a_call_has_begun_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TradingClient("http://127.0.0.1:1", api_key="k") as client:
        with monkeypatch.context() as patch:
            patch.setattr(client._loop, "_lock", InterruptedLock())
            with pytest.raises(KeyboardInterrupt):
                client.organization.caller()
        gc.collect()  # warns of a coroutine that was never awaited


def test_an_interrupt_cancels_the_call_and_carries_the_key(
    account: Account, tenants: Tenants, api_key: str
) -> None:
    arguments = (account.id, tenants.platform.url, api_key)
    done = run(
        "tests.sdk.interrupted",
        *arguments,
        environ=os.environ,
        stdin="",
        limit_seconds=LIMIT_SECONDS,
    )
    assert done.stderr == ""
    key, threads = done.stdout.split()
    assert threads == "1", "the client was closed on the way out"
    again = account.buy("AAPL", 3, idempotency_key=key)
    assert again.is_replayed
    assert len(list(account.orders())) == 1


# As a file that is not closed, it warns.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_client_that_is_forgotten_leaves_no_thread(tenants: Tenants, api_key: str) -> None:
    before = set(threading.enumerate())
    client = TradingClient(tenants.platform.url, api_key=api_key)
    client.platform.liveness()
    (thread,) = (
        t for t in threading.enumerate() if t not in before and t.name == "trading-intents-client"
    )
    del client
    gc.collect()
    eventually(lambda: not thread.is_alive(), LIMIT_SECONDS)


def test_pages_are_read_as_they_are_needed(account: Account) -> None:
    for number in range(7):
        account.buy("ACME", number + 1, limit=1)
    orders = account.orders()
    first = orders.page(limit=3)
    assert [order.quantity for order in first.data] == [1, 2, 3]
    second = orders.page(limit=3, cursor=first.next_cursor)
    assert [order.quantity for order in second.data] == [4, 5, 6]
    assert [order.quantity for order in orders] == [1, 2, 3, 4, 5, 6, 7]
    for order in orders:
        order.cancel()
    assert {order.wait().order_status for order in orders} == {"CANCELLED"}


def test_closing_ends_what_other_threads_wait_for(
    tenants: Tenants, api_key: str, account: Account
) -> None:
    with (
        concurrent.futures.ThreadPoolExecutor(3) as pool,
        TradingClient(tenants.platform.url, api_key=api_key) as client,
    ):
        other = client.account(account.id)
        stream = other.events()
        idle = other.events()
        next(stream)
        resting = other.buy("ACME", 1, limit=1)
        assert any(
            event.order.order_status == "NEW" for event in stream if isinstance(event, OrderEvent)
        )
        reading = pool.submit(list, stream)
        unread = pool.submit(list, idle)
        waiting = pool.submit(resting.wait, "FILLED")
        stream.close()
        assert reading.result(LIMIT_SECONDS) == []
        client.close()
        for ended in (waiting, unread):
            with pytest.raises(errors.ClientClosed):
                ended.result(LIMIT_SECONDS)
    with pytest.raises(errors.ClientClosed):
        other.get()
