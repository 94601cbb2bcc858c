"""The requests that the client repeats, after how long, and under which key."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.sdk.answers import CannedAnswers, accepted, problem
from trading_intents_client import AsyncAccount, AsyncTradingClient, errors
from trading_intents_client.transport import http
from trading_intents_client.transport.retries import (
    MAX_RETRY_AFTER_SECONDS,
    Repeat,
    may_repeat,
    pause_seconds,
)

LOST = httpx.ReadError("cut")
REFUSED = httpx.ConnectError("refused")
ACCOUNT = {
    "id": "a",
    "organization_id": "o",
    "name": "n",
    "broker": "paper",
    "environment": "paper",
    "external_account_id": None,
    "disabled": False,
    "connection": "connected",
    "created_at": "2026-11-15T03:20:00.000000Z",
    "updated_at": "2026-11-15T03:20:00.000000Z",
    "closed_at": None,
    "version": 1,
}


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, without making them."""
    made: list[float] = []

    async def pause(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(f"{http.__name__}.asyncio.sleep", pause)
    return made


def account_of(client: AsyncTradingClient) -> AsyncAccount:
    return client.account("a")


REPEATED = [
    problem(429, "rate_limited", headers={"retry-after": "1"}),
    problem(503, "unavailable", headers={"retry-after": "1"}),
    REFUSED,
]
MAY_HAVE_HAPPENED = [
    LOST,
    httpx.ReadTimeout("late"),
    problem(503, "outcome_unknown"),
    httpx.Response(502, text="bad"),
]


@pytest.mark.parametrize("failure", [*REPEATED, *MAY_HAVE_HAPPENED], ids=str)
async def test_a_submit_is_asked_again_under_its_key_and_never_made_anew(failure: Any) -> None:
    answers = CannedAnswers(failure, failure, accepted())
    async with answers.client() as client:
        placed = await account_of(client).buy("AAPL", 10)
    keys = [request.headers["idempotency-key"] for request in answers.asked]
    assert keys == [placed.idempotency_key] * 3
    assert len({request.content for request in answers.asked}) == 1


@pytest.mark.parametrize("failure", [*REPEATED, *MAY_HAVE_HAPPENED], ids=str)
async def test_closing_a_position_is_as_safe_to_repeat_as_a_submit(failure: Any) -> None:
    answers = CannedAnswers(failure, accepted())
    async with answers.client() as client:
        placed = await account_of(client).close_position("BTC/USD")
    assert [request.headers["idempotency-key"] for request in answers.asked] == [
        placed.idempotency_key
    ] * 2
    assert answers.asked[0].url.raw_path == b"/v1/accounts/a/positions/BTC%2FUSD/close"


@pytest.mark.parametrize("failure", REPEATED, ids=str)
async def test_other_writes_are_repeated_when_nothing_was_carried_out(failure: Any) -> None:
    answers = CannedAnswers(failure, httpx.Response(201, json=ACCOUNT))
    async with answers.client() as client:
        assert (await client.create_account("n", "paper", "paper")).id == "a"
    assert len(answers.asked) == 2


@pytest.mark.parametrize("failure", MAY_HAVE_HAPPENED, ids=str)
@pytest.mark.parametrize("write", ["create_account", "cancel_all", "halt", "update"])
async def test_other_writes_are_not_repeated_when_they_may_have_been_carried_out(
    failure: Any, write: str
) -> None:
    answers = CannedAnswers(failure, httpx.Response(500))
    async with answers.client() as client:
        account = account_of(client)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "create_account": lambda: client.create_account("n", "paper", "paper"),
            "cancel_all": account.cancel_all,
            "halt": lambda: account.controls.halt("news"),
            "update": lambda: account.update(name="m"),
        }
        with pytest.raises(errors.TradingError) as caught:
            await calls[write]()
    assert len(answers.asked) == 1
    assert caught.value.may_be_recorded


@pytest.mark.parametrize("failure", [*REPEATED, *MAY_HAVE_HAPPENED], ids=str)
async def test_a_read_is_repeated_whatever_failed(failure: Any) -> None:
    answers = CannedAnswers(failure, httpx.Response(200, json=ACCOUNT))
    async with answers.client() as client:
        assert (await account_of(client).get()).name == "n"
    assert len(answers.asked) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 422, 500])
