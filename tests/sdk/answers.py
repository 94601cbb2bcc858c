"""A platform that is made of canned answers: what was asked is kept, and each try gets the next
answer."""

from collections.abc import Callable
from typing import Any

import httpx

from trading_intents_client import AsyncTradingClient

Answer = httpx.Response | Exception
ACCEPTED = {"intent_id": "01a1dd48-2166-7b29-aa0c-4afddaa7c207", "seq": 1}


def problem(status: int, code: str, **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    body = {
        "title": code,
        "status": status,
        "detail": f"about {code}",
        "code": code,
        "request_id": "r1",
    } | more
    return httpx.Response(status, json=body, headers=headers)


def accepted() -> httpx.Response:
    return httpx.Response(202, json=ACCEPTED)


class CannedAnswers:
    """`asked` are the requests, in order; after the last answer it is repeated."""

    def __init__(self, *answers: Answer | Callable[[httpx.Request], httpx.Response]) -> None:
        self.answers = list(answers)
        self.asked = list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        return answer(request)

    def client(self, **options: Any) -> AsyncTradingClient:
        settings: dict[str, Any] = {"api_key": "tip_paper_secret"} | options
        if settings.get("credentials") is not None:
            del settings["api_key"]
        return AsyncTradingClient(
            "http://platform", transport=httpx.MockTransport(self), **settings
        )
