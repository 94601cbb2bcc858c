"""Errors of the client when the outcome of a command is unknown, or when it was never sent."""

import asyncio

import httpx
import pytest

from tests.sdk.answers import CannedAnswers, accepted, problem
from trading_intents_client import AsyncTradingClient, BearerCredentials, TradingClient, errors

SECRET = "tip_paper_secret"  # no one's


class Silent(httpx.AsyncBaseTransport):
    """Takes every request and answers none."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError


def silent_client() -> AsyncTradingClient:
    return AsyncTradingClient("http://platform", api_key=SECRET, transport=Silent())


def key_of(error: BaseException) -> str | None:
    """The Idempotency-Key that a cancellation, or the error that it became, carries."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, errors.Cancelled):
        cause = cause.__cause__ or cause.__context__
    return cause.idempotency_key if isinstance(cause, errors.Cancelled) else None


async def test_a_time_limit_around_a_submit_is_a_timeout_that_carries_the_key() -> None:
    async with silent_client() as client:
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.05):
                await client.account("a").buy("AAPL", 10, idempotency_key="mine")
        assert key_of(caught.value) == "mine"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                client.account("a").buy("AAPL", 10, idempotency_key="mine"), 0.05
            )


async def test_a_task_group_whose_body_submits_is_cancelled_as_any_other() -> None:
    async def work() -> None:
        async with silent_client() as client, asyncio.TaskGroup():
            await client.account("a").buy("AAPL", 10)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


@pytest.mark.parametrize(
    "answer",
    [
        problem(500, "internal_error"),
        problem(500, "some_new_code"),
        httpx.Response(500, text="proxy"),
        httpx.Response(524, text="a proxy that had no answer in time"),
        httpx.Response(202, text="<html>"),
        httpx.Response(202, json={"intent": "?"}),
    ],
    ids=lambda answer: f"{answer.status_code} {answer.text[:20]}",
)
async def test_an_answer_that_leaves_the_outcome_open_says_so_and_carries_the_key(
    answer: httpx.Response,
) -> None:
    async with CannedAnswers(answer).client(max_retries=0) as client:
        with pytest.raises(errors.TradingError) as caught:
            await client.account("a").buy("AAPL", 10, idempotency_key="mine")
    assert caught.value.may_be_recorded
    assert "mine" in str(caught.value)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 422, 429])
async def test_a_refusal_leaves_nothing_open(status: int) -> None:
    async with CannedAnswers(httpx.Response(status, text="no")).client(max_retries=0) as client:
        with pytest.raises(errors.TradingError) as caught:
            await client.account("a").buy("AAPL", 10)
    assert not caught.value.may_be_recorded


@pytest.mark.parametrize("key", ["", "two\nlines", "schlüssel", "k" * 129])
async def test_an_idempotency_key_that_cannot_be_sent_is_refused_and_never_replaced(
    key: str,
) -> None:
    answers = CannedAnswers(accepted())
    async with answers.client() as client:
        with pytest.raises(
            ValueError, match="idempotency_key must be 1 to 128 printable ASCII characters"
        ):
            await client.account("a").buy("AAPL", 10, idempotency_key=key)
    assert answers.asked == []


@pytest.mark.parametrize("ending", ["\n", "\r\nx: y", "ü"])
async def test_a_credential_that_cannot_be_sent_is_refused_without_showing_it(ending: str) -> None:
    with pytest.raises(errors.NotConfigured) as caught:
        AsyncTradingClient("http://127.0.0.1:9", api_key=SECRET + ending)
    assert SECRET not in str(caught.value)
    client = AsyncTradingClient(
        "http://127.0.0.1:9", credentials=BearerCredentials(lambda: SECRET + ending)
    )
    async with client:
        with pytest.raises(errors.NotConfigured) as caught:
            await client.account("a").buy("AAPL", 10)
    assert SECRET not in str(caught.value)
    assert not caught.value.may_be_recorded


@pytest.mark.parametrize(
    "url", ["localhost:8080", "ftp://platform", "http://", "http://[::1", "http://h:99999"]
)
def test_an_invalid_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(errors.NotConfigured, match="URL"):
        TradingClient(url, api_key=SECRET)


def test_an_empty_key_is_not_replaced_by_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose own variable is not set must not trade with the key of another
    environment."""
    monkeypatch.setenv("TRADING_INTENTS_API_KEY", SECRET)
    with pytest.raises(errors.NotConfigured, match="empty"):
        TradingClient("http://platform", api_key="")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidRequest),
        (403, errors.Forbidden),
        (409, errors.Conflict),
        (422, errors.ValidationFailed),
        (429, errors.RateLimited),
        (500, errors.InternalError),
        (418, errors.UnexpectedAnswer),
        (503, errors.UnexpectedAnswer),
    ],
)
async def test_a_code_of_a_newer_server_is_of_its_statuss_class(
    status: int, kind: type[errors.TradingError]
) -> None:
    async with CannedAnswers(problem(status, "brand_new")).client(max_retries=0) as client:
        with pytest.raises(kind) as caught:
            await client.account("a").buy("AAPL", 10)
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.detail) == ("brand_new", "about brand_new")


async def test_a_proxys_retry_after_is_waited_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("trading_intents_client.transport.http.asyncio.sleep", pause)
    answers = CannedAnswers(
        httpx.Response(503, text="maintenance", headers={"retry-after": "7"}), accepted()
    )
    async with answers.client() as client:
        await client.account("a").buy("AAPL", 10)
    assert len(pauses) == 1
    assert pauses[0] > 7
