"""Every route with the largest inputs that it allows, in many shapes: none costs more than 5 ms of
the loop."""

import asyncio
import json
import re
import time
import types
from collections.abc import Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from tests.conftest import Urls
from tests.platform import environment
from tests.tenants import DOCUMENT, PLENTY
from tests.web.costs import MAX_SECONDS, TRIES
from tests.web.shapes import TEXTS, documents, text
from trading_intents.accounts.vault import open_vault
from trading_intents.app import (
    build_app,
    build_features,
    embedded_provider,
    open_infrastructure,
    working,
)
from trading_intents.config import load
from trading_intents.console.http import console_routes
from trading_intents.identity.service import TokenIssuer
from trading_intents.provision import apply, read_document, user_token
from trading_intents.secret import Secret
from trading_intents.telemetry import make_log
from trading_intents.web.request import (
    FORM,
    JSON,
    MAX_FORM_BYTES,
    MAX_PATH_BYTES,
    MAX_QUERY_BYTES,
    Answer,
    Headers,
    Incoming,
    PendingAnswer,
)
from trading_intents.web.routes import Route
from trading_intents.web.routing import App

HEADER_BYTES = 28 * 1024
HEADERS = (
    b"if-match",
    b"idempotency-key",
    b"last-event-id",
    b"if-none-match",
    b"authorization",
    b"x-api-key",
)
SAMPLES = 4  # of the shapes at each path, for a route; the next route gets others

pytestmark = [pytest.mark.deadline, pytest.mark.usefixtures("rare_collections")]


@dataclass
class Walk:
    """The application of a process, and callers that may do most."""

    app: App
    key: bytes
    token: bytes
    account_id: str

    def credential(self, route: Route) -> Headers:
        if "api_key" in route.policy.credentials:
            return [(b"x-api-key", self.key)]
        return [(b"authorization", b"Bearer " + self.token)] if route.policy.credentials else []

    def path(self, route: Route, **changed: str) -> bytes:
        known = {"account_id": self.account_id, "symbol": "AAPL", "file": "index.html"}
        return re.sub(
            r"{(\w+)}", lambda m: (known | changed).get(m[1], str(uuid4())), route.path
        ).encode()

    def requests(self, route: Route, number: int, samples: int) -> Iterator[tuple[str, Incoming]]:
        # A version that nothing has: what is not refused for its shape changes nothing.
        headers = [
            *self.credential(route),
            (b"if-match", b'"999"'),
            (b"content-type", route.operation.body_media),
        ]
        plain = Incoming(
            method=route.method,
            raw_path=self.path(route),
            query_string=b"",
            headers=headers,
            body=b"",
            peer="127.0.0.1",
            keep_alive=True,
        )
        texts = pick(TEXTS, number, samples)
        for shape, unit in texts.items():
            escaped = unit if unit.startswith("%") and unit.isascii() else quote(unit, safe=",.=&")
            for name in re.findall(r"{(\w+)}", route.path):
                room = MAX_PATH_BYTES - len(route.path) - 100
                changed = replace_fields(
                    plain, raw_path=self.path(route, **{name: text(escaped, room)})
                )
                yield f"{name} of {shape}", changed
            for query in (
                text(escaped, MAX_QUERY_BYTES),
                *(f"{p.name}=" for p in route.operation.parameters[:2]),
            ):
                filled = query + text(escaped, MAX_QUERY_BYTES - len(query))
                yield f"query of {shape}", replace_fields(plain, query_string=filled.encode())
            value = text(unit, HEADER_BYTES).encode("latin-1")
            for header in pick(dict.fromkeys(HEADERS), number, 2):
                others = [each for each in headers if each[0] != header]
                yield (
                    f"{header.decode()} of {shape}",
                    replace_fields(plain, headers=[*others, (header, value)]),
                )
            if route.operation.body_media is FORM:
                form = "grant_type=client_credentials&scope="
                body = (form + text(escaped, MAX_FORM_BYTES - len(form))).encode()
                yield f"form of {shape}", replace_fields(plain, body=body)
        if route.operation.body is not None and route.operation.body_media is JSON:
            for shape, document in pick(
                documents(route.operation.max_body_bytes), number, samples
            ).items():
                yield f"body of {shape}", replace_fields(plain, body=document)

    async def costs(self, routes: Sequence[Route], first: int, samples: int) -> dict[str, float]:
        """Of what costs too much, both in its turn and after all others: the machine may be slow
        for a while."""
        dear = {
            f"{route.method} {route.path}: {shape}": incoming
            for number, route in enumerate(routes, first)
            for shape, incoming in self.requests(route, number, samples)
            if await cost_seconds(self.app, incoming) >= MAX_SECONDS
        }
        again = {name: await cost_seconds(self.app, incoming) for name, incoming in dear.items()}
        return {name: cost for name, cost in again.items() if cost >= MAX_SECONDS}


