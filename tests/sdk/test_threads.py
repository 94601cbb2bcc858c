"""The blocking client when threads call and close it in the same moment, and when it calls
itself."""

import threading
from collections.abc import Callable

import httpx
import pytest

from trading_intents_client import BearerCredentials, TradingClient, errors

THREADS = 6
LIMIT_SECONDS = 20
HEALTH = httpx.MockTransport(lambda _: httpx.Response(200, json={"status": "ok"}))


def run_threads(work: Callable[[], None], count: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.chaos)])
def test_a_call_in_the_moment_of_closing_ends(rounds: int) -> None:
    """It has its answer, or the error that says why it has none; it never waits for ever."""
    surprises: list[BaseException] = []
    stuck = 0
    for _ in range(rounds):
        client = TradingClient("http://platform", api_key="k", transport=HEALTH)
        client.platform.liveness()

        def call(client: TradingClient = client) -> None:
            try:
                while True:
                    client.platform.liveness()
            except errors.ClientClosed:
                return
            except BaseException as error:
                surprises.append(error)

        threads = run_threads(call, THREADS)
        closing = run_threads(client.close, 2)
        for thread in (*threads, *closing):
            thread.join(LIMIT_SECONDS)
            stuck += thread.is_alive()
        if stuck or surprises:
            break
    assert (stuck, surprises) == (0, [])


def test_a_call_from_the_clients_own_thread_is_refused_where_it_would_wait_for_itself() -> None:
    """A token's function runs there: one that uses the same client would never end."""
    clients: list[TradingClient] = []
    credentials = BearerCredentials(lambda: clients[0].platform.issue_token("i", "s").access_token)
    with TradingClient("http://platform", credentials=credentials, transport=HEALTH) as client:
        clients.append(client)
        failures: list[BaseException] = []

        def call() -> None:
            try:
                client.platform.liveness()
            except RuntimeError as error:
                failures.append(error)

        (thread,) = run_threads(call, 1)
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()
        assert "itself" in str(failures[0])
