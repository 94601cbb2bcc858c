"""Every series is there from the start: an increase over time sees its first event."""

import re
from pathlib import Path
from typing import get_args

import httpx

from tests.conftest import Urls
from tests.execution.worker_processes import Crew, open_crew, until_connected
from tests.intents.http_client import cancel, create, limit, market
from tests.waiting import eventually
from trading_intents.telemetry import AlertKind

MEASURED = re.compile(r"ti_outbox_(backlog|oldest)")  # gauges that a worker sets when it has looked


def series(url: str) -> set[str]:
    text = httpx.get(f"{url}/metrics", verify=False).text
    names = {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    return {name for name in names if not MEASURED.match(name)}


def use(crew: Crew) -> None:
    """Orders that are filled, cancelled and refused; requests that are wrong; a stream that is left."""
    client, account = crew.api.client, f"/v1/accounts/{crew.accounts[0]}"
    crew.submit(create(market()))
    resting = crew.submit(create(limit("1", "1")))
    eventually(lambda: crew.statuses() == {"FILLED": 1, "NEW": 1}, 10)
    crew.submit(cancel(resting))
    eventually(lambda: crew.statuses() == {"FILLED": 1, "CANCELLED": 1}, 10)
    for wrong in (cancel(resting), cancel(crew.accounts[0]), create(limit("1")) | {"more": 1}):
        assert client.post(f"{account}/intents", json=wrong, headers=crew.headers).status_code in (404, 409, 422)
    for path in ("/nowhere", account, "/v1/users/me", "/v1/accounts?limit=x"):
        assert client.get(path, headers=crew.headers if "?" in path else {}).status_code in (400, 401, 404, 405)
    with client.stream("GET", f"{account}/events", headers=crew.headers) as stream:
        assert stream.status_code == 200
        next(stream.iter_raw())


def test_what_happens_makes_no_series_that_was_not_there(urls: Urls, tmp_path: Path) -> None:
    with open_crew(urls, tmp_path, accounts=1) as crew, crew.worker() as worker:
        before = {url: series(url) for url in (crew.api.url, worker.url)}
        for kind in get_args(AlertKind):
            assert f'ti_execution_alerts_total{{kind="{kind}"}}' in before[worker.url]
        until_connected(crew)
        use(crew)
        eventually(lambda: 'ended_total{code="left",door="sse"} 1.0' in crew.api.client.get("/metrics").text, 5)
        assert [series(url) - known for url, known in before.items()] == [set(), set()]