async def test_what_was_refused_is_not_asked_again(status: int) -> None:
    answers = CannedAnswers(problem(status, "some_code"), accepted())
    async with answers.client() as client:
        with pytest.raises(errors.TradingError):
            await account_of(client).buy("AAPL", 10)
    assert len(answers.asked) == 1


async def test_there_are_two_tries_more_and_the_error_carries_the_key() -> None:
    answers = CannedAnswers(LOST)
    async with answers.client() as client:
        with pytest.raises(errors.AnswerLost) as caught:
            await account_of(client).buy("AAPL", 10, idempotency_key="mine")
    assert len(answers.asked) == 3
    assert caught.value.idempotency_key == "mine"
    assert caught.value.may_be_recorded
    assert "mine" in str(caught.value)


async def test_a_refusal_after_a_lost_answer_says_that_the_order_may_exist() -> None:
    answers = CannedAnswers(LOST, problem(401, "unauthorized"))
    async with answers.client() as client:
        with pytest.raises(errors.Unauthorized) as caught:
            await account_of(client).buy("AAPL", 10)
    assert caught.value.may_be_recorded
    assert caught.value.idempotency_key
    answers = CannedAnswers(problem(503, "unavailable"), problem(401, "unauthorized"))
    async with answers.client() as client:
        with pytest.raises(errors.Unauthorized) as caught:
            await account_of(client).buy("AAPL", 10)
    assert not caught.value.may_be_recorded


async def test_the_number_of_retries_is_the_callers() -> None:
    answers = CannedAnswers(problem(503, "unavailable"))
    async with answers.client(max_retries=0) as client:
        with pytest.raises(errors.Unavailable):
            await account_of(client).buy("AAPL", 10)
    assert len(answers.asked) == 1


async def test_retry_after_is_waited_for_with_jitter(pauses: list[float]) -> None:
    answers = CannedAnswers(problem(429, "rate_limited", headers={"retry-after": "7"}), accepted())
    async with answers.client() as client:
        await account_of(client).buy("AAPL", 10)
    assert len(pauses) == 1
    assert 7 < pauses[0] < 8


async def test_an_unbearable_retry_after_is_left_to_the_caller(pauses: list[float]) -> None:
    answers = CannedAnswers(problem(429, "rate_limited", headers={"retry-after": "3600"}))
    async with answers.client() as client:
        with pytest.raises(errors.RateLimited) as caught:
            await account_of(client).buy("AAPL", 10)
    assert caught.value.retry_after == 3600 > MAX_RETRY_AFTER_SECONDS
    assert pauses == []


def test_pauses_grow_and_are_spread_between_callers() -> None:
    lost = errors.AnswerLost("cut")
    shortest = [pause_seconds(lost, tries, lambda: 0.0) or 0 for tries in range(1, 9)]
    longest = [pause_seconds(lost, tries, lambda: 1.0) or 0 for tries in range(1, 9)]
    assert longest == sorted(longest)
    assert longest[-1] == longest[-2] == 5
    assert all(short < long for short, long in zip(shortest, longest, strict=True))


def test_what_is_not_known_is_repeated_only_where_that_is_safe() -> None:
    unknown = errors.UnexpectedAnswer("", status=503)
    assert may_repeat(unknown, Repeat.READ)
    assert may_repeat(unknown, Repeat.KEYED)
    assert not may_repeat(unknown, Repeat.WRITE)


async def test_a_cancelled_submit_carries_the_key_under_which_it_was_sent() -> None:
    began = asyncio.Event()

    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            began.set()
            await asyncio.Event().wait()
            raise AssertionError

    async with AsyncTradingClient("http://platform", api_key="k", transport=Silent()) as client:
        task = asyncio.ensure_future(account_of(client).buy("AAPL", 10, idempotency_key="mine"))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
    assert isinstance(caught.value.__cause__, errors.Cancelled)
    assert caught.value.__cause__.idempotency_key == "mine"