def pick(shapes: dict[Any, Any], number: int, samples: int) -> dict[Any, Any]:
    return dict(
        [*shapes.items(), *shapes.items()][number * samples % len(shapes) :][
            : min(samples, len(shapes))
        ]
    )


def replace_fields(incoming: Incoming, **changes: object) -> Incoming:
    fields = {name: getattr(incoming, name) for name in Incoming.__struct_fields__}
    return Incoming(**fields | changes)


async def answer_in_steps(app: App, incoming: Incoming, steps: list[float]) -> Answer:
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    began = time.process_time()
    serving = app.prepare(incoming, answered.set_result)
    steps.append(time.process_time() - began)
    app.end(serving, await timed(app.answer(serving), steps))
    return await answered


@types.coroutine
def timed(
    work: Coroutine[Any, Any, Answer | PendingAnswer], steps: list[float]
) -> Generator[Any, None, Answer | PendingAnswer]:
    """Runs it, and notes the processor's time of each step: between two of them, the loop serves
    others."""
    while True:
        began = time.process_time()
        try:
            awaited = work.send(None)
        except StopIteration as end:
            answer: Answer | PendingAnswer = end.value
            return answer
        finally:
            steps.append(time.process_time() - began)
        yield awaited


async def cost_seconds(app: App, incoming: Incoming) -> float:
    least = 1.0
    for _ in range(TRIES):
        steps: list[float] = []
        answer = await answer_in_steps(app, incoming, steps)
        least = min(least, max(steps))
        assert answer.status < 500
        if answer.feed:
            answer.feed.close()
        if least < MAX_SECONDS:
            break
    return least


async def walk(settings_of: dict[str, str], samples: int) -> dict[str, float]:
    settings = load(settings_of)
    log = make_log("warning")
    async with (
        open_infrastructure(settings, log) as infra,
        open_vault(settings, infra.clock, log) as vault,
    ):
        features = build_features(infra, vault)
        issuer = TokenIssuer(infra.database.service, embedded_provider(infra, may_create=True))
        # As with the embedded database, which has links into the demo.
        local = console_routes(
            features.services.gates, replace(settings, database_url=Secret("")), issuer
        )
        session = [route for route in local if route.path == "/console/session"]
        app = build_app(infra, replace(features, routes=(*features.routes, *session)))
        made = await apply(infra, read_document(json.dumps(DOCUMENT).encode()))
        key = next(key.api_key for key in made.organizations[0].api_keys if key.name == "all")
        token = await user_token(infra, "acme-admin", "org_acme")
        async with infra.database.kept_warm(), working(infra, features, vault):
            walked = Walk(app, str(key).encode(), token.reveal().encode(), "")
            account = {"name": "walked", "broker": "paper", "environment": "paper"}
            create = next(r for r in app.routes if (r.method, r.path) == ("POST", "/v1/accounts"))
            headers = [*walked.credential(create), (b"content-type", JSON)]
            body = json.dumps(account).encode()
            answer = await answer_in_steps(
                app,
                Incoming(
                    method="POST",
                    raw_path=b"/v1/accounts",
                    query_string=b"",
                    headers=headers,
                    body=body,
                    peer="127.0.0.1",
                    keep_alive=True,
                ),
                [],
            )
            walked.account_id = json.loads(answer.body)["id"]
            # The caller deletes itself last.
            own = [route for route in app.routes if route.path == "/v1/users/me"]
            others = [route for route in app.routes if route not in own]
            return await walked.costs(others, 0, samples) | await walked.costs(
                own, len(others), samples
            )


@pytest.mark.parametrize("samples", [SAMPLES, pytest.param(100, marks=pytest.mark.chaos)])
def test_no_input_of_any_route_takes_the_loop_for_long(
    urls: Urls, tmp_path: Path, samples: int
) -> None:
    settings = PLENTY | {
        "DATABASE_URL": urls.login.reveal(),
        "DATABASE_OWNER_URL": urls.owner.reveal(),
        "ROLES": "api",
    }
    assert asyncio.run(walk(environment(tmp_path, settings), samples)) == {}
