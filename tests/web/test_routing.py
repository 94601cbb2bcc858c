"""Paths, methods, request ids, errors and drain, over real HTTP."""

import asyncio
import re

import pytest

from tests.web.conftest import Anyone, Site
from trading_intents.web.operations import MAX_AGE_SECONDS
from trading_intents.web.request import Answer, Request
from trading_intents.web.routes import Operation, Route, Tag
from trading_intents.web.server.listener import bind


async def test_an_encoded_slash_stays_in_its_segment(site: Site) -> None:
    answer = await site.client.get("/v1/things/BTC%2FUSD/time")
    assert answer.json() == {"text": "BTC/USD"}


async def test_a_plain_slash_is_another_path(site: Site) -> None:
    assert (await site.client.get("/v1/things/BTC/USD/time")).status_code == 404


async def test_a_literal_segment_goes_before_a_parameter(site: Site) -> None:
    assert (await site.client.get("/v1/things/special/time")).json() == {"text": "ok"}


async def test_bytes_that_are_no_text_in_a_path_are_not_found(site: Site) -> None:
    assert (await site.client.get("/v1/things/%ff%fe/time")).status_code == 404


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/things/{}/time".format("%41" * 677), 200),
        ("/v1/things/{}/time".format("%41" * 678), 414),
        ("/v1/limited" + "/" * 2038, 414),
        ("/" + "x" * 2048, 414),
        ("/healthz?" + "%41" * 2730, 200),
        ("/healthz?" + "%41" * 2731, 414),
        ("/v1/limited?" + "&" * 8193, 414),
        ("/v1/limited?" + "a" * 60_000, 414),
        ("/" + "x" * 60_000, 414),
    ],
    ids=lambda given: str(given)[:20],
)
async def test_a_long_path_or_query_is_414_before_all_else(
    site: Site, method: str, target: str, status: int
) -> None:
    answer = await site.client.request(method, target)
    if status == 200:
        assert answer.status_code == (200 if method == "GET" else 405)
    else:
        assert (answer.status_code, answer.json()["code"]) == (414, "uri_too_long")
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize("query", ["limit=%", "limit=1%4", "%zz=1", "limit=1&a=%%41"])
async def test_a_percent_sign_that_is_no_escape_in_a_query_is_400(site: Site, query: str) -> None:
    answer = await site.client.get(f"/v1/lists/me?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_a_long_path_is_counted_and_the_connection_goes_on(site: Site) -> None:
    assert (await site.client.get("/" + "x" * 2048)).status_code == 414
    counted = (await site.client.get("/metrics")).text
    assert 'ti_http_requests_total{route="none",status="414"} 1.0' in counted
    assert "ti_http_connections 1.0" in counted


async def test_an_unknown_path_is_a_problem(site: Site) -> None:
    answer = await site.client.get("/nowhere", headers={"x-request-id": "abc.1"})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem == {
        "type": "/docs#not_found",
        "title": "Not found",
        "status": 404,
        "detail": "no such path; /docs lists the paths",
        "code": "not_found",
        "request_id": "abc.1",
    }


async def test_a_wrong_method_says_which_ones_there_are(site: Site) -> None:
    answer = await site.client.delete("/v1/orders")
    assert (answer.status_code, answer.headers["allow"]) == (405, "PUT")
    assert answer.json()["code"] == "method_not_allowed"


async def test_a_wrong_method_is_answered_with_head_wherever_get_works(site: Site) -> None:
    answer = await site.client.post("/healthz")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_head_answers_as_get_without_a_body(site: Site) -> None:
    answer = await site.client.head("/healthz")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("given", ["a", "A-z_0.9", "x" * 64])
async def test_a_good_request_id_is_kept(site: Site, given: str) -> None:
    assert (await site.client.get("/healthz", headers={"x-request-id": given})).headers[
        "x-request-id"
    ] == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "ä", "a\tb", "a,b"])
async def test_a_bad_request_id_is_replaced(site: Site, given: str) -> None:
    answer = await site.client.get("/healthz", headers={b"x-request-id": given.encode()})
    assert re.fullmatch(r"[0-9a-f]{24}", answer.headers["x-request-id"])


async def test_our_fault_is_a_problem_without_the_cause(site: Site) -> None:
    answer = await site.client.get("/v1/broken")
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal_error"
    assert "secret-marker" not in answer.text


async def test_plain_text_errors_where_the_specification_says_so(site: Site) -> None:
    refused = await site.client.get("/v1/plain")
    assert (refused.status_code, refused.text) == (401, "unauthorized")
    assert refused.headers["content-type"].startswith("text/plain")
    forbidden = await site.client.get("/v1/plain", headers={"x-name": "weak"})
    assert (forbidden.status_code, forbidden.headers["content-type"]) == (
        403,
        "text/plain; charset=utf-8",
    )
    assert (await site.client.get("/v1/plain", headers={"x-name": "ada"})).status_code == 500


def test_a_route_without_a_policy_cannot_be_registered() -> None:
    @Operation(tag=Tag.OPERATIONS)
    async def handle(request: Request) -> Answer:
        return Answer()

    with pytest.raises(TypeError, match="has no policy"):
        Route("GET", "/x", None, handle)  # type: ignore[arg-type]  # the point of the test


def test_the_same_route_twice_is_refused(site: Site) -> None:
    @Operation(tag=Tag.OPERATIONS)
    async def handle(request: Request) -> Answer:
        return Answer()

    route = Route("GET", "/x/{a}", Anyone(), handle)
    app = site.app
    with pytest.raises(ValueError, match="registered twice"):
        type(app)(
            [route, route], app._limits, app.client_address, site.clock, app.metrics, app._log
        )


async def test_a_taken_port_is_refused_in_plain_words(site: Site) -> None:
    with pytest.raises(Exception, match=f"port {site.port} .*TRADING_INTENTS_HTTP_PORT"):
        bind("127.0.0.1", site.port)


async def test_readiness_says_what_is_missing(site: Site) -> None:
    assert (await site.client.get("/readyz")).json() == {"status": "ready"}
    site.missing = "the database is away"
    site.clock.advance(MAX_AGE_SECONDS)
    answer = await site.client.get("/readyz")
    assert (answer.status_code, answer.json()["detail"]) == (503, "the database is away")
    assert answer.headers["retry-after"] == "1"
    assert (await site.client.get("/healthz")).status_code == 200


async def test_a_drain_finishes_what_runs_and_takes_nothing_new(site: Site) -> None:
    running = asyncio.create_task(site.client.get("/v1/slow"))
    await site.entered.wait()
    drained = asyncio.create_task(site.app.drain(5))
    await asyncio.sleep(0)
    refused = await site.client.get("/v1/things/A/time")
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["connection"] == "close"
    assert (await site.client.get("/healthz")).status_code == 200
    assert not drained.done()
    site.leave.set()
    assert (await running).json() == {"text": "done"}
    assert await drained


async def test_a_drain_ends_at_its_limit(site: Site) -> None:
    running = asyncio.create_task(site.client.get("/v1/slow"))
    await site.entered.wait()
    assert not await site.app.drain(0.01)
    site.leave.set()
    await running


async def test_metrics_count_requests_by_route_and_status(site: Site) -> None:
    await site.client.get("/v1/things/A/time")
    text = (await site.client.get("/metrics")).text
    assert 'ti_http_requests_total{route="/v1/things/{symbol}/time",status="200"} 1.0' in text
